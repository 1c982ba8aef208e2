//! The container reader behind right hashes, verification, the way back, and the runtime.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tests::properties::container(data));
