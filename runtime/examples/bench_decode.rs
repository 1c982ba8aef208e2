//! What stands between a decoded token and the memory: passes over one model's weights in turns.
//!
//! `bench_decode MODEL.mpk [THREADS] [ROUNDS] [DEPTH]`
//!
//! A round is a token decoded by the runtime, the same products without anything between them (each thread its
//! share of every matrix, no thread waiting), those of each quant type alone, and plain reading of the same bytes. The
//! bandwidth of a virtual machine changes within seconds, so the passes of a round are compared with each other, byte
//! for byte: medians of ratios.
#![allow(clippy::print_stdout)] // a program for developers
#![allow(unsafe_code)] // the mmap line, and outputs that threads share

use anyhow::{Context, Result};
use format_spec::container::Container;
use kernels::cpu::probe::{Probe, WAYS};
use kernels::cpu::{Activations, Matmul, MatmulOptions, Scratch};
use kernels::view::{PlaneRef, Weight};
use kernels::{OutView, Tier};
use runtime::{LoadOptions, Model, Session};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// One matrix of a token's products, and the bytes that they read.
struct Matrix<'a> {
    matmul: Matmul<'a>,
    quant: &'static str,
    bytes: &'a [u8],
}

fn matrices<'a>(
    file: &'a [u8],
    container: &'a Container<'a>,
    model: &Model<'_>,
) -> Result<Vec<Matrix<'a>>> {
    let tier = Tier::detect();
    let of = |row: runtime::report::MatmulReport| {
        let entry = container.tensor(&row.name).with_context(|| row.name.clone())?;
        let planes: Vec<_> = entry
            .planes
            .iter()
            .map(|object| PlaneRef::new(&object.layout, object.bytes(file)))
            .collect::<Result<_, _>>()?;
        let base = PlaneRef::new(&entry.base.layout, entry.base.bytes(file))?;
        let mut objects = std::iter::once(entry.base).chain(entry.planes.iter().copied());
        let read = objects.find(|object| object.kind.name() == row.decode.reads);
        let matmul = Matmul::new(tier, Weight::new(base, &planes)?, MatmulOptions::default())?;
        Ok(Matrix { matmul, quant: row.quant, bytes: read.unwrap_or(entry.base).bytes(file) })
    };
    model.explain().into_iter().map(of).collect()
}

/// Activations for every row length.
fn activations(matrices: &[Matrix<'_>]) -> Result<HashMap<usize, Activations>> {
    let mut found = HashMap::new();
    for matrix in matrices {
        let row_len = matrix.matmul.weight().row_len();
        let mut x = Activations::new(Tier::detect())?;
        x.resize(1, row_len);
        for (i, x) in x.x_mut().iter_mut().enumerate() {
            *x = ((i * 37 % 101) as f32 - 50.0) / 50.0;
        }
        x.quantize();
        found.insert(row_len, x);
    }
    Ok(found)
}

/// Runs `work(thread)` on all threads; the time from the first to begin to the last to end.
fn timed(n_threads: usize, work: impl Fn(usize) + Sync) -> Duration {
    let barrier = Barrier::new(n_threads);
    let run = |thread: usize| {
        barrier.wait();
        let start = Instant::now();
        work(thread);
        (start, Instant::now())
    };
    let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let run = &run;
        let others: Vec<_> = (1..n_threads).map(|i| scope.spawn(move || run(i))).collect();
        let mine = run(0);
        others.into_iter().filter_map(|thread| thread.join().ok()).chain([mine]).collect()
    });
    let first = spans.iter().map(|span| span.0).min();
    let last = spans.iter().map(|span| span.1).max();
    last.zip(first).map_or(Duration::MAX, |(last, first)| last - first)
}

