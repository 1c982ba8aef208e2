//! [`Lanes`] in NEON: four registers.
//!
//! The methods are `inline(always)` and end up in functions that enable the feature, where the
//! intrinsics become single instructions.
// Every intrinsic call needs its feature, which the token proves; loads and stores go through
// references to whole arrays.
#![allow(unsafe_code)]

use std::arch::aarch64::*;

use half::f16;

use super::lanes::{LANES, Lanes};

/// Calls one intrinsic. The token of this file exists only where NEON does.
macro_rules! intrinsic {
    ($call:expr) => {{
        // SAFETY: the caller holds the tier's token, so the CPU has the instruction; pointers
        // come from references to arrays of the width read or written.
        unsafe { $call }
    }};
}

/// Proof that NEON exists.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// The token of this tier.
    ///
    /// # Safety
    /// The CPU has NEON.
    #[inline(always)]
    pub(crate) const unsafe fn new_unchecked() -> Self {
        Self(())
    }
}

/// Sixteen lanes, in order.
type Quad = [float32x4_t; 4];

/// The same operation on each register. Written out: closures over the four cannot be told to
/// inline (see `elementwise`).
macro_rules! each {
    ($i:ident => $call:expr) => {
        [each!(@ $i 0 $call), each!(@ $i 1 $call), each!(@ $i 2 $call), each!(@ $i 3 $call)]
    };
    (@ $i:ident $n:literal $call:expr) => {{
        const $i: usize = $n;
        intrinsic!($call)
    }};
}

// One register of the operations that take several instructions.

#[inline(always)]
fn max_part(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // Not `fmax`, whose NaN wins.
    let greater = intrinsic!(vcgtq_f32(a, b));
    intrinsic!(vbslq_f32(greater, a, b))
}

#[inline(always)]
fn min_part(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    let less = intrinsic!(vcltq_f32(a, b));
    intrinsic!(vbslq_f32(less, a, b))
}

#[inline(always)]
fn copysign_part(magnitude: float32x4_t, sign: float32x4_t) -> float32x4_t {
    let bit = intrinsic!(vdupq_n_u32(1 << 31));
    intrinsic!(vbslq_f32(bit, sign, magnitude))
}

#[inline(always)]
fn if_less_part(a: float32x4_t, b: float32x4_t, x: float32x4_t, y: float32x4_t) -> float32x4_t {
    let less = intrinsic!(vcltq_f32(a, b));
    intrinsic!(vbslq_f32(less, x, y))
}

#[inline(always)]
fn select_part(mask: u16, x: float32x4_t, y: float32x4_t) -> float32x4_t {
    let bits = intrinsic!(vld1q_u32([1, 2, 4, 8].as_ptr()));
    let all = intrinsic!(vdupq_n_u32(u32::from(mask)));
    let set = intrinsic!(vtstq_u32(all, bits));
    intrinsic!(vbslq_f32(set, x, y))
}

#[inline(always)]
fn exp2_part(t: float32x4_t) -> float32x4_t {
    let bits = intrinsic!(vreinterpretq_s32_f32(t));
    let exponent = intrinsic!(vshlq_n_s32::<23>(bits));
    let one = intrinsic!(vdupq_n_s32(0x3F80_0000));
    let bits = intrinsic!(vaddq_s32(exponent, one));
    intrinsic!(vreinterpretq_f32_s32(bits))
}

#[inline(always)]
fn load_f16_part(x: *const u16) -> float32x4_t {
    let bits = intrinsic!(vld1_u16(x));
    let halves = intrinsic!(vreinterpret_f16_u16(bits));
    intrinsic!(vcvt_f32_f16(halves))
}

#[inline(always)]
fn store_f16_part(v: float32x4_t, out: *mut u16) {
    // In the current rounding mode, which is to nearest, ties to even.
    let halves = intrinsic!(vcvt_f16_f32(v));
    let bits = intrinsic!(vreinterpret_u16_f16(halves));
    intrinsic!(vst1_u16(out, bits));
}

