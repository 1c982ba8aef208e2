//! Attention of one token by clusters of blocks: against f64, and against its twin of two launches.

use crate::fixture::Rng;
use crate::{POISON, Test, assert_close};
use half::{bf16, f16};
use kernels::cuda::{AttentionArgs, FreshRows, Gpu, OperandRef};
use std::sync::Arc;

pub(crate) const TESTS: &[Test] = &[
    ("cluster_attention_of_depths", cluster_attention_of_depths),
    ("cluster_attention_of_heads", cluster_attention_of_heads),
    ("cluster_attention_of_windows_and_caps", cluster_attention_of_windows_and_caps),
    ("cluster_attention_repeats_its_bits", cluster_attention_repeats_its_bits),
    ("clusters_are_as_large_as_there_is_room", clusters_are_as_large_as_there_is_room),
];

const EPS: f32 = 1e-6;

fn randoms(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.f32()).collect()
}

#[derive(Debug, Clone, Copy)]
struct Case {
    n_head: usize,
    n_head_kv: usize,
    head_dim: usize,
    at: usize,
    n_rot: usize,
    neox: bool,
    has_norms: bool,
    window: Option<usize>,
    soft_cap: Option<f32>,
}

/// What a way leaves behind.
struct Found {
    out: Vec<f32>,
    k: Vec<f16>,
    v: Vec<f16>,
}

impl Case {
    /// A head as models have it, rotated in whole.
    fn new(n_head: usize, n_head_kv: usize, head_dim: usize, at: usize) -> Self {
        let (n_rot, neox, has_norms) = (head_dim, true, false);
        let (window, soft_cap) = (None, None);
        Self { n_head, n_head_kv, head_dim, at, n_rot, neox, has_norms, window, soft_cap }
    }

    fn scale(&self) -> f32 {
        3.0 / (self.head_dim as f32).sqrt()
    }

