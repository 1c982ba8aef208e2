//! The one cross-crate test binary.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions, this in their helpers

mod bits;
mod fuzz_replay;
mod gguf;
mod gguf_cases;
mod gguf_hostile;
mod golden_containers;
mod memory;
mod model_bits;
mod model_golden;
mod model_refusals;
mod plan;
mod template;
mod tidy;
mod variables;
mod vocab;
mod vocab_hostile;
mod way_back;
