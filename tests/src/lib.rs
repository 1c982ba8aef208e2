//! What the cross-crate tests share: generators, golden data, tolerances.

pub mod gguf_writer;