    fn steps(&self) -> Vec<f64> {
        (0..self.n_rot / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / self.n_rot as f64)).collect()
    }

    fn gain(&self, seed: u64) -> Vec<f32> {
        randoms(self.head_dim, seed).iter().map(|v| 1.0 + v / 2.0).collect()
    }

    /// Rows of heads as they are multiplied: normed, rotated.
    fn made(&self, rows: &[f32], gain: &[f32]) -> Vec<f64> {
        let mut out = Vec::with_capacity(rows.len());
        for head in rows.chunks_exact(self.head_dim) {
            let mut x: Vec<f64> = head.iter().map(|&v| f64::from(v)).collect();
            if self.has_norms {
                let mean = x.iter().map(|v| v * v).sum::<f64>() / self.head_dim as f64;
                let scale = (mean + f64::from(EPS)).sqrt().recip();
                x.iter_mut().zip(gain).for_each(|(v, &g)| *v *= scale * f64::from(g));
            }
            let steps = self.steps();
            for (i, step) in steps.iter().enumerate() {
                let (a, b) = if self.neox { (i, i + steps.len()) } else { (2 * i, 2 * i + 1) };
                let (sin, cos) = (self.at as f64 * step).sin_cos();
                (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
            }
            out.extend(x);
        }
        out
    }

    fn q(&self) -> Vec<f32> {
        randoms(self.n_head * self.head_dim, 31)
    }

    fn new_row(&self, seed: u64) -> Vec<f32> {
        randoms(self.n_head_kv * self.head_dim, seed)
    }

    /// The answer, of a cache that the kernel has completed.
    fn expected(&self, found: &Found) -> Vec<f64> {
        let (dim, width) = (self.head_dim, self.n_head_kv * self.head_dim);
        let start = self.window.map_or(0, |window| (self.at + 1).saturating_sub(window));
        let mut out = Vec::with_capacity(found.out.len());
        for (head, q) in self.made(&self.q(), &self.gain(6)).chunks_exact(dim).enumerate() {
            let first = head / (self.n_head / self.n_head_kv) * dim;
            let row = |cache: &'_ [f16], p: usize| -> Vec<f64> {
                cache[p * width + first..][..dim].iter().map(|v| v.to_f64()).collect()
            };
            let score = |p| {
                let k = row(&found.k, p);
                let dot: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
                let score = dot * f64::from(self.scale());
                self.soft_cap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
            };
            let scores: Vec<f64> = (start..=self.at).map(score).collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            let mut total = vec![0.0; dim];
            for (i, s) in scores.iter().enumerate() {
                let weight = (s - top).exp() / sum;
                let v = row(&found.v, start + i);
                total.iter_mut().zip(&v).for_each(|(t, v)| *t += weight * v);
            }
            out.extend(total);
        }
        out
    }

    /// By clusters of so many blocks, `n_times` after another, or by the twin.
    fn run(&self, gpu: &Arc<Gpu>, cluster: Option<u32>, n_times: usize) -> Found {
        let Self { n_head, n_head_kv, head_dim, at, .. } = *self;
        let width = n_head_kv * head_dim;
        let q = gpu.upload(&self.q()).unwrap();
        let new = [self.new_row(2), self.new_row(3)].map(|row| gpu.upload(&row).unwrap());
        // From the new position on the cache holds NaN.
        let cache = |seed| {
            let mut values: Vec<f16> =
                randoms(at * width, seed).into_iter().map(f16::from_f32).collect();
            values.resize(values.len() + 40 * width, f16::NAN);
            gpu.upload(&values).unwrap()
        };
        let (k, v) = (cache(4), cache(5));
        let pos = gpu.upload(&[at as u32]).unwrap();
        let table = gpu.rope_table(&self.steps(), at + 1, 1.0, self.neox).unwrap();
        let gains = [self.gain(6), self.gain(7)].map(|gain| gpu.upload(&gain).unwrap());
        let n = q.len();
        // What lies behind stays as it is.
        let out = gpu.alloc::<f32>(n + 32).unwrap();
        let rounded = gpu.alloc::<bf16>(n + 32).unwrap();
        let bytes = gpu.alloc::<i8>(n + 32).unwrap();
        let scales = gpu.alloc::<[f32; 2]>(n / 32 + 1).unwrap();
        gpu.fill_words(out.all(), POISON).unwrap();
        gpu.fill_words(rounded.all(), POISON).unwrap();
        gpu.fill_words(bytes.all(), POISON).unwrap();
        gpu.fill_words(scales.all(), POISON).unwrap();
        let operand = OperandRef {
            f32: Some(out.all()),
            bf16: Some(rounded.all()),
            int8: Some((bytes.all(), scales.all())),
        };
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
            scale: self.scale(),
            soft_cap: self.soft_cap,
        };
        let norms = self.has_norms.then(|| (gains[0].all(), gains[1].all(), EPS));
        let fresh = FreshRows { k: new[0].all(), v: new[1].all(), table: &table, norms };
        match cluster {
            Some(cluster) => {
                for i in 0..n_times {
                    // The next one may come in early, every second time.
                    let how = (cluster, i % 2 == 1);
                    gpu.attention_cluster(&operand, &args, &fresh, how).unwrap();
                }
            }
            None => {
                let n_parts = gpu.attention_parts(n_head, n_head_kv);
                let part_out = gpu.alloc::<f32>(n_head * n_parts * head_dim).unwrap();
                let part_ml = gpu.alloc::<[f32; 2]>(n_head * n_parts).unwrap();
                let parts = (part_out.all(), part_ml.all());
                gpu.attention_decode(&operand, &args, parts, n_parts, Some(&fresh)).unwrap();
            }
        }
        let mut found = Found {
            out: vec![0.0; out.len()],
            k: vec![f16::ZERO; k.len()],
            v: vec![f16::ZERO; v.len()],
        };
        gpu.read(&mut found.out, out.all()).unwrap();
        gpu.read(&mut found.k, k.all()).unwrap();
        gpu.read(&mut found.v, v.all()).unwrap();
        let behind = found.out.split_off(n);
        assert!(behind.iter().all(|v| v.to_bits() == POISON), "{self:?}: behind the last");
        let mut halves = vec![bf16::ZERO; rounded.len()];
        gpu.read(&mut halves, rounded.all()).unwrap();
        let same = |(half, value): (&bf16, &f32)| *half == bf16::from_f32(*value);
        assert!(halves.iter().zip(&found.out).all(same), "{self:?}: bf16");
        let (mut q8, mut ds) = (vec![0i8; bytes.len()], vec![[0.0f32; 2]; scales.len()]);
        gpu.read(&mut q8, bytes.all()).unwrap();
        gpu.read(&mut ds, scales.all()).unwrap();
        self.check_int8(&found.out, &q8, &ds);
        found
    }

    /// Integers are those of the values, and nothing behind them was written.
    fn check_int8(&self, out: &[f32], q8: &[i8], ds: &[[f32; 2]]) {
        for ((values, q), ds) in out.chunks_exact(32).zip(q8.chunks_exact(32)).zip(ds) {
            let amax = values.iter().fold(0.0f32, |top, v| top.max(v.abs()));
            let inverse = if amax > 0.0 { 127.0 / amax } else { 0.0 };
            let expected: Vec<i8> =
                values.iter().map(|v| (v * inverse).round_ties_even() as i8).collect();
            assert_eq!(q, expected, "{self:?}: integers");
            let sum: i32 = expected.iter().map(|&q| i32::from(q)).sum();
            let d = amax / 127.0;
            assert_eq!(*ds, [d, d * sum as f32], "{self:?}: scales");
        }
        assert_eq!(ds[out.len() / 32].map(f32::to_bits), [POISON; 2], "{self:?}: behind scales");
        let poison = POISON.to_le_bytes().map(|b| b as i8).repeat(8);
        assert_eq!(&q8[out.len()..], poison, "{self:?}: behind integers");
    }

    fn check(&self, gpu: &Arc<Gpu>, cluster: u32) {
        let what = format!("{self:?} by {cluster}");
        let (found, twin) = (self.run(gpu, Some(cluster), 1), self.run(gpu, None, 1));
        let bits = |cache: &[f16]| cache.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert!(bits(&found.v) == bits(&twin.v), "{what}: values in the cache");
        let (k, twin_k) = (bits(&found.k), bits(&twin.k));
        // A norm over pairs of neighbours adds squares in another order: the last bit may differ.
        let off = if self.has_norms && !self.neox { 1 } else { 0 };
        let is_close = |(a, b): (&u16, &u16)| a.abs_diff(*b) <= off;
        assert!(k.iter().zip(&twin_k).all(is_close), "{what}: keys in the cache");
        assert_close(&what, &found.out, &self.expected(&found), &[1.0], 1e-5);
        assert_close(&format!("twin of {what}"), &twin.out, &self.expected(&twin), &[1.0], 1e-5);
    }
}

