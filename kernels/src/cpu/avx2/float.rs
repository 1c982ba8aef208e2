//! Products with plain float weights: sixteen lanes along a row, in two vectors.

use std::arch::x86_64::*;

use format_spec::QuantType;

use crate::cpu::mem::{Src, read};

/// One weight row times several tokens: `y[t]`, `x`: `[n_tokens, row_len]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn dot_rows(y: &mut [f32], quant: QuantType, w: &[u8], x: &[f32]) {
    let row_len = x.len() / y.len().max(1);
    let bytes = if quant == QuantType::F32 { 4 } else { 2 };
    for (y, x) in y.iter_mut().zip(x.chunks_exact(row_len)) {
        let mut acc = [_mm256_setzero_ps(); 2];
        let whole = row_len / 16 * 16;
        // SAFETY: loads are of 16 elements below `whole`, which is at most the row.
        let at = unsafe { Src::new(w) };
        for k in (0..whole).step_by(16) {
            for (h, acc) in acc.iter_mut().enumerate() {
                let k = k + 8 * h;
                let wv = load_weights(quant, at.skip(k * bytes));
                *acc = _mm256_fmadd_ps(wv, read(x, k * 4), *acc);
            }
        }
        // The rest in copies, lanes without an element unchanged.
        let (mut w_rest, mut x_rest) = ([0u8; 64], [0.0f32; 16]);
        let rest = row_len - whole;
        w_rest[..rest * bytes].copy_from_slice(&w[whole * bytes..row_len * bytes]);
        x_rest[..rest].copy_from_slice(&x[whole..]);
        // SAFETY: loads are of 16 elements of at most 4 bytes.
        let at = unsafe { Src::new(&w_rest) };
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        for (h, acc) in acc.iter_mut().enumerate() {
            let wv = load_weights(quant, at.skip(8 * h * bytes));
            let sum = _mm256_fmadd_ps(wv, read(&x_rest, h * 32), *acc);
            let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(rest as i32 - 8 * h as i32), lanes);
            *acc = _mm256_blendv_ps(*acc, sum, _mm256_castsi256_ps(mask));
        }
        *y = reduce(_mm256_add_ps(acc[0], acc[1]));
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_weights(quant: QuantType, at: Src<'_>) -> __m256 {
    match quant {
        QuantType::F32 => at.load(0),
        QuantType::F16 => _mm256_cvtph_ps(at.load(0)),
        _ => {
            let bits = _mm256_cvtepu16_epi32(at.load(0));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }
}

/// Lanes added in halves: l + (l + 4), then 2, 1.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn reduce(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
}
