use super::{LENGTHS, Random, all_ops, assert_close, bits, same_in_all_tiers};

fn rmsnorm_f64(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let mut y = Vec::new();
    for row in x.chunks(weight.len()) {
        let squares: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let inverse = 1.0 / (squares / row.len() as f64 + f64::from(eps)).sqrt();
        y.extend(row.iter().zip(weight).map(|(&v, &w)| f64::from(v) * inverse * f64::from(w)));
    }
    y
}

#[test]
fn rmsnorm_is_close_to_f64_and_rows_are_independent() {
    for &len in LENGTHS {
        let mut random = Random(7 + len as u64);
        let (x, weight) = (random.vec(3 * len, 20.0), random.vec(len, 2.0));
        let got = same_in_all_tiers(|ops| {
            let mut y = vec![f32::NAN; x.len()];
            ops.rmsnorm(&mut y, &x, &weight, 1e-6);
            y
        });
        // 64 chains of at most 24 roundings, a tree of 6, then 5 more; all terms are positive.
        assert_close(&got, &rmsnorm_f64(&x, &weight, 1e-6), 2e-6, 0.0);
        for ops in all_ops() {
            let mut one = x[len..2 * len].to_vec();
            ops.rmsnorm_in_place(&mut one, &weight, 1e-6);
            assert_eq!(bits(&one), bits(&got[len..2 * len]));
        }
    }
}

#[test]
fn rmsnorm_of_zeros_is_zero() {
    let got = same_in_all_tiers(|ops| {
        let mut y = vec![f32::NAN; 100];
        ops.rmsnorm(&mut y, &[0.0; 100], &[1.0; 100], 1e-5);
        y
    });
    assert!(got.iter().all(|&v| v == 0.0));
}

#[test]
fn softmax_is_close_to_f64() {
    for &len in LENGTHS {
        let x = Random(11 + len as u64).vec(len, 30.0);
        let got = same_in_all_tiers(|ops| {
            let mut y = x.clone();
            ops.softmax(&mut y);
            y
        });
        let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f64> = x.iter().map(|&v| f64::from(v - largest).exp()).collect();
        let sum: f64 = e.iter().sum();
        let expected: Vec<f64> = e.iter().map(|e| e / sum).collect();
        assert_close(&got, &expected, 2e-6, 1e-38);
    }
}

#[test]
fn softmax_takes_masked_and_distant_scores() {
    let got = same_in_all_tiers(|ops| {
        let mut y = vec![f32::NEG_INFINITY, 0.0, -1e30, 0.0, -200.0];
        ops.softmax(&mut y);
        y
    });
    assert_eq!(got, [0.0, 0.5, 0.0, 0.5, 0.0]);
}

#[test]
fn argmax_takes_the_first_largest() {
    for ops in all_ops() {
        for &len in LENGTHS {
            let mut random = Random(len as u64);
            let mut x = random.vec(len, 5.0);
            let at = random.below(len);
            x[at] = 9.0;
            let last = len - 1;
            x[last] = 9.0;
            assert_eq!(ops.argmax(&x), at);
            x[0] = f32::NAN;
            assert_eq!(ops.argmax(&x), if at == 0 && last > 0 { last } else { at });
        }
        assert_eq!(ops.argmax(&[f32::NAN, f32::NAN]), 0);
        assert_eq!(ops.argmax(&[f32::NAN, f32::NEG_INFINITY]), 1);
        assert_eq!(ops.argmax(&[]), 0);
    }
}
