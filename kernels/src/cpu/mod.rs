//! CPU kernels by instruction-set tier: scalar (the oracle), AVX2, AVX-VNNI and AVX-512; NEON, with SDOT and
//! with SMMLA.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod form;
mod kernels;
mod matmul;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod mem;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod ops;
mod panel;
pub mod probe;
pub(crate) mod scalar;
pub(crate) mod stride;
mod tables;
pub(crate) mod units;

pub use activations::{Activations, GEMV_MAX_TOKENS, SharedActivations, TOKEN_GRANULE};
pub use matmul::{Explain, Label, Launches, Matmul, MatmulOptions, ROW_GRANULE, Scratch};

use crate::{Error, Result};
use tables::Tables;

/// Asks for the cache lines of some memory, if the machine has an instruction for it. The address may be anything.
pub fn prefetch(at: *const u8, n_bytes: usize) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    mem::prefetch(at, n_bytes);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (at, n_bytes);
}

/// An instruction-set tier. Kernel tables are chosen by it once, at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Plain Rust; runs everywhere and defines the results.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-VNNI (dot products in 32-byte vectors), on top of the AVX2 tier.
    AvxVnni,
    /// AVX-512 F, BW, VL and VNNI, on top of the AVX2 tier.
    Avx512,
    /// NEON as every 64-bit ARM has it.
    Neon,
    /// SDOT, on top of NEON.
    DotProd,
    /// SMMLA, on top of SDOT.
    I8mm,
}

impl Tier {
    /// Every tier, those of one machine slowest first.
    pub const ALL: &'static [Self] = &[
        Self::Scalar,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Neon,
        Self::DotProd,
        Self::I8mm,
    ];

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
        self.tables().is_some_and(|tables| (tables.available)())
    }

    /// `self` if this machine has it.
    ///
    /// # Errors
    /// [`Error::TierUnavailable`] otherwise.
    pub fn require(self) -> Result<Self> {
        self.require_tables().map(|_| self)
    }

    /// The functions of this tier, if this machine can run them.
    pub(crate) fn require_tables(self) -> Result<&'static Tables> {
        self.tables().filter(|tables| (tables.available)()).ok_or_else(|| Error::TierUnavailable {
            tier: self.name(),
            best: Self::detect().name(),
        })
    }

    /// The functions of this tier, if it is one of this architecture.
    fn tables(self) -> Option<&'static Tables> {
        match self {
            Self::Scalar => Some(&scalar::TABLES),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Some(&avx2::TABLES),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Some(&avx2::VNNI_TABLES),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Some(&avx512::TABLES),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => Some(&neon::TABLES),
            #[cfg(target_arch = "aarch64")]
            Self::DotProd => Some(&neon::DOTPROD_TABLES),
            #[cfg(target_arch = "aarch64")]
            Self::I8mm => Some(&neon::I8MM_TABLES),
            _ => None,
        }
    }

    /// The name that [`parse`](Self::parse) takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avxvnni",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
            Self::DotProd => "dotprod",
            Self::I8mm => "i8mm",
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
