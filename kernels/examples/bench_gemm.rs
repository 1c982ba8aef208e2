//! The bf16 products of many tokens: our own kernels beside cuBLASLt, interleaved.
//!
//! `bench_gemm [tokens,...] [rounds] [layers]`: for the matrices of a 7B model first the results of every
//! kernel against another kernel's (all elements, poisoned outputs) and f64 (some elements), then
//! medians of the device's times, in TFLOP/s. Each launch reads another of several copies of the
//! weights, so that no cache holds them.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)] // a bench

use half::bf16;
use kernels::cuda::{Blas, Buffer, DenseMatrix, Gate, Gpu, SM90_KERNELS, Sm90Kernel, Span};
use std::sync::Arc;

/// Device memory of the weights of one shape, about.
const WEIGHT_BYTES: usize = 400 << 20;
const POISON: u32 = 0x7fc0_dead;
/// (rows, row length, added to what is there).
const SHAPES: [(usize, usize, bool); 4] =
    [(18944, 3584, false), (3584, 18944, true), (3584, 3584, true), (512, 3584, false)];

struct Rng(u64);

impl Rng {
    fn bf16(&mut self) -> bf16 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40;
        bf16::from_f32(bits as f32 / (1 << 23) as f32 - 1.0)
    }
}

/// Random elements; a run of them is repeated at a distance that no row length divides.
fn random(gpu: &Arc<Gpu>, len: usize, seed: u64) -> (Buffer<bf16>, Vec<bf16>) {
    let mut rng = Rng(seed);
    let run: Vec<bf16> = (0..len.min((1 << 22) + 8)).map(|_| rng.bf16()).collect();
    let buffer = gpu.alloc(len).unwrap();
    for at in (0..len).step_by(run.len()) {
        let n = run.len().min(len - at);
        gpu.write(buffer.span(at..at + n), &run[..n]).unwrap();
    }
    (buffer, run)
}

struct Case<'g> {
    gpu: &'g Arc<Gpu>,
    blas: Option<&'g Blas>,
    n_tokens: usize,
    n_rows: usize,
    row_len: usize,
    add: bool,
    weights: Vec<Buffer<bf16>>,
    x: Buffer<bf16>,
    y: Buffer<f32>,
}

#[derive(Clone, Copy)]
enum Way {
    Blas,
    Own(&'static Sm90Kernel),
    Mma,
}

impl Way {
    fn name(self) -> String {
        match self {
            Self::Blas => "cuBLASLt".to_owned(),
            Self::Own(kernel) => kernel.name.to_owned(),
            Self::Mma => "gemm_bf16".to_owned(),
        }
    }
}

fn kernels(gated: bool) -> impl Iterator<Item = &'static Sm90Kernel> {
    SM90_KERNELS.iter().filter(move |kernel| kernel.gated == gated)
}

