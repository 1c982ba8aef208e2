//! The GEMM microkernel: 32 rows (lanes) by a few tokens, VNNI dot products of four elements.

use std::arch::x86_64::*;
use std::mem::offset_of;

use crate::cpu::activations::{TOKEN_GRANULE, TileRecord};
use crate::cpu::kernels::{TILE_ROWS, TileJob, TileOut};
use crate::cpu::mem::{Src, read, write};
use crate::cpu::panel::{PARAM_BYTES, QUANT_BYTES, record_bytes};

/// Chunks of a chain that all tokens run through before the next: they stay in the first-level
/// cache, 18 to 25 KB of panels.
const SEGMENT: usize = 16;

/// See [`TileFn`](crate::cpu::kernels::TileFn).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn tile(out: &mut TileOut, job: &TileJob<'_>) {
    // Tokens of a register tile, scales for 16 elements, log2 of the offset (0: a minimum).
    match (job.form.per16, job.form.offset_log2) {
        (false, 0) => segments::<6, false, 0>(out, job),
        (false, 3) => segments::<6, false, 3>(out, job),
        (false, 4) => segments::<6, false, 4>(out, job),
        (false, _) => segments::<6, false, 7>(out, job),
        (true, 0) => segments::<4, true, 0>(out, job),
        (true, 2) => segments::<4, true, 2>(out, job),
        (true, _) => segments::<4, true, 5>(out, job),
    }
}

/// Part of one chain.
#[derive(Clone, Copy)]
struct Segment {
    /// Position of its first chunk among the records.
    start: usize,
    n_chunks: usize,
    /// Whether the chain starts, and ends, with it.
    starts: bool,
    ends: bool,
    /// Whether it is of the first chain.
    first_chain: bool,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn segments<const MAX: usize, const PER16: bool, const OFFSET_LOG2: u32>(
    out: &mut TileOut,
    job: &TileJob<'_>,
) {
    let mut chain_start = 0;
    for (s, &len) in job.chain_lens.iter().enumerate() {
        let mut done = 0;
        loop {
            let n_chunks = (len - done).min(SEGMENT);
            let segment = Segment {
                start: chain_start + done,
                n_chunks,
                starts: done == 0,
                ends: done + n_chunks == len,
                first_chain: s == 0,
            };
            all_tokens::<MAX, PER16, OFFSET_LOG2>(out, job, segment);
            done += n_chunks;
            if done == len {
                break;
            }
        }
        chain_start += len;
    }
}

/// Splits the tokens of each tile evenly into register tiles of at most `MAX`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn all_tokens<const MAX: usize, const PER16: bool, const OFFSET_LOG2: u32>(
    out: &mut TileOut,
    job: &TileJob<'_>,
    segment: Segment,
) {
    let mut first = 0;
    while first < job.n_tokens {
        let in_tile = (job.n_tokens - first).min(TOKEN_GRANULE - first % TOKEN_GRANULE);
        let n = in_tile.div_ceil(in_tile.div_ceil(MAX));
        match n {
            1 => run::<1, PER16, OFFSET_LOG2>(out, job, segment, first),
            2 => run::<2, PER16, OFFSET_LOG2>(out, job, segment, first),
            3 => run::<3, PER16, OFFSET_LOG2>(out, job, segment, first),
            4 => run::<4, PER16, OFFSET_LOG2>(out, job, segment, first),
            5 if MAX > 4 => run::<5, PER16, OFFSET_LOG2>(out, job, segment, first),
            _ if MAX > 4 => run::<6, PER16, OFFSET_LOG2>(out, job, segment, first),
            _ => {}
        }
        first += n;
    }
}

type Acc<const T: usize> = [[__m512; 2]; T];

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn run<const T: usize, const PER16: bool, const OFFSET_LOG2: u32>(
    out: &mut TileOut,
    job: &TileJob<'_>,
    segment: Segment,
    first: usize,
) {
    let w_step = record_bytes(job.form);
    let n_chunks: usize = job.chain_lens.iter().sum();
    // SAFETY: panels and tiles hold a record for each chunk of the chains, a segment lies inside of
    // its chain, and tokens `first..first + T` are inside one of the tiles.
    let [w0, w1] = job.panels.map(|panel| unsafe { Src::new(panel) });
    // SAFETY: as above.
    let x = unsafe { Src::of_records(job.x) };
    let tile_start = first / TOKEN_GRANULE * n_chunks * size_of::<TileRecord>();
    let x = x.skip(tile_start + first % TOKEN_GRANULE * 4);
    let (chain, _) = out.chain[first..].as_chunks_mut::<T>();
    let chain = chain[0].as_flattened_mut();
    let at = |t: usize, p: usize| (t * TILE_ROWS + p * 16) * size_of::<f32>();
    let mut acc = [[_mm512_setzero_ps(); 2]; T];
    if !segment.starts {
        for (t, acc) in acc.iter_mut().enumerate() {
            *acc = [read(chain, at(t, 0)), read(chain, at(t, 1))];
        }
    }
    for pos in segment.start..segment.start + segment.n_chunks {
        let w = [w0.skip(pos * w_step), w1.skip(pos * w_step)];
        chunk::<T, PER16, OFFSET_LOG2>(&mut acc, w, x.skip(pos * size_of::<TileRecord>()));
    }
    let (y, _) = out.y[first..].as_chunks_mut::<T>();
    let y = y[0].as_flattened_mut();
    let to = if segment.ends { y } else { chain };
    for (t, acc) in acc.into_iter().enumerate() {
        for (p, mut acc) in acc.into_iter().enumerate() {
            if segment.ends && !segment.first_chain {
                acc = _mm512_add_ps(read(to, at(t, p)), acc);
            }
            write(to, at(t, p), acc);
        }
    }
}

