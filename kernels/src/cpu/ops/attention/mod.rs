//! Attention over the f16 KV cache: one unit is a few heads of one KV head times a few tokens.
//!
//! The arithmetic of one (token, head), the same for any unit, tier and thread:
//! 1. `q' = q * scale`; `score(p) = fma over d of q'[d] * k[d][p]`, in order of `d`, from 0;
//! 2. soft cap, if any; only visible positions count: `p <= position` and, with a window,
//!    `position - p < window`;
//! 3. `e(p) = exp_neg(score(p) - max)`; the sum runs in 16 lanes (`p mod 16`), folded 8, 4, 2, 1;
//! 4. `out[d] = (fma over p of e(p) * v[p][d], in order of p, from 0) * (1 / sum)`.
//!
//! Rows (token-major: token, then head) are cut into register tiles; a tile shares each loaded K
//! and V vector. K and V are walked in chunks that stay in L1 while all tiles pass over them.
//! Positions that no row of a tile sees are skipped; those that only some rows see are computed
//! per row, so a value that a row must not see (not even `0 * inf`) never reaches its sums.

// Writing a part of the shared output is unsafe.
#![allow(unsafe_code)]

mod plan;
mod score;
mod weigh;

use std::ops::Range;

use half::f16;

use self::plan::Plan;
use super::kv::KvShape;
use super::lanes::{LANES, Lanes};
use super::math;
use crate::OutView;

/// What attention computes in one layer.
#[derive(Debug, Clone, Copy)]
pub struct AttentionShape {
    /// Query heads, a multiple of the KV heads.
    pub n_head: usize,
    /// Multiplies queries before the scores: `1 / sqrt(head_dim)` in most models.
    pub scale: f32,
    /// A position sees this many positions, itself included (at least that); `None` for all.
    pub window: Option<usize>,
    /// `score = cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
}

/// One layer's cache, read.
#[derive(Debug, Clone, Copy)]
pub struct KvView<'a> {
    /// Shape of both.
    pub shape: KvShape,
    /// K, `[n_head_kv][n_ctx / 16][head_dim][16]`.
    pub k: &'a [f16],
    /// V, `[n_head_kv][n_ctx][head_dim]`.
    pub v: &'a [f16],
}

/// A share of the work: tokens times heads.
#[derive(Debug, Clone)]
pub struct AttentionUnit {
    /// Rows of the query and output matrices.
    pub tokens: Range<usize>,
    /// Query heads, all of one KV head.
    pub heads: Range<usize>,
    /// Position of row 0 of the query matrix.
    pub pos0: usize,
}

impl AttentionShape {
    /// Positions that `position` sees.
    fn visible(&self, position: usize) -> Range<usize> {
        let start = self.window.map_or(0, |window| (position + 1).saturating_sub(window.max(1)));
        start..position + 1
    }

    /// Tokens a prefill unit should have, for `n_heads` heads a unit and `n_kv` visible positions:
    /// enough rows to reuse K and V, few enough that the scores stay in a 1 MiB L2.
    pub fn tile_tokens(&self, n_heads: usize, n_kv: usize) -> usize {
        let n_kv = self.window.map_or(n_kv, |window| n_kv.min(window + 64));
        let rows = (128 * 1024 / n_kv.max(1)).clamp(16, 96);
        (rows / n_heads.max(1)).max(1)
    }
}

/// f32 of scratch that a unit of `n_tokens * n_heads` rows needs when its last token's position is
/// below `n_kv`.
pub fn attention_scratch_len(
    kv: &KvShape,
    shape: &AttentionShape,
    n_tokens: usize,
    n_heads: usize,
    n_kv: usize,
) -> usize {
    let n_rows = n_tokens * n_heads;
    let reach = shape.window.map_or(n_kv, |window| n_kv.min(window + n_tokens + LANES));
    let n_scores = reach.next_multiple_of(LANES) + LANES;
    // One vector more, so that the parts can start on a cache line.
    n_rows * (2 * kv.head_dim + n_scores) + n_rows.next_multiple_of(LANES) + LANES
}

