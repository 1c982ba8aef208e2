//! CPU kernels by instruction-set tier: scalar (the oracle), AVX2, AVX-512.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod form;
mod kernels;
mod matmul;
#[cfg(target_arch = "x86_64")]
mod mem;
pub mod ops;
mod panel;
pub mod probe;
pub(crate) mod scalar;
pub(crate) mod stride;
pub(crate) mod units;

pub use activations::{Activations, GEMV_MAX_TOKENS, SharedActivations, TOKEN_GRANULE};
pub use matmul::{Explain, Label, Launches, Matmul, MatmulOptions, ROW_GRANULE, Scratch};

use crate::{Error, Result};

/// An instruction-set tier. Kernel tables are chosen by it once, at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Plain Rust; runs everywhere and defines the results.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and VNNI, on top of the AVX2 tier.
    Avx512,
}

impl Tier {
    /// Every tier, slowest first.
    pub const ALL: &'static [Self] = &[Self::Scalar, Self::Avx2, Self::Avx512];

    /// The fastest tier of this machine.
    pub fn detect() -> Self {
        let mut best = Self::Scalar;
        for &tier in Self::ALL {
            if tier.available() {
                best = tier;
            }
        }
        best
    }

    /// Whether this machine has the tier's instructions.
    pub fn available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Avx2 => has_avx2(),
            Self::Avx512 => has_avx512(),
        }
    }

    /// `self` if this machine has it.
    ///
    /// # Errors
    /// [`Error::TierUnavailable`] otherwise.
    pub fn require(self) -> Result<Self> {
        if self.available() {
            return Ok(self);
        }
        Err(Error::TierUnavailable { tier: self.name(), best: Self::detect().name() })
    }

    /// The name that [`parse`](Self::parse) takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// The tier of this name.
    ///
    /// # Errors
    /// [`Error::UnknownTier`] if there is none.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|tier| tier.name() == name)
            .ok_or_else(|| Error::UnknownTier { name: name.to_owned() })
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_detection_is_available() {
        for &tier in Tier::ALL {
            assert_eq!(Tier::parse(tier.name()), Ok(tier));
        }
        assert!(Tier::parse("sse9").is_err());
        assert!(Tier::detect().require().is_ok());
    }
}
