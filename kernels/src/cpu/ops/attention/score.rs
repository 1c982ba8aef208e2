//! Scores: `[rows][positions] = q k^T`.

use half::f16;

use super::plan::{Plan, tile_width, with_rows};
use crate::cpu::ops::kv::KV_BLOCK;
use crate::cpu::ops::lanes::{LANES, Lanes};

/// f16 of K that stay in L1 while all tiles pass over them.
const CHUNK_ELEMS: usize = 12 * 1024;

/// Fills the scores of every block that a row sees.
#[inline(always)]
pub(super) fn scores<L: Lanes>(l: L, plan: &Plan<'_>, scores: &mut [f32], q: &[f32]) {
    let chunk_blocks = (CHUNK_ELEMS / (KV_BLOCK * plan.head_dim)).clamp(3, 12);
    let mut start = 0;
    while start < plan.n_blocks {
        let end = (start + chunk_blocks).min(plan.n_blocks);
        for tile in 0..plan.n_tiles {
            let rows = plan.tile_rows(tile);
            let seen_start = plan.visible(rows.start).start / KV_BLOCK;
            let seen_end = plan.visible(rows.end - 1).end.div_ceil(KV_BLOCK);
            let (from, to) = (start.max(seen_start), end.min(seen_end));
            if from >= to {
                continue;
            }
            let q = &q[rows.start * plan.head_dim..rows.end * plan.head_dim];
            let scores = &mut scores[rows.start * plan.score_stride..rows.end * plan.score_stride];
            with_rows!(rows.len(), score_blocks::<L>(l, plan, scores, q, from, to));
        }
        start = end;
    }
}

/// Scores of one tile with blocks `from..to`.
#[inline(always)]
fn score_blocks<L: Lanes, const ROWS: usize>(
    l: L,
    plan: &Plan<'_>,
    scores: &mut [f32],
    q: &[f32],
    from: usize,
    to: usize,
) {
    let widest = tile_width::<L>(ROWS);
    let head_dim = plan.head_dim;
    let mut rows = [&q[..head_dim]; ROWS];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &q[r * head_dim..(r + 1) * head_dim];
    }
    let mut block = from;
    while block < to {
        let left = to - block;
        let k = &plan.k[block * head_dim..];
        let out = &mut scores[block * KV_BLOCK..];
        let stride = plan.score_stride;
        block += if widest >= 4 && left >= 4 {
            score_tile::<L, ROWS, 4>(l, out, stride, rows, k)
        } else if widest >= 3 && left >= 3 {
            score_tile::<L, ROWS, 3>(l, out, stride, rows, k)
        } else if widest >= 2 && left >= 2 {
            score_tile::<L, ROWS, 2>(l, out, stride, rows, k)
        } else {
            score_tile::<L, ROWS, 1>(l, out, stride, rows, k)
        };
    }
}

/// `ROWS` rows times `BLOCKS` blocks; returns `BLOCKS`.
///
/// `out`: `[ROWS]` rows of `stride`, `q`: `[ROWS][head_dim]`, `k`: `[BLOCKS][head_dim]` vectors.
#[inline(always)]
fn score_tile<L: Lanes, const ROWS: usize, const BLOCKS: usize>(
    l: L,
    out: &mut [f32],
    stride: usize,
    q: [&[f32]; ROWS],
    k: &[[f16; LANES]],
) -> usize {
    let head_dim = q[0].len();
    let mut rows = q;
    for row in &mut rows {
        *row = &row[..head_dim];
    }
    let mut blocks = [&k[..head_dim]; BLOCKS];
    for (b, block) in blocks.iter_mut().enumerate() {
        *block = &k[b * head_dim..(b + 1) * head_dim];
    }
    let mut sums = [[l.zero(); BLOCKS]; ROWS];
    for d in 0..head_dim {
        let mut k = [l.zero(); BLOCKS];
        for (k, block) in k.iter_mut().zip(&blocks) {
            *k = l.load_f16(&block[d]);
        }
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let q = l.splat(row[d]);
            for (sum, &k) in sums.iter_mut().zip(&k) {
                *sum = l.fma(q, k, *sum);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        let (out, _) = out[row * stride..][..BLOCKS * LANES].as_chunks_mut::<LANES>();
        for (out, &sum) in out.iter_mut().zip(sums) {
            l.store(sum, out);
        }
    }
    BLOCKS
}
