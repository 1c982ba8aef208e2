//! Weighted values: `[rows][head_dim] += e v`.

use std::ops::Range;

use half::f16;

use super::plan::{Plan, tile_width, with_rows};
use crate::cpu::ops::lanes::{LANES, Lanes};

/// f16 of V that stay in L1 while all tiles pass over them.
const CHUNK_ELEMS: usize = 12 * 1024;

/// Adds every visible position of every row, in order of position.
#[inline(always)]
pub(super) fn weigh<L: Lanes>(l: L, plan: &Plan<'_>, out: &mut [f32], weights: &[f32]) {
    // A head longer than a chunk is taken position by position.
    let chunk = (CHUNK_ELEMS / plan.head_dim).max(1);
    let n_positions = plan.visible(plan.n_rows - 1).end;
    let mut start = 0;
    while start < n_positions {
        let end = (start + chunk).min(n_positions);
        for tile in 0..plan.n_tiles {
            weigh_rows(l, plan, out, weights, plan.tile_rows(tile), start..end);
        }
        start = end;
    }
}

/// One register tile with a chunk of positions: what all rows see goes through the tile, what is
/// before and after it row by row.
#[inline(always)]
fn weigh_rows<L: Lanes>(
    l: L,
    plan: &Plan<'_>,
    out: &mut [f32],
    weights: &[f32],
    rows: Range<usize>,
    chunk: Range<usize>,
) {
    // Both ends of the visible range grow with the row.
    let common_start = plan.visible(rows.end - 1).start;
    let common_end = plan.visible(rows.start).end.max(common_start);
    // Most chunks are seen by all rows of the tile and skip the loops over single rows.
    if chunk.start < common_start {
        for row in rows.clone() {
            let visible = plan.visible(row);
            let before = visible.start..visible.end.min(common_start);
            weigh_span::<L, 1>(l, plan, out, weights, row, intersect(&before, &chunk));
        }
    }
    let common = intersect(&(common_start..common_end), &chunk);
    with_rows!(rows.len(), weigh_span::<L>(l, plan, out, weights, rows.start, common));
    if chunk.end > common_end {
        for row in rows {
            let after = common_end..plan.visible(row).end;
            weigh_span::<L, 1>(l, plan, out, weights, row, intersect(&after, &chunk));
        }
    }
}

#[inline(always)]
fn intersect(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// Rows `first..first + ROWS` with positions `span`, all of which they see.
#[inline(always)]
fn weigh_span<L: Lanes, const ROWS: usize>(
    l: L,
    plan: &Plan<'_>,
    out: &mut [f32],
    weights: &[f32],
    first: usize,
    span: Range<usize>,
) {
    if span.is_empty() {
        return;
    }
    let widest = tile_width::<L>(ROWS);
    let n_vectors = plan.head_dim / LANES;
    let v = &plan.v[span.start * n_vectors..span.end * n_vectors];
    let out = &mut out[first * plan.head_dim..(first + ROWS) * plan.head_dim];
    let mut e = [&weights[..0]; ROWS];
    for (r, e) in e.iter_mut().enumerate() {
        *e = &weights[(first + r) * plan.score_stride..][span.start..span.end];
    }
    let mut column = 0;
    while column < n_vectors {
        let left = n_vectors - column;
        column += if widest >= 4 && left >= 4 {
            weigh_tile::<L, ROWS, 4>(l, out, e, v, n_vectors, column)
        } else if widest >= 3 && left >= 3 {
            weigh_tile::<L, ROWS, 3>(l, out, e, v, n_vectors, column)
        } else if widest >= 2 && left >= 2 {
            weigh_tile::<L, ROWS, 2>(l, out, e, v, n_vectors, column)
        } else {
            weigh_tile::<L, ROWS, 1>(l, out, e, v, n_vectors, column)
        };
    }
}

/// `ROWS` rows times `VECTORS` vectors of `head_dim` from vector `column` on; returns `VECTORS`.
///
/// `out`: `[ROWS][head_dim]`, `e`: `[ROWS][n_positions]`, `v`: `[n_positions][n_vectors]` vectors.
#[inline(always)]
fn weigh_tile<L: Lanes, const ROWS: usize, const VECTORS: usize>(
    l: L,
    out: &mut [f32],
    e: [&[f32]; ROWS],
    v: &[[f16; LANES]],
    n_vectors: usize,
    column: usize,
) -> usize {
    let n_positions = v.len() / n_vectors;
    let mut weights = e;
    for e in &mut weights {
        *e = &e[..n_positions];
    }
    let (out, _) = out.as_chunks_mut::<LANES>();
    let mut sums = [[l.zero(); VECTORS]; ROWS];
    for (row, sums) in sums.iter_mut().enumerate() {
        let out = &out[row * n_vectors + column..][..VECTORS];
        for (sum, out) in sums.iter_mut().zip(out) {
            *sum = l.load(out);
        }
    }
    for (position, v) in v.chunks_exact(n_vectors).enumerate() {
        let from = &v[column..column + VECTORS];
        let mut v = [l.zero(); VECTORS];
        for (v, from) in v.iter_mut().zip(from) {
            *v = l.load_f16(from);
        }
        for (sums, e) in sums.iter_mut().zip(&weights) {
            let e = l.splat(e[position]);
            for (sum, &v) in sums.iter_mut().zip(&v) {
                *sum = l.fma(e, v, *sum);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        let out = &mut out[row * n_vectors + column..][..VECTORS];
        for (out, &sum) in out.iter_mut().zip(sums) {
            l.store(sum, out);
        }
    }
    VECTORS
}
