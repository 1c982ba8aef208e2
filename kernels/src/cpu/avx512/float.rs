//! Products with plain float weights: sixteen lanes along a row.

use std::arch::x86_64::*;

use format_spec::QuantType;

use crate::cpu::mem::Src;

/// One weight row times several tokens: `y[t]`, `x`: `[n_tokens, row_len]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(crate) fn dot_rows(y: &mut [f32], quant: QuantType, w: &[u8], x: &[f32]) {
    let row_len = x.len() / y.len().max(1);
    for (y, x) in y.iter_mut().zip(x.chunks_exact(row_len)) {
        // SAFETY: loads are at multiples of 16 elements below row_len, the last one masked.
        let w = unsafe { Src::new(w) };
        // SAFETY: as above.
        let x = unsafe { Src::new(x) };
        let mut acc = _mm512_setzero_ps();
        for k in (0..row_len).step_by(16) {
            let mask = if row_len - k < 16 { (1u16 << (row_len - k)) - 1 } else { u16::MAX };
            // SAFETY: the mask keeps to the elements of the row.
            let xv = unsafe { _mm512_maskz_loadu_ps(mask, x.ptr(k * 4).cast()) };
            acc = _mm512_mask3_fmadd_ps(load_weights(quant, w, k, mask), xv, acc, mask);
        }
        *y = reduce(acc);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn load_weights(quant: QuantType, w: Src<'_>, k: usize, mask: u16) -> __m512 {
    if quant == QuantType::F32 {
        // SAFETY: the mask keeps to the elements of the row.
        return unsafe { _mm512_maskz_loadu_ps(mask, w.ptr(k * 4).cast()) };
    }
    // SAFETY: the mask keeps to the elements of the row.
    let bits = unsafe { _mm256_maskz_loadu_epi16(mask, w.ptr(k * 2).cast()) };
    if quant == QuantType::F16 {
        return _mm512_cvtph_ps(bits);
    }
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}

/// Lanes added in halves: l + (l + 8), then 4, 2, 1.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn reduce(v: __m512) -> f32 {
    let hi =
        _mm512_castpd_ps(_mm512_castpd256_pd512(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v))));
    let v = _mm512_castps512_ps256(_mm512_add_ps(v, hi));
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
}
