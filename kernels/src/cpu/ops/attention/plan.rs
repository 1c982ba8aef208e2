//! How a unit is cut into rows and register tiles. Positions here count from `base`.

use std::ops::Range;

use half::f16;

use super::{AttentionShape, AttentionUnit, KvView};
use crate::cpu::ops::kv::KV_BLOCK;
use crate::cpu::ops::lanes::{LANES, Lanes};

/// A unit, checked, with everything in it proven in bounds.
pub(super) struct Plan<'a> {
    /// K of the KV head from `base` on, `[n_blocks][head_dim]` vectors of 16 positions.
    pub(super) k: &'a [[f16; LANES]],
    /// V of the KV head from `base` on, `[n_positions][head_dim / 16]` vectors.
    pub(super) v: &'a [[f16; LANES]],
    pub(super) head_dim: usize,
    /// Elements of a query row.
    pub(super) row_len: usize,
    pub(super) n_rows: usize,
    pub(super) n_tiles: usize,
    /// K blocks that some row sees.
    pub(super) n_blocks: usize,
    /// f32 from one row of scores to the next.
    pub(super) score_stride: usize,
    unit: &'a AttentionUnit,
    shape: &'a AttentionShape,
    /// Position of the first block; a multiple of 16.
    base: usize,
}

/// The scratch of a unit.
pub(super) struct Parts<'a> {
    pub(super) scores: &'a mut [f32],
    pub(super) q: &'a mut [f32],
    pub(super) out: &'a mut [f32],
    pub(super) inverse: &'a mut [f32],
}

impl<'a> Plan<'a> {
    /// `None` for a unit without rows.
    #[inline(always)]
    pub(super) fn new<L: Lanes>(
        kv: &KvView<'a>,
        shape: &'a AttentionShape,
        unit: &'a AttentionUnit,
    ) -> Option<Self> {
        let n_rows = unit.tokens.len() * unit.heads.len();
        if n_rows == 0 {
            return None;
        }
        let head_dim = kv.shape.head_dim;
        let group = shape.n_head / kv.shape.n_head_kv;
        let head_kv = unit.heads.start / group;
        let end = unit.pos0 + unit.tokens.end;
        assert!(unit.heads.end <= (head_kv + 1) * group, "heads {:?} share no KV head", unit.heads);
        assert!(end <= kv.shape.n_ctx, "{end} positions of {}", kv.shape.n_ctx);
        let base = shape.visible(unit.pos0 + unit.tokens.start).start / KV_BLOCK * KV_BLOCK;
        let n_blocks = (end - base).div_ceil(KV_BLOCK);
        let head = kv.shape.head_range(head_kv);
        let (k, _) = kv.k[head.clone()][base * head_dim..].as_chunks();
        let (v, _) = kv.v[head][base * head_dim..].as_chunks();
        Some(Self {
            k: &k[..n_blocks * head_dim],
            v: &v[..(end - base) * (head_dim / LANES)],
            head_dim,
            row_len: shape.n_head * head_dim,
            n_rows,
            n_tiles: n_rows.div_ceil(most_rows::<L>(n_rows, head_dim)),
            n_blocks,
            score_stride: n_blocks * KV_BLOCK,
            unit,
            shape,
            base,
        })
    }

    /// Rows of a register tile: tiles are as even as can be.
    #[inline(always)]
    pub(super) fn tile_rows(&self, tile: usize) -> Range<usize> {
        let least = self.n_rows / self.n_tiles;
        let longer = self.n_rows % self.n_tiles;
        let start = tile * least + tile.min(longer);
        start..start + least + usize::from(tile < longer)
    }

    /// Token and head of a row.
    #[inline(always)]
    pub(super) fn token_and_head(&self, row: usize) -> (usize, usize) {
        let n_heads = self.unit.heads.len();
        (self.unit.tokens.start + row / n_heads, self.unit.heads.start + row % n_heads)
    }

    /// Positions that a row sees, counted from `base`. Both ends grow with the row.
    #[inline(always)]
    pub(super) fn visible(&self, row: usize) -> Range<usize> {
        let (token, _) = self.token_and_head(row);
        let visible = self.shape.visible(self.unit.pos0 + token);
        visible.start - self.base..visible.end - self.base
    }

    /// Cuts the scratch; each part starts on a cache line where the rows allow it.
    #[inline(always)]
    pub(super) fn split<'s>(&self, scratch: &'s mut [f32]) -> Parts<'s> {
        let skip = scratch.as_ptr().align_offset(64).min(LANES - 1);
        let rest = &mut scratch[skip..];
        let (scores, rest) = rest.split_at_mut(self.n_rows * self.score_stride);
        let (out, rest) = rest.split_at_mut(self.n_rows * self.head_dim);
        let (q, rest) = rest.split_at_mut(self.n_rows * self.head_dim);
        Parts { scores, q, out, inverse: &mut rest[..self.n_rows] }
    }
}

/// Rows of the largest tile. Six rows by four vectors fit 32 registers as well as eight by three,
/// and leave no narrow rest where a V row is a multiple of four vectors; a unit of up to eight
/// rows is best as one tile.
#[inline(always)]
fn most_rows<L: Lanes>(n_rows: usize, head_dim: usize) -> usize {
    if L::WIDE && n_rows > L::TILE_ROWS && head_dim.is_multiple_of(4 * LANES) {
        6
    } else {
        L::TILE_ROWS
    }
}

/// K blocks, or vectors of a V row, that a tile of `n_rows` rows takes at a time: as many
/// accumulators as the registers hold beside the loaded vectors and a broadcast.
#[inline(always)]
pub(super) const fn tile_width<L: Lanes>(n_rows: usize) -> usize {
    match (L::WIDE, n_rows) {
        (true, ..=6) | (false, 1) => 4,
        (true, _) => 3,
        (false, 2) => 2,
        (false, _) => 1,
    }
}

/// Calls `$function::<L, ROWS>(...)` with the const number of rows that `$n_rows` has.
macro_rules! with_rows {
    ($n_rows:expr, $function:ident::<$lanes:ident>($($arg:expr),* $(,)?)) => {
        match $n_rows {
            1 => $function::<$lanes, 1>($($arg),*),
            2 => $function::<$lanes, 2>($($arg),*),
            3 => $function::<$lanes, 3>($($arg),*),
            4 => $function::<$lanes, 4>($($arg),*),
            5 if $lanes::TILE_ROWS >= 5 => $function::<$lanes, 5>($($arg),*),
            6 if $lanes::TILE_ROWS >= 6 => $function::<$lanes, 6>($($arg),*),
            7 if $lanes::TILE_ROWS >= 7 => $function::<$lanes, 7>($($arg),*),
            8 if $lanes::TILE_ROWS >= 8 => $function::<$lanes, 8>($($arg),*),
            n => unreachable!("a tile of {n} rows"),
        }
    };
}
pub(super) use with_rows;
