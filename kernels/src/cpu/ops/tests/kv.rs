use half::f16;

use super::super::{KV_BLOCK, KvShape};
use super::{Random, all_ops};

/// IEEE rounding to half, written from the definition: the nearest representable value, ties to
/// the even significand.
fn half_by_definition(x: f32) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = f64::from(x.abs());
    if magnitude >= 65520.0 {
        return sign | 0x7C00;
    }
    let exponent = if magnitude < 2f64.powi(-14) { -14 } else { magnitude.log2().floor() as i32 };
    let unit = 2f64.powi(exponent - 10);
    let steps = (magnitude / unit).round_ties_even() as u16;
    // Beside the subnormals (whose exponent field is 0) the hidden bit of `steps` adds the 1.
    sign | (((exponent + 14) as u16) << 10).wrapping_add(steps)
}

fn values() -> Vec<f32> {
    let mut values = vec![0.0, -0.0, 65504.0, 65519.9, 65520.0, -1e9, f32::INFINITY, 5.96e-8];
    values.extend([2.98e-8, 2.980_232_3e-8, 1e-30, -6.1e-5, 6.104e-5, 1.000_488_3, 2049.0, 2051.0]);
    values.extend(Random(5).vec(400, 100.0));
    values.extend(Random(6).vec(400, 1e-4));
    values.extend(Random(7).vec(208, 1e5));
    values
}

#[test]
fn append_rounds_and_places_every_value() {
    let shape = KvShape::new(2, 16, 50);
    assert_eq!(shape.n_ctx, 64);
    let row_len = 32;
    let k = values();
    let v: Vec<f32> = k.iter().rev().copied().collect();
    let n_tokens = k.len() / row_len;
    assert_eq!(k.len(), n_tokens * row_len);
    let pos0 = 13;
    for ops in all_ops() {
        let mut k_cache = vec![f16::NAN; shape.n_elems()];
        let mut v_cache = vec![f16::NAN; shape.n_elems()];
        // Two calls: the split must not show.
        let cut = 7 * row_len;
        ops.append_kv(&mut k_cache, &mut v_cache, &shape, &k[..cut], &v[..cut], pos0);
        ops.append_kv(&mut k_cache, &mut v_cache, &shape, &k[cut..], &v[cut..], pos0 + 7);
        for head in 0..2 {
            for position in 0..shape.n_ctx {
                for d in 0..16 {
                    let block = head * shape.n_ctx / KV_BLOCK + position / KV_BLOCK;
                    let k_at = (block * 16 + d) * KV_BLOCK + position % KV_BLOCK;
                    let v_at = (head * shape.n_ctx + position) * 16 + d;
                    let token = position.wrapping_sub(pos0);
                    if token < n_tokens {
                        let from = token * row_len + head * 16 + d;
                        assert_eq!(k_cache[k_at].to_bits(), half_by_definition(k[from]));
                        assert_eq!(v_cache[v_at].to_bits(), half_by_definition(v[from]));
                    } else {
                        assert!(k_cache[k_at].is_nan() && v_cache[v_at].is_nan(), "untouched");
                    }
                }
            }
        }
    }
}
