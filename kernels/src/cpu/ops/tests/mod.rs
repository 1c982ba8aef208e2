//! Each op against an independent f64 implementation, and the tiers against each other bit by bit.

mod attention;
mod elementwise;
mod embed;
mod experts;
mod kv;
mod math;
mod rope;
mod rows;

use super::Ops;
use crate::Tier;

/// The ops of every tier that this machine has, scalar first.
fn all_ops() -> Vec<Ops> {
    let tiers = Tier::ALL.iter().filter(|tier| tier.available());
    tiers.map(|&tier| Ops::new(tier).expect("available")).collect()
}

/// A small generator of our own, so that a failing seed stays reproducible.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in -1 to 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn vec(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.unit() * scale).collect()
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Bits, with all NaNs made one: their payload is no part of the contract.
fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| if v.is_nan() { 0x7FC0_0000 } else { v.to_bits() }).collect()
}

/// Runs `op` in every tier, asserts that all give the same bits, returns the values.
fn same_in_all_tiers(op: impl Fn(&Ops) -> Vec<f32>) -> Vec<f32> {
    let all = all_ops();
    let expected = op(&all[0]);
    for ops in &all[1..] {
        let got = op(ops);
        let differs = bits(&got).iter().zip(bits(&expected)).position(|(&a, b)| a != b);
        if let Some(i) = differs {
            panic!("{:?} differs at {i}: {:e}, scalar {:e}", ops.tier(), got[i], expected[i]);
        }
        assert_eq!(got.len(), expected.len());
    }
    expected
}

/// Asserts `|got - expected| <= absolute + relative * |expected|`.
fn assert_close(got: &[f32], expected: &[f64], relative: f64, absolute: f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        assert!(
            error <= absolute + relative * expected.abs(),
            "element {i}: {got:e}, expected {expected:e}"
        );
    }
}

/// Lengths with every kind of tail.
const LENGTHS: &[usize] = &[1, 7, 15, 16, 17, 31, 63, 64, 65, 80, 576, 640, 1000, 1536];
