//! Activations to 8 bits.

use std::arch::aarch64::*;

use crate::cpu::activations::MIN_AMAX;
use crate::cpu::form::CHUNK;
use crate::cpu::mem::{read, write};

/// Same bits as [`scalar::quantize_row`](crate::cpu::scalar::quantize_row).
#[target_feature(enable = "neon")]
pub(super) fn quantize_row(x: &[f32], q: &mut [i8], d: &mut [f32], s16: &mut [i32]) {
    let (x, _) = x.as_chunks::<CHUNK>();
    let (q, _) = q.as_chunks_mut::<CHUNK>();
    let (s16, _) = s16.as_chunks_mut::<2>();
    for (((x, q), d), s16) in x.iter().zip(q).zip(d).zip(s16) {
        let mut v = [vdupq_n_f32(0.0); CHUNK / 4];
        let mut max = vdupq_n_u32(0);
        for (i, v) in v.iter_mut().enumerate() {
            *v = read(x, i * 16);
            max = vmaxq_u32(max, vreinterpretq_u32_f32(vabsq_f32(*v)));
        }
        let amax = f32::from_bits(vmaxvq_u32(max));
        if !amax.is_finite() || amax < MIN_AMAX {
            *q = [0; CHUNK];
            *d = if amax.is_finite() { 0.0 } else { f32::NAN };
            *s16 = [0; 2];
            continue;
        }
        let inv = vdupq_n_f32(127.0 / amax);
        *d = amax / 127.0;
        // To nearest, ties to even.
        let r = v.map(|v| vcvtnq_s32_f32(vmulq_f32(v, inv)));
        for (half, (r, sum)) in r.as_chunks::<4>().0.iter().zip(s16).enumerate() {
            let low = vcombine_s16(vmovn_s32(r[0]), vmovn_s32(r[1]));
            let high = vcombine_s16(vmovn_s32(r[2]), vmovn_s32(r[3]));
            *sum = i32::from(vaddvq_s16(vaddq_s16(low, high)));
            write(q, half * 16, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        }
    }
}
