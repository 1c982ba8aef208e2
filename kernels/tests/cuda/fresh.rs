//! Decode attention that makes its queries and key itself, against the launches that it replaces: the
//! same bits in its output and in the cache.

use crate::{POISON, Test};
use half::f16;
use kernels::cuda::{AttentionArgs, FreshRows, Gpu, OperandRef, RotaryArgs};
use std::sync::Arc;

pub(crate) const TESTS: &[Test] =
    &[("fresh_attention_gives_the_bits_of_its_parts", fresh_attention_gives_the_bits_of_its_parts)];

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}

struct Case {
    n_head: usize,
    n_head_kv: usize,
    head_dim: usize,
    at: usize,
    n_rot: usize,
    neox: bool,
    has_norms: bool,
    window: Option<usize>,
}

impl Case {
    fn run(&self, gpu: &Arc<Gpu>, is_fresh: bool) -> (Vec<u32>, Vec<u16>) {
        let Self { n_head, n_head_kv, head_dim, at, .. } = *self;
        let kv_width = n_head_kv * head_dim;
        let q = gpu.upload(&numbers(n_head * head_dim, 1)).unwrap();
        let (new_k, new_v) = (numbers(kv_width, 2), numbers(kv_width, 3));
        let (new_k, new_v) = (gpu.upload(&new_k).unwrap(), gpu.upload(&new_v).unwrap());
        // From the new position on the cache holds NaN.
        let cache = |seed| {
            let mut values: Vec<f16> =
                numbers(at * kv_width, seed).into_iter().map(f16::from_f32).collect();
            values.resize(values.len() + 40 * kv_width, f16::NAN);
            gpu.upload(&values).unwrap()
        };
        let (k, v) = (cache(4), cache(5));
        let pos = gpu.upload(&[at as u32]).unwrap();
        let steps: Vec<f64> = (0..self.n_rot / 2).map(|i| 0.5f64.powi(i as i32)).collect();
        let table = gpu.rope_table(&steps, at + 1, 1.0, self.neox).unwrap();
        let gains = [numbers(head_dim, 6), numbers(head_dim, 7)].map(|g| gpu.upload(&g).unwrap());
        let eps = 1e-6;
        let out = gpu.alloc::<f32>(q.len()).unwrap();
        gpu.fill_words(out.all(), POISON).unwrap();
        let n_parts = gpu.attention_parts(n_head, n_head_kv);
        let part_out = gpu.alloc::<f32>(n_head * n_parts * head_dim).unwrap();
        let part_ml = gpu.alloc::<[f32; 2]>(n_head * n_parts).unwrap();
        gpu.fill_words(part_out.all(), POISON).unwrap();
        gpu.fill_words(part_ml.all(), POISON).unwrap();
        let args = AttentionArgs {
            q: q.all(),
            k: k.all(),
            v: v.all(),
            first_pos: pos.all(),
            shift: 0,
            n_tokens: 1,
            n_head,
            n_head_kv,
            head_dim,
            window: self.window,
            scale: (head_dim as f32).powf(-0.5),
            soft_cap: None,
        };
        let fresh = FreshRows {
            k: new_k.all(),
            v: new_v.all(),
            table: &table,
            norms: self.has_norms.then(|| (gains[0].all(), gains[1].all(), eps)),
        };
        if !is_fresh {
            if self.has_norms {
                gpu.rmsnorm_heads(q.all(), gains[0].all(), eps).unwrap();
                gpu.rmsnorm_heads(new_k.all(), gains[1].all(), eps).unwrap();
            }
            let rotary = RotaryArgs { table: &table, first_pos: pos.all(), head_dim, n_tokens: 1 };
            let caches = (k.all(), v.all());
            gpu.rope_store(q.all(), caches, (new_k.all(), new_v.all()), &rotary).unwrap();
        }
        let operand = OperandRef { f32: Some(out.all()), ..OperandRef::default() };
        let parts = (part_out.all(), part_ml.all());
        let fresh = is_fresh.then_some(&fresh);
        gpu.attention_decode(&operand, &args, parts, n_parts, fresh).unwrap();
        let mut found = vec![0.0; out.len()];
        gpu.read(&mut found, out.all()).unwrap();
        assert!(found.iter().all(|v| v.is_finite()), "{n_head} heads at {at}");
        let mut caches = vec![f16::ZERO; k.len() + v.len()];
        let (first, second) = caches.split_at_mut(k.len());
        gpu.read(first, k.all()).unwrap();
        gpu.read(second, v.all()).unwrap();
        let bits = found.iter().map(|v| v.to_bits()).collect();
        (bits, caches.iter().map(|v| v.to_bits()).collect())
    }
}

fn fresh_attention_gives_the_bits_of_its_parts(gpu: &Arc<Gpu>) {
    for (head_dim, n_rot) in [(64usize, 64usize), (80, 80), (96, 48), (128, 128), (256, 256)] {
        for (n_head, n_head_kv) in [(2usize, 2), (9, 3), (28, 4), (32, 2)] {
            if !(n_head * head_dim).is_multiple_of(32) {
                continue;
            }
            for (i, at) in [0, 1, 7, 63, 64, 700].into_iter().enumerate() {
                let window = (i == 4).then_some(20);
                let (neox, has_norms) = (i % 2 == 0, i % 3 == 0);
                let case = Case { n_head, n_head_kv, head_dim, at, n_rot, neox, has_norms, window };
                let what = format!("{n_head}/{n_head_kv} heads of {head_dim} at {at}");
                let (expected, found) = (case.run(gpu, false), case.run(gpu, true));
                assert!(found.1 == expected.1, "{what}: the cache");
                assert!(found.0 == expected.0, "{what}");
            }
        }
    }
}
