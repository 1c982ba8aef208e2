//! Products of weight rows with one token, from `padded` blocks: two rows at a time, so that the
//! sixteen lanes hold the eight chains of both.

use std::arch::x86_64::*;

use format_spec::QuantType;
use half::f16;

use super::lanes::*;
use crate::cpu::activations::{DotGroup, DotRow};
use crate::cpu::form::{Form, GROUP, Group, N_CHAINS};
use crate::cpu::kernels::GemvFn;
use crate::cpu::mem::{Src, read, write};
use crate::cpu::scalar::unpack::unpacker;
use crate::view::Weight;

/// The kernel of a quant type and its name.
pub(super) fn gemv(quant: QuantType) -> (GemvFn, &'static str) {
    match quant {
        QuantType::Q4_0 => (q4_0, "gemv_avx512_q4_0"),
        QuantType::Q4_1 => (q4_1, "gemv_avx512_q4_1"),
        QuantType::Q5_0 => (q5_0, "gemv_avx512_q5_0"),
        QuantType::Q5_1 => (q5_1, "gemv_avx512_q5_1"),
        QuantType::Q8_0 => (q8_0, "gemv_avx512_q8_0"),
        QuantType::Q4_K => (q4_k, "gemv_avx512_q4_K"),
        QuantType::Q5_K => (q5_k, "gemv_avx512_q5_K"),
        QuantType::Q6_K => (q6_k, "gemv_avx512_q6_K"),
        _ => (unpacked, "gemv_avx512_unpacked"),
    }
}

/// Which accumulator lane belongs to row `r` (0 or 1), chain `c`.
trait LaneOrder {
    const LANES: [[usize; N_CHAINS]; 2];
}

