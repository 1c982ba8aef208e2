//! The runtime: a packed `.mpk` in, tokens out.

pub mod sampler;
pub mod stream;