impl Case<'_> {
    fn run(&self, way: Way, turn: usize, y: Span<'_, f32>) {
        let w = self.weights[turn % self.weights.len()].all();
        let shape = (self.n_tokens, self.n_rows, self.row_len);
        let (x, stride, n_rows) = (self.x.all(), self.row_len, self.n_rows);
        match (way, self.blas) {
            (Way::Blas, Some(blas)) => {
                blas.gemm(y, (w, stride), x, None, shape, self.add).unwrap();
            }
            (Way::Blas, None) => {}
            (Way::Mma, _) => {
                self.gpu.gemm_bf16(y, (w, stride), x, None, shape, self.add).unwrap();
            }
            (Way::Own(kernel), _) => {
                let matrix = DenseMatrix { w, stride, n_rows, bias: None };
                let shape = (self.n_tokens, self.row_len);
                self.gpu.gemm_sm90(kernel, &[(matrix, y)], x, shape, self.add).unwrap();
            }
        }
    }

    /// What a way makes of poison (of zeros, where it adds).
    fn result(&self, way: Way) -> Vec<f32> {
        self.gpu.fill_words(self.y.all(), if self.add { 0 } else { POISON }).unwrap();
        self.run(way, 0, self.y.all());
        let mut y = vec![0.0; self.n_tokens * self.n_rows];
        self.gpu.read(&mut y, self.y.all()).unwrap();
        y
    }

    fn check(&self, ways: &[Way], w: &[bf16], x: &[bf16]) {
        let reference = self.result(Way::Mma);
        let scale = (self.row_len as f64).sqrt() / 3.0;
        let element = |values: &[bf16], i: usize| values[i % values.len()].to_f64();
        let mut rng = Rng(99);
        for _ in 0..200 {
            let i = (rng.bf16().to_f64().abs() * reference.len() as f64) as usize;
            let i = i.min(reference.len() - 1) / 7 * 7 + i % 5;
            let i = i.min(reference.len() - 1);
            let (token, row) = (i / self.n_rows, i % self.n_rows);
            let sum: f64 = (0..self.row_len)
                .map(|k| element(x, token * self.row_len + k) * element(w, row * self.row_len + k))
                .sum();
            let off = (f64::from(reference[i]) - sum).abs() / scale;
            assert!(off < 1e-3, "element {i}: {} instead of {sum}", reference[i]);
        }
        for &way in ways {
            let found = self.result(way);
            let off = found.iter().zip(&reference).map(|(a, b)| f64::from((a - b).abs()));
            // A NaN is no number below.
            let worst = off.fold(0.0, |worst: f64, off| if off <= worst { worst } else { off });
            let good = worst / scale < 1e-3 && found.iter().all(|v| v.is_finite());
            println!(
                "check {}: {:.1e}{}",
                way.name(),
                worst / scale,
                if good { "" } else { " BAD" }
            );
        }
    }

    /// Medians of microseconds.
    fn times(&self, ways: &[Way], n_rounds: usize) -> Vec<f64> {
        let mut times = vec![Vec::new(); ways.len()];
        let mut turn = 0;
        for round in 0..=n_rounds {
            for (way, times) in ways.iter().zip(&mut times) {
                turn += 1;
                let seconds = self.gpu.time(|| {
                    (0..4).for_each(|i| self.run(*way, turn + i, self.y.all()));
                    Ok(())
                });
                if round > 0 {
                    times.push(seconds.unwrap() * 1e6 / 4.0);
                }
            }
        }
        times.iter_mut().map(|times| median(times)).collect()
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn plain(gpu: &Arc<Gpu>, blas: Option<&Blas>, n_tokens: usize, n_rounds: usize) {
    let mut ways: Vec<Way> = blas.iter().map(|_| Way::Blas).collect();
    ways.extend(kernels(false).map(Way::Own));
    for (n_rows, row_len, add) in SHAPES {
        let n = n_rows * row_len;
        let made: Vec<_> = (0..(WEIGHT_BYTES / n / 2).clamp(2, 64))
            .map(|i| random(gpu, n, 7 + i as u64))
            .collect();
        let w = made[0].1.clone();
        let weights = made.into_iter().map(|(buffer, _)| buffer).collect();
        let (x, x_run) = random(gpu, n_tokens * row_len, 3);
        let y = gpu.alloc(n_tokens * n_rows).unwrap();
        let case = Case { gpu, blas, n_tokens, n_rows, row_len, add, weights, x, y };
        let large = n_tokens * n_rows > 40_000_000;
        case.check(if large { &ways[..3] } else { &ways }, &w, &x_run);
        let times = case.times(&ways, n_rounds);
        let flop = 2.0 * (n_tokens * n_rows * row_len) as f64;
        println!("{n_rows}x{row_len}, {n_tokens} tokens, add {add}");
        for (way, us) in ways.iter().zip(&times) {
            let share = times[0] / us * 100.0;
            println!(
                "| {} | {us:.1} us | {:.0} TFLOP/s | {share:.1} % |",
                way.name(),
                flop / us / 1e6
            );
        }
    }
}

/// Gate and up in one launch beside two products and the kernel that joins them.
fn gated(gpu: &Arc<Gpu>, blas: Option<&Blas>, n_tokens: usize, n_rounds: usize) {
    let (n_rows, row_len) = (18944, 3584);
    let weights: Vec<_> = (0..4).map(|i| random(gpu, n_rows * row_len, 31 + i).0).collect();
    let (x, _) = random(gpu, n_tokens * row_len, 3);
    let n_out = n_tokens * n_rows;
    let parts: Vec<Buffer<f32>> = (0..2).map(|_| gpu.alloc(n_out).unwrap()).collect();
    let outs: Vec<Buffer<bf16>> = (0..2).map(|_| gpu.alloc(n_out).unwrap()).collect();
    let matrix = |turn: usize, part: usize| {
        let w = weights[(2 * turn + part) % 4].all();
        DenseMatrix { w, stride: row_len, n_rows, bias: None }
    };
    let apart = |turn: usize| {
        for (part, y) in parts.iter().enumerate() {
            let m = matrix(turn, part);
            let shape = (n_tokens, n_rows, row_len);
            match blas {
                Some(blas) => blas.gemm(y.all(), (m.w, row_len), x.all(), None, shape, false),
                None => gpu.gemm_bf16(y.all(), (m.w, row_len), x.all(), None, shape, false),
            }
            .unwrap();
        }
        let out = kernels::cuda::OperandRef { bf16: Some(outs[0].all()), ..Default::default() };
        gpu.gate(&out, parts[0].all(), parts[1].all(), Gate::Silu).unwrap();
    };
    let joined = |kernel: &'static Sm90Kernel, turn: usize| {
        let (gate, up) = (matrix(turn, 0), matrix(turn, 1));
        let shape = (n_tokens, row_len);
        let y = outs[1].all();
        gpu.gated_sm90(kernel, y, (&gate, &up), Gate::Silu, x.all(), shape).unwrap();
    };
    let gates: Vec<_> = kernels(true).collect();
    apart(0);
    let mut expected = vec![bf16::ZERO; n_out];
    gpu.read(&mut expected, outs[0].all()).unwrap();
    for &kernel in &gates {
        gpu.write(outs[1].all(), &vec![bf16::NAN; n_out]).unwrap();
        joined(kernel, 0);
        let mut found = vec![bf16::ZERO; n_out];
        gpu.read(&mut found, outs[1].all()).unwrap();
        let off =
            |(a, b): (&bf16, &bf16)| (a.to_f64() - b.to_f64()).abs() / (b.to_f64().abs() + 1.0);
        let good = found.iter().zip(&expected).all(|pair| off(pair) < 0.02);
        println!("check {}{}", kernel.name, if good { "" } else { ": BAD" });
    }
    let mut times = vec![Vec::new(); 1 + gates.len()];
    for round in 0..=n_rounds {
        for (i, times) in times.iter_mut().enumerate() {
            let seconds = gpu.time(|| {
                for turn in 0..2 {
                    match i {
                        0 => apart(turn + round),
                        i => joined(gates[i - 1], turn + round),
                    }
                }
                Ok(())
            });
            if round > 0 {
                times.push(seconds.unwrap() * 1e6 / 2.0);
            }
        }
    }
    println!("gate and up, 2 x {n_rows}x{row_len}, {n_tokens} tokens");
    let names = std::iter::once("apart".to_owned())
        .chain(gates.iter().map(|kernel| kernel.name.to_owned()));
    for (name, times) in names.zip(&mut times) {
        let us = median(times);
        let flop = 4.0 * (n_out * row_len) as f64;
        println!("| {name} | {us:.1} us | {:.0} TFLOP/s |", flop / us / 1e6);
    }
}

