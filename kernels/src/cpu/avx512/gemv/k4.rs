//! q4_K and q5_K: even chunks in the low nibbles, odd ones in the high.

use std::arch::x86_64::*;

use super::super::lanes::{nibbles, split_lanes, sum_quads};
use super::{Pairs, Params, activations, add_scaled, drive};
use crate::cpu::activations::DotRow;
use crate::cpu::mem::Src;
use crate::cpu::stride::{self, blocks};
use crate::view::Weight;

/// Scales and (positive) minimums of a super-block of q4_K or q5_K of two rows, in [`Pairs`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(in crate::cpu::avx512) fn k4_scales(a: Src<'_>, b: Src<'_>) -> (__m512, __m512) {
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
pub(super) fn q4_k(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    drive::<Pairs, { stride::Q4_K }>(y, w, row, x, |acc, rows, _, x, p, _| {
        let xq = activations(&x.q_pairs);
        let zero = _mm512_setzero_si512();
        let mut dots = [zero; 4];
        for r in 0..2 {
            let halves = k4_halves(rows[r].skip(blocks::Q4_K.quants));
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
pub(super) fn q5_k(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    drive::<Pairs, { stride::Q5_K }>(y, w, row, x, |acc, rows, _, x, p, _| {
        let xq = activations(&x.q_pairs);
        let bit = _mm512_set1_epi8(16);
        // Bit c of a byte belongs to chunk c: rotate it to bit 4. Lane L is chunk 2L (or 2L + 1).
        let even_by = _mm512_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0, 30, 30, 30, 30);
        let odd_by = _mm512_setr_epi32(3, 3, 3, 3, 1, 1, 1, 1, 31, 31, 31, 31, 29, 29, 29, 29);
        let mut dots = [_mm512_setzero_si512(); 4];
        for r in 0..2 {
            let halves = k4_halves(rows[r].skip(blocks::Q5_K.quants));
            for (h, v) in halves.into_iter().enumerate() {
                let high = _mm512_broadcast_i32x4(rows[r].load(blocks::Q5_K.high + h * 16));
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
