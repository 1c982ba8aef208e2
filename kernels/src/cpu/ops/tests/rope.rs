use super::super::{RopeParams, RopeStyle, RopeTable};
use super::{Random, all_ops, assert_close, bits, same_in_all_tiers};

fn params(style: RopeStyle, n_rot: usize) -> RopeParams {
    RopeParams {
        style,
        n_rot,
        freq_base: 1e6,
        freq_scale: 1.0,
        attn_factor: 1.0,
        freq_factors: Vec::new(),
    }
}

/// Rotation by complex numbers in f64.
fn rope_f64(x: &[f32], head_dim: usize, n_head: usize, p: &RopeParams, pos0: usize) -> Vec<f64> {
    let mut y: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    for (head_idx, head) in y.chunks_mut(head_dim).enumerate() {
        let position = (pos0 + head_idx / n_head) as f64;
        for i in 0..p.n_rot / 2 {
            let factor = p.freq_factors.get(i).copied().unwrap_or(1.0);
            let frequency = 1.0 / p.freq_base.powf(2.0 * i as f64 / p.n_rot as f64);
            let (sin, cos) = (position * p.freq_scale * frequency / f64::from(factor)).sin_cos();
            let (a, b) = match p.style {
                RopeStyle::Normal => (2 * i, 2 * i + 1),
                RopeStyle::Neox => (i, i + p.n_rot / 2),
            };
            let (re, im) = (head[a], head[b]);
            head[a] = (re * cos - im * sin) * p.attn_factor;
            head[b] = (re * sin + im * cos) * p.attn_factor;
        }
    }
    y
}

fn check(p: &RopeParams, head_dim: usize, n_head: usize, pos0: usize) {
    let n_tokens = 5;
    let x = Random(pos0 as u64).vec(n_tokens * n_head * head_dim, 3.0);
    let mut table = RopeTable::new(p);
    table.extend(pos0 + n_tokens);
    let got = same_in_all_tiers(|ops| {
        let mut y = x.clone();
        ops.rope(&mut y, n_head, head_dim, &table, pos0);
        y
    });
    // Sine, cosine and two products rounded, of values up to 3 * attn_factor.
    assert_close(&got, &rope_f64(&x, head_dim, n_head, p, pos0), 0.0, 1.5e-6);
    for ops in all_ops() {
        // A token alone gives the bits that it has in the batch.
        let row = 3 * n_head * head_dim..4 * n_head * head_dim;
        let mut one = x[row.clone()].to_vec();
        ops.rope(&mut one, n_head, head_dim, &table, pos0 + 3);
        assert_eq!(bits(&one), bits(&got[row]));
    }
}

#[test]
fn both_styles_match_complex_rotation() {
    for style in [RopeStyle::Normal, RopeStyle::Neox] {
        for head_dim in [16, 64, 80, 96, 128, 256] {
            for pos0 in [0, 1, 1000, 40_000] {
                check(&params(style, head_dim), head_dim, 3, pos0);
            }
        }
    }
}

#[test]
fn partial_rotation_leaves_the_rest() {
    for style in [RopeStyle::Normal, RopeStyle::Neox] {
        for n_rot in [2, 20, 32, 40, 64] {
            check(&params(style, n_rot), 80, 2, 17);
        }
    }
}

#[test]
fn scaling_factors_apply() {
    for style in [RopeStyle::Normal, RopeStyle::Neox] {
        let mut p = params(style, 64);
        p.freq_scale = 0.125;
        p.attn_factor = 1.19;
        p.freq_factors = (0..32).map(|i| 1.0 + i as f32 * 0.9).collect();
        check(&p, 64, 2, 900);
    }
}

#[test]
fn growing_a_table_changes_nothing() {
    let p = params(RopeStyle::Neox, 64);
    let (mut grown, mut whole) = (RopeTable::new(&p), RopeTable::new(&p));
    for n in [1, 2, 2, 7, 50] {
        grown.extend(n);
    }
    whole.extend(50);
    assert_eq!(grown.n_positions(), 50);
    let x = Random(1).vec(50 * 64, 1.0);
    let [a, b] = [&grown, &whole].map(|table| {
        let mut y = x.clone();
        all_ops()[0].rope(&mut y, 1, 64, table, 0);
        bits(&y)
    });
    assert_eq!(a, b);
}
