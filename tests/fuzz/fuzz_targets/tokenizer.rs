//! Tokenizer tables: built from any strings, and read from any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tests::properties::tokenizer(data));
