//! Attention of a prompt on a GPU: the kernel of Hopper's own instructions beside its twin, medians of
//! interleaved runs.
//!
//! `cargo run --release -p kernels --example bench_attention -- [ROUNDS]`. Random data, several
//! buffers in turn. TFLOP/s count the scores that causality leaves: 4 * head_dim * n * (n + 1) / 2 a
//! head (with a window: those inside it).
#![allow(missing_docs)]
#![allow(clippy::print_stdout, clippy::unwrap_used)] // a report

#[path = "../tests/fixture/mod.rs"]
mod fixture;

use fixture::Rng;
use half::{bf16, f16};
use kernels::cuda::{AttentionArgs, Buffer, Gpu, OperandRef, probe};
use std::sync::Arc;

/// Sets of buffers that runs take in turn.
const N_SETS: usize = 4;

struct Shape {
    n_tokens: usize,
    n_head: usize,
    n_head_kv: usize,
    head_dim: usize,
    window: Option<usize>,
}

struct Set {
    q: Buffer<f32>,
    k: Buffer<f16>,
    v: Buffer<f16>,
    out: Buffer<bf16>,
}

impl Shape {
    fn set(&self, gpu: &Arc<Gpu>, seed: u64) -> Set {
        let mut rng = Rng::new(seed);
        let (n_q, n_kv) = (self.n_head * self.head_dim, self.n_head_kv * self.head_dim);
        let q: Vec<f32> = (0..self.n_tokens * n_q).map(|_| 2.0 * rng.f32()).collect();
        let mut kv =
            || (0..self.n_tokens * n_kv).map(|_| f16::from_f32(rng.f32())).collect::<Vec<_>>();
        Set {
            k: gpu.upload(&kv()).unwrap(),
            v: gpu.upload(&kv()).unwrap(),
            out: gpu.alloc(q.len()).unwrap(),
            q: gpu.upload(&q).unwrap(),
        }
    }

    fn tera_flops(&self) -> f64 {
        let keys = |t: usize| self.window.map_or(t + 1, |window| window.min(t + 1));
        let n_scores: usize = (0..self.n_tokens).map(keys).sum();
        4e-12 * (self.n_head * self.head_dim * n_scores) as f64
    }

    fn run(&self, gpu: &Gpu, set: &Set, at: &Buffer<u32>, wgmma: bool) {
        let args = AttentionArgs {
            q: set.q.all(),
            k: set.k.all(),
            v: set.v.all(),
            first_pos: at.all(),
            shift: 0,
            n_tokens: self.n_tokens,
            n_head: self.n_head,
            n_head_kv: self.n_head_kv,
            head_dim: self.head_dim,
            window: self.window,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            soft_cap: None,
        };
        let out = OperandRef { bf16: Some(set.out.all()), ..OperandRef::default() };
        match wgmma {
            true => gpu.attention_wgmma(&out, &args).unwrap(),
            false => gpu.attention_prefill(&out, &args).unwrap(),
        }
    }
}

fn values(gpu: &Gpu, from: &Buffer<bf16>) -> Vec<f32> {
    let mut out = vec![bf16::ZERO; from.len()];
    gpu.read(&mut out, from.all()).unwrap();
    out.into_iter().map(f32::from).collect()
}

fn compare(gpu: &Arc<Gpu>, shape: &Shape, n_rounds: usize) {
    let at = gpu.upload(&[0u32]).unwrap();
    let sets: Vec<Set> = (0..N_SETS).map(|i| shape.set(gpu, 7 + i as u64)).collect();
    let mut outs = Vec::new();
    for wgmma in [false, true] {
        gpu.fill_words(sets[0].out.all(), 0x7fc0_7fc0).unwrap();
        shape.run(gpu, &sets[0], &at, wgmma);
        outs.push(values(gpu, &sets[0].out));
    }
    let off = outs[0].iter().zip(&outs[1]).map(|(a, b)| (a - b).abs());
    let off = off.fold(0.0f32, |most, off| if off.is_nan() { off } else { most.max(off) });
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..n_rounds + 2 {
        for (wgmma, times) in [false, true].into_iter().zip(&mut times) {
            let body = || {
                sets.iter().for_each(|set| shape.run(gpu, set, &at, wgmma));
                Ok(())
            };
            let seconds = gpu.time(body).unwrap() / N_SETS as f64;
            if round >= 2 {
                times.push(seconds);
            }
        }
    }
    let Shape { n_tokens, n_head, n_head_kv, head_dim, window } = shape;
    for (name, times) in ["twin", "wgmma"].into_iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        println!(
            "| {n_tokens} | {n_head}/{n_head_kv} x {head_dim} | {} | {name} | {:.1} | {:.1} to {:.1} | {:.0} | {off:.4} |",
            window.map_or("-".to_owned(), |window| window.to_string()),
            median * 1e6,
            times[0] * 1e6,
            times[times.len() - 1] * 1e6,
            shape.tera_flops() / median,
        );
    }
}

fn main() {
    let n_rounds = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(15);
    if let Err(why) = probe(0) {
        return println!("skipped: {why}");
    }
    let gpu = Gpu::open(0, true).unwrap();
    println!("| tokens | heads | window | kernel | us | fastest, slowest | TFLOP/s | apart |");
    println!("|---|---|---|---|---|---|---|---|");
    for (n_tokens, n_head, n_head_kv, head_dim, window) in [
        (3325, 28, 4, 128, None),
        (512, 28, 4, 128, None),
        (8192, 28, 4, 128, None),
        (3325, 14, 2, 64, None),
        (3325, 4, 1, 256, None),
        (3325, 4, 1, 256, Some(512)),
    ] {
        if gpu.attends_by_wgmma(head_dim) {
            compare(&gpu, &Shape { n_tokens, n_head, n_head_kv, head_dim, window }, n_rounds);
        }
    }
}