macro_rules! lane_order {
    ($(#[$doc:meta])* $name:ident, $order:ident) => {
        $(#[$doc])*
        struct $name;
        impl LaneOrder for $name {
            const LANES: [[usize; N_CHAINS]; 2] = {
                let mut lanes = [[0; N_CHAINS]; 2];
                let mut c = 0;
                while c < N_CHAINS {
                    lanes[0][c] = $order(0, c);
                    lanes[1][c] = $order(1, c);
                    c += 1;
                }
                lanes
            };
        }
    };
}

const fn pair_order(r: usize, c: usize) -> usize {
    c / 2 * 4 + r * 2 + c % 2
}

const fn quad_order(r: usize, c: usize) -> usize {
    c % 4 * 4 + r * 2 + c / 4
}

const fn plain_order(r: usize, c: usize) -> usize {
    r * 8 + c % 2 * 4 + c / 2
}

lane_order!(
    /// For kernels over pairs of chunks.
    Pairs,
    pair_order
);
lane_order!(
    /// For kernels over four blocks at a time.
    Quads,
    quad_order
);
lane_order!(
    /// For kernels over values in element order.
    Plain,
    plain_order
);

/// What a kernel needs to know about its lanes.
struct LaneMap {
    /// The chain of each lane.
    chains: __m512i,
    /// Lanes whose chain has a chunk in the last group.
    tail: u16,
}

impl LaneMap {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn new<O: LaneOrder>(n_chunks: usize) -> Self {
        let mut chains = [0i32; 16];
        let mut tail = 0;
        for lanes in O::LANES {
            for (c, lane) in lanes.into_iter().enumerate() {
                chains[lane] = c as i32;
                if c < n_chunks % N_CHAINS {
                    tail |= 1 << lane;
                }
            }
        }
        Self { chains: read(&chains, 0), tail }
    }
}

/// Writes the sums of both rows' chains.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn finish<O: LaneOrder>(acc: __m512, y: &mut [f32]) {
    let mut lanes = [0.0f32; 16];
    write(&mut lanes, 0, acc);
    for (y, order) in y.iter_mut().zip(O::LANES) {
        *y = order[1..].iter().fold(lanes[order[0]], |sum, &lane| sum + lanes[lane]);
    }
}

/// One token's parameters of a group, spread over the accumulator lanes.
struct Params {
    d: __m512,
    ds: __m512,
    s32: __m512i,
}

impl Params {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn new(x: &DotGroup, map: &LaneMap) -> Self {
        Self {
            d: spread(read(&x.d, 0), map.chains),
            ds: spread(read(&x.ds, 0), map.chains),
            s32: spread_i32(read(&x.s32, 0), map.chains),
        }
    }
}

/// Runs `step` over the groups of each pair of rows. `GROUP_BYTES`: bytes of eight chunks.
///
/// `step(acc, rows, n_bytes, x, params, lanes)` adds one group; it may load `n_bytes` from each
/// row and must leave lanes outside of `lanes` as they are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn drive<O: LaneOrder, const GROUP_BYTES: usize>(
    y: &mut [f32],
    w: &Weight<'_>,
    row: usize,
    x: &DotRow<'_>,
    step: impl Fn(__m512, [Src<'_>; 2], Option<usize>, &DotGroup, &Params, u16) -> __m512,
) {
    let map = LaneMap::new::<O>(x.n_chunks);
    let n_full = x.n_chunks / N_CHAINS;
    let n_tail = x.n_chunks % N_CHAINS;
    for (pair, y) in y.chunks_mut(2).enumerate() {
        let first = row + 2 * pair;
        let second = first + y.len() - 1;
        // SAFETY: a row has n_full groups of GROUP_BYTES and n_tail blocks behind them.
        let rows = [first, second].map(|row| unsafe { Src::new(w.row(row)) });
        let mut acc = _mm512_setzero_ps();
        for (i, x) in x.groups[..n_full].iter().enumerate() {
            let at = [rows[0].skip(i * GROUP_BYTES), rows[1].skip(i * GROUP_BYTES)];
            acc = step(acc, at, None, x, &Params::new(x, &map), u16::MAX);
        }
        if n_tail > 0 {
            let x = &x.groups[n_full];
            let at = [rows[0].skip(n_full * GROUP_BYTES), rows[1].skip(n_full * GROUP_BYTES)];
            let n_bytes = n_tail * GROUP_BYTES / N_CHAINS;
            acc = step(acc, at, Some(n_bytes), x, &Params::new(x, &map), map.tail);
        }
        finish::<O>(acc, y);
    }
}

/// 64 bytes at an offset; with a tail, only what the row still has.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn load_64(at: Src<'_>, offset: usize, tail: Option<usize>) -> __m512i {
    match tail {
        None => at.load(offset),
        Some(n_bytes) => load_first(at, offset, n_bytes),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn activations(q: &[i8; GROUP]) -> [__m512i; 4] {
    [read(q, 0), read(q, 64), read(q, 128), read(q, 192)]
}

/// acc + (f32(dots) * scale) * d, in the lanes of the mask.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_scaled(acc: __m512, dots: __m512i, scale: __m512, d: __m512, lanes: u16) -> __m512 {
    _mm512_mask3_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots), scale), d, acc, lanes)
}

// Blocks of 32 elements in fours: the first 16 bytes of nibbles of four blocks make one vector,
// whose low nibbles are the blocks' first halves and whose high ones are the second.

/// Word indices for `vpermt2w` over loads at 0 and at `SECOND`: `n` words from `offset` of each of
/// four blocks of `STRIDE` bytes.
const fn words<const STRIDE: usize, const SECOND: usize>(offset: usize, n: usize) -> [u16; 32] {
    let mut idx = [0; 32];
    let mut i = 0;
    while i < 4 * n {
        let word = (i / n * STRIDE + offset) / 2 + i % n;
        idx[i] = if word < 32 { word as u16 } else { (32 + word - SECOND / 2) as u16 };
        i += 1;
    }
    idx
}

/// Where [`small_words`] puts the scales, and the minimums.
const SMALL_D: usize = 8;
const SMALL_MIN: usize = 12;

