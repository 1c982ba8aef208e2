//! Blocks of 32 elements. Those of nibbles go in fours: the first 16 bytes of nibbles of four blocks
//! make one vector, whose low nibbles are the blocks' first halves and whose high ones the second.

use std::arch::x86_64::*;

use format_spec::QuantType;

use super::super::lanes::{nibbles, sum_quads};
use super::{
    Params, Plain, Quads, activations, add_scaled, drive, load_64, plain_order, quad_order,
    sum_halves,
};
use crate::cpu::activations::{DotGroup, DotRow};
use crate::cpu::form::N_CHAINS;
use crate::cpu::mem::{Src, read};
use crate::cpu::stride::{self, blocks, group_bytes};
use crate::view::Weight;

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
    ($name:ident, quant $quant:ident, quants $quants:expr, min $min:expr, fifth $fifth:expr, offset_log2 $offset:literal) => {
        struct $name;
        impl Block for $name {
            const STRIDE: usize = stride::$quant;
            const SECOND: usize = 4 * stride::$quant - 64;
            const HAS_MIN: bool = $min.is_some();
            const HAS_FIFTH_BITS: bool = $fifth.is_some();
            const OFFSET_LOG2: u32 = $offset;
            const QUANT_WORDS: [u16; 32] =
                words::<{ stride::$quant }, { 4 * stride::$quant - 64 }>($quants, 8);
            const SMALL_WORDS: [u16; 32] =
                small_words::<{ stride::$quant }, { 4 * stride::$quant - 64 }>($fifth, $min);
        }
    };
}

const NONE: Option<usize> = None;
block!(BlockQ4_0, quant Q4_0, quants blocks::Q4_0.quants, min NONE, fifth NONE, offset_log2 3);
block!(BlockQ4_1, quant Q4_1, quants blocks::Q4_1.quants, min Some(blocks::Q4_1.second), fifth NONE, offset_log2 0);
block!(BlockQ5_0, quant Q5_0, quants blocks::Q5_0.quants, min NONE, fifth Some(blocks::Q5_0.high), offset_log2 4);
block!(BlockQ5_1, quant Q5_1, quants blocks::Q5_1.quants, min Some(blocks::Q5_1.second), fifth Some(blocks::Q5_1.high), offset_log2 0);

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
    ($name:ident, $block:ident, $quant:expr) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        pub(super) fn $name(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
            drive::<Quads, { group_bytes($quant) }>(
                y,
                w,
                row,
                x,
                |acc, rows, tail, x, p, lanes| step_blocks::<$block>(acc, rows, tail, x, p, lanes),
            );
        }
    };
}

block_gemv!(q4_0, BlockQ4_0, QuantType::Q4_0);
block_gemv!(q4_1, BlockQ4_1, QuantType::Q4_1);
block_gemv!(q5_0, BlockQ5_0, QuantType::Q5_0);
block_gemv!(q5_1, BlockQ5_1, QuantType::Q5_1);

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn q8_0(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    const STRIDE: usize = stride::Q8_0;
    drive::<Plain, { STRIDE * N_CHAINS }>(y, w, row, x, |acc, rows, tail, x, p, lanes| {
        let xq = activations(&x.q);
        let n = tail.map_or(N_CHAINS, |n_bytes| n_bytes / STRIDE);
        let mut bits = [0u16; 16];
        let mut dots = [[_mm512_setzero_si512(); 4]; 2];
        for (r, at) in rows.into_iter().enumerate() {
            for (pair, dots) in dots[r].iter_mut().enumerate() {
                let load = |c: usize| -> __m256i {
                    if c < n {
                        at.load(c * STRIDE + blocks::Q8_0.quants)
                    } else {
                        _mm256_setzero_si256()
                    }
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
