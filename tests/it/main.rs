//! The one cross-crate test binary.

mod gguf;
