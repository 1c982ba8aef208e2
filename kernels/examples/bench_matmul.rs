//! Speed of products on one thread: GB/s of GEMV by quant type, TOPS of GEMM, beside the measured
//! limits of the machine.
//!
//! ```text
//! cargo run --release -p kernels --example bench_matmul -- [tier] [gemv|gemm|all] [quant]
//! ```
//! Minimum over repetitions; other load on the machine shows in absolute figures, so compare ratios.
#![allow(clippy::print_stdout)] // a bench reports there

#[path = "../tests/fixture/mod.rs"]
mod fixture;

use std::time::Instant;

use fixture::{Fixture, activations, quantized};
use format_spec::{PlaneKind, QuantType};
use kernels::cpu::probe::{Operands, Probe, WAYS};
use kernels::cpu::{Activations, Matmul, MatmulOptions, Scratch};
use kernels::{OutView, Tier, Weight};

const TYPES: [QuantType; 10] = [
    QuantType::Q4_0,
    QuantType::Q4_1,
    QuantType::Q5_0,
    QuantType::Q5_1,
    QuantType::Q8_0,
    QuantType::Q2_K,
    QuantType::Q3_K,
    QuantType::Q4_K,
    QuantType::Q5_K,
    QuantType::Q6_K,
];

/// Seconds of the fastest of `n` runs.
fn fastest(n: usize, mut f: impl FnMut()) -> f64 {
    (0..n)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

#[allow(unsafe_code)]
fn run(matmul: &Matmul<'_>, x: &Activations, y: &mut [f32], scratch: &mut Scratch) {
    let n_rows = matmul.weight().n_rows();
    // SAFETY: one writer.
    let view = unsafe { OutView::new(y, n_rows) };
    matmul.rows(&view, x, 0..n_rows, scratch);
}

fn gemv(tier: Tier, quant: QuantType, base: PlaneKind) {
    // Larger than the caches for the first shape, inside of them for the second.
    let mut line = format!("gemv {:>5} {:>6}", quant.name(), base.name());
    for (n_rows, row_len, n_runs) in
        [(32768, 2048, 12), (512, 2048, 300), (512, 576, 300), (65536, 896, 8)]
    {
        if row_len < quant.block_elems() {
            continue;
        }
        let row_len = row_len / quant.block_elems() * quant.block_elems();
        let fixture = Fixture::new(quant, n_rows, row_len, 1);
        let weight = Weight::new(fixture.plane(base), &[]);
        let Ok(Ok(matmul)) =
            weight.map(|weight| Matmul::new(tier, weight, MatmulOptions::default()))
        else {
            return;
        };
        let x = quantized(tier, &activations(1, row_len, 2), 1);
        let (mut y, mut scratch) = (vec![0.0; n_rows], Scratch::new());
        let seconds = fastest(n_runs, || run(&matmul, &x, &mut y, &mut scratch));
        let bytes = fixture.plane(base).layout().len_bytes() as f64;
        let weights = (n_rows * row_len) as f64;
        line += &format!(
            " | {n_rows}x{row_len}: {:6.2} GB/s {:6.2} Gw/s",
            bytes / seconds / 1e9,
            weights / seconds / 1e9
        );
    }
    println!("{line}");
}

fn gemm(tier: Tier, quant: QuantType) {
    let mut line = format!("gemm {:>5}", quant.name());
    for (n_rows, row_len, n_tokens) in [(512, 1536, 512), (512, 1536, 32), (256, 8960, 256)] {
        let fixture = Fixture::new(quant, n_rows, row_len, 1);
        for planes in [&[][..], &[PlaneKind::Exp, PlaneKind::Dsc][..], &[PlaneKind::Tile][..]] {
            if !planes.iter().all(|kind| kind.applies_to(quant)) {
                continue;
            }
            let weight = fixture.weight(planes);
            let Ok(matmul) = Matmul::new(tier, weight, MatmulOptions::default()) else { return };
            let x = quantized(tier, &activations(n_tokens, row_len, 2), n_tokens);
            let (mut y, mut scratch) = (vec![0.0; n_rows * n_tokens], Scratch::new());
            let seconds = fastest(8, || run(&matmul, &x, &mut y, &mut scratch));
            let ops = 2.0 * (n_rows * row_len * n_tokens) as f64;
            line += &format!(
                " | {}{n_rows}x{row_len}x{n_tokens}: {:6.3} TOPS",
                planes.first().map_or(String::new(), |kind| format!("{} ", kind.name())),
                ops / seconds / 1e12
            );
        }
    }
    println!("{line}");
}

fn quantize(tier: Tier) {
    let (n_tokens, row_len) = (256, 1536);
    let x = activations(n_tokens, row_len, 2);
    for n in [1, n_tokens] {
        let mut acts = quantized(tier, &x[..n * row_len], n);
        let seconds = fastest(50, || acts.quantize());
        println!("quantize {n} tokens: {:.2} ns an element", seconds * 1e9 / (n * row_len) as f64);
    }
}

/// What one thread of this machine can do at most.
fn limits(tier: Tier) {
    let Ok(probe) = Probe::new(tier) else { return };
    let (operands, n_rounds) = (Operands::new(1), 300_000);
    let seconds = fastest(10, || {
        std::hint::black_box(probe.dot(&operands, n_rounds));
    });
    let n_ops = Operands::N_OPS * n_rounds as u64;
    println!(
        "{}: {:.3} TOPS",
        probe.dot_name.unwrap_or("plain Rust"),
        n_ops as f64 / seconds / 1e12
    );
    let bytes = vec![1u8; 256 << 20];
    for (way, of) in WAYS.iter().enumerate() {
        let seconds = fastest(6, || {
            std::hint::black_box(probe.read(way, &bytes));
        });
        println!("memory read, {of:?}: {:.2} GB/s", bytes.len() as f64 / seconds / 1e9);
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let tier = args.first().and_then(|name| Tier::parse(name).ok()).unwrap_or(Tier::detect());
    let what = args.get(1).map_or("all", String::as_str);
    let only = args.get(2).map(String::as_str);
    println!("tier {}", tier.name());
    limits(tier);
    quantize(tier);
    for quant in TYPES.into_iter().filter(|quant| only.is_none_or(|name| quant.name() == name)) {
        if what != "gemm" {
            gemv(tier, quant, PlaneKind::Padded);
            gemv(tier, quant, PlaneKind::Tile);
        }
        if what != "gemv" {
            gemm(tier, quant);
        }
    }
}
