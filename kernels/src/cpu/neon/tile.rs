//! The GEMM microkernel: eight rows (lanes of two vectors) by up to four tokens.

use std::arch::aarch64::*;
use std::mem::offset_of;

use super::dot::{Dot, mmla};
use crate::cpu::activations::{TOKEN_GRANULE, TileRecord};
use crate::cpu::form::CHUNK;
use crate::cpu::kernels::{TileJob, TileOut};
use crate::cpu::mem::{Src, write};
use crate::cpu::panel::{PANEL_ROWS, PARAM_BYTES, QUANT_BYTES, record_bytes};

/// Tokens of a register tile: eight sums and eight chains, two vectors of weights, one of
/// activations.
const MAX_TOKENS: usize = 4;

/// Rows of a register tile.
const ROWS: usize = 8;

/// See [`TileFn`](crate::cpu::kernels::TileFn).
#[target_feature(enable = "neon")]
pub(super) fn tile<D: Dot>(out: &mut TileOut, job: &TileJob<'_>) {
    // What matters of a value's bits is how many products fit 16.
    match (job.form.per16, job.form.has_min, job.form.bits) {
        (false, false, 8) => panels::<D, 8, false, false>(out, job),
        (false, false, _) => panels::<D, 5, false, false>(out, job),
        (false, true, _) => panels::<D, 5, false, true>(out, job),
        (true, false, 6) => panels::<D, 6, true, false>(out, job),
        (true, false, _) => panels::<D, 5, true, false>(out, job),
        (true, true, _) => panels::<D, 5, true, true>(out, job),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn panels<D: Dot, const BITS: u32, const PER16: bool, const MIN: bool>(
    out: &mut TileOut,
    job: &TileJob<'_>,
) {
    for eight in 0..2 * PANEL_ROWS / ROWS {
        let mut first = 0;
        while first < job.n_tokens {
            let in_tile = (job.n_tokens - first).min(TOKEN_GRANULE - first % TOKEN_GRANULE);
            let n = in_tile.div_ceil(in_tile.div_ceil(MAX_TOKENS));
            match n {
                1 => run::<D, 1, BITS, PER16, MIN>(out, job, eight, first),
                2 => run::<D, 2, BITS, PER16, MIN>(out, job, eight, first),
                3 => run::<D, 3, BITS, PER16, MIN>(out, job, eight, first),
                _ => run::<D, 4, BITS, PER16, MIN>(out, job, eight, first),
            }
            first += n;
        }
    }
}

#[target_feature(enable = "neon")]
fn run<D: Dot, const T: usize, const BITS: u32, const PER16: bool, const MIN: bool>(
    out: &mut TileOut,
    job: &TileJob<'_>,
    eight: usize,
    first: usize,
) {
    let w_step = record_bytes(job.form);
    let n_chunks: usize = job.chain_lens.iter().sum();
    // SAFETY: panel and tiles hold a record for each chunk of the chains, which are visited once;
    // tokens `first..first + T` are inside one of the tiles, and a vector that begins with one of
    // them ends inside its record.
    let w = unsafe { Src::new(job.panels[eight * ROWS / PANEL_ROWS]) };
    // SAFETY: as above.
    let x = unsafe { Src::of_records(job.x) };
    let tile_start = first / TOKEN_GRANULE * n_chunks * size_of::<TileRecord>();
    let x = x.skip(tile_start + first % TOKEN_GRANULE * 4);
    let half = eight % (PANEL_ROWS / ROWS);
    let shift = job.form.offset_log2;
    let mut total = [[vdupq_n_f32(0.0); 2]; T];
    let mut pos = 0;
    for (s, &len) in job.chain_lens.iter().enumerate() {
        let mut acc = [[vdupq_n_f32(0.0); 2]; T];
        for _ in 0..len {
            let (w, x) = (w.skip(pos * w_step), x.skip(pos * size_of::<TileRecord>()));
            chunk::<D, T, BITS, PER16, MIN>(&mut acc, w, half, x, shift);
            pos += 1;
        }
        for (total, acc) in total.as_flattened_mut().iter_mut().zip(acc.as_flattened()) {
            *total = if s == 0 { *acc } else { vaddq_f32(*total, *acc) };
        }
    }
    for (y, total) in out.y[first..first + T].iter_mut().zip(total) {
        for (four, total) in total.into_iter().enumerate() {
            write(y, (eight * ROWS + four * 4) * 4, total);
        }
    }
}

/// Sums of a register tile: of each token, two vectors of four rows.
type Dots<const T: usize> = [[int32x4_t; 2]; T];

/// Integer dot products of half a chunk, added to `dots`. `w` is where eight rows' words begin in
/// the chunk's record, `x` where the first token's do.
#[inline]
#[allow(clippy::needless_range_loop)] // fours of rows index the sums and the record
#[target_feature(enable = "neon")]
fn half_chunk<D: Dot, const T: usize, const BITS: u32>(
    dots: &mut Dots<T>,
    w: Src<'_>,
    x: Src<'_>,
    half: usize,
) {
    let xv: [int8x16_t; 4] = [0, 1, 2, 3].map(|j| x.load((4 * half + j) * TOKEN_GRANULE * 4));
    for four in 0..2 {
        let wv = [0, 1, 2, 3].map(|j| w.load((4 * half + j) * PARAM_BYTES + four * 16));
        // Not a loop: the token is a constant of the instruction.
        // SAFETY: here and below, `D` is the tier of the table that this kernel stands in.
        dots[0][four] = unsafe { D::across::<BITS, 0>(dots[0][four], wv, xv) };
        if T > 1 {
            // SAFETY: as above.
            dots[1][four] = unsafe { D::across::<BITS, 1>(dots[1][four], wv, xv) };
        }
        if T > 2 {
            // SAFETY: as above.
            dots[2][four] = unsafe { D::across::<BITS, 2>(dots[2][four], wv, xv) };
        }
        if T > 3 {
            // SAFETY: as above.
            dots[3][four] = unsafe { D::across::<BITS, 3>(dots[3][four], wv, xv) };
        }
    }
}

/// The same with SMMLA, from pairs of rows and pairs of tokens.
#[inline]
#[target_feature(enable = "neon")]
fn half_chunk_pairs<const T: usize>(dots: &mut Dots<T>, w: Src<'_>, x: Src<'_>, half: usize) {
    // [pair of rows][pair of tokens]
    let mut squares = [[vdupq_n_s32(0); 2]; ROWS / 2];
    for eight in [2 * half, 2 * half + 1] {
        let words = |k4: usize| x.load::<uint32x4_t>(k4 * TOKEN_GRANULE * 4);
        let (a, b) = (words(2 * eight), words(2 * eight + 1));
        let tokens = [vzip1q_u32(a, b), vzip2q_u32(a, b)].map(|v| vreinterpretq_s8_u32(v));
        for (rows, squares) in squares.iter_mut().enumerate() {
            let wv = w.load((eight * PANEL_ROWS / 2 + rows) * 16);
            for (square, x) in squares.iter_mut().zip(tokens).take(T.div_ceil(2)) {
                // SAFETY: panels hold pairs in the SMMLA tier alone.
                *square = unsafe { mmla(*square, wv, x) };
            }
        }
    }
    for (t, dots) in dots.iter_mut().enumerate() {
        for (four, dots) in dots.iter_mut().enumerate() {
            let (a, b) = (squares[2 * four][t / 2], squares[2 * four + 1][t / 2]);
            *dots = vaddq_s32(*dots, if t % 2 == 0 { vuzp1q_s32(a, b) } else { vuzp2q_s32(a, b) });
        }
    }
}

/// Dot products of halves `from..to` of a chunk, without the values' offset; `sums` is where the
/// tokens' negated sums of these elements lie.
#[inline]
#[target_feature(enable = "neon")]
fn idot<D: Dot, const T: usize, const BITS: u32, const MIN: bool>(
    (w, rows): (Src<'_>, usize),
    x: Src<'_>,
    (from, to): (usize, usize),
    (sums, shift): (usize, u32),
) -> Dots<T> {
    let mut dots = [[vdupq_n_s32(0); 2]; T];
    if !MIN && BITS != 8 {
        for (t, dots) in dots.iter_mut().enumerate() {
            *dots = [vdupq_n_s32(x.load::<i32>(sums + t * 4) << shift); 2];
        }
    }
    for half in from..to {
        if D::PAIRS {
            half_chunk_pairs::<T>(&mut dots, w.skip(rows * ROWS / 2 * 16), x, half);
        } else {
            half_chunk::<D, T, BITS>(&mut dots, w.skip(rows * ROWS * 4), x, half);
        }
    }
    dots
}

/// Adds one chunk to the chain's accumulators.
#[inline]
#[allow(clippy::needless_range_loop)] // tokens and fours of rows index several arrays
#[target_feature(enable = "neon")]
fn chunk<D: Dot, const T: usize, const BITS: u32, const PER16: bool, const MIN: bool>(
    acc: &mut [[float32x4_t; 2]; T],
    w: Src<'_>,
    rows: usize,
    x: Src<'_>,
    shift: u32,
) {
    let token = |field: usize, t: usize| vdupq_n_f32(x.load(field + t * 4));
    let param = |four: usize, i: usize| -> float32x4_t {
        w.load(QUANT_BYTES + i * PARAM_BYTES + rows * ROWS * 4 + four * 16)
    };
    let idot = |halves, sums| idot::<D, T, BITS, MIN>((w, rows), x, halves, (sums, shift));
    let d = offset_of!(TileRecord, d);
    if PER16 {
        let sums = offset_of!(TileRecord, neg_s16);
        let (first, second) = (idot((0, 1), sums), idot((1, 2), sums + TOKEN_GRANULE * 4));
        for t in 0..T {
            for four in 0..2 {
                let v = vmulq_f32(vcvtq_f32_s32(first[t][four]), param(four, 0));
                let v = vfmaq_f32(v, vcvtq_f32_s32(second[t][four]), param(four, 1));
                acc[t][four] = vfmaq_f32(acc[t][four], v, token(d, t));
            }
        }
    } else {
        let dots = idot((0, 2), offset_of!(TileRecord, neg_s32));
        for t in 0..T {
            for four in 0..2 {
                let v = vmulq_f32(vcvtq_f32_s32(dots[t][four]), param(four, 0));
                acc[t][four] = vfmaq_f32(acc[t][four], v, token(d, t));
            }
        }
    }
    if !MIN {
        return;
    }
    // (where the sums are, which minimum they meet)
    let halves: &[(usize, usize)] = if PER16 {
        &[(offset_of!(TileRecord, ds16), 2), (offset_of!(TileRecord, ds16) + TOKEN_GRANULE * 4, 3)]
    } else {
        &[(offset_of!(TileRecord, ds), 1)]
    };
    for &(sums, i) in halves {
        for t in 0..T {
            for four in 0..2 {
                acc[t][four] = vfmaq_f32(acc[t][four], param(four, i), token(sums, t));
            }
        }
    }
}

/// A vector that begins with the last token's last word.
const _: () = assert!((CHUNK / 4 * TOKEN_GRANULE - 1) * 4 + 16 <= size_of::<TileRecord>());
