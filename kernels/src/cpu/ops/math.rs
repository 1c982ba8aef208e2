//! Exponential, hyperbolic tangent and the activations built on them, sixteen lanes at a time.
//!
//! One polynomial serves them all: `e^r = 1 + r + r^2 q(r)` on `|r| <= ln 2 / 2`, whose own error
//! is 0.2 ulp; with rounding the functions stay within 2 ulp of the true value.
//! A NaN stays a NaN, an overflow becomes infinity, an underflow zero.
// Coefficients are written as the fit printed them, in the digits that f32 needs.
#![allow(clippy::excessive_precision)]

use super::lanes::{Lanes, ROUND_MAGIC};

/// `ln 2` in two parts: the first has so few bits that `n * LN2_HIGH` is exact.
const LN2_HIGH: f32 = 0.693_145_751_953_125;
const LN2_LOW: f32 = 1.428_606_82e-6;

/// Chebyshev interpolation of `(e^r - 1 - r) / r^2`, lowest power first.
const EXP_POLY: [f32; 5] = [0.5, 0.166_665_76, 0.041_666_556, 0.008_363_179, 0.001_392_618_4];

/// Chebyshev interpolation of `(tanh(x) / x - 1) / x^2` in `x^2`, for `|x| < 0.625`.
const TANH_POLY: [f32; 5] =
    [-0.333_333_28, 0.133_327_68, -0.053_850_755, 0.020_996_654, -0.006_096_119];

/// Below this, [`exp_neg`] is zero: `-127 ln 2`.
const EXP_NEG_MIN: f32 = -88.029_69;

/// `(ROUND_MAGIC + n, e^r)` with `x = n ln 2 + r`.
#[inline(always)]
fn exp_parts<L: Lanes>(l: L, x: L::V) -> (L::V, L::V) {
    let magic = l.splat(ROUND_MAGIC);
    let t = l.fma(x, l.splat(std::f32::consts::LOG2_E), magic);
    let n = l.sub(t, magic);
    let r = l.fnma(n, l.splat(LN2_HIGH), x);
    let r = l.fnma(n, l.splat(LN2_LOW), r);
    let mut q = l.splat(EXP_POLY[4]);
    q = l.fma(q, r, l.splat(EXP_POLY[3]));
    q = l.fma(q, r, l.splat(EXP_POLY[2]));
    q = l.fma(q, r, l.splat(EXP_POLY[1]));
    q = l.fma(q, r, l.splat(EXP_POLY[0]));
    let tail = l.fma(l.mul(r, r), q, r);
    (t, l.add(tail, l.splat(1.0)))
}

/// `e^x` over the whole range, subnormal results included.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(l: L, x: L::V) -> L::V {
    // Beyond these bounds the result is 0 or infinity anyway, and n stays in range. The bound is
    // the first operand so that a NaN passes.
    let x = l.min(l.splat(89.0), l.max(l.splat(-104.0), x));
    let (t, y) = exp_parts(l, x);
    // 2^n may not be a float on its own (n = 128, or below -126): scale by 2^(n/2) twice.
    let magic = l.splat(ROUND_MAGIC);
    let n = l.sub(t, magic);
    let half = l.fma(n, l.splat(0.5), magic);
    let rest = l.add(l.sub(n, l.sub(half, magic)), magic);
    l.mul(l.mul(y, l.exp2_of_magic(half)), l.exp2_of_magic(rest))
}

/// `e^x` for `x <= 0`, with results under `2^-127` flushed to zero: the softmax exponential.
#[inline(always)]
pub(crate) fn exp_neg<L: Lanes>(l: L, x: L::V) -> L::V {
    let (t, y) = exp_parts(l, l.max(l.splat(EXP_NEG_MIN), x));
    l.mul(y, l.exp2_of_magic(t))
}

/// `tanh(x)`.
#[inline(always)]
pub(crate) fn tanh<L: Lanes>(l: L, x: L::V) -> L::V {
    let z = l.copysign(x, l.zero());
    let one = l.splat(1.0);
    let e = exp(l, l.add(z, z));
    let large = l.sub(one, l.div(l.splat(2.0), l.add(e, one)));
    let z2 = l.mul(z, z);
    let mut q = l.splat(TANH_POLY[4]);
    q = l.fma(q, z2, l.splat(TANH_POLY[3]));
    q = l.fma(q, z2, l.splat(TANH_POLY[2]));
    q = l.fma(q, z2, l.splat(TANH_POLY[1]));
    q = l.fma(q, z2, l.splat(TANH_POLY[0]));
    let small = l.fma(l.mul(z, z2), q, z);
    l.copysign(l.if_less(z, l.splat(0.625), small, large), x)
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu<L: Lanes>(l: L, x: L::V) -> L::V {
    let e = exp(l, l.sub(l.zero(), x));
    l.div(x, l.add(l.splat(1.0), e))
}

/// `x/2 (1 + tanh(u))`, `u = sqrt(2/pi) (x + 0.044715 x^3)`, computed as `x / (1 + e^-2u)`: the
/// same function without the cancellation of `1 + tanh`.
#[inline(always)]
pub(crate) fn gelu_tanh<L: Lanes>(l: L, x: L::V) -> L::V {
    /// `-2 sqrt(2 / pi)`.
    const SLOPE: f32 = -1.595_769_12;
    let cubic = l.fma(l.mul(x, x), l.splat(0.044_715), l.splat(1.0));
    let e = exp(l, l.mul(l.mul(x, l.splat(SLOPE)), cubic));
    l.div(x, l.add(l.splat(1.0), e))
}

/// `cap tanh(x / cap)`; `inv_cap` is `1 / cap`.
#[inline(always)]
pub(crate) fn soft_cap<L: Lanes>(l: L, x: L::V, cap: f32, inv_cap: f32) -> L::V {
    l.mul(l.splat(cap), tanh(l, l.mul(x, l.splat(inv_cap))))
}
