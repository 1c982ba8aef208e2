use super::{LENGTHS, Random, assert_close, same_in_all_tiers};

/// Half an ulp, relative.
const HALF_ULP: f64 = 1.0 / (1u64 << 24) as f64;

/// Values over the whole range, of both signs, and the special ones.
fn sweep() -> Vec<f32> {
    let mut values = vec![0.0, -0.0, f32::MIN_POSITIVE, 1e-40, -1e-40, f32::MAX, f32::MIN];
    for exponent in -40..10 {
        for step in 0..64 {
            let value = (1.0 + step as f32 / 64.0) * (exponent as f32).exp2();
            values.extend([value, -value]);
        }
    }
    values.extend((0..20_000).map(|i| i as f32 * 0.011 - 110.0));
    values
}

fn f64_of(x: &[f32], f: impl Fn(f64) -> f64) -> Vec<f64> {
    x.iter().map(|&x| f(f64::from(x))).collect()
}

#[test]
fn silu_mul_is_close_to_f64() {
    for &len in LENGTHS {
        let mut random = Random(len as u64);
        let (gate, up) = (random.vec(len, 12.0), random.vec(len, 3.0));
        let got = same_in_all_tiers(|ops| {
            let mut y = gate.clone();
            ops.silu_mul(&mut y, &up);
            y
        });
        let expected: Vec<f64> = gate
            .iter()
            .zip(&up)
            .map(|(&g, &u)| f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u))
            .collect();
        // exp within 2 ulp, then add, divide and multiply: 5 roundings in all.
        assert_close(&got, &expected, 8.0 * HALF_ULP, 0.0);
    }
}

#[test]
fn silu_saturates() {
    let x = sweep();
    let ones = vec![1.0; x.len()];
    let got = same_in_all_tiers(|ops| {
        let mut y = x.clone();
        ops.silu_mul(&mut y, &ones);
        y
    });
    let expected = f64_of(&x, |x| x / (1.0 + (-x).exp()));
    // The quotient is subnormal or flushes where e^-x overflows: absolute error there.
    assert_close(&got, &expected, 8.0 * HALF_ULP, 1e-36);
}

#[test]
fn gelu_tanh_mul_is_close_to_f64() {
    let x = sweep();
    let ones = vec![1.0; x.len()];
    let got = same_in_all_tiers(|ops| {
        let mut y = x.clone();
        ops.gelu_tanh_mul(&mut y, &ones);
        y
    });
    let slope = (2.0 / std::f64::consts::PI).sqrt();
    let expected = f64_of(&x, |x| {
        let u = slope * (x + 0.044715 * x * x * x);
        x / (1.0 + (-2.0 * u).exp())
    });
    // An exponent of 2u carries the rounding of u: about 3 half ulps of 2u, which is below 16
    // wherever the result exceeds 1e-7 in size.
    assert_close(&got, &expected, 64.0 * HALF_ULP, 1e-8);
    let moderate: Vec<usize> = (0..x.len()).filter(|&i| x[i] > -2.0).collect();
    for i in moderate {
        let error = (f64::from(got[i]) - expected[i]).abs();
        assert!(error <= 16.0 * HALF_ULP * expected[i].abs() + 1e-45, "gelu({:e})", x[i]);
    }
}

#[test]
fn soft_cap_is_close_to_f64() {
    for cap in [1.0f32, 30.0, 50.0] {
        let x = sweep();
        let got = same_in_all_tiers(|ops| {
            let mut y = x.clone();
            ops.soft_cap(&mut y, cap);
            y
        });
        let expected = f64_of(&x, |x| f64::from(cap) * (x / f64::from(cap)).tanh());
        // Where x / cap is subnormal, its rounding comes back multiplied by cap.
        assert_close(&got, &expected, 8.0 * HALF_ULP, f64::from(cap) * 1.5e-45);
    }
}

#[test]
fn not_a_number_passes_and_infinity_saturates() {
    let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let unary = |f: &dyn Fn(&super::Ops, &mut [f32])| {
        same_in_all_tiers(|ops| {
            let mut y = x.to_vec();
            f(ops, &mut y);
            y
        })
    };
    let silu = unary(&|ops, y| ops.silu_mul(y, &[1.0; 3]));
    assert!(silu[0].is_nan() && silu[1] == f32::INFINITY);
    let gelu = unary(&|ops, y| ops.gelu_tanh_mul(y, &[1.0; 3]));
    assert!(gelu[0].is_nan() && gelu[1] == f32::INFINITY);
    let capped = unary(&|ops, y| ops.soft_cap(y, 30.0));
    assert!(capped[0].is_nan());
    assert_eq!(capped[1..], [30.0, -30.0]);
}

#[test]
fn add_bias_and_scale_are_exact() {
    for &len in LENGTHS {
        let mut random = Random(3 + len as u64);
        let (x, bias) = (random.vec(3 * len, 4.0), random.vec(len, 4.0));
        let got = same_in_all_tiers(|ops| {
            let mut y = x.clone();
            ops.add_bias(&mut y, &bias);
            ops.scale(&mut y, 25.298_221);
            let copy = y.clone();
            ops.add(&mut y, &copy);
            y
        });
        for (i, &y) in got.iter().enumerate() {
            let expected = (x[i] + bias[i % len]) * 25.298_221;
            assert_eq!(y, expected + expected);
        }
    }
}
