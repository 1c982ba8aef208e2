//! The table of one quant type in one SIMD tier.

use super::activations::{DotRow, TileRecord};
use super::form::{Form, N_CHAINS};
use super::panel::InterleaveFn;
use super::scalar::unpack::UnpackFn;
use crate::view::Weight;

/// Rows that a tile kernel computes: two panels.
pub(crate) const TILE_ROWS: usize = 32;

/// Tokens that a tile kernel computes in one call: some tiles, so that a stretch of a panel stays in
/// the first-level cache for all of them.
pub(crate) const TILE_TOKENS: usize = 4 * super::activations::TOKEN_GRANULE;

/// Outputs of a tile kernel, one line of rows a token.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct TileOut {
    pub(crate) y: [[f32; TILE_ROWS]; TILE_TOKENS],
    /// The chain at work, where it is interrupted.
    pub(crate) chain: [[f32; TILE_ROWS]; TILE_TOKENS],
}

impl TileOut {
    pub(crate) const ZERO: Self =
        Self { y: [[0.0; TILE_ROWS]; TILE_TOKENS], chain: [[0.0; TILE_ROWS]; TILE_TOKENS] };
}

/// `y[i]` = row `row + i` of the weight times one token.
pub(crate) type GemvFn = unsafe fn(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>);

/// Two panels times up to [`TILE_TOKENS`] tokens.
pub(crate) type TileFn = unsafe fn(out: &mut TileOut, job: &TileJob<'_>);

/// Operands of a tile kernel.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
pub(crate) struct TileJob<'a> {
    pub(crate) form: Form,
    /// The panels' records, chain by chain; the second may be the first again.
    pub(crate) panels: [&'a [u8]; 2],
    /// The tiles, one after the other; each its records chain by chain.
    pub(crate) x: &'a [TileRecord],
    pub(crate) n_tokens: usize,
    /// Chunks of each chain.
    pub(crate) chain_lens: [usize; N_CHAINS],
}

/// The kernels of one quant type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernels {
    pub(crate) gemv: GemvFn,
    pub(crate) gemv_name: &'static str,
    pub(crate) unpack: UnpackFn,
    pub(crate) interleave: InterleaveFn,
    pub(crate) tile: TileFn,
    pub(crate) gemm_name: &'static str,
}
