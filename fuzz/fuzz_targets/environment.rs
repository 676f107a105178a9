//! Fuzzes the decoder that `dsec_fuzz::environment` calls.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dsec_fuzz::environment(bytes));