/// Word indices, as [`words`], for the small parts of four blocks: low words of the four masks of
/// fifth bits, high words, scales, minimums.
const fn small_words<const STRIDE: usize, const SECOND: usize>(
    fifth: Option<usize>,
    min: Option<usize>,
) -> [u16; 32] {
    let mut idx = [0; 32];
    let d = words::<STRIDE, SECOND>(0, 1);
    let mut i = 0;
    while i < 4 {
        if let Some(fifth) = fifth {
            let masks = words::<STRIDE, SECOND>(fifth, 2);
            idx[i] = masks[2 * i];
            idx[4 + i] = masks[2 * i + 1];
        }
        idx[SMALL_D + i] = d[i];
        if let Some(min) = min {
            idx[SMALL_MIN + i] = words::<STRIDE, SECOND>(min, 1)[i];
        }
        i += 1;
    }
    idx
}

/// Word indices that spread the four words at `from` of each of two small parts (of blocks 0..4
/// and 4..8 of a row) over that row's accumulator lanes.
const fn lane_words(from: usize) -> [u16; 32] {
    let mut idx = [0; 32];
    let mut c = 0;
    while c < N_CHAINS {
        let word = (from + c % 4 + c / 4 * 32) as u16;
        idx[quad_order(0, c)] = word;
        idx[quad_order(1, c)] = word;
        c += 1;
    }
    idx
}

const D_WORDS: [u16; 32] = lane_words(SMALL_D);
const MIN_WORDS: [u16; 32] = lane_words(SMALL_MIN);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn index(words: &[u16; 32]) -> __m512i {
    read(words, 0)
}

/// Layout of a block of 32 elements.
trait Block {
    const STRIDE: usize;
    /// The second load that, with one at 0, covers four blocks.
    const SECOND: usize;
    const HAS_MIN: bool;
    const HAS_FIFTH_BITS: bool;
    const OFFSET_LOG2: u32;
    const QUANT_WORDS: [u16; 32];
    const SMALL_WORDS: [u16; 32];
}

macro_rules! block {
    ($name:ident, stride $stride:literal, quants $quants:literal, min $min:expr, fifth $fifth:expr, offset_log2 $offset:literal) => {
        struct $name;
        impl Block for $name {
            const STRIDE: usize = $stride;
            const SECOND: usize = 4 * $stride - 64;
            const HAS_MIN: bool = $min.is_some();
            const HAS_FIFTH_BITS: bool = $fifth.is_some();
            const OFFSET_LOG2: u32 = $offset;
            const QUANT_WORDS: [u16; 32] = words::<$stride, { 4 * $stride - 64 }>($quants, 8);
            const SMALL_WORDS: [u16; 32] =
                small_words::<$stride, { 4 * $stride - 64 }>($fifth, $min);
        }
    };
}

const NONE: Option<usize> = None;
block!(BlockQ4_0, stride 18, quants 2, min NONE, fifth NONE, offset_log2 3);
block!(BlockQ4_1, stride 20, quants 4, min Some(2), fifth NONE, offset_log2 0);
block!(BlockQ5_0, stride 22, quants 6, min NONE, fifth Some(2), offset_log2 4);
block!(BlockQ5_1, stride 24, quants 8, min Some(2), fifth Some(4), offset_log2 0);

/// Dot products of eight blocks of one row: for blocks 0..4 and for 4..8, lane `L` the four partial
/// sums of block `L`; and the small parts of both.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn dot_blocks<B: Block>(
    at: Src<'_>,
    tail: Option<usize>,
    x: &[__m512i; 4],
) -> ([__m512i; 2], [__m512i; 2]) {
    let mut dots = [_mm512_setzero_si512(); 2];
    let mut small = [_mm512_setzero_si512(); 2];
    for half in 0..2 {
        let start = half * 4 * B::STRIDE;
        let v = [load_64(at, start, tail), load_64(at, start + B::SECOND, tail)];
        small[half] = _mm512_permutex2var_epi16(v[0], index(&B::SMALL_WORDS), v[1]);
        let quants = _mm512_permutex2var_epi16(v[0], index(&B::QUANT_WORDS), v[1]);
        let (mut lo, mut hi) = nibbles(quants);
        if B::HAS_FIFTH_BITS {
            let bits = _mm512_castsi512_si128(small[half]);
            let bit = _mm512_set1_epi8(16);
            lo = _mm512_mask_add_epi8(lo, _mm_cvtsi128_si64(bits) as u64, lo, bit);
            hi = _mm512_mask_add_epi8(hi, _mm_extract_epi64::<1>(bits) as u64, hi, bit);
        }
        dots[half] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), lo, x[2 * half]);
        dots[half] = _mm512_dpbusd_epi32(dots[half], hi, x[2 * half + 1]);
    }
    (dots, small)
}