/// Vectors of a register tile: for each token, one a panel.
type Dots<const T: usize> = [[__m512i; 2]; T];

/// Integer dot products of quads `FROM..TO` of a chunk, for both panels; `sums` is where the
/// tokens' negated sums of these elements lie, which undo the offset of the stored values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn idot<const T: usize, const OFFSET_LOG2: u32, const FROM: usize, const TO: usize>(
    w: [Src<'_>; 2],
    x: Src<'_>,
    sums: usize,
) -> Dots<T> {
    let mut dots = [[_mm512_setzero_si512(); 2]; T];
    if OFFSET_LOG2 > 0 {
        for (t, dots) in dots.iter_mut().enumerate() {
            *dots = [_mm512_slli_epi32::<OFFSET_LOG2>(_mm512_set1_epi32(x.load(sums + t * 4))); 2];
        }
    }
    for k4 in FROM..TO {
        let wv: [__m512i; 2] = [w[0].load(k4 * PARAM_BYTES), w[1].load(k4 * PARAM_BYTES)];
        for (t, dots) in dots.iter_mut().enumerate() {
            let xv = _mm512_set1_epi32(x.load((k4 * TOKEN_GRANULE + t) * 4));
            dots[0] = _mm512_dpbusd_epi32(dots[0], wv[0], xv);
            dots[1] = _mm512_dpbusd_epi32(dots[1], wv[1], xv);
        }
    }
    dots
}

/// Replaces each vector of a register tile by `f(vector, token, panel)`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn each<const T: usize>(tile: &mut Acc<T>, f: impl Fn(__m512, usize, usize) -> __m512) {
    for (t, line) in tile.iter_mut().enumerate() {
        for (p, v) in line.iter_mut().enumerate() {
            *v = f(*v, t, p);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn to_f32<const T: usize>(dots: Dots<T>) -> Acc<T> {
    // Not `map`: on arrays of this size it goes through memory.
    let mut tile = [[_mm512_setzero_ps(); 2]; T];
    each(&mut tile, |_, t, p| _mm512_cvtepi32_ps(dots[t][p]));
    tile
}

/// Adds one chunk to the chain's accumulators.
///
/// The float steps run step by step over the whole register tile. Vector by vector, the same
/// instructions took up to 1.5 times as long on Zen 5: they fall on the two pipes unevenly.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn chunk<const T: usize, const PER16: bool, const OFFSET_LOG2: u32>(
    acc: &mut Acc<T>,
    w: [Src<'_>; 2],
    x: Src<'_>,
) {
    let token = |field: usize, t: usize| _mm512_set1_ps(x.load(field + t * 4));
    let param = |p: usize, i: usize| -> __m512 { w[p].load(QUANT_BYTES + i * PARAM_BYTES) };
    let sums = offset_of!(TileRecord, neg_s16);
    let mut dots = if PER16 {
        let mut first = to_f32(idot::<T, OFFSET_LOG2, 0, 4>(w, x, sums));
        each(&mut first, |v, _, p| _mm512_mul_ps(v, param(p, 0)));
        let mut second = to_f32(idot::<T, OFFSET_LOG2, 4, 8>(w, x, sums + TOKEN_GRANULE * 4));
        each(&mut second, |v, t, p| _mm512_fmadd_ps(v, param(p, 1), first[t][p]));
        second
    } else {
        to_f32(idot::<T, OFFSET_LOG2, 0, 8>(w, x, offset_of!(TileRecord, neg_s32)))
    };
    if !PER16 {
        each(&mut dots, |v, _, p| _mm512_mul_ps(v, param(p, 0)));
    }
    each(acc, |acc, t, p| _mm512_fmadd_ps(dots[t][p], token(offset_of!(TileRecord, d), t), acc));
    if OFFSET_LOG2 > 0 {
        return;
    }
    if PER16 {
        for half in 0..2 {
            let sums = offset_of!(TileRecord, ds16) + half * TOKEN_GRANULE * 4;
            each(acc, |acc, t, p| _mm512_fmadd_ps(param(p, 2 + half), token(sums, t), acc));
        }
    } else {
        let sums = offset_of!(TileRecord, ds);
        each(acc, |acc, t, p| _mm512_fmadd_ps(param(p, 1), token(sums, t), acc));
    }
}