/// Queries, keys and values in one launch beside three products.
fn shared(gpu: &Arc<Gpu>, blas: Option<&Blas>, n_tokens: usize, n_rounds: usize) {
    let (rows, row_len) = ([3584, 512, 512], 3584);
    let sets: Vec<_> =
        (0..12).map(|i| rows.map(|n_rows| random(gpu, n_rows * row_len, 77 + i).0)).collect();
    let (x, _) = random(gpu, n_tokens * row_len, 3);
    let bias: Buffer<f32> = gpu.upload(&vec![1.5; 3584]).unwrap();
    let y = rows.map(|n_rows| gpu.alloc::<f32>(n_tokens * n_rows).unwrap());
    let run = |kernel: Option<&'static Sm90Kernel>, turn: usize| {
        let outs = [0, 1, 2].map(|i| {
            let (w, n_rows) = (sets[turn % sets.len()][i].all(), rows[i]);
            let bias = Some(bias.span(0..n_rows));
            (DenseMatrix { w, stride: row_len, n_rows, bias }, y[i].all())
        });
        if let Some(kernel) = kernel {
            return gpu.gemm_sm90(kernel, &outs, x.all(), (n_tokens, row_len), false).unwrap();
        }
        for (m, y) in outs {
            let shape = (n_tokens, m.n_rows, row_len);
            match blas {
                Some(blas) => blas.gemm(y, (m.w, row_len), x.all(), m.bias, shape, false),
                None => gpu.gemm_bf16(y, (m.w, row_len), x.all(), m.bias, shape, false),
            }
            .unwrap();
        }
    };
    let ways: Vec<_> = std::iter::once(None).chain(kernels(false).map(Some)).collect();
    let mut times = vec![Vec::new(); ways.len()];
    for round in 0..=n_rounds {
        for (&way, times) in ways.iter().zip(&mut times) {
            let seconds = gpu.time(|| {
                (0..4).for_each(|i| run(way, 4 * round + i));
                Ok(())
            });
            if round > 0 {
                times.push(seconds.unwrap() * 1e6 / 4.0);
            }
        }
    }
    println!("q, k, v: 3584, 512, 512 x {row_len}, {n_tokens} tokens");
    for (way, times) in ways.iter().zip(&mut times) {
        let (us, flop) = (median(times), 2.0 * (n_tokens * 4608 * row_len) as f64);
        let name = way.map_or("apart", |kernel| kernel.name);
        println!("| {name} | {us:.1} us | {:.0} TFLOP/s |", flop / us / 1e6);
    }
}

