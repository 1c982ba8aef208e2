//! MMQ kernels on a GPU, in the shapes of a 7B model: medians of interleaved runs.
//!
//! `cargo run --release -p kernels --example bench_mmq -- [TOKENS] [ROUNDS]`; `KERNELS_DIST` names a
//! folder with fatbins. Prints tables in Markdown: each kernel alone, then all linear layers of the
//! model in a row with planes on and off, on the device's clock and on the wall.
#![allow(missing_docs)]
#![allow(clippy::print_stdout, clippy::print_stderr)] // a report

#[path = "../tests/gpu/mod.rs"]
mod gpu;

use std::collections::HashMap;
use std::time::Instant;

use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use cudarc::driver::{CudaFunction, CudaSlice};
use format_spec::QuantType;
use gpu::{Activations, Device, Objects, Tensor, activations};
use kernels::cuda::mmq::{MMQ_KERNELS, MmqArgs, MmqKernel};

/// One weight with the objects that kernels read.
struct Weight {
    tensor: Tensor,
    objects: Objects,
}

impl Weight {
    fn new(device: &Device, quant: QuantType, n_rows: usize, row_len: usize) -> Self {
        let tensor = Tensor::random(quant, n_rows, row_len, 17);
        let objects = device.objects(&tensor);
        Self { tensor, objects }
    }
}

struct Bench {
    device: Device,
    n_tokens: usize,
    n_rounds: usize,
    /// By row length.
    x: HashMap<usize, Activations>,
    y: CudaSlice<f32>,
    functions: HashMap<&'static str, CudaFunction>,
}

impl Bench {
    fn args(&self, kernel: &MmqKernel, weight: &Weight) -> MmqArgs {
        let x = &self.x[&weight.tensor.row_len()];
        self.device.args(kernel, &weight.objects, (x, self.n_tokens), &self.y)
    }

    fn run(&self, kernel: &MmqKernel, args: MmqArgs) {
        self.device.launch(kernel, &self.functions[kernel.name], args);
    }

    /// Milliseconds on the device.
    fn time(&self, body: impl FnOnce()) -> f64 {
        let stream = &self.device.stream;
        let start = stream.record_event(Some(CU_EVENT_DEFAULT)).expect("an event");
        body();
        let end = stream.record_event(Some(CU_EVENT_DEFAULT)).expect("an event");
        stream.synchronize().expect("launches");
        f64::from(start.elapsed_ms(&end).expect("a time"))
    }

