//! Ops that reduce a row: RMS norm, softmax, argmax. Every sum has one fixed order.

use super::lanes::{LANES, Lanes};
use super::math;

/// Independent accumulators of [`sum_of_squares`]: element `k` belongs to lane `k mod 64`.
const SUMS: usize = 4;

/// `sum(x^2)` in 64 chains (`k mod 64`, fused), then `(0+1)+(2+3)` of the four registers, then the
/// lanes.
#[inline(always)]
fn sum_of_squares<L: Lanes>(l: L, x: &[f32]) -> f32 {
    let mut sums = [l.zero(); SUMS];
    let (groups, rest) = x.as_chunks::<{ SUMS * LANES }>();
    for group in groups {
        let (parts, _) = group.as_chunks::<LANES>();
        for (sum, part) in sums.iter_mut().zip(parts) {
            let v = l.load(part);
            *sum = l.fma(v, v, *sum);
        }
    }
    for (sum, part) in sums.iter_mut().zip(rest.chunks(LANES)) {
        let v = l.load_partial(part, 0.0);
        *sum = l.fma(v, v, *sum);
    }
    l.reduce_add(l.add(l.add(sums[0], sums[1]), l.add(sums[2], sums[3])))
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn inverse_rms<L: Lanes>(l: L, x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(l, x) / x.len() as f32 + eps).sqrt()
}

#[inline(always)]
pub(super) fn rmsnorm<L: Lanes>(l: L, y: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
    let row_len = weight.len();
    assert_eq!(y.len(), x.len(), "operand lengths");
    assert!(row_len > 0 && x.len().is_multiple_of(row_len), "rows of {row_len}");
    for (y, x) in y.chunks_exact_mut(row_len).zip(x.chunks_exact(row_len)) {
        let inverse = l.splat(inverse_rms(l, x, eps));
        let (y_blocks, y_rest) = y.as_chunks_mut::<LANES>();
        let (x_blocks, x_rest) = x.as_chunks::<LANES>();
        let (w_blocks, w_rest) = weight.as_chunks::<LANES>();
        for ((y, x), w) in y_blocks.iter_mut().zip(x_blocks).zip(w_blocks) {
            l.store(l.mul(l.mul(l.load(x), inverse), l.load(w)), y);
        }
        let x = l.load_partial(x_rest, 0.0);
        let w = l.load_partial(w_rest, 0.0);
        l.store_partial(l.mul(l.mul(x, inverse), w), y_rest);
    }
}

#[inline(always)]
pub(super) fn rmsnorm_in_place<L: Lanes>(l: L, x: &mut [f32], weight: &[f32], eps: f32) {
    let row_len = weight.len();
    assert!(row_len > 0 && x.len().is_multiple_of(row_len), "rows of {row_len}");
    for x in x.chunks_exact_mut(row_len) {
        let inverse = l.splat(inverse_rms(l, x, eps));
        let (x_blocks, x_rest) = x.as_chunks_mut::<LANES>();
        let (w_blocks, w_rest) = weight.as_chunks::<LANES>();
        for (x, w) in x_blocks.iter_mut().zip(w_blocks) {
            l.store(l.mul(l.mul(l.load(x), inverse), l.load(w)), x);
        }
        let v = l.load_partial(x_rest, 0.0);
        let w = l.load_partial(w_rest, 0.0);
        l.store_partial(l.mul(l.mul(v, inverse), w), x_rest);
    }
}

/// The largest element; NaN never wins, an empty or all-NaN row gives negative infinity.
#[inline(always)]
fn row_max<L: Lanes>(l: L, x: &[f32]) -> f32 {
    let lowest = l.splat(f32::NEG_INFINITY);
    let mut largest = [lowest; SUMS];
    let (groups, rest) = x.as_chunks::<{ SUMS * LANES }>();
    for group in groups {
        let (parts, _) = group.as_chunks::<LANES>();
        for (largest, part) in largest.iter_mut().zip(parts) {
            // The running value is the second operand: it stays where `x` is NaN.
            *largest = l.max(l.load(part), *largest);
        }
    }
    for (largest, part) in largest.iter_mut().zip(rest.chunks(LANES)) {
        *largest = l.max(l.load_partial(part, f32::NEG_INFINITY), *largest);
    }
    l.reduce_max(l.max(l.max(largest[0], largest[1]), l.max(largest[2], largest[3])))
}

#[inline(always)]
pub(super) fn softmax<L: Lanes>(l: L, x: &mut [f32]) {
    let largest = l.splat(row_max(l, x));
    let mut sum = l.zero();
    let (blocks, rest) = x.as_chunks_mut::<LANES>();
    for x in blocks.iter_mut() {
        let p = math::exp_neg(l, l.sub(l.load(x), largest));
        sum = l.add(sum, p);
        l.store(p, x);
    }
    if !rest.is_empty() {
        let p = math::exp_neg(l, l.sub(l.load_partial(rest, f32::NEG_INFINITY), largest));
        sum = l.add(sum, p);
        l.store_partial(p, rest);
    }
    let inverse = l.splat(1.0 / l.reduce_add(sum));
    for x in blocks {
        l.store(l.mul(l.load(x), inverse), x);
    }
    let p = l.mul(l.load_partial(rest, 0.0), inverse);
    l.store_partial(p, rest);
}

#[inline(always)]
pub(super) fn argmax<L: Lanes>(l: L, x: &[f32]) -> usize {
    let largest = row_max(l, x);
    x.iter().position(|&value| value == largest).unwrap_or(0)
}
