//! The GPU: the driver, loaded at run time, and typed launches of the kernels in `kernels/cuda/`.
//!
//! Nothing here needs CUDA to build, and a machine without a driver learns so from
//! [`probe`] as an error with the reason. Device memory is [`Buffer`]s; launches run in order on
//! one stream, and every length that a kernel relies on is checked before its launch.
// The driver's interface is C, and launches hand it raw parameters.
#![allow(unsafe_code)]

mod attention;
mod blas;
mod driver;
mod error;
mod fatbins;
pub mod mmq;
mod ops;
mod upload;
mod weight;

pub use attention::AttentionArgs;
pub use blas::Blas;
pub use driver::{
    Buffer, DEVICE_ALIGN, DeviceInfo, Gpu, HostBuffer, Plain, Recording, Span, probe,
};
pub use error::{CudaError, CudaResult};
pub use ops::{Gate, GemvOut, MAX_GEMV_TOKENS, OperandRef, RopeTable, RotaryArgs};
pub use upload::Uploader;
pub use weight::DeviceWeight;