/// An f16 of each of two rows' blocks, spread over the accumulator lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn block_f16(rows: [[__m512i; 2]; 2], words: &[u16; 32]) -> __m512 {
    let words = index(words);
    let [a, b] = rows
        .map(|small| _mm512_castsi512_si256(_mm512_permutex2var_epi16(small[0], words, small[1])));
    // Lanes 4i + 2 and 4i + 3 belong to the second row.
    _mm512_cvtph_ps(_mm256_mask_blend_epi16(0xcccc, a, b))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn step_blocks<B: Block>(
    acc: __m512,
    rows: [Src<'_>; 2],
    tail: Option<usize>,
    x: &DotGroup,
    p: &Params,
    lanes: u16,
) -> __m512 {
    let xq = activations(&x.q_halves);
    let (a, small_a) = dot_blocks::<B>(rows[0], tail, &xq);
    let (b, small_b) = dot_blocks::<B>(rows[1], tail, &xq);
    let mut dots = sum_quads([a[0], a[1], b[0], b[1]]);
    if !B::HAS_MIN {
        let shift = _mm_cvtsi32_si128(B::OFFSET_LOG2 as i32);
        dots = _mm512_sub_epi32(dots, _mm512_sll_epi32(p.s32, shift));
    }
    let acc = add_scaled(acc, dots, block_f16([small_a, small_b], &D_WORDS), p.d, lanes);
    if !B::HAS_MIN {
        return acc;
    }
    let min = block_f16([small_a, small_b], &MIN_WORDS);
    _mm512_mask3_fmadd_ps(min, p.ds, acc, lanes)
}

macro_rules! block_gemv {
    ($name:ident, $block:ident, $bytes:literal) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        fn $name(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
            drive::<Quads, $bytes>(y, w, row, x, |acc, rows, tail, x, p, lanes| {
                step_blocks::<$block>(acc, rows, tail, x, p, lanes)
            });
        }
    };
}

block_gemv!(q4_0, BlockQ4_0, 144);
block_gemv!(q4_1, BlockQ4_1, 160);
block_gemv!(q5_0, BlockQ5_0, 176);
block_gemv!(q5_1, BlockQ5_1, 192);

/// Sums of four vectors of two rows in element order: per row, lanes of first halves of chunks and
/// of second halves apart, both in [`Plain`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn sum_halves(a: [__m512i; 4], b: [__m512i; 4]) -> (__m512i, __m512i) {
    split_lanes(sum_quads(a), sum_quads(b))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn q8_0(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    const STRIDE: usize = 34;
    drive::<Plain, { STRIDE * N_CHAINS }>(y, w, row, x, |acc, rows, tail, x, p, lanes| {
        let xq = activations(&x.q);
        let n = tail.map_or(N_CHAINS, |n_bytes| n_bytes / STRIDE);
        let mut bits = [0u16; 16];
        let mut dots = [[_mm512_setzero_si512(); 4]; 2];
        for (r, at) in rows.into_iter().enumerate() {
            for (pair, dots) in dots[r].iter_mut().enumerate() {
                let load = |c: usize| -> __m256i {
                    if c < n { at.load(c * STRIDE + 2) } else { _mm256_setzero_si256() }
                };
                let lo = _mm512_castsi256_si512(load(2 * pair));
                let v = _mm512_inserti64x4::<1>(lo, load(2 * pair + 1));
                let v = _mm512_xor_si512(v, _mm512_set1_epi8(i8::MIN));
                *dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), v, xq[pair]);
            }
            for c in 0..N_CHAINS {
                bits[plain_order(r, c)] = if c < n { at.load(c * STRIDE) } else { 0 };
            }
        }
        let (first, second) = sum_halves(dots[0], dots[1]);
        let dots = _mm512_add_epi32(first, second);
        let dots = _mm512_sub_epi32(dots, _mm512_slli_epi32::<7>(p.s32));
        let scale = _mm512_cvtph_ps(read(&bits, 0));
        add_scaled(acc, dots, scale, p.d, lanes)
    });
}

