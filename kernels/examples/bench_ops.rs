//! Times the operations beside matrix products on one thread, in every tier of this machine.
//!
//! `cargo run --release -p kernels --example bench_ops [-- FILTER]`
//!
//! Each line is the best of several runs: work of other processes only ever adds time. Operations
//! bound by arithmetic report GFLOP/s (two per multiply-add of scores and weighted values, masked
//! positions not counted), the others GB/s of the bytes that they must read and write.
// An example is a program: it prints.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use half::f16;
use kernels::Tier;
use kernels::cpu::ops::{
    AttentionShape, KvShape, KvView, Ops, RopeParams, RopeStyle, RopeTable, attention_scratch_len,
};

/// What a line counts.
enum Work {
    /// Floating-point operations.
    Flops(f64),
    /// Bytes read and written.
    Bytes(f64),
}

/// One model's attention geometry.
struct Geometry {
    name: &'static str,
    n_head: usize,
    n_head_kv: usize,
    head_dim: usize,
    window: Option<usize>,
}

const GEOMETRIES: &[Geometry] = &[
    Geometry { name: "smollm2", n_head: 9, n_head_kv: 3, head_dim: 64, window: None },
    Geometry { name: "gemma3-270m", n_head: 4, n_head_kv: 1, head_dim: 256, window: Some(512) },
    Geometry { name: "qwen2.5-0.5b", n_head: 14, n_head_kv: 2, head_dim: 64, window: None },
    Geometry { name: "qwen2.5-1.5b", n_head: 12, n_head_kv: 2, head_dim: 128, window: None },
];

struct Bench {
    filter: String,
}

impl Bench {
    /// `f` prepares its operands, takes the time, and works.
    fn run(&self, ops: &Ops, name: &str, work: &Work, mut f: impl FnMut() -> Instant) {
        let name = format!("{name} {}", ops.tier().name());
        if !name.contains(&self.filter) {
            return;
        }
        let (mut best, begin) = (Duration::MAX, Instant::now());
        let mut n_runs = 0;
        while n_runs < 3 || begin.elapsed() < Duration::from_millis(400) {
            let start = f();
            best = best.min(start.elapsed());
            n_runs += 1;
        }
        let seconds = best.as_secs_f64();
        let (rate, unit) = match work {
            Work::Flops(flops) => (flops / seconds / 1e9, "GFLOP/s"),
            Work::Bytes(bytes) => (bytes / seconds / 1e9, "GB/s"),
        };
        println!("{name:<48} {:>10.1} us {rate:>8.1} {unit}", seconds * 1e6);
    }

    /// `n_tokens` new tokens after `n_past` old ones, all heads.
    fn attention(&self, ops: &Ops, geometry: &Geometry, n_past: usize, n_tokens: usize) {
        let Geometry { n_head, n_head_kv, head_dim, window, .. } = *geometry;
        let n_kv = n_past + n_tokens;
        let shape =
            AttentionShape { n_head, scale: (head_dim as f32).powf(-0.5), window, soft_cap: None };
        let kv = KvShape::new(n_head_kv, head_dim, n_kv);
        let cache: Vec<f16> =
            (0..kv.n_elems()).map(|i| f16::from_f32((i % 113) as f32 / 57.0 - 1.0)).collect();
        let view = KvView { shape: kv, k: &cache, v: &cache };
        let row_len = n_head * head_dim;
        let q: Vec<f32> = (0..n_tokens * row_len).map(|i| (i % 31) as f32 / 16.0 - 1.0).collect();
        let mut y = vec![0.0; q.len()];
        let group = n_head / n_head_kv;
        let n_unit = shape.tile_tokens(group, n_kv).min(n_tokens);
        let len = attention_scratch_len(&kv, &shape, n_unit, group, n_kv);
        let mut scratch = vec![0.0; len];
        let seen = |position: usize| (position + 1).min(window.unwrap_or(usize::MAX));
        let pairs: usize = (n_past..n_kv).map(seen).sum();
        let flops = (4 * pairs * n_head * head_dim) as f64;
        let bytes = (4 * seen(n_kv - 1) * n_head_kv * head_dim) as f64;
        let work = if n_tokens == 1 { Work::Bytes(bytes) } else { Work::Flops(flops) };
        let name = format!("attention {} {n_tokens} after {n_past}", geometry.name);
        self.run(ops, &name, &work, || {
            let start = Instant::now();
            ops.attention_serial(&mut y, &q, &view, &shape, n_past, &mut scratch);
            black_box(&y);
            start
        });
    }

    fn rows(&self, ops: &Ops) {
        const N_TOKENS: usize = 32;
        const N_EMBD: usize = 1536;
        let x: Vec<f32> = (0..N_TOKENS * N_EMBD).map(|i| (i % 97) as f32 / 9.0 - 5.0).collect();
        let weight = vec![1.01; N_EMBD];
        let mut y = x.clone();
        let two = Work::Bytes((8 * x.len()) as f64);
        let three = Work::Bytes((12 * x.len()) as f64);
        let mut run = |name, work: &Work, f: &dyn Fn(&mut [f32])| {
            self.run(ops, name, work, || {
                y.copy_from_slice(&x);
                let start = Instant::now();
                f(&mut y);
                black_box(&y);
                start
            });
        };
        run("rmsnorm", &two, &|y| ops.rmsnorm(y, &x, &weight, 1e-6));
        run("add", &three, &|y| ops.add(y, &x));
        run("silu_mul", &three, &|y| ops.silu_mul(y, &x));
        run("gelu_tanh_mul", &three, &|y| ops.gelu_tanh_mul(y, &x));
        run("soft_cap", &two, &|y| ops.soft_cap(y, 30.0));
        run("softmax", &two, &|y| ops.softmax(y));
        run("argmax", &Work::Bytes((4 * x.len()) as f64), &|_| {
            black_box(ops.argmax(&x));
        });
        for style in [RopeStyle::Normal, RopeStyle::Neox] {
            let mut table = RopeTable::new(&RopeParams {
                style,
                n_rot: 128,
                freq_base: 1e6,
                freq_scale: 1.0,
                attn_factor: 1.0,
                freq_factors: Vec::new(),
            });
            table.extend(N_TOKENS);
            let name = match style {
                RopeStyle::Normal => "rope normal",
                RopeStyle::Neox => "rope neox",
            };
            run(name, &two, &|y| ops.rope(y, N_EMBD / 128, 128, &table, 0));
        }
        let shape = KvShape::new(2, 128, 512);
        let mut k = vec![f16::ZERO; shape.n_elems()];
        let mut v = k.clone();
        let rows: Vec<f32> = (0..512 * 256).map(|i| (i % 97) as f32 / 9.0 - 5.0).collect();
        let work = Work::Bytes((12 * rows.len()) as f64);
        self.run(ops, "append_kv 512", &work, || {
            let start = Instant::now();
            ops.append_kv(&mut k, &mut v, &shape, &rows, &rows, 0);
            black_box((&k, &v));
            start
        });
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let bench = Bench { filter: std::env::args().nth(1).unwrap_or_default() };
    for &tier in Tier::ALL.iter().rev().filter(|tier| tier.available()) {
        let ops = Ops::new(tier)?;
        bench.rows(&ops);
        for geometry in GEOMETRIES {
            bench.attention(&ops, geometry, 0, 512);
            bench.attention(&ops, geometry, 2048, 512);
            bench.attention(&ops, geometry, 511, 1);
            bench.attention(&ops, geometry, 4095, 1);
        }
    }
    Ok(())
}
