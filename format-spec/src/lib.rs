//! What the bytes mean: the GGUF view, the networks that it describes, quant types, planes with
//! their index functions, and the `.mpk` container.
//!
//! The crate opens no file and spawns no thread: it takes bytes and returns values. Everything
//! that knows where a weight lies in memory is written here once; packer, kernels, runtime and
//! tests call it.
#![forbid(unsafe_code)]

pub mod container;
pub mod error;
pub mod gguf;
pub mod model;
pub mod plane;
pub mod quant;
pub mod sniff;
pub mod vocab;

pub use container::Container;
pub use error::{Error, Result};
pub use gguf::Gguf;
pub use plane::{Geometry, Layout, PlaneKind};
pub use quant::QuantType;
