//! Activations to 8 bits.

use std::arch::x86_64::*;

use crate::cpu::activations::MIN_AMAX;
use crate::cpu::form::CHUNK;
use crate::cpu::mem::{read, write};

/// Same bits as [`scalar::quantize_row`](crate::cpu::scalar::quantize_row).
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn quantize_row(x: &[f32], q: &mut [i8], d: &mut [f32], s16: &mut [i32]) {
    let (x, _) = x.as_chunks::<CHUNK>();
    let (q, _) = q.as_chunks_mut::<CHUNK>();
    let (s16, _) = s16.as_chunks_mut::<2>();
    for (((x, q), d), s16) in x.iter().zip(q).zip(d).zip(s16) {
        let v: [__m256; 4] = [read(x, 0), read(x, 32), read(x, 64), read(x, 96)];
        let magnitude = |v| _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(i32::MAX));
        let max = v
            .into_iter()
            .fold(_mm256_setzero_si256(), |max, v| _mm256_max_epu32(max, magnitude(v)));
        let mut lanes = [0u32; 8];
        write(&mut lanes, 0, max);
        let amax = f32::from_bits(lanes.into_iter().fold(0, u32::max));
        if !amax.is_finite() || amax < MIN_AMAX {
            *q = [0; CHUNK];
            *d = if amax.is_finite() { 0.0 } else { f32::NAN };
            *s16 = [0; 2];
            continue;
        }
        let inv = _mm256_set1_ps(127.0 / amax);
        *d = amax / 127.0;
        // The current rounding mode is nearest, ties to even.
        let r = v.map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, inv)));
        s16[0] = sum(_mm256_add_epi32(r[0], r[1]));
        s16[1] = sum(_mm256_add_epi32(r[2], r[3]));
        // Packing works inside 128-bit lanes; the last step puts the dwords in order.
        let words = [_mm256_packs_epi32(r[0], r[1]), _mm256_packs_epi32(r[2], r[3])];
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let bytes = _mm256_packs_epi16(words[0], words[1]);
        write(q, 0, _mm256_permutevar8x32_epi32(bytes, order));
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum(v: __m256i) -> i32 {
    let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_add_epi32(v, _mm_unpackhi_epi64(v, v));
    _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<1>(v)))
}
