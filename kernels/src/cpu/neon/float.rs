//! Products with plain float weights: sixteen lanes along a row, in four vectors.

use std::arch::aarch64::*;

use format_spec::QuantType;
use half::{bf16, f16};

use crate::cpu::mem::{Src, read, write};
use crate::cpu::scalar::FLOAT_LANES;

/// One weight row times several tokens: `y[t]`, `x`: `[n_tokens, row_len]`.
#[target_feature(enable = "neon")]
pub(super) fn dot_rows(y: &mut [f32], quant: QuantType, w: &[u8], x: &[f32]) {
    let row_len = x.len() / y.len().max(1);
    let bytes = if quant == QuantType::F32 { 4 } else { 2 };
    let whole = row_len / FLOAT_LANES * FLOAT_LANES;
    for (y, x) in y.iter_mut().zip(x.chunks_exact(row_len)) {
        let mut acc = [vdupq_n_f32(0.0); 4];
        // SAFETY: loads are of 16 elements below `whole`, which is at most the row.
        let at = unsafe { Src::new(w) };
        for k in (0..whole).step_by(FLOAT_LANES) {
            for (i, acc) in acc.iter_mut().enumerate() {
                let k = k + 4 * i;
                *acc = vfmaq_f32(*acc, weights(quant, at.skip(k * bytes)), read(x, k * 4));
            }
        }
        let mut lanes = [0.0f32; FLOAT_LANES];
        for (i, acc) in acc.into_iter().enumerate() {
            write(&mut lanes, i * 16, acc);
        }
        // The rest, one by one; lanes without an element stay as they are.
        for (k, lane) in (whole..row_len).zip(&mut lanes) {
            let half = || [w[2 * k], w[2 * k + 1]];
            let weight = match quant {
                QuantType::F32 => at.load::<f32>(k * bytes),
                QuantType::F16 => f16::from_le_bytes(half()).to_f32(),
                _ => bf16::from_le_bytes(half()).to_f32(),
            };
            *lane = weight.mul_add(x[k], *lane);
        }
        for n in [8, 4, 2, 1] {
            for lane in 0..n {
                lanes[lane] += lanes[lane + n];
            }
        }
        *y = lanes[0];
    }
}

/// Four weights.
#[inline]
#[target_feature(enable = "neon")]
fn weights(quant: QuantType, at: Src<'_>) -> float32x4_t {
    match quant {
        QuantType::F32 => at.load(0),
        QuantType::F16 => halves(at.load(0)),
        _ => brain_halves(at.load(0)),
    }
}

/// Four f16.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn halves(bits: uint16x4_t) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(bits))
}

/// Four bf16.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn brain_halves(bits: uint16x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vshll_n_u16::<16>(bits))
}
