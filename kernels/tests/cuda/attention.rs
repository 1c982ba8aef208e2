//! Attention, rotation and the cache.

use crate::fixture::Rng;
use crate::rest::in_form;
use crate::{POISON, Test, assert_close};
use half::{bf16, f16};
use kernels::cuda::{AttentionArgs, Buffer, Gpu, OperandRef, RotaryArgs};
use std::sync::Arc;

pub(crate) const TESTS: &[Test] = &[
    ("rope_turns_both_pairings", rope_turns_both_pairings),
    ("rope_store_is_rope_and_store", rope_store_is_rope_and_store),
    ("prefill_attention_agrees_with_f64", prefill_attention_agrees_with_f64),
    ("wgmma_attention_agrees_with_f64", wgmma_attention_agrees_with_f64),
    ("wgmma_attention_of_a_long_prompt", wgmma_attention_of_a_long_prompt),
    ("decode_attention_agrees_with_f64", decode_attention_agrees_with_f64),
    ("parts_without_weight_make_no_nan", parts_without_weight_make_no_nan),
];

/// Which kernels attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Prefill,
    Wgmma,
    Decode,
}

fn randoms(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.f32()).collect()
}

fn steps(n: usize) -> Vec<f64> {
    (0..n).map(|i| 10000f64.powf(-(i as f64) / n as f64)).collect()
}

/// Rotates one head in f64.
fn rotated(head: &[f32], pos: usize, steps: &[f64], neox: bool) -> Vec<f64> {
    let mut out: Vec<f64> = head.iter().map(|&v| f64::from(v)).collect();
    for (i, step) in steps.iter().enumerate() {
        let (a, b) = if neox { (i, i + steps.len()) } else { (2 * i, 2 * i + 1) };
        let (sin, cos) = (pos as f64 * step).sin_cos();
        let (u, v) = (f64::from(head[a]), f64::from(head[b]));
        (out[a], out[b]) = (u * cos - v * sin, u * sin + v * cos);
    }
    out
}

fn rope_turns_both_pairings(gpu: &Arc<Gpu>) {
    for neox in [false, true] {
        for (n_head, head_dim, n_rot) in [(3, 64, 64), (5, 80, 32), (1, 256, 256)] {
            let (n_tokens, first) = (7, 1990);
            let steps = steps(n_rot / 2);
            let table = gpu.rope_table(&steps, 2048, 1.0, neox).unwrap();
            let x = randoms(n_tokens * n_head * head_dim, 3);
            let device = gpu.upload(&x).unwrap();
            let at = gpu.upload(&[first as u32]).unwrap();
            let args = RotaryArgs { table: &table, first_pos: at.all(), head_dim, n_tokens };
            gpu.rope(device.all(), &args).unwrap();
            let mut found = vec![0.0; x.len()];
            gpu.read(&mut found, device.all()).unwrap();
            let expected: Vec<f64> = x
                .chunks_exact(head_dim)
                .enumerate()
                .flat_map(|(i, head)| rotated(head, first + i / n_head, &steps, neox))
                .collect();
            assert_close(&format!("neox {neox} {head_dim}"), &found, &expected, &[1.0], 1e-6);
        }
    }
}

fn rope_store_is_rope_and_store(gpu: &Arc<Gpu>) {
    // Pairs in fours, and one by one, the first where they can be.
    for (neox, n_rot) in [(false, 64), (true, 64), (false, 36), (true, 36), (true, 80)] {
        check_rope_store(gpu, neox, n_rot, false);
        if n_rot % 8 == 0 {
            check_rope_store(gpu, neox, n_rot, true);
        }
    }
}

