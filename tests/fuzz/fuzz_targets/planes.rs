//! Every plane of any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tests::properties::planes(data));
