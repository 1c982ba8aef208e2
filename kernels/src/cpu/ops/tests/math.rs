use super::super::lanes::{Lanes, Scalar};
use super::super::math;

/// Largest error of `f` against `expected` over `x`, in ulp of the true value (subnormal results
/// have the ulp of the smallest normal).
fn worst_ulp(x: &[f32], f: impl Fn([f32; 16]) -> [f32; 16], expected: impl Fn(f64) -> f64) -> f64 {
    let mut worst = 0f64;
    for block in x.as_chunks::<16>().0 {
        for (&x, got) in block.iter().zip(f(*block)) {
            let expected = expected(f64::from(x));
            let exponent = expected.abs().max(2f64.powi(-126)).log2().floor() as i32;
            let error = (f64::from(got) - expected).abs() / 2f64.powi(exponent - 23);
            assert!(error < 4.0, "at {x:e}: {got:e}, expected {expected:e}");
            worst = worst.max(error);
        }
    }
    worst
}

fn steps(from: f32, to: f32) -> Vec<f32> {
    let n = 1 << 18;
    (0..n).map(|i| from + (to - from) * (i as f32 / n as f32)).collect()
}

#[test]
fn exp_is_within_two_ulp() {
    let exp = |x| math::exp(Scalar, x);
    assert!(worst_ulp(&steps(-110.0, 88.72), exp, f64::exp) < 2.0);
    assert!(worst_ulp(&steps(-1.0, 1.0), exp, f64::exp) < 1.5);
    let neg = |x| math::exp_neg(Scalar, x);
    assert!(worst_ulp(&steps(-87.33, 0.0), neg, f64::exp) < 2.0);
}

#[test]
fn exp_saturates_and_keeps_nan() {
    let at = |x| math::exp(Scalar, Scalar.splat(x))[0];
    assert_eq!(at(88.73), f32::INFINITY);
    assert_eq!(at(f32::MAX), f32::INFINITY);
    assert_eq!(at(f32::INFINITY), f32::INFINITY);
    assert_eq!(at(f32::NEG_INFINITY), 0.0);
    assert_eq!(at(f32::MIN), 0.0);
    assert_eq!(at(0.0), 1.0);
    assert!(at(f32::NAN).is_nan());
    let neg = |x| math::exp_neg(Scalar, Scalar.splat(x))[0];
    assert_eq!(neg(0.0), 1.0);
    assert_eq!(neg(-89.0), 0.0);
    assert_eq!(neg(f32::NEG_INFINITY), 0.0);
    assert!(neg(f32::NAN).is_nan());
}

#[test]
fn tanh_is_within_two_ulp() {
    let tanh = |x| math::tanh(Scalar, x);
    assert!(worst_ulp(&steps(-10.0, 10.0), tanh, f64::tanh) < 2.0);
    assert!(worst_ulp(&steps(-0.7, 0.7), tanh, f64::tanh) < 2.0);
    assert!(worst_ulp(&steps(-1e-3, 1e-3), tanh, f64::tanh) < 1.0);
    let at = |x| math::tanh(Scalar, Scalar.splat(x))[0];
    assert_eq!(at(f32::INFINITY), 1.0);
    assert_eq!(at(f32::NEG_INFINITY), -1.0);
    assert_eq!(at(-0.0).to_bits(), (-0.0f32).to_bits());
}