#[inline(always)]
pub(super) fn attention<L: Lanes>(
    l: L,
    out: &OutView<'_>,
    q: &[f32],
    kv: &KvView<'_>,
    shape: &AttentionShape,
    unit: &AttentionUnit,
    scratch: &mut [f32],
) {
    let Some(plan) = Plan::new::<L>(kv, shape, unit) else { return };
    let parts = plan.split(scratch);
    scale_queries(l, &plan, q, shape.scale, parts.q);
    score::scores(l, &plan, parts.scores, parts.q);
    for row in 0..plan.n_rows {
        let scores = &mut parts.scores[row * plan.score_stride..][..plan.score_stride];
        parts.inverse[row] = softmax(l, scores, plan.visible(row), shape.soft_cap);
    }
    parts.out.fill(0.0);
    weigh::weigh(l, &plan, parts.out, parts.scores);
    for row in 0..plan.n_rows {
        let (token, head) = plan.token_and_head(row);
        let head_dim = plan.head_dim;
        let columns = head * head_dim..(head + 1) * head_dim;
        // SAFETY: units that run at the same time share no (token, head), as `OutView` demands.
        let to = unsafe { out.token_rows(token, columns) };
        let (to, _) = to.as_chunks_mut::<LANES>();
        let (from, _) = parts.out[row * head_dim..][..head_dim].as_chunks::<LANES>();
        let inverse = l.splat(parts.inverse[row]);
        for (to, from) in to.iter_mut().zip(from) {
            l.store(l.mul(l.load(from), inverse), to);
        }
    }
}

/// Copies the unit's queries, scaled: `[n_rows][head_dim]`.
#[inline(always)]
fn scale_queries<L: Lanes>(l: L, plan: &Plan<'_>, q: &[f32], scale: f32, scaled: &mut [f32]) {
    let head_dim = plan.head_dim;
    let scale = l.splat(scale);
    for (row, scaled) in scaled.chunks_exact_mut(head_dim).enumerate() {
        let (token, head) = plan.token_and_head(row);
        let (from, _) = q[token * plan.row_len + head * head_dim..][..head_dim].as_chunks();
        let (to, _) = scaled.as_chunks_mut::<LANES>();
        for (to, from) in to.iter_mut().zip(from) {
            l.store(l.mul(l.load(from), scale), to);
        }
    }
}

/// Replaces the visible scores of a row by their exponentials; returns `1 / sum`.
#[inline(always)]
fn softmax<L: Lanes>(
    l: L,
    scores: &mut [f32],
    visible: Range<usize>,
    soft_cap: Option<f32>,
) -> f32 {
    let first = visible.start / LANES;
    let last = (visible.end - 1) / LANES;
    let (blocks, _) = scores.as_chunks_mut::<LANES>();
    let blocks = &mut blocks[first..=last];
    let lowest = l.splat(f32::NEG_INFINITY);
    // Lanes outside the range become -inf: they lose the maximum and their exponential is 0.
    let head_mask = u16::MAX << (visible.start % LANES);
    let tail_mask = u16::MAX >> (LANES - 1 - (visible.end - 1) % LANES);
    if let Some(cap) = soft_cap {
        let inv_cap = 1.0 / cap;
        for block in blocks.iter_mut() {
            l.store(math::soft_cap(l, l.load(block), cap, inv_cap), block);
        }
    }
    let last = blocks.len() - 1;
    l.store(l.select(head_mask, l.load(&blocks[0]), lowest), &mut blocks[0]);
    l.store(l.select(tail_mask, l.load(&blocks[last]), lowest), &mut blocks[last]);
    let mut largest = lowest;
    for block in blocks.iter() {
        largest = l.max(l.load(block), largest);
    }
    let largest = l.splat(l.reduce_max(largest));
    let mut sum = l.zero();
    for block in blocks.iter_mut() {
        let e = math::exp_neg(l, l.sub(l.load(block), largest));
        sum = l.add(sum, e);
        l.store(e, block);
    }
    1.0 / l.reduce_add(sum)
}
