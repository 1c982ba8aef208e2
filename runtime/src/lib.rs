//! The runtime: a packed `.mpk` in, tokens out.
//!
//! [`Model::open`] binds the weights of a mapped container to kernels, once; a [`Session`] extends
//! one sequence of tokens and returns logits. Everything else here turns text into tokens and
//! logits into text.

pub mod error;
mod model;
pub mod report;
pub mod sampler;
pub mod stream;
pub mod template;
pub mod tokenizer;

mod backend;
mod lane;
mod loader;
mod open;
mod options;
mod outlook;
mod relay;
mod session;

pub use error::{Error, Result};
pub use kernels::cuda::{CudaError, DeviceInfo, probe as probe_gpu};
pub use open::{CudaOptions, Gemm, GpuLayers, Load, LoadOptions, LoadWatch, Model, Prefill};
pub use outlook::GpuOutlook;
pub use session::{Choice, LogitsSink, LogitsWanted, Session};
