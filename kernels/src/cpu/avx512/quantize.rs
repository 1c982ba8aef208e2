//! Activations to 8 bits.

use std::arch::x86_64::*;

use crate::cpu::activations::MIN_AMAX;
use crate::cpu::form::CHUNK;
use crate::cpu::mem::{read, write};

/// Same bits as [`scalar::quantize_row`](crate::cpu::scalar::quantize_row).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(crate) fn quantize_row(x: &[f32], q: &mut [i8], d: &mut [f32], s16: &mut [i32]) {
    let (x, _) = x.as_chunks::<CHUNK>();
    let (q, _) = q.as_chunks_mut::<CHUNK>();
    let (s16, _) = s16.as_chunks_mut::<2>();
    for (((x, q), d), s16) in x.iter().zip(q).zip(d).zip(s16) {
        let halves: [__m512; 2] = [read(x, 0), read(x, 64)];
        let magnitude = |v| _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(i32::MAX));
        let max = _mm512_max_epu32(magnitude(halves[0]), magnitude(halves[1]));
        let amax = f32::from_bits(_mm512_reduce_max_epu32(max));
        if !amax.is_finite() || amax < MIN_AMAX {
            *q = [0; CHUNK];
            *d = if amax.is_finite() { 0.0 } else { f32::NAN };
            *s16 = [0; 2];
            continue;
        }
        let inv = _mm512_set1_ps(127.0 / amax);
        *d = amax / 127.0;
        let (q, _) = q.as_chunks_mut::<16>();
        for ((v, q), sum) in halves.into_iter().zip(q).zip(s16) {
            // The current rounding mode is nearest, ties to even.
            let rounded = _mm512_cvtps_epi32(_mm512_mul_ps(v, inv));
            *sum = _mm512_reduce_add_epi32(rounded);
            write(q, 0, _mm512_cvtepi32_epi8(rounded));
        }
    }
}
