//! What the cross-crate tests share: generators, golden data, tolerances.

pub mod gguf_writer;
pub mod packing;
pub mod properties;
pub mod tiny_model;
