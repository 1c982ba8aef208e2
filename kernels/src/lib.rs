//! Compute: slices in, slices out.
//!
//! One canonical arithmetic holds for every CPU tier: the scalar code is the oracle, and the SIMD
//! tiers give the same bits for any batch size and any split of rows over threads
//! (`docs/KERNELS.md`). The crate knows quant types and planes; it sees no file, no model and no
//! tensor name, and it spawns no thread: the caller's pool hands it ranges of rows.

pub mod cpu;
pub mod cuda;
pub mod error;
pub mod view;

pub use cpu::Tier;
pub use error::{Error, Result};
pub use view::{OutView, PlaneRef, Weight};