    /// Each kernel on one weight: rounds of all kernels, medians.
    fn compare(&self, weight: &Weight, kernels: &[&'static MmqKernel]) {
        let (n_rows, row_len) = (weight.tensor.n_rows(), weight.tensor.row_len());
        let tera = 2e-9 * n_rows as f64 * row_len as f64 * self.n_tokens as f64;
        let args: Vec<_> = kernels.iter().map(|kernel| self.args(kernel, weight)).collect();
        let mut times = vec![Vec::new(); kernels.len()];
        for round in 0..self.n_rounds + 2 {
            for ((kernel, args), times) in kernels.iter().zip(&args).zip(&mut times) {
                let ms = self.time(|| self.run(kernel, *args));
                if round >= 2 {
                    times.push(ms);
                }
            }
        }
        println!(
            "\n{} {n_rows} x {row_len}, {} tokens\n",
            weight.tensor.quant.name(),
            self.n_tokens
        );
        println!(
            "| kernel | ms | fastest | slowest | against the first | TOPS |\n|---|---|---|---|---|---|"
        );
        let first = median(&mut times[0]);
        for (kernel, times) in kernels.iter().zip(&mut times) {
            let ms = median(times);
            let (low, high) = (times[0], times[times.len() - 1]);
            let change = (ms / first - 1.0) * 100.0;
            println!(
                "| {} | {ms:.4} | {low:.4} | {high:.4} | {change:+.1} % | {:.0} |",
                kernel.name,
                tera / ms
            );
        }
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn named(names: &[&str]) -> Vec<&'static MmqKernel> {
    let find = |name: &&str| MMQ_KERNELS.iter().find(|kernel| kernel.name == *name);
    names.iter().map(|name| find(name).unwrap_or_else(|| panic!("no kernel {name}"))).collect()
}

/// All linear layers of the 7B model in Q4_K_M, one tensor a shape: quantized activations, half of
/// the layers with q6_K in attn_v and ffn_down.
fn linears(bench: &Bench, q6_k: &[Weight], q4_k: &[Weight], sets: &[(&str, [&str; 2])]) {
    let find = |weights: &[Weight], n_rows: usize, row_len: usize| {
        weights
            .iter()
            .position(|w| w.tensor.n_rows() == n_rows && w.tensor.row_len() == row_len)
            .expect("a weight of this shape")
    };
    let mut device_times = vec![Vec::new(); sets.len()];
    let mut wall_times = vec![Vec::new(); sets.len()];
    for round in 0..bench.n_rounds.div_ceil(3) + 1 {
        for (i, (_, [q6_name, q4_name])) in sets.iter().enumerate() {
            let [q6, q4] = [named(&[*q6_name])[0], named(&[*q4_name])[0]];
            let plan = |more_bits: bool| {
                let shapes = [
                    (3584, 3584, false),
                    (512, 3584, false),
                    (512, 3584, more_bits),
                    (3584, 3584, false),
                    (18944, 3584, false),
                    (18944, 3584, false),
                    (3584, 18944, more_bits),
                ];
                shapes.map(|(n_rows, row_len, six)| match six {
                    true => (q6, bench.args(q6, &q6_k[find(q6_k, n_rows, row_len)])),
                    false => (q4, bench.args(q4, &q4_k[find(q4_k, n_rows, row_len)])),
                })
            };
            let plans = [plan(false), plan(true)];
            let start = Instant::now();
            let ms = bench.time(|| {
                for layer in 0..28 {
                    for (kernel, args) in plans[layer % 2] {
                        bench.run(kernel, args);
                    }
                }
            });
            if round > 0 {
                device_times[i].push(ms);
                wall_times[i].push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    println!("\nAll 196 linear layers, {} tokens\n", bench.n_tokens);
    println!(
        "| planes | device ms | wall ms | against the first | tokens/s |\n|---|---|---|---|---|"
    );
    let first = median(&mut device_times[0]);
    for ((name, _), (device, wall)) in sets.iter().zip(device_times.iter_mut().zip(&mut wall_times))
    {
        let (ms, wall) = (median(device), median(wall));
        let change = (ms / first - 1.0) * 100.0;
        println!(
            "| {name} | {ms:.2} | {wall:.2} | {change:+.1} % | {:.0} |",
            bench.n_tokens as f64 / ms * 1e3
        );
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<usize>().ok());
    let n_tokens = numbers.next().unwrap_or(3325);
    let n_rounds = numbers.next().unwrap_or(15);
    let device = match Device::open() {
        Ok(device) => device,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let x = [3584, 18944]
        .map(|row_len| (row_len, device.quantize(&activations(n_tokens, row_len, 4), n_tokens)));
    let y = device.upload(&vec![f32::NAN; n_tokens * 18944]);
    let functions = MMQ_KERNELS.iter().map(|kernel| (kernel.name, device.prepare(kernel)));
    let functions = functions.collect();
    let bench = Bench { device, n_tokens, n_rounds, x: x.into_iter().collect(), y, functions };

    let weight = |quant, (n_rows, row_len)| Weight::new(&bench.device, quant, n_rows, row_len);
    let q6_k = [(3584, 18944), (512, 3584)].map(|shape| weight(QuantType::Q6_K, shape));
    let q4_k = [(18944, 3584), (3584, 18944), (3584, 3584), (512, 3584)]
        .map(|shape| weight(QuantType::Q4_K, shape));
    let of = |module: &str| -> Vec<_> {
        MMQ_KERNELS.iter().filter(|kernel| kernel.module == module).collect()
    };
    let mut q6_kernels = named(&["mmq_q6_k_kdr2_padded"]);
    q6_kernels.extend(of("mmq_q6_k").into_iter().filter(|k| k.name != "mmq_q6_k_kdr2_padded"));
    q6_kernels.extend(named(&["mmq_q6_k_narrow"]));
    for weight in &q6_k {
        bench.compare(weight, &q6_kernels);
    }
    let mut q4_kernels = named(&["mmq_q4_k_kd4_padded"]);
    q4_kernels.extend(of("mmq_q4_k").into_iter().filter(|k| k.name != "mmq_q4_k_kd4_padded"));
    q4_kernels.extend(named(&["mmq_q4_k_narrow"]));
    for weight in &q4_k {
        bench.compare(weight, &q4_kernels);
    }
    for kernel in of("mmq_generic") {
        bench.compare(&weight(kernel.quant, (3584, 3584)), &[kernel]);
    }
    let sets = [
        ("none (`MINFER_MMQ_Q6K_EXP=0`)", ["mmq_q6_k_kdr2_padded", "mmq_q4_k_kd8_padded"]),
        ("exp in kdr2", ["mmq_q6_k_kdr2_exp", "mmq_q4_k_kd8_padded"]),
        ("exp", ["mmq_q6_k_kdr4_exp", "mmq_q4_k_kd8_padded"]),
        ("exp, dsc", ["mmq_q6_k_kdr4_exp_dsc", "mmq_q4_k_kd8_padded"]),
        ("exp, dsc; q4_K in kd4", ["mmq_q6_k_kdr4_exp_dsc", "mmq_q4_k_kd4_padded"]),
        ("exp, dsc, eb, sb", ["mmq_q6_k_kdr4_exp_dsc", "mmq_q4_k_kd8_eb"]),
        ("exp, dsc, eb, sb; q4_K in kd4", ["mmq_q6_k_kdr4_exp_dsc", "mmq_q4_k_kd4_eb"]),
        ("narrow kernels alone", ["mmq_q6_k_narrow", "mmq_q4_k_narrow"]),
    ];
    linears(&bench, &q6_k, &q4_k, &sets);
}