/// The products of 28 layers one after the other, `n` times: what a device gives that is warm and at the
/// limit of its power.
fn layers(gpu: &Arc<Gpu>, blas: Option<&Blas>, n_tokens: usize, n_rounds: usize) {
    let (n_embd, n_kv, n_ff) = (3584, 512, 18944);
    let layer = |i: u64| {
        let all = [n_embd, n_kv, n_kv, n_embd, n_ff, n_ff].map(|n| (n, n_embd));
        let made = all.map(|(n_rows, row_len)| random(gpu, n_rows * row_len, 200 + i).0);
        (made, random(gpu, n_embd * n_ff, 300 + i).0)
    };
    let sets: Vec<_> = (0..4).map(layer).collect();
    let (x, _) = random(gpu, n_tokens * n_ff, 3);
    let wide = [0, 1].map(|_| gpu.alloc::<f32>(n_tokens * n_ff).unwrap());
    let gated = gpu.alloc::<bf16>(n_tokens * n_ff).unwrap();
    let y = [n_embd, n_kv, n_kv, n_embd].map(|n| gpu.alloc::<f32>(n_tokens * n).unwrap());
    gpu.fill_words(y[3].all(), 0).unwrap();
    let x_short = || x.span(0..n_tokens * n_embd);
    let rows = [n_embd, n_kv, n_kv];
    let library = |blas: &Blas, i: usize| {
        let (w, down) = &sets[i % sets.len()];
        let short = |part: usize, y: &Buffer<f32>, n_rows: usize, add: bool| {
            let shape = (n_tokens, n_rows, n_embd);
            blas.gemm(y.all(), (w[part].all(), n_embd), x_short(), None, shape, add).unwrap();
        };
        (0..3).for_each(|part| short(part, &y[part], rows[part], false));
        short(3, &y[3], n_embd, true);
        (0..2).for_each(|part| short(4 + part, &wide[part], n_ff, false));
        let out = kernels::cuda::OperandRef { bf16: Some(gated.all()), ..Default::default() };
        gpu.gate(&out, wide[0].all(), wide[1].all(), Gate::Silu).unwrap();
        let shape = (n_tokens, n_embd, n_ff);
        blas.gemm(y[3].all(), (down.all(), n_ff), x.all(), None, shape, true).unwrap();
    };
    let own = |kernels: [&'static Sm90Kernel; 4], i: usize| {
        let (w, down) = &sets[i % sets.len()];
        let shape = (n_tokens, n_embd);
        let outs = [0, 1, 2].map(|part| (matrix_of(&w[part], n_embd), y[part].all()));
        gpu.gemm_sm90(kernels[0], &outs, x_short(), shape, false).unwrap();
        let out = [(matrix_of(&w[3], n_embd), y[3].all())];
        gpu.gemm_sm90(kernels[1], &out, x_short(), shape, true).unwrap();
        let pair = (&matrix_of(&w[4], n_embd), &matrix_of(&w[5], n_embd));
        gpu.gated_sm90(kernels[2], gated.all(), pair, Gate::Silu, x_short(), shape).unwrap();
        let out = [(matrix_of(down, n_ff), y[3].all())];
        gpu.gemm_sm90(kernels[3], &out, x.all(), (n_tokens, n_ff), true).unwrap();
    };
    let named = |names: [&str; 4]| {
        names.map(|name| SM90_KERNELS.iter().find(|kernel| kernel.name == name).unwrap())
    };
    let chosen = [
        Sm90Kernel::for_products(gpu, n_tokens, &rows),
        Sm90Kernel::for_products(gpu, n_tokens, &[n_embd]),
        Sm90Kernel::for_gated(gpu, n_tokens, n_ff),
        Sm90Kernel::for_products(gpu, n_tokens, &[n_embd]),
    ];
    let (b256, b240) = ("gemm_sm90_256_pair", "gemm_sm90_240_pair");
    let mut ways = vec![("chosen".to_owned(), chosen)];
    for names in [
        [b256, b256, "gemm_sm90_gated_256_pair", b256],
        ["gemm_sm90_256", "gemm_sm90_256", "gemm_sm90_gated_256", "gemm_sm90_256"],
        ["gemm_sm90_192_pair", b240, "gemm_sm90_gated_240_pair", b240],
        ["gemm_sm90_192_pair", b240, "gemm_sm90_gated_144_pair", "gemm_sm90_144_pair"],
        ["gemm_sm90_192", "gemm_sm90_240", "gemm_sm90_gated_256", "gemm_sm90_240"],
    ] {
        ways.push((names.join(" "), named(names)));
    }
    let n_times = (6000 / n_tokens).max(1);
    let mut times = vec![Vec::new(); 1 + ways.len()];
    for round in 0..=n_rounds {
        for (i, times) in times.iter_mut().enumerate() {
            let seconds = gpu.time(|| {
                for layer in 0..28 * n_times {
                    match (i, blas) {
                        (0, Some(blas)) => library(blas, layer),
                        (0, None) => {}
                        _ => own(ways[i - 1].1, layer),
                    }
                }
                Ok(())
            });
            if round > 0 {
                times.push(seconds.unwrap() * 1e3 / n_times as f64);
            }
        }
    }
    println!("all products of 28 layers, {n_tokens} tokens, {n_times} times without a pause");
    let names = std::iter::once("cuBLASLt".to_owned()).chain(ways.into_iter().map(|way| way.0));
    for (name, times) in names.zip(&mut times) {
        let ms = median(times);
        let flop = 28.0 * 2.0 * (n_tokens * n_embd * (2 * n_embd + 2 * n_kv + 3 * n_ff)) as f64;
        println!("| {name} | {ms:.2} ms | {:.0} TFLOP/s |", flop / ms / 1e9);
    }
}

/// A whole buffer as a matrix.
fn matrix_of(w: &Buffer<bf16>, stride: usize) -> DenseMatrix<'_> {
    DenseMatrix { w: w.all(), stride, n_rows: w.len() / stride, bias: None }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let tokens = args.next().unwrap_or_else(|| "512,3325".to_owned());
    let n_rounds = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(15);
    let gpu = match Gpu::open(0, false) {
        Ok(gpu) => gpu,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let blas = Blas::find(&gpu).unwrap();
    let only_layers = args.next().is_some_and(|arg| arg == "layers");
    for n_tokens in tokens.split(',').filter_map(|n| n.parse().ok()) {
        layers(&gpu, blas.as_ref(), n_tokens, n_rounds);
        if only_layers {
            continue;
        }
        plain(&gpu, blas.as_ref(), n_tokens, n_rounds);
        shared(&gpu, blas.as_ref(), n_tokens, n_rounds);
        gated(&gpu, blas.as_ref(), n_tokens, n_rounds);
    }
}