/// Sizes of clusters that run here; a line says so where none does.
fn clusters(gpu: &Arc<Gpu>, head_dim: usize) -> Vec<u32> {
    match gpu.attention_cluster_blocks(4, 1, head_dim).unwrap() {
        // Four are never chosen, and no other way through the kernel.
        Some(most) => [16, 8, 4].into_iter().filter(|&blocks| blocks <= most).collect(),
        None => {
            println!("    (no clusters here: heads of {head_dim} not attended)");
            Vec::new()
        }
    }
}

fn cluster_attention_of_depths(gpu: &Arc<Gpu>) {
    for (head_dim, n_head, n_head_kv) in [(128, 28, 4), (64, 14, 2), (256, 4, 1)] {
        for cluster in clusters(gpu, head_dim) {
            // The last ones have more tiles than warps have places for.
            for at in [0, 1, 15, 16, 17, 100, 255, 256, 1000, 1664, 3325, 3328, 3343, 7000] {
                if at > 2000 && (n_head == 14 || (cluster < 16 && at != 3328)) {
                    continue; // a while in f64, and no other way through the kernel
                }
                Case::new(n_head, n_head_kv, head_dim, at).check(gpu, cluster);
            }
        }
    }
}

fn cluster_attention_of_heads(gpu: &Arc<Gpu>) {
    for head_dim in [64, 128, 256] {
        for cluster in clusters(gpu, head_dim) {
            for group in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16] {
                for (i, at) in [0, 31, 300].into_iter().enumerate() {
                    let case = Case::new(3 * group, 3, head_dim, at);
                    let n_rot = if group % 2 == 0 { head_dim } else { head_dim / 2 + 4 };
                    let (neox, has_norms) = ((i + group) % 2 == 0, (i + group) % 3 != 0);
                    Case { n_rot, neox, has_norms, ..case }.check(gpu, cluster);
                }
            }
        }
    }
}

fn cluster_attention_of_windows_and_caps(gpu: &Arc<Gpu>) {
    for head_dim in [64, 128, 256] {
        for cluster in clusters(gpu, head_dim) {
            for (at, window) in [(5, 3), (5, 6), (99, 1), (700, 100), (700, 512), (4000, 3400)] {
                let case = Case::new(6, 2, head_dim, at);
                let (window, soft_cap) = (Some(window), (at == 700).then_some(4.0));
                Case { window, soft_cap, has_norms: true, ..case }.check(gpu, cluster);
            }
        }
    }
}

/// Bits of launches one after another.
fn cluster_attention_repeats_its_bits(gpu: &Arc<Gpu>) {
    for head_dim in [64, 128, 256] {
        for cluster in clusters(gpu, head_dim) {
            for at in [100, 1700, 3500] {
                let case = Case::new(28, 4, head_dim, at);
                let bits = |n_times| {
                    let found = case.run(gpu, Some(cluster), n_times);
                    found.out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
                };
                let first = bits(1);
                for n_times in [1, 2, 30] {
                    assert!(bits(n_times) == first, "{case:?} by {cluster}: {n_times} times");
                }
            }
        }
    }
}

/// A block of a cluster has a multiprocessor for itself.
fn clusters_are_as_large_as_there_is_room(gpu: &Arc<Gpu>) {
    if !clusters(gpu, 128).contains(&16) {
        return println!("    (no clusters of 16 here)");
    }
    let n = gpu.info().n_multiprocessors as usize;
    let blocks = |n_head, n_head_kv| {
        gpu.attention_cluster_blocks(n_head, n_head_kv, 128).unwrap().unwrap_or(0) as usize
    };
    let mut last = 16;
    for n_head_kv in 1..=n {
        // More than eight query heads of a KV head are two clusters.
        let found = blocks(7 * n_head_kv, n_head_kv);
        assert!(found * n_head_kv <= n && found <= last, "{n_head_kv} heads");
        assert_eq!(blocks(18 * n_head_kv, 2 * n_head_kv), blocks(4 * n_head_kv, 4 * n_head_kv));
        last = found;
    }
    assert_eq!(last, 0);
    assert_eq!(gpu.attention_cluster_blocks(8, 8, 80).unwrap(), None);
}
