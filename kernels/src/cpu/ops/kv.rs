//! The f16 KV cache of one layer: where a value lies, and how tokens are appended.
//!
//! K is `[n_head_kv][n_ctx / 16][head_dim][16]` (positions innermost, so that sixteen scores are
//! one vector), V is `[n_head_kv][n_ctx][head_dim]`. A cache starts as zeros. Stale values beyond
//! the last appended position are never used.

use std::ops::Range;

use half::f16;

use super::lanes::{LANES, Lanes};

/// Positions a K block holds.
pub const KV_BLOCK: usize = LANES;

/// Shape of one layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// KV heads.
    pub n_head_kv: usize,
    /// Elements of a head, a multiple of 16.
    pub head_dim: usize,
    /// Positions the cache can hold, a multiple of [`KV_BLOCK`].
    pub n_ctx: usize,
}

impl KvShape {
    /// The shape for at least `n_ctx` positions.
    ///
    /// # Panics
    /// If `head_dim` is zero or no multiple of 16.
    pub fn new(n_head_kv: usize, head_dim: usize, n_ctx: usize) -> Self {
        assert!(head_dim > 0 && head_dim.is_multiple_of(LANES), "head_dim {head_dim}");
        Self { n_head_kv, head_dim, n_ctx: n_ctx.next_multiple_of(KV_BLOCK) }
    }

    /// Elements of K, and of V.
    pub fn n_elems(&self) -> usize {
        self.n_head_kv * self.head_elems()
    }

    /// Elements of one head of K, and of V: heads are contiguous, so
    /// `chunks_exact_mut(head_elems())` splits a cache for several workers.
    pub fn head_elems(&self) -> usize {
        self.n_ctx * self.head_dim
    }

    /// Where a KV head lies in K, and in V.
    pub(super) fn head_range(&self, head_kv: usize) -> Range<usize> {
        let len = self.head_elems();
        head_kv * len..(head_kv + 1) * len
    }
}

#[inline(always)]
pub(super) fn append_k<L: Lanes>(
    l: L,
    k_head: &mut [f16],
    x: &[f32],
    row_stride: usize,
    head_dim: usize,
    pos0: usize,
) {
    assert!(head_dim > 0 && head_dim.is_multiple_of(LANES), "head_dim {head_dim}");
    for (token, row) in x.chunks(row_stride).enumerate() {
        let position = pos0 + token;
        let start = position / KV_BLOCK * KV_BLOCK * head_dim;
        let block = &mut k_head[start..start + KV_BLOCK * head_dim];
        let (columns, _) = block.as_chunks_mut::<KV_BLOCK>();
        let (parts, _) = row[..head_dim].as_chunks::<LANES>();
        let (column_groups, _) = columns.as_chunks_mut::<LANES>();
        for (group, part) in column_groups.iter_mut().zip(parts) {
            let mut halves = [f16::ZERO; LANES];
            l.store_f16(l.load(part), &mut halves);
            for (column, half) in group.iter_mut().zip(halves) {
                column[position % KV_BLOCK] = half;
            }
        }
    }
}

#[inline(always)]
pub(super) fn append_v<L: Lanes>(
    l: L,
    v_head: &mut [f16],
    x: &[f32],
    row_stride: usize,
    head_dim: usize,
    pos0: usize,
) {
    assert!(head_dim > 0 && head_dim.is_multiple_of(LANES), "head_dim {head_dim}");
    for (token, row) in x.chunks(row_stride).enumerate() {
        let start = (pos0 + token) * head_dim;
        let (out, _) = v_head[start..start + head_dim].as_chunks_mut::<LANES>();
        let (parts, _) = row[..head_dim].as_chunks::<LANES>();
        for (out, part) in out.iter_mut().zip(parts) {
            l.store_f16(l.load(part), out);
        }
    }
}