impl Lanes for Neon {
    type V = Quad;
    // Six rows of four registers, a loaded vector and a broadcast.
    const TILE_ROWS: usize = 6;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Quad {
        let v = intrinsic!(vdupq_n_f32(x));
        [v, v, v, v]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Quad {
        each!(I => vld1q_f32(x.as_ptr().wrapping_add(4 * I)))
    }
    #[inline(always)]
    fn store(self, v: Quad, out: &mut [f32; LANES]) {
        let out = out.as_mut_ptr();
        let [(), (), (), ()] = each!(I => vst1q_f32(out.wrapping_add(4 * I), v[I]));
    }
    #[inline(always)]
    fn add(self, a: Quad, b: Quad) -> Quad {
        each!(I => vaddq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn sub(self, a: Quad, b: Quad) -> Quad {
        each!(I => vsubq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn mul(self, a: Quad, b: Quad) -> Quad {
        each!(I => vmulq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn div(self, a: Quad, b: Quad) -> Quad {
        each!(I => vdivq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn fma(self, a: Quad, b: Quad, c: Quad) -> Quad {
        each!(I => vfmaq_f32(c[I], a[I], b[I]))
    }
    #[inline(always)]
    fn fnma(self, a: Quad, b: Quad, c: Quad) -> Quad {
        each!(I => vfmsq_f32(c[I], a[I], b[I]))
    }
    #[inline(always)]
    fn max(self, a: Quad, b: Quad) -> Quad {
        [max_part(a[0], b[0]), max_part(a[1], b[1]), max_part(a[2], b[2]), max_part(a[3], b[3])]
    }
    #[inline(always)]
    fn min(self, a: Quad, b: Quad) -> Quad {
        [min_part(a[0], b[0]), min_part(a[1], b[1]), min_part(a[2], b[2]), min_part(a[3], b[3])]
    }
    #[inline(always)]
    fn copysign(self, magnitude: Quad, sign: Quad) -> Quad {
        [
            copysign_part(magnitude[0], sign[0]),
            copysign_part(magnitude[1], sign[1]),
            copysign_part(magnitude[2], sign[2]),
            copysign_part(magnitude[3], sign[3]),
        ]
    }
    #[inline(always)]
    fn if_less(self, a: Quad, b: Quad, x: Quad, y: Quad) -> Quad {
        [
            if_less_part(a[0], b[0], x[0], y[0]),
            if_less_part(a[1], b[1], x[1], y[1]),
            if_less_part(a[2], b[2], x[2], y[2]),
            if_less_part(a[3], b[3], x[3], y[3]),
        ]
    }
    #[inline(always)]
    fn select(self, mask: u16, x: Quad, y: Quad) -> Quad {
        [
            select_part(mask, x[0], y[0]),
            select_part(mask >> 4, x[1], y[1]),
            select_part(mask >> 8, x[2], y[2]),
            select_part(mask >> 12, x[3], y[3]),
        ]
    }
    #[inline(always)]
    fn exp2_of_magic(self, t: Quad) -> Quad {
        [exp2_part(t[0]), exp2_part(t[1]), exp2_part(t[2]), exp2_part(t[3])]
    }
    #[inline(always)]
    fn swap_pairs(self, v: Quad) -> Quad {
        each!(I => vrev64q_f32(v[I]))
    }
    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Quad {
        let x = x.as_ptr().cast::<u16>();
        [
            load_f16_part(x),
            load_f16_part(x.wrapping_add(4)),
            load_f16_part(x.wrapping_add(8)),
            load_f16_part(x.wrapping_add(12)),
        ]
    }
    #[inline(always)]
    fn store_f16(self, v: Quad, out: &mut [f16; LANES]) {
        let out = out.as_mut_ptr().cast::<u16>();
        for (i, v) in v.into_iter().enumerate() {
            store_f16_part(v, out.wrapping_add(4 * i));
        }
    }
}