/// Scales and (positive) minimums of a super-block of q4_K or q5_K of two rows, in [`Pairs`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn k4_scales(a: Src<'_>, b: Src<'_>) -> (__m512, __m512) {
    let (a, b): (__m128i, __m128i) = (a.load(0), b.load(0));
    // d, dmin of both rows.
    let d = _mm_cvtph_ps(_mm_unpacklo_epi32(a, b));
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
    // Dwords 1, 2, 3 hold the packed 6-bit numbers: scales 0..4, minimums 0..4 and, in nibbles,
    // the low bits of both for 4..8, whose high bits are on top of the first two.
    let low = _mm256_srlv_epi32(
        _mm256_shuffle_epi32::<0b11_10_11_01>(both),
        _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4),
    );
    let mask = _mm256_set1_epi64x(0x0f0f_0f0f_3f3f_3f3f);
    let high = _mm256_and_si256(
        _mm256_srli_epi32::<2>(_mm256_shuffle_epi32::<0b10_10_01_01>(both)),
        _mm256_set1_epi64x(0x3030_3030_0000_0000),
    );
    let packed = _mm256_or_si256(_mm256_and_si256(low, mask), high);
    let (a, b) = (_mm256_castsi256_si128(packed), _mm256_extracti128_si256::<1>(packed));
    let scale = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi16(a, b)));
    let min = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpackhi_epi16(a, b)));
    let d_lanes = _mm512_broadcast_f32x4(_mm_permute_ps::<0b10_10_00_00>(d));
    let dmin_lanes = _mm512_broadcast_f32x4(_mm_permute_ps::<0b11_11_01_01>(d));
    (_mm512_mul_ps(scale, d_lanes), _mm512_mul_ps(min, dmin_lanes))
}

/// Nibbles of a super-block of one row with the first and the second halves of chunks apart:
/// `[half]`, lanes are pairs of chunks; low nibbles the even ones, high the odd ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn k4_halves(quants: Src<'_>) -> [__m512i; 2] {
    let (first, second) = split_lanes(quants.load(0), quants.load(64));
    [first, second]
}