fn check_rope_store(gpu: &Arc<Gpu>, neox: bool, n_rot: usize, wide: bool) {
    let (n_head, n_head_kv, head_dim, n_tokens, first) = (6, 2, 80, 5, 11);
    let steps = steps(n_rot / 2);
    let table = gpu.rope_table(&steps, 32, 1.0, neox).unwrap();
    let width = n_head_kv * head_dim;
    let q = gpu.upload(&randoms(n_tokens * n_head * head_dim, 3)).unwrap();
    let k = gpu.upload(&randoms(n_tokens * width, 5)).unwrap();
    let v = gpu.upload(&randoms(n_tokens * width, 7)).unwrap();
    let at = gpu.upload(&[first as u32]).unwrap();
    let args = RotaryArgs { table: &table, first_pos: at.all(), head_dim, n_tokens };
    let cache = || {
        let buffer = gpu.alloc::<f16>(16 * width).unwrap();
        gpu.fill_words(buffer.all(), POISON).unwrap();
        buffer
    };
    let (k_one, v_one, k_two, v_two) = (cache(), cache(), cache(), cache());
    let q_two = gpu.alloc(q.len()).unwrap();
    gpu.copy(q_two.all(), q.all()).unwrap();
    let caches = (k_one.all(), v_one.all());
    in_form(gpu, wide, || {
        gpu.rope_store(q.all(), caches, (k.all(), v.all()), &args).unwrap();
    });
    gpu.rope(q_two.all(), &args).unwrap();
    gpu.rope(k.all(), &args).unwrap();
    let caches = (k_two.all(), v_two.all());
    gpu.store(caches, (k.all(), v.all()), at.all(), n_tokens).unwrap();
    let words = |buffer: &Buffer<f16>| {
        let mut out = vec![f16::ZERO; buffer.len()];
        gpu.read(&mut out, buffer.all()).unwrap();
        out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(words(&k_one), words(&k_two), "keys");
    assert_eq!(words(&v_one), words(&v_two), "values");
    let (mut one, mut two) = (vec![0.0; q.len()], vec![0.0; q.len()]);
    gpu.read(&mut one, q.all()).unwrap();
    gpu.read(&mut two, q_two.all()).unwrap();
    assert_eq!(one, two, "queries");
}

/// One case of attention, and the answer in f64.
#[derive(Debug, Clone, Copy)]
struct Case {
    n_tokens: usize,
    first_pos: usize,
    shift: usize,
    n_head: usize,
    n_head_kv: usize,
    head_dim: usize,
    window: Option<usize>,
    soft_cap: Option<f32>,
}

impl Case {
    fn scale(&self) -> f32 {
        3.0 / (self.head_dim as f32).sqrt()
    }

    fn n_kv(&self) -> usize {
        self.first_pos + self.shift + self.n_tokens
    }

    fn q(&self) -> Vec<f32> {
        randoms(self.n_tokens * self.n_head * self.head_dim, 31)
    }

    fn kv(&self, seed: u64) -> Vec<f16> {
        let n = self.n_kv() * self.n_head_kv * self.head_dim;
        randoms(n, seed).iter().map(|&v| f16::from_f32(v)).collect()
    }

    /// The rows of every `nth` query.
    fn expected(&self, nth: usize) -> Vec<f64> {
        let (q, k, v) = (self.q(), self.kv(37), self.kv(41));
        let dim = self.head_dim;
        let at = |cache: &[f16], pos: usize, head: usize, d: usize| {
            cache[(pos * self.n_head_kv + head) * dim + d].to_f64()
        };
        let mut out = Vec::with_capacity(q.len());
        for (i, q) in q.chunks_exact(dim).enumerate() {
            let (token, head) = (i / self.n_head, i % self.n_head);
            if !token.is_multiple_of(nth) {
                continue;
            }
            let kv_head = head / (self.n_head / self.n_head_kv);
            let pos = self.first_pos + self.shift + token;
            let start = self.window.map_or(0, |window| (pos + 1).saturating_sub(window));
            let scores: Vec<f64> = (start..=pos)
                .map(|p| {
                    let dot: f64 = (0..dim).map(|d| f64::from(q[d]) * at(&k, p, kv_head, d)).sum();
                    let score = dot * f64::from(self.scale());
                    self.soft_cap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
                })
                .collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            out.extend((0..dim).map(|d| {
                let weighted = scores
                    .iter()
                    .enumerate()
                    .map(|(j, s)| (s - top).exp() * at(&v, start + j, kv_head, d));
                weighted.sum::<f64>() / sum
            }));
        }
        out
    }

    /// What the kernels make of it.
    fn run(&self, gpu: &Arc<Gpu>, by: By) -> Vec<f32> {
        let q = gpu.upload(&self.q()).unwrap();
        // Positions beyond the last hold NaN: nothing may look at them.
        let cache = |seed| {
            let mut values = self.kv(seed);
            values.resize(values.len() + 96 * self.n_head_kv * self.head_dim, f16::NAN);
            gpu.upload(&values).unwrap()
        };
        let (k, v) = (cache(37), cache(41));
        let at = gpu.upload(&[self.first_pos as u32]).unwrap();
        // Rows behind the last stay as they are.
        let guard = self.n_head * self.head_dim;
        let out = gpu.alloc::<f32>(q.len() + guard).unwrap();
        let rounded = gpu.alloc::<bf16>(q.len() + guard).unwrap();
        gpu.fill_words(out.all(), POISON).unwrap();
        gpu.fill_words(rounded.all(), POISON).unwrap();
        let both = by != By::Decode;
        let operand = OperandRef {
            f32: Some(out.all()),
            bf16: both.then(|| rounded.all()),
            ..OperandRef::default()
        };
        let args = AttentionArgs {
            q: q.all(),
            k: k.all(),
            v: v.all(),
            first_pos: at.all(),
            shift: self.shift,
            n_tokens: self.n_tokens,
            n_head: self.n_head,
            n_head_kv: self.n_head_kv,
            head_dim: self.head_dim,
            window: self.window,
            scale: self.scale(),
            soft_cap: self.soft_cap,
        };
        match by {
            By::Prefill => gpu.attention_prefill(&operand, &args).unwrap(),
            By::Wgmma => gpu.attention_wgmma(&operand, &args).unwrap(),
            By::Decode => {
                let n_parts = gpu.attention_parts(self.n_head, self.n_head_kv);
                let slots = self.n_tokens * self.n_head * n_parts;
                let part_out = gpu.alloc::<f32>(slots * self.head_dim).unwrap();
                let part_ml = gpu.alloc::<[f32; 2]>(slots).unwrap();
                gpu.fill_words(part_out.all(), POISON).unwrap();
                gpu.fill_words(part_ml.all(), POISON).unwrap();
                let parts = (part_out.all(), part_ml.all());
                gpu.attention_decode(&operand, &args, parts, n_parts, None).unwrap();
            }
        }
        let mut found = vec![0.0; out.len()];
        gpu.read(&mut found, out.all()).unwrap();
        let behind = found.split_off(q.len());
        assert!(behind.iter().all(|v| v.to_bits() == POISON), "{self:?}: rows behind the last");
        if both {
            let mut halves = vec![bf16::ZERO; rounded.len()];
            gpu.read(&mut halves, rounded.all()).unwrap();
            let same = |(half, value): (&bf16, &f32)| *half == bf16::from_f32(*value);
            assert!(halves.iter().zip(&found).all(same), "{self:?}: the two forms");
        }
        found
    }

    fn check(&self, gpu: &Arc<Gpu>, by: By) {
        // Prefill rounds queries and weights to f16.
        let tolerance = if by == By::Decode { 2e-5 } else { 4e-3 };
        let what = format!("{by:?} of {self:?}");
        // Long prompts: every seventh query, since the answer takes longer than the kernel.
        let nth = if self.n_tokens > 200 { 7 } else { 1 };
        let row = self.n_head * self.head_dim;
        let found = self.run(gpu, by);
        let some: Vec<f32> = found.chunks_exact(row).step_by(nth).flatten().copied().collect();
        assert_close(&what, &some, &self.expected(nth), &[1.0], tolerance);
    }
}

const DIMS: &[usize] = &[64, 80, 96, 128, 256];

fn prefill_attention_agrees_with_f64(gpu: &Arc<Gpu>) {
    for &head_dim in DIMS {
        for (n_tokens, first_pos, shift, window) in [
            (5, 0, 0, None),
            (33, 0, 0, None),
            (64, 0, 0, Some(16)),
            (130, 100, 0, None),
            (65, 200, 3, Some(100)),
        ] {
            let (n_head, n_head_kv, soft_cap) = (6, 2, None);
            Case { n_tokens, first_pos, shift, n_head, n_head_kv, head_dim, window, soft_cap }
                .check(gpu, By::Prefill);
        }
        let (n_head, n_head_kv, window) = (2, 2, None);
        let case = Case {
            n_tokens: 20,
            first_pos: 50,
            shift: 0,
            n_head,
            n_head_kv,
            head_dim,
            window,
            soft_cap: Some(5.0),
        };
        case.check(gpu, By::Prefill);
    }
}

fn wgmma_attention_agrees_with_f64(gpu: &Arc<Gpu>) {
    for head_dim in [64, 128, 256] {
        if !gpu.attends_by_wgmma(head_dim) {
            println!("    (no wgmma here: heads of {head_dim} not attended)");
            continue;
        }
        for (n_tokens, first_pos, shift, window) in [
            (1, 0, 0, None),
            (2, 0, 0, None),
            (7, 0, 0, None),
            (33, 0, 0, None),
            (64, 0, 0, Some(16)),
            (65, 200, 3, Some(100)),
            (128, 0, 0, None),
            (129, 1, 0, Some(1)),
            (130, 100, 0, None),
            (130, 126, 0, Some(128)),
            (130, 1000, 0, Some(129)),
            (1, 511, 0, None),
            (7, 640, 1, None),
            (512, 0, 0, None),
            (512, 77, 0, Some(200)),
        ] {
            for (n_head, n_head_kv) in [(6, 2), (7, 1), (2, 2)] {
                if n_tokens > 130 && n_head == 7 {
                    continue;
                }
                let soft_cap = (n_head == 2).then_some(5.0);
                Case { n_tokens, first_pos, shift, n_head, n_head_kv, head_dim, window, soft_cap }
                    .check(gpu, By::Wgmma);
            }
        }
    }
}

/// Several items a block; some queries against f64, all of them against the twin.
fn wgmma_attention_of_a_long_prompt(gpu: &Arc<Gpu>) {
    for (head_dim, n_head, n_head_kv, window) in
        [(128, 28, 4, None), (64, 14, 2, None), (128, 8, 2, Some(1000)), (256, 4, 1, None)]
    {
        if !gpu.attends_by_wgmma(head_dim) {
            continue;
        }
        let (n_tokens, first_pos, shift, soft_cap) = (3325, 0, 0, None);
        let case =
            Case { n_tokens, first_pos, shift, n_head, n_head_kv, head_dim, window, soft_cap };
        let found = case.run(gpu, By::Wgmma);
        let twin: Vec<f64> = case.run(gpu, By::Prefill).into_iter().map(f64::from).collect();
        assert_close(&format!("{case:?} beside its twin"), &found, &twin, &[1.0], 2e-3);
        let nth = 554; // 0, 554, ..., 3324
        let row = n_head * head_dim;
        let some: Vec<f32> = found.chunks_exact(row).step_by(nth).flatten().copied().collect();
        assert_close(&format!("{case:?}"), &some, &case.expected(nth), &[1.0], 4e-3);
    }
}

fn decode_attention_agrees_with_f64(gpu: &Arc<Gpu>) {
    for &head_dim in DIMS {
        for (n_head, n_head_kv) in [(4, 4), (9, 3), (7, 1), (14, 2), (16, 1)] {
            if !(n_head * head_dim).is_multiple_of(32) {
                continue; // no model has such a row
            }
            for (n_tokens, first_pos, shift, window) in [
                (1, 0, 0, None),
                (1, 1, 0, None),
                (1, 63, 0, None),
                (1, 700, 0, None),
                (1, 700, 0, Some(100)),
                (3, 250, 2, None),
                (4, 5, 0, Some(3)),
            ] {
                let soft_cap = (n_head == 9).then_some(4.0);
                Case { n_tokens, first_pos, shift, n_head, n_head_kv, head_dim, window, soft_cap }
                    .check(gpu, By::Decode);
            }
        }
    }
}

/// Keys that score minus infinity, in all of the first parts: they have no weight.
fn parts_without_weight_make_no_nan(gpu: &Arc<Gpu>) {
    let (n_head, n_kv, head_dim, n_without) = (4usize, 600usize, 64usize, 400usize);
    let q = vec![-1.0f32; n_head * head_dim];
    let mut k = vec![f16::ZERO; n_kv * head_dim];
    k[..n_without * head_dim].chunks_exact_mut(head_dim).for_each(|key| key[7] = f16::INFINITY);
    let v: Vec<f16> = randoms(k.len(), 5).into_iter().map(f16::from_f32).collect();
    let (q, k, values) =
        (gpu.upload(&q).unwrap(), gpu.upload(&k).unwrap(), gpu.upload(&v).unwrap());
    let at = gpu.upload(&[n_kv as u32 - 1]).unwrap();
    let out = gpu.alloc::<f32>(q.len()).unwrap();
    let args = AttentionArgs {
        q: q.all(),
        k: k.all(),
        v: values.all(),
        first_pos: at.all(),
        shift: 0,
        n_tokens: 1,
        n_head,
        n_head_kv: 1,
        head_dim,
        window: None,
        scale: 1.0,
        soft_cap: None,
    };
    let n_parts = gpu.attention_parts(n_head, 1);
    let part_out = gpu.alloc::<f32>(n_head * n_parts * head_dim).unwrap();
    let part_ml = gpu.alloc::<[f32; 2]>(n_head * n_parts).unwrap();
    let operand = OperandRef { f32: Some(out.all()), ..OperandRef::default() };
    let parts = (part_out.all(), part_ml.all());
    gpu.attention_decode(&operand, &args, parts, n_parts, None).unwrap();
    let mut found = vec![0.0; out.len()];
    gpu.read(&mut found, out.all()).unwrap();
    let seen = &v[n_without * head_dim..];
    let mean = |d| seen.iter().skip(d).step_by(head_dim).map(|v| v.to_f64()).sum::<f64>();
    let expected: Vec<f64> =
        (0..q.len()).map(|i| mean(i % head_dim) / (n_kv - n_without) as f64).collect();
    assert_close("parts without weight", &found, &expected, &[1.0], 1e-5);
}