/// Each thread its share of every matrix.
fn products(
    matrices: &[&Matrix<'_>],
    xs: &HashMap<usize, Activations>,
    y: &mut [f32],
    n_threads: usize,
) -> Duration {
    let out = y.as_mut_ptr() as usize;
    timed(n_threads, |thread| {
        let mut scratch = Scratch::new();
        for matrix in matrices {
            let n_rows = matrix.matmul.weight().n_rows();
            let n_units = n_rows.div_ceil(16);
            let from = n_units * thread / n_threads * 16;
            let to = (n_units * (thread + 1) / n_threads * 16).min(n_rows);
            // SAFETY: threads write rows of their own, and the caller's exclusive reference outlives them.
            let y = unsafe { std::slice::from_raw_parts_mut(out as *mut f32, n_rows) };
            // SAFETY: as above.
            let view = unsafe { OutView::new(y, n_rows) };
            let x = &xs[&matrix.matmul.weight().row_len()];
            matrix.matmul.rows(&view, x, from..to, &mut scratch);
        }
    })
}

/// What is timed in each round.
enum Pass {
    Token,
    /// Products, of one quant type or of all.
    Products(Option<&'static str>),
    /// One of [`WAYS`].
    Read(usize),
}

impl Pass {
    fn name(&self) -> String {
        match self {
            Self::Token => "token".to_owned(),
            Self::Products(quant) => format!("products {}", quant.unwrap_or_default()),
            Self::Read(way) => format!("read {}+{}", WAYS[*way].n_streams, WAYS[*way].ahead_bytes),
        }
    }

    fn bytes(&self, matrices: &[Matrix<'_>]) -> usize {
        let counts = |matrix: &&Matrix<'_>| match self {
            Self::Products(Some(quant)) => matrix.quant == *quant,
            _ => true,
        };
        matrices.iter().filter(counts).map(|matrix| matrix.bytes.len()).sum()
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |text| text.parse());
    let path = args.first().context("usage: bench_decode MODEL.mpk [THREADS] [ROUNDS] [DEPTH]")?;
    let (n_threads, n_rounds, depth) = (number(1, 2)?, number(2, 40)?, number(3, 16)?);
    let file = std::fs::File::open(path).with_context(|| path.clone())?;
    // SAFETY: a developer's tool; nobody changes the file meanwhile.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    let container = Container::parse(&map)?;
    let options = LoadOptions { n_threads, ..LoadOptions::default() };
    let model = Model::open(&map, &container, &options)?;
    let matrices = matrices(&map, &container, &model)?;
    let xs = activations(&matrices)?;
    let n_bytes: usize = matrices.iter().map(|matrix| matrix.bytes.len()).sum();
    let probe = Probe::new(Tier::detect())?;
    let most = matrices.iter().map(|matrix| matrix.matmul.weight().n_rows()).max().unwrap_or(0);
    let mut y = vec![0.0; most];
    let mut session = Session::new(&model, depth + n_rounds + 8)?;
    for i in 0..depth {
        session.decode(i as u32)?;
    }

    let mut quants: Vec<&str> = matrices.iter().map(|matrix| matrix.quant).collect();
    quants.sort_unstable();
    quants.dedup();
    let passes: Vec<Pass> = std::iter::once(Pass::Token)
        .chain([Pass::Products(None)])
        .chain(quants.into_iter().map(|quant| Pass::Products(Some(quant))))
        .chain((0..WAYS.len()).map(Pass::Read))
        .collect();
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    for round in 0..n_rounds {
        let mut times = Vec::new();
        for pass in &passes {
            let time = match *pass {
                Pass::Token => {
                    let start = Instant::now();
                    for token in 0..2 {
                        session.decode(token + 100)?;
                    }
                    let time = start.elapsed() / 2;
                    session.truncate(depth);
                    time
                }
                Pass::Products(quant) => {
                    let of =
                        matrices.iter().filter(|matrix| quant.is_none_or(|q| q == matrix.quant));
                    products(&of.collect::<Vec<_>>(), &xs, &mut y, n_threads)
                }
                Pass::Read(way) => timed(n_threads, |thread| {
                    for matrix in &matrices {
                        let n = matrix.bytes.len();
                        let part = n * thread / n_threads..n * (thread + 1) / n_threads;
                        black_box(probe.read(way, &matrix.bytes[part]));
                    }
                }),
            };
            times.push(time.as_secs_f64());
        }
        if round > 0 {
            rounds.push(times);
        }
    }
    println!("{} MB a token, {} rounds", n_bytes / 1_000_000, rounds.len());
    println!(
        "| pass | ms: least, median | GB/s of the median | of the fastest reading of its round |"
    );
    println!("|---|---|---|---|");
    let first_read = passes.len() - WAYS.len();
    for (i, pass) in passes.iter().enumerate() {
        let bytes = pass.bytes(&matrices) as f64;
        let mut times: Vec<f64> = rounds.iter().map(|times| times[i]).collect();
        let best =
            |times: &[f64]| times[first_read..].iter().copied().fold(f64::INFINITY, f64::min);
        let ratio = |times: &Vec<f64>| best(times) / n_bytes as f64 / (times[i] / bytes);
        let mut ratios: Vec<f64> = rounds.iter().map(ratio).collect();
        let time = median(&mut times);
        println!(
            "| {} | {:.2}, {:.2} | {:.1} | {:.1} % |",
            pass.name(),
            times[0] * 1e3,
            time * 1e3,
            bytes / time / 1e9,
            median(&mut ratios) * 1e2
        );
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