/// Adds a super-block of both rows, given the dot products of even and odd chunks of each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_k4(acc: __m512, dots: [__m512i; 4], rows: [Src<'_>; 2], p: &Params) -> __m512 {
    let (scale, min) = k4_scales(rows[0], rows[1]);
    let acc = add_scaled(acc, sum_quads(dots), scale, p.d, u16::MAX);
    _mm512_fnmadd_ps(min, p.ds, acc)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn q4_k(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    drive::<Pairs, 144>(y, w, row, x, |acc, rows, _, x, p, _| {
        let xq = activations(&x.q_pairs);
        let zero = _mm512_setzero_si512();
        let mut dots = [zero; 4];
        for r in 0..2 {
            let halves = k4_halves(rows[r].skip(16));
            let ((e0, o0), (e1, o1)) = (nibbles(halves[0]), nibbles(halves[1]));
            let even = _mm512_dpbusd_epi32(zero, e0, xq[0]);
            let odd = _mm512_dpbusd_epi32(zero, o0, xq[2]);
            dots[2 * r] = _mm512_dpbusd_epi32(even, e1, xq[1]);
            dots[2 * r + 1] = _mm512_dpbusd_epi32(odd, o1, xq[3]);
        }
        add_k4(acc, dots, rows, p)
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn q5_k(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    drive::<Pairs, 176>(y, w, row, x, |acc, rows, _, x, p, _| {
        let xq = activations(&x.q_pairs);
        let bit = _mm512_set1_epi8(16);
        // Bit c of a byte belongs to chunk c: rotate it to bit 4. Lane L is chunk 2L (or 2L + 1).
        let even_by = _mm512_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0, 30, 30, 30, 30);
        let odd_by = _mm512_setr_epi32(3, 3, 3, 3, 1, 1, 1, 1, 31, 31, 31, 31, 29, 29, 29, 29);
        let mut dots = [_mm512_setzero_si512(); 4];
        for r in 0..2 {
            let halves = k4_halves(rows[r].skip(48));
            for (h, v) in halves.into_iter().enumerate() {
                let high = _mm512_broadcast_i32x4(rows[r].load(16 + h * 16));
                let (even, odd) = nibbles(v);
                // 0xf8: a | (b & c)
                let fifth = _mm512_rolv_epi32(high, even_by);
                let even = _mm512_ternarylogic_epi32::<0xf8>(even, fifth, bit);
                let fifth = _mm512_rolv_epi32(high, odd_by);
                let odd = _mm512_ternarylogic_epi32::<0xf8>(odd, fifth, bit);
                dots[2 * r] = _mm512_dpbusd_epi32(dots[2 * r], even, xq[h]);
                dots[2 * r + 1] = _mm512_dpbusd_epi32(dots[2 * r + 1], odd, xq[2 + h]);
            }
        }
        add_k4(acc, dots, rows, p)
    });
}

/// The 256 stored values (0..63) of a q6_K super-block in element order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn q6_k_values(block: Src<'_>) -> [__m512i; 4] {
    let bits = _mm512_set1_epi8(0x30);
    let lo_by = _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2);
    let hi_by = _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
    let mut out = [_mm512_setzero_si512(); 4];
    for it in 0..2 {
        let (lo, hi) = nibbles(block.load(it * 64));
        let high = _mm512_broadcast_i64x4(block.load(128 + it * 32));
        // 0xf8: a | (b & c)
        let lo_bits = _mm512_sllv_epi64(high, lo_by);
        out[2 * it] = _mm512_ternarylogic_epi32::<0xf8>(lo, lo_bits, bits);
        let hi_bits = _mm512_srlv_epi64(high, hi_by);
        out[2 * it + 1] = _mm512_ternarylogic_epi32::<0xf8>(hi, hi_bits, bits);
    }
    out
}

/// The sixteen products `d * scale` of a q6_K super-block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn q6_k_scales(block: Src<'_>) -> __m512 {
    let d = f16::from_bits(block.load(208)).to_f32();
    let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(block.load(192)));
    _mm512_mul_ps(scales, _mm512_set1_ps(d))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn q6_k(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    // Where the scales of first (and, 16 on, second) halves of both rows' chunks are.
    let mut idx = [0i32; 16];
    for r in 0..2 {
        for c in 0..N_CHAINS {
            idx[plain_order(r, c)] = (r * 16 + 2 * c) as i32;
        }
    }
    let first: __m512i = read(&idx, 0);
    let second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
    drive::<Plain, 224>(y, w, row, x, |acc, rows, _, x, p, _| {
        let xq = activations(&x.q);
        let zero = _mm512_setzero_si512();
        let s16 = _mm512_slli_epi32::<5>(read(&x.s16, 0));
        let [a, b] = rows.map(|at| {
            let v = q6_k_values(at);
            [0, 1, 2, 3].map(|i| _mm512_dpbusd_epi32(zero, v[i], xq[i]))
        });
        let dots = sum_halves(a, b);
        let (scale_a, scale_b) = (q6_k_scales(rows[0]), q6_k_scales(rows[1]));
        let half = |dots: __m512i, idx: __m512i| {
            let idx_row = _mm512_and_si512(idx, _mm512_set1_epi32(15));
            let dots = _mm512_sub_epi32(dots, _mm512_permutexvar_epi32(idx_row, s16));
            (_mm512_cvtepi32_ps(dots), _mm512_permutex2var_ps(scale_a, idx, scale_b))
        };
        let (dot, scale) = half(dots.0, first);
        let t = _mm512_mul_ps(dot, scale);
        let (dot, scale) = half(dots.1, second);
        let t = _mm512_fmadd_ps(dot, scale, t);
        _mm512_fmadd_ps(t, p.d, acc)
    });
}

