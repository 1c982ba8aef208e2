use half::f16;

use super::super::{AttentionShape, AttentionUnit, KvShape, KvView, Ops, attention_scratch_len};
use crate::OutView;

use super::{Random, all_ops, assert_close, bits, same_in_all_tiers};

/// A layer's inputs: queries, keys and values of `n_tokens` tokens, the first at position 0.
struct Case {
    shape: AttentionShape,
    kv: KvShape,
    n_tokens: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Case {
    fn new(seed: u64, head_dim: usize, n_head: usize, n_head_kv: usize, n_tokens: usize) -> Self {
        let mut random = Random(seed);
        let shape = AttentionShape {
            n_head,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            soft_cap: None,
        };
        Self {
            shape,
            kv: KvShape::new(n_head_kv, head_dim, n_tokens + 3),
            n_tokens,
            q: random.vec(n_tokens * n_head * head_dim, 3.0),
            k: random.vec(n_tokens * n_head_kv * head_dim, 3.0),
            v: random.vec(n_tokens * n_head_kv * head_dim, 2.0),
        }
    }

    fn row_len(&self) -> usize {
        self.shape.n_head * self.kv.head_dim
    }

    /// Runs the case: tokens in chunks of `n_batch` (append, then attend), units of `n_unit`
    /// tokens and `n_heads` heads.
    fn run(&self, ops: &Ops, n_batch: usize, n_unit: usize, n_heads: usize) -> Vec<f32> {
        let kv_len = self.kv.n_head_kv * self.kv.head_dim;
        // NaN everywhere: whatever is read without having been appended shows.
        let mut k_cache = vec![f16::NAN; self.kv.n_elems()];
        let mut v_cache = vec![f16::NAN; self.kv.n_elems()];
        let mut y = vec![f32::NAN; self.q.len()];
        let row_len = self.row_len();
        let mut pos0 = 0;
        while pos0 < self.n_tokens {
            let end = (pos0 + n_batch).min(self.n_tokens);
            let kv_rows = pos0 * kv_len..end * kv_len;
            let (k, v) = (&self.k[kv_rows.clone()], &self.v[kv_rows]);
            ops.append_kv(&mut k_cache, &mut v_cache, &self.kv, k, v, pos0);
            let view = KvView { shape: self.kv, k: &k_cache, v: &v_cache };
            let q = &self.q[pos0 * row_len..end * row_len];
            let out = &mut y[pos0 * row_len..end * row_len];
            self.attend(ops, out, q, &view, (pos0, end - pos0), (n_unit, n_heads));
            pos0 = end;
        }
        y
    }

    fn attend(
        &self,
        ops: &Ops,
        out: &mut [f32],
        q: &[f32],
        view: &KvView<'_>,
        (pos0, n_tokens): (usize, usize),
        (n_unit, n_heads): (usize, usize),
    ) {
        let len = attention_scratch_len(&self.kv, &self.shape, n_unit, n_heads, pos0 + n_tokens);
        let mut scratch = vec![f32::NAN; len];
        #[allow(unsafe_code)]
        // SAFETY: one unit at a time.
        let out = unsafe { OutView::new(out, self.row_len()) };
        for start in (0..n_tokens).step_by(n_unit) {
            let tokens = start..(start + n_unit).min(n_tokens);
            for head in (0..self.shape.n_head).step_by(n_heads) {
                let unit =
                    AttentionUnit { tokens: tokens.clone(), heads: head..head + n_heads, pos0 };
                ops.attention(&out, q, view, &self.shape, &unit, &mut scratch);
            }
        }
    }

    /// The definition, in f64, on the values that f16 holds.
    fn naive(&self) -> Vec<f64> {
        let (hd, n_head, n_kv) = (self.kv.head_dim, self.shape.n_head, self.kv.n_head_kv);
        let half = |x: f32| f64::from(f16::from_f32(x).to_f32());
        let mut y = vec![0.0; self.q.len()];
        for t in 0..self.n_tokens {
            for h in 0..n_head {
                let kv_head = h / (n_head / n_kv);
                let first = self.shape.window.map_or(0, |w| (t + 1).saturating_sub(w));
                let score = |p: usize| {
                    let dot: f64 = (0..hd)
                        .map(|d| {
                            let q = f64::from(self.q[(t * n_head + h) * hd + d]);
                            q * half(self.k[(p * n_kv + kv_head) * hd + d])
                        })
                        .sum();
                    let score = dot * f64::from(self.shape.scale);
                    self.shape
                        .soft_cap
                        .map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
                };
                let scores: Vec<f64> = (first..=t).map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let e: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = e.iter().sum();
                for d in 0..hd {
                    let out = &mut y[(t * n_head + h) * hd + d];
                    for (p, e) in (first..=t).zip(&e) {
                        *out += e / sum * half(self.v[(p * n_kv + kv_head) * hd + d]);
                    }
                }
            }
        }
        y
    }

    /// Equality of bits among tiers and ways to cut the work, closeness to f64.
    fn check(&self) {
        let group = self.shape.n_head / self.kv.n_head_kv;
        let expected = same_in_all_tiers(|ops| self.run(ops, self.n_tokens, self.n_tokens, group));
        // Scores carry about sqrt(head_dim) roundings of terms up to 9: below 1e-5; weights and
        // sums add a few ulp. Values are at most 2.
        assert_close(&expected, &self.naive(), 0.0, 4e-5);
        for ops in &all_ops()[1..] {
            for (n_batch, n_unit, n_heads) in
                [(1, 1, group), (1, 1, 1), (self.n_tokens, 5, 1), (7, 3, group), (16, 16, group)]
            {
                let got = self.run(ops, n_batch, n_unit, n_heads);
                assert!(
                    bits(&got) == bits(&expected),
                    "{:?}: batch {n_batch}, unit {n_unit} x {n_heads}",
                    ops.tier()
                );
            }
        }
    }
}

#[test]
fn every_head_dim() {
    for (i, head_dim) in [16, 64, 80, 96, 128, 256].into_iter().enumerate() {
        Case::new(i as u64, head_dim, 4, 2, 45).check();
    }
}

#[test]
fn every_group_size() {
    for group in 1..=9 {
        Case::new(group as u64, 32, 2 * group, 2, 37).check();
    }
}

#[test]
fn every_length_around_a_block() {
    for n_tokens in [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65] {
        Case::new(n_tokens as u64, 16, 2, 1, n_tokens).check();
    }
}

#[test]
fn long_enough_for_several_chunks() {
    // K and V chunks hold 192 positions at head_dim 64, 48 at 256.
    Case::new(1, 64, 3, 1, 420).check();
    Case::new(2, 256, 2, 1, 150).check();
    // A head that no chunk holds: an endless loop once.
    Case::new(3, 12_304, 1, 1, 3).check();
}

#[test]
fn windows_of_every_kind() {
    for window in [1, 2, 3, 15, 16, 17, 32, 40, 64, 1000] {
        let mut case = Case::new(window as u64, 32, 3, 1, 75);
        case.shape.window = Some(window);
        case.check();
    }
}

#[test]
fn window_over_several_chunks() {
    let mut case = Case::new(4, 128, 2, 1, 400);
    case.shape.window = Some(130);
    case.check();
}

#[test]
fn soft_cap() {
    let mut case = Case::new(5, 64, 2, 1, 50);
    case.shape.soft_cap = Some(5.0);
    case.check();
    case.shape.window = Some(20);
    case.check();
}

#[test]
fn a_window_of_one_returns_the_value() {
    let mut case = Case::new(6, 16, 2, 2, 20);
    case.shape.window = Some(1);
    let got = same_in_all_tiers(|ops| case.run(ops, 20, 20, 1));
    let expected: Vec<f32> = case.v.iter().map(|&v| f16::from_f32(v).to_f32()).collect();
    assert_eq!(bits(&got), bits(&expected));
}

/// An infinite or NaN key or value must reach the rows that see it and no others, in whatever
/// batch it comes.
#[test]
fn extreme_values_stay_causal() {
    let mut case = Case::new(7, 32, 3, 1, 60);
    case.shape.window = Some(24);
    let clean = case.run(&all_ops()[0], 60, 60, 3);
    for bad in [f32::NAN, f32::INFINITY, 1e30] {
        let poisoned = 21;
        case.v[poisoned * 32 + 5] = bad;
        case.k[40 * 32 + 9] = bad;
        let got = same_in_all_tiers(|ops| case.run(ops, 60, 60, 3));
        let row_len = case.row_len();
        for (token, (got, clean)) in got.chunks(row_len).zip(clean.chunks(row_len)).enumerate() {
            if token < poisoned || token >= 40 + 24 {
                assert_eq!(bits(got), bits(clean), "token {token}");
            } else if token < 40 {
                assert!(got[5].is_nan() || got[5].is_infinite(), "token {token}: {}", got[5]);
                assert_eq!(bits(&got[6..16]), bits(&clean[6..16]), "token {token}");
            }
        }
        for ops in &all_ops()[1..] {
            for cut in [(1, 1, 3), (9, 4, 1)] {
                assert_eq!(bits(&case.run(ops, cut.0, cut.1, cut.2)), bits(&got));
            }
        }
    }
}

/// Scores so far apart that all but one exponential vanish, and equal scores.
#[test]
fn distant_and_equal_scores() {
    let mut case = Case::new(8, 16, 1, 1, 40);
    for q in &mut case.q {
        *q *= 1e4;
    }
    let got = same_in_all_tiers(|ops| case.run(ops, 40, 40, 1));
    assert_close(&got, &case.naive(), 0.0, 4e-3);
    case.q.fill(0.0);
    case.check();
}
