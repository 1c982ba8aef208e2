//! The GEMM microkernel: 16 rows (lanes of two vectors) by a few tokens.

use std::arch::x86_64::*;
use std::mem::offset_of;

use super::vnni::dpbusd;
use crate::cpu::activations::{TOKEN_GRANULE, TileRecord};
use crate::cpu::kernels::{TileJob, TileOut};
use crate::cpu::mem::{Src, write};
use crate::cpu::panel::{PANEL_ROWS, PARAM_BYTES, QUANT_BYTES, record_bytes};

/// Tokens of a register tile: eight sums in i16, two vectors of weights, one of activations.
const MAX_TOKENS: usize = 4;

/// See [`TileFn`](crate::cpu::kernels::TileFn).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile<const VNNI: bool>(out: &mut TileOut, job: &TileJob<'_>) {
    // How many quads of elements fit an i16: 2 * 127 * (2^bits - 1) each.
    match (job.form.per16, job.form.has_min, job.form.bits) {
        (false, false, 8) => panels::<VNNI, 0, false, false>(out, job),
        (false, false, 4) => panels::<VNNI, 8, false, false>(out, job),
        (false, false, _) => panels::<VNNI, 4, false, false>(out, job),
        (false, true, 4) => panels::<VNNI, 8, false, true>(out, job),
        (false, true, _) => panels::<VNNI, 4, false, true>(out, job),
        (true, false, 6) => panels::<VNNI, 2, true, false>(out, job),
        (true, false, _) => panels::<VNNI, 4, true, false>(out, job),
        (true, true, _) => panels::<VNNI, 4, true, true>(out, job),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn panels<const VNNI: bool, const QUADS: usize, const PER16: bool, const MIN: bool>(
    out: &mut TileOut,
    job: &TileJob<'_>,
) {
    for panel in 0..2 {
        let mut first = 0;
        while first < job.n_tokens {
            let in_tile = (job.n_tokens - first).min(TOKEN_GRANULE - first % TOKEN_GRANULE);
            let n = in_tile.div_ceil(in_tile.div_ceil(MAX_TOKENS));
            match n {
                1 => run::<VNNI, 1, QUADS, PER16, MIN>(out, job, panel, first),
                2 => run::<VNNI, 2, QUADS, PER16, MIN>(out, job, panel, first),
                3 => run::<VNNI, 3, QUADS, PER16, MIN>(out, job, panel, first),
                _ => run::<VNNI, 4, QUADS, PER16, MIN>(out, job, panel, first),
            }
            first += n;
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run<const VNNI: bool, const T: usize, const QUADS: usize, const PER16: bool, const MIN: bool>(
    out: &mut TileOut,
    job: &TileJob<'_>,
    panel: usize,
    first: usize,
) {
    let w_step = record_bytes(job.form);
    let n_chunks: usize = job.chain_lens.iter().sum();
    // SAFETY: panel and tiles hold a record for each chunk of the chains, which are visited once;
    // tokens `first..first + T` are inside one of the tiles.
    let w = unsafe { Src::new(job.panels[panel]) };
    // SAFETY: as above.
    let x = unsafe { Src::of_records(job.x) };
    let tile_start = first / TOKEN_GRANULE * n_chunks * size_of::<TileRecord>();
    let x = x.skip(tile_start + first % TOKEN_GRANULE * 4);
    let shift = _mm_cvtsi32_si128(job.form.offset_log2 as i32);
    let mut total = [[_mm256_setzero_ps(); 2]; T];
    let mut pos = 0;
    for (s, &len) in job.chain_lens.iter().enumerate() {
        let mut acc = [[_mm256_setzero_ps(); 2]; T];
        for _ in 0..len {
            let (w, x) = (w.skip(pos * w_step), x.skip(pos * size_of::<TileRecord>()));
            chunk::<VNNI, T, QUADS, PER16, MIN>(&mut acc, w, x, shift);
            pos += 1;
        }
        for (total, acc) in total.iter_mut().zip(acc) {
            for (total, acc) in total.iter_mut().zip(acc) {
                *total = if s == 0 { acc } else { _mm256_add_ps(*total, acc) };
            }
        }
    }
    for (y, total) in out.y[first..first + T].iter_mut().zip(total) {
        for (half, total) in total.into_iter().enumerate() {
            write(y, (panel * PANEL_ROWS + half * 8) * 4, total);
        }
    }
}

/// Integer dot products of quads `FROM..TO` of a chunk, without the values' offset; `sums` is where
/// the tokens' negated sums of these elements lie.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn idot<
    const VNNI: bool,
    const T: usize,
    const QUADS: usize,
    const MIN: bool,
    const FROM: usize,
    const TO: usize,
>(
    w: Src<'_>,
    x: Src<'_>,
    sums: usize,
    shift: __m128i,
) -> [[__m256i; 2]; T] {
    let ones = _mm256_set1_epi16(1);
    let mut dots = [[_mm256_setzero_si256(); 2]; T];
    if !MIN && (VNNI || QUADS > 0) {
        for (t, dots) in dots.iter_mut().enumerate() {
            *dots = [_mm256_sll_epi32(_mm256_set1_epi32(x.load(sums + t * 4)), shift); 2];
        }
    }
    if VNNI {
        for k4 in FROM..TO {
            let wv: [__m256i; 2] = [w.load(k4 * PARAM_BYTES), w.load(k4 * PARAM_BYTES + 32)];
            for (t, dots) in dots.iter_mut().enumerate() {
                let xv = _mm256_set1_epi32(x.load((k4 * TOKEN_GRANULE + t) * 4));
                for (dots, wv) in dots.iter_mut().zip(wv) {
                    // SAFETY: the constant is true in the AVX-VNNI tier's kernels alone.
                    *dots = unsafe { dpbusd(*dots, wv, xv) };
                }
            }
        }
        return dots;
    }
    let step = if QUADS == 0 { 1 } else { QUADS };
    let mut k4 = FROM;
    while k4 < TO {
        let mut pairs = [[_mm256_setzero_si256(); 2]; T];
        for k4 in k4..k4 + step {
            let mut wv: [__m256i; 2] = [w.load(k4 * PARAM_BYTES), w.load(k4 * PARAM_BYTES + 32)];
            if QUADS == 0 {
                wv = wv.map(|w| _mm256_xor_si256(w, _mm256_set1_epi8(i8::MIN)));
            }
            for (t, pairs) in pairs.iter_mut().enumerate() {
                let xv = _mm256_set1_epi32(x.load((k4 * TOKEN_GRANULE + t) * 4));
                for (pairs, wv) in pairs.iter_mut().zip(wv) {
                    *pairs = if QUADS == 0 {
                        _mm256_maddubs_epi16(_mm256_abs_epi8(wv), _mm256_sign_epi8(xv, wv))
                    } else {
                        _mm256_add_epi16(*pairs, _mm256_maddubs_epi16(wv, xv))
                    };
                }
            }
        }
        for (dots, pairs) in dots.iter_mut().zip(pairs) {
            for (dots, pairs) in dots.iter_mut().zip(pairs) {
                *dots = _mm256_add_epi32(*dots, _mm256_madd_epi16(pairs, ones));
            }
        }
        k4 += step;
    }
    dots
}

/// Adds one chunk to the chain's accumulators.
#[inline]
#[allow(clippy::needless_range_loop)] // tokens and halves index several arrays
#[target_feature(enable = "avx2,fma,f16c")]
fn chunk<
    const VNNI: bool,
    const T: usize,
    const QUADS: usize,
    const PER16: bool,
    const MIN: bool,
>(
    acc: &mut [[__m256; 2]; T],
    w: Src<'_>,
    x: Src<'_>,
    shift: __m128i,
) {
    let d = |t: usize| _mm256_set1_ps(x.load(offset_of!(TileRecord, d) + t * 4));
    let param = |h: usize, i: usize| -> __m256 { w.load(QUANT_BYTES + i * PARAM_BYTES + h * 32) };
    if PER16 {
        let sums = offset_of!(TileRecord, neg_s16);
        let first = idot::<VNNI, T, QUADS, MIN, 0, 4>(w, x, sums, shift);
        let second = idot::<VNNI, T, QUADS, MIN, 4, 8>(w, x, sums + TOKEN_GRANULE * 4, shift);
        for t in 0..T {
            for h in 0..2 {
                let v = _mm256_mul_ps(_mm256_cvtepi32_ps(first[t][h]), param(h, 0));
                let v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(second[t][h]), param(h, 1), v);
                acc[t][h] = _mm256_fmadd_ps(v, d(t), acc[t][h]);
            }
        }
    } else {
        let dots = idot::<VNNI, T, QUADS, MIN, 0, 8>(w, x, offset_of!(TileRecord, neg_s32), shift);
        for t in 0..T {
            for h in 0..2 {
                let v = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[t][h]), param(h, 0));
                acc[t][h] = _mm256_fmadd_ps(v, d(t), acc[t][h]);
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
            let ds = _mm256_set1_ps(x.load(sums + t * 4));
            for h in 0..2 {
                acc[t][h] = _mm256_fmadd_ps(param(h, i), ds, acc[t][h]);
            }
        }
    }
}
