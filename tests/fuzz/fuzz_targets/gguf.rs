//! The GGUF reader, and packing and unpacking what it accepts.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tests::properties::gguf(data));