/// Any type: unpacked by the scalar code, multiplied by this tier.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn unpacked(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    let (Some(form), Some(unpack)) = (Form::of(w.quant()), unpacker(w.quant())) else {
        return;
    };
    let map = LaneMap::new::<Plain>(x.n_chunks);
    let mut rows = [Group::ZERO, Group::ZERO];
    for (pair, y) in y.chunks_mut(2).enumerate() {
        let first = row + 2 * pair;
        let at = [w.row(first), w.row(first + y.len() - 1)];
        let mut acc = _mm512_setzero_ps();
        for (i, x_group) in x.groups.iter().enumerate() {
            let n = (x.n_chunks - i * N_CHAINS).min(N_CHAINS);
            for (row, group) in at.iter().zip(&mut rows) {
                // SAFETY: unpackers of the scalar tier need no instructions beyond the target's.
                unsafe { unpack(row, i, n, group) };
            }
            let lanes = if n == N_CHAINS { u16::MAX } else { map.tail };
            acc = add_group(acc, form, &rows, x_group, &Params::new(x_group, &map), lanes);
        }
        finish::<Plain>(acc, y);
    }
}

/// Adds an unpacked group of two rows, lanes in [`Plain`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_group(
    acc: __m512,
    form: Form,
    rows: &[Group; 2],
    x: &DotGroup,
    p: &Params,
    lanes: u16,
) -> __m512 {
    let xq = activations(&x.q);
    let [a, b] = [&rows[0], &rows[1]].map(|group| {
        let dot = |i: usize| read(&group.q, i * 64);
        [0, 1, 2, 3].map(|i| _mm512_dpbusd_epi32(_mm512_setzero_si512(), dot(i), xq[i]))
    });
    let (first, second) = sum_halves(a, b);
    // Parameters of chunk c (or of its half h) of both rows in lane order.
    let gather = |field: fn(&Group) -> &[f32; 16], half: Option<usize>| {
        let mut v = [0.0f32; 16];
        for (r, row) in rows.iter().enumerate() {
            for c in 0..N_CHAINS {
                v[plain_order(r, c)] = field(row)[half.map_or(c, |h| 2 * c + h)];
            }
        }
        read::<__m512>(&v, 0)
    };
    let sums = |h: usize| {
        let mut v = [0i32; 16];
        for r in 0..2 {
            for c in 0..N_CHAINS {
                v[plain_order(r, c)] = x.s16[2 * c + h];
            }
        }
        read::<__m512i>(&v, 0)
    };
    let centre = |dots: __m512i, sums: __m512i| {
        let offset = _mm512_mullo_epi32(sums, _mm512_set1_epi32(form.offset()));
        _mm512_sub_epi32(dots, offset)
    };
    if !form.per16 {
        let dots = centre(_mm512_add_epi32(first, second), p.s32);
        let acc = add_scaled(acc, dots, gather(|g| &g.scale, None), p.d, lanes);
        if !form.has_min {
            return acc;
        }
        return _mm512_mask3_fmadd_ps(gather(|g| &g.min, None), p.ds, acc, lanes);
    }
    let t =
        _mm512_mul_ps(_mm512_cvtepi32_ps(centre(first, sums(0))), gather(|g| &g.scale, Some(0)));
    let dot = _mm512_cvtepi32_ps(centre(second, sums(1)));
    let t = _mm512_fmadd_ps(dot, gather(|g| &g.scale, Some(1)), t);
    let mut acc = _mm512_mask3_fmadd_ps(t, p.d, acc, lanes);
    if form.has_min {
        for h in 0..2 {
            let ds = _mm512_mul_ps(p.d, _mm512_cvtepi32_ps(sums(h)));
            acc = _mm512_mask3_fmadd_ps(gather(|g| &g.min, Some(h)), ds, acc, lanes);
        }
    }
    acc
}
