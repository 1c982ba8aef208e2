//! The GPU: which kernels of `kernels/cuda/` there are, and how they are launched.

pub mod mmq;
