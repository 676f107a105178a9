//! Fuzzes the decoder that `dsec_fuzz::extents` calls.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dsec_fuzz::extents(bytes));
