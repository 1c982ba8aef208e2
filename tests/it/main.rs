//! The one cross-crate test binary.

mod gguf;
mod gguf_cases;
mod gguf_hostile;
mod memory;
mod template;
mod vocab;
