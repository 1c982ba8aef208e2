//! q6_K, in element order: a lane of 128 bits is a half chunk with its own scale.

use std::arch::x86_64::*;

use super::super::lanes::nibbles;
use super::{Plain, activations, drive, plain_order, sum_halves};
use crate::cpu::activations::DotRow;
use crate::cpu::form::N_CHAINS;
use crate::cpu::mem::{Src, read};
use crate::cpu::stride::{self, blocks};
use crate::view::Weight;

/// The 256 stored values (0..63) of a q6_K super-block in element order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(in crate::cpu::avx512) fn q6_k_values(block: Src<'_>) -> [__m512i; 4] {
    let bits = _mm512_set1_epi8(0x30);
    let lo_by = _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2);
    let hi_by = _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
    let mut out = [_mm512_setzero_si512(); 4];
    for it in 0..2 {
        let (lo, hi) = nibbles(block.load(it * 64));
        let high = _mm512_broadcast_i64x4(block.load(blocks::Q6_K.high + it * 32));
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
pub(in crate::cpu::avx512) fn q6_k_scales(block: Src<'_>) -> __m512 {
    // Not `f16::to_f32`, which looks for the instruction at every call.
    let d = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(block.load::<u16>(blocks::Q6_K.d))));
    let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(block.load(blocks::Q6_K.scales)));
    _mm512_mul_ps(scales, _mm512_broadcastss_ps(d))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn q6_k(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    // Where the scales of first (and, 16 on, second) halves of both rows' chunks are.
    let mut idx = [0i32; 16];
    for r in 0..2 {
        for c in 0..N_CHAINS {
            idx[plain_order(r, c)] = (r * 16 + 2 * c) as i32;
        }
    }
    let first: __m512i = read(&idx, 0);
    let second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
    drive::<Plain, { stride::Q6_K }>(y, w, row, x, |acc, rows, _, x, p, _| {
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
