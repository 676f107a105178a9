//! Fuzzes the decoder that `dsec_fuzz::reference` calls.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dsec_fuzz::reference(bytes));
