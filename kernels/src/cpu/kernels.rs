//! The table of one quant type in one SIMD tier.

use super::activations::{DotRow, TileRecord};
use super::form::{Form, N_CHAINS};
use super::panel::InterleaveFn;
use super::scalar::unpack::UnpackFn;
use crate::view::Weight;

/// Rows that a tile kernel computes: two panels.
pub(crate) const TILE_ROWS: usize = 32;

/// Outputs of a tile kernel, one line of rows a token.
pub(crate) type TileOut = [[f32; TILE_ROWS]; super::activations::TOKEN_GRANULE];

/// `y[i]` = row `row + i` of the weight times one token.
pub(crate) type GemvFn = unsafe fn(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>);

/// Two panels times `n_tokens` tokens, from `first_token` on, of one tile.
pub(crate) type TileFn = unsafe fn(out: &mut TileOut, job: &TileJob<'_>);

/// Operands of a tile kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileJob<'a> {
    pub(crate) form: Form,
    /// The panels' records, chain by chain; the second may be the first again.
    pub(crate) panels: [&'a [u8]; 2],
    /// The tile's records, chain by chain.
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
