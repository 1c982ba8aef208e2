//! The GPU: the driver, loaded at run time, and typed launches of the kernels in `kernels/cuda/`.
//!
//! Nothing here needs CUDA to build, and a machine without a driver learns so from
//! [`probe()`] as an error with the reason. Device memory is [`Buffer`]s; launches run in order on
//! one stream, and every length that a kernel relies on is checked before its launch.
// The driver's interface is C, and launches hand it raw parameters.
#![allow(unsafe_code)]

mod any;
mod attention;
mod attention_cluster;
mod attention_wgmma;
mod blas;
mod driver;
mod error;
mod fatbins;
mod launch;
mod limits;
mod memory;
pub mod mmq;
mod moe;
mod ops;
mod probe;
mod products;
mod recording;
mod ring;
mod rope;
mod sample;
mod sm90;
mod tensor_map;
mod upload;
mod weight;

pub use attention::{AttentionArgs, FreshRows};
pub use blas::Blas;
pub use driver::Gpu;
pub use error::{CudaError, CudaResult};
pub use memory::{Buffer, DEVICE_ALIGN, HostBuffer, Plain, Span};
pub use moe::{ExpertOut, ExpertTable, MAX_EXPERTS, RoutingShape, SortedRows};
pub use ops::{Gate, OperandRef};
pub use probe::{DeviceInfo, probe};
pub use products::{GemvOut, MAX_GEMV_TOKENS};
pub use recording::Recording;
pub use ring::{RingGate, RingSource};
pub use rope::{RopeTable, RotaryArgs};
pub use sample::Chooser;
pub use sm90::{DenseMatrix, SM90_KERNELS, Sm90Kernel};
pub use upload::Uploader;
pub use weight::DeviceWeight;
