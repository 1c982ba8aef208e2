//! Attention of one token on a GPU, alone: one launch of clusters of blocks beside its twin of two, medians
//! of interleaved rounds of recorded launches over several caches in turn.
//!
//! `cargo run --release -p kernels --example bench_attention_decode -- [ROUNDS]`. Random data. `*`: the
//! number of blocks that is chosen.
#![allow(missing_docs)]
#![allow(clippy::print_stdout, clippy::unwrap_used)] // a report

#[path = "../tests/fixture/mod.rs"]
mod fixture;

use fixture::Rng;
use half::f16;
use kernels::cuda::{
    AttentionArgs, Buffer, CudaResult, FreshRows, Gpu, OperandRef, Recording, RopeTable, probe,
};
use std::sync::Arc;

/// Caches that launches take in turn.
const N_SETS: usize = 8;
/// Launches of a recording.
const N_LAUNCHES: usize = 64;

struct Heads {
    n_head: usize,
    n_head_kv: usize,
    head_dim: usize,
}

struct Bench {
    gpu: Arc<Gpu>,
    heads: Heads,
    at: Buffer<u32>,
    table: RopeTable,
    rows: [Buffer<f32>; 3],
    caches: Vec<[Buffer<f16>; 2]>,
    q8: Buffer<i8>,
    ds: Buffer<[f32; 2]>,
    part_out: Buffer<f32>,
    part_ml: Buffer<[f32; 2]>,
    n_parts: usize,
}

impl Bench {
    fn new(gpu: &Arc<Gpu>, heads: Heads, depth: usize) -> Self {
        let mut rng = Rng::new(7);
        let (width, kv_width) = (heads.n_head * heads.head_dim, heads.n_head_kv * heads.head_dim);
        let mut floats = |n: usize| (0..n).map(|_| rng.f32()).collect::<Vec<_>>();
        let rows = [width, kv_width, kv_width].map(|n| gpu.upload(&floats(n)).unwrap());
        let mut halves =
            || floats((depth + 1) * kv_width).into_iter().map(f16::from_f32).collect::<Vec<_>>();
        let steps: Vec<f64> = (0..heads.head_dim / 2)
            .map(|i| 1e6f64.powf(-2.0 * i as f64 / heads.head_dim as f64))
            .collect();
        let n_parts = gpu.attention_parts(heads.n_head, heads.n_head_kv);
        Self {
            at: gpu.upload(&[depth as u32]).unwrap(),
            table: gpu.rope_table(&steps, depth + 1, 1.0, true).unwrap(),
            rows,
            caches: (0..N_SETS)
                .map(|_| [gpu.upload(&halves()).unwrap(), gpu.upload(&halves()).unwrap()])
                .collect(),
            q8: gpu.alloc(width).unwrap(),
            ds: gpu.alloc(width / 32).unwrap(),
            part_out: gpu.alloc(width * n_parts).unwrap(),
            part_ml: gpu.alloc(heads.n_head * n_parts).unwrap(),
            n_parts,
            gpu: Arc::clone(gpu),
            heads,
        }
    }

    fn launch(&self, i: usize, cluster: Option<u32>) -> CudaResult<()> {
        let Heads { n_head, n_head_kv, head_dim } = self.heads;
        let [k, v] = &self.caches[i % N_SETS];
        let [q, new_k, new_v] = &self.rows;
        let args = AttentionArgs {
            q: q.all(),
            k: k.all(),
            v: v.all(),
            first_pos: self.at.all(),
            shift: 0,
            n_tokens: 1,
            n_head,
            n_head_kv,
            head_dim,
            window: None,
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: None,
        };
        let fresh = FreshRows { k: new_k.all(), v: new_v.all(), table: &self.table, norms: None };
        let int8 = Some((self.q8.all(), self.ds.all()));
        let out = OperandRef { int8, ..OperandRef::default() };
        let parts = (self.part_out.all(), self.part_ml.all());
        match cluster {
            Some(n) => self.gpu.attention_cluster(&out, &args, &fresh, (n, false)),
            None => self.gpu.attention_decode(&out, &args, parts, self.n_parts, Some(&fresh)),
        }
    }

    fn record(&self, cluster: Option<u32>) -> Recording {
        self.gpu.record(|| (0..N_LAUNCHES).try_for_each(|i| self.launch(i, cluster))).unwrap()
    }
}

fn main() {
    let n_rounds: usize = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(15);
    if let Err(why) = probe(0) {
        return println!("skipped: {why}");
    }
    let gpu = Gpu::open(0, true).unwrap();
    println!("microseconds a launch");
    for (n_head, n_head_kv, head_dim) in [
        (28, 4, 128),
        (32, 8, 128),
        (12, 2, 128),
        (16, 16, 128),
        (32, 32, 128),
        (14, 2, 64),
        (32, 8, 64),
        (4, 1, 256),
    ] {
        let chosen = gpu.attention_cluster_blocks(n_head, n_head_kv, head_dim).unwrap();
        for depth in [100, 1000, 3325] {
            let bench = Bench::new(&gpu, Heads { n_head, n_head_kv, head_dim }, depth);
            let ways = [None, Some(16), Some(8), Some(4)];
            let ways = if chosen.is_some() { &ways[..] } else { &ways[..1] };
            let recordings: Vec<_> = ways.iter().map(|&way| bench.record(way)).collect();
            let mut times = vec![Vec::new(); ways.len()];
            for _ in 0..n_rounds {
                for (recording, times) in recordings.iter().zip(&mut times) {
                    let seconds = gpu.time(|| recording.launch()).unwrap();
                    times.push(seconds * 1e6 / N_LAUNCHES as f64);
                }
            }
            let mut line = format!("{n_head}/{n_head_kv} x {head_dim}, depth {depth}:");
            for (way, times) in ways.iter().zip(&mut times) {
                times.sort_by(f64::total_cmp);
                let mark = if way.is_some() && *way == chosen { "*" } else { "" };
                let name = way.map_or("twin".to_owned(), |n| format!("{n} blocks{mark}"));
                line += &format!(" {name} {:.2}", times[n_rounds / 2]);
            }
            println!("{line}");
        }
    }
}
