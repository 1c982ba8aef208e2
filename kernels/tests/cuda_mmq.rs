//! MMQ kernels against f64 sums over exactly dequantized weights, on odd and on real shapes.
//!
//! Outputs are poisoned first, and what lies between and behind the output rows must stay so.

mod gpu;

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use format_spec::QuantType;
use gpu::{Activations, Device, Objects, Tensor, activations};
use kernels::cuda::mmq::{MMQ_KERNELS, MmqKernel};

/// Tests share the device one at a time: memory of the large shapes is not there twice.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The device, or `None` after saying that the test is skipped.
#[allow(clippy::print_stderr)]
fn device() -> Option<(MutexGuard<'static, ()>, Device)> {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match Device::open() {
        Ok(device) => Some((guard, device)),
        Err(why) if std::env::var_os("MINFER_NEED_GPU").is_some() => panic!("{why}"),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Activations on the device and what they are, read back.
struct Operand {
    n_tokens: usize,
    device: Activations,
    q: Vec<i8>,
    ds: Vec<f32>,
}

impl Operand {
    fn new(device: &Device, n_tokens: usize, row_len: usize, seed: u64) -> Self {
        let x = activations(n_tokens, row_len, seed);
        let quantized = device.quantize(&x, n_tokens);
        let (q, ds) = (device.download(&quantized.q), device.download(&quantized.ds));
        Self { n_tokens, device: quantized, q, ds }
    }

    /// The activations that the integers stand for, times `w`: the sum, and the sum of magnitudes.
    fn dot(&self, token: usize, w: &[f32]) -> (f64, f64) {
        let q = &self.q[token * w.len()..][..w.len()];
        let ds = &self.ds[token * w.len() / 16..];
        let (mut sum, mut magnitude) = (0.0, 0.0);
        for (i, (w, q)) in w.chunks_exact(32).zip(q.chunks_exact(32)).enumerate() {
            let products = w.iter().zip(q).map(|(&w, &q)| f64::from(w) * f64::from(q));
            let (dot, abs) = products.fold((0.0, 0.0), |(s, a), p| (s + p, a + p.abs()));
            sum += f64::from(ds[2 * i]) * dot;
            magnitude += f64::from(ds[2 * i]) * abs;
        }
        (sum, magnitude)
    }
}

/// About `n` of `0..len`, the first and the last always.
fn sample(len: usize, n: usize) -> Vec<usize> {
    let mut picks: Vec<_> = (0..n).map(|i| i * (len - 1) / (n - 1).max(1)).collect();
    picks.dedup();
    picks
}

/// Runs one kernel and compares; `n_sampled` rows and tokens.
fn check(
    device: &Device,
    kernel: &MmqKernel,
    (tensor, objects): (&Tensor, &Objects),
    x: &Operand,
    n_sampled: usize,
) {
    let (n_rows, n_tokens) = (tensor.n_rows(), x.n_tokens);
    // Odd gaps between rows of the output, and a guard behind it.
    let ldy = n_rows + n_rows % 2 * 3;
    let poison = f32::from_bits(0x7fc0_dead);
    let y = device.upload(&vec![poison; n_tokens * ldy + 4096]);
    let with_extras = n_rows % 8 != 0;
    let bias: Vec<f32> = (0..n_rows).map(|row| row as f32 * 0.25 - 3.0).collect();
    let bias_d = device.upload(&bias);
    let mut args = device.args(kernel, objects, (&x.device, n_tokens), &y);
    args.ldy = ldy as u32;
    if with_extras {
        args.bias = device.address(&bias_d);
    }
    device.launch(kernel, &device.prepare(kernel), args);
    let once = device.download(&y);
    let context = format!("{} {n_rows} x {} {n_tokens} tokens", kernel.name, tensor.row_len());
    for (i, value) in once.iter().enumerate() {
        let inside = i < n_tokens * ldy && i % ldy < n_rows;
        let poisoned = value.to_bits() == poison.to_bits();
        assert_eq!(inside, !poisoned, "{context}: token {} row {}", i / ldy, i % ldy);
    }
    for row in sample(n_rows, n_sampled) {
        let weights = tensor.row(row);
        let added = if with_extras { f64::from(bias[row]) } else { 0.0 };
        for token in sample(n_tokens, n_sampled) {
            let (sum, magnitude) = x.dot(token, &weights);
            let found = f64::from(once[token * ldy + row]);
            let error = (found - sum - added).abs();
            let allowed = 1e-5 * magnitude + 1e-6 * added.abs() + 1e-12;
            assert!(
                error <= allowed,
                "{context}: token {token} row {row}: {found} instead of {}, off by {error:e}",
                sum + added
            );
        }
    }
    // Added to itself, it is twice as much; the same launch gives the same bits.
    args.residual = args.y;
    device.launch(kernel, &device.prepare(kernel), args);
    let twice = device.download(&y);
    for i in (0..n_tokens * ldy).filter(|i| i % ldy < n_rows) {
        assert_eq!(twice[i], once[i] + once[i], "{context}: not reproducible at {i}");
    }
}

fn row_lens(kernel: &MmqKernel) -> [(usize, usize); 8] {
    // The shapes of the record, odd rows, a single row, tails of a tile in rows and in k.
    let step = kernel.row_len_step as usize;
    [
        (64, 256),
        (40, 512),
        (24, 768),
        (1, 256),
        (7, step),
        (129, 3 * step),
        (200, 5 * step),
        (513, 7 * step),
    ]
}

#[test]
fn quantization_is_that_of_the_cpu() {
    let Some((_guard, device)) = device() else { return };
    for (n_tokens, row_len) in [(1, 32), (3, 96), (2, 1024), (5, 1056), (7, 3584)] {
        let mut x = activations(n_tokens, row_len, 5);
        x[..32].fill(0.0);
        x[row_len - 1] = 1e-30;
        let quantized = device.quantize(&x, n_tokens);
        let (q, ds) = (device.download(&quantized.q), device.download(&quantized.ds));
        for (i, chunk) in x.chunks_exact(32).enumerate() {
            let amax = chunk.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
            let inverse = if amax > 0.0 { 127.0 / amax } else { 0.0 };
            let expected: Vec<i8> =
                chunk.iter().map(|x| (x * inverse).round_ties_even() as i8).collect();
            assert_eq!(q[32 * i..32 * (i + 1)], expected, "{n_tokens} x {row_len} chunk {i}");
            let sum: i32 = expected.iter().map(|&q| i32::from(q)).sum();
            let d = amax / 127.0;
            assert_eq!([ds[2 * i], ds[2 * i + 1]], [d, d * sum as f32]);
        }
    }
}

#[test]
fn every_kernel_on_small_and_odd_shapes() {
    let Some((_guard, device)) = device() else { return };
    // Under a sanitizer every launch takes long.
    let few = std::env::var_os("KERNELS_FEW").is_some();
    for kernel in MMQ_KERNELS {
        for (i, (n_rows, row_len)) in row_lens(kernel).into_iter().enumerate() {
            if few && i != 1 && i != 5 {
                continue;
            }
            let tensor = Tensor::random(kernel.quant, n_rows, row_len, 100 + i as u64);
            let objects = device.objects(&tensor);
            for n_tokens in [1, 2, 7, 33, 130] {
                if few && n_tokens != 33 && n_tokens != 130 {
                    continue;
                }
                let x = Operand::new(&device, n_tokens, row_len, 7 + n_tokens as u64);
                check(&device, kernel, (&tensor, &objects), &x, 48);
            }
        }
    }
}

/// Rows and elements of the matrices of a 7B model.
const SHAPES_7B: [(usize, usize); 4] = [(3584, 3584), (512, 3584), (18944, 3584), (3584, 18944)];

#[test]
fn every_kernel_on_the_shapes_of_a_7b_model() {
    let Some((_guard, device)) = device() else { return };
    let quants = BTreeSet::from_iter(MMQ_KERNELS.iter().map(|kernel| kernel.quant.name()));
    for (n_rows, row_len) in SHAPES_7B {
        let operands =
            [512, 3325].map(|n_tokens| Operand::new(&device, n_tokens, row_len, n_tokens as u64));
        for quant in &quants {
            let of_quant = || MMQ_KERNELS.iter().filter(|kernel| kernel.quant.name() == *quant);
            let Some(first) = of_quant().next() else { continue };
            let tensor = Tensor::random(first.quant, n_rows, row_len, 3);
            let objects = device.objects(&tensor);
            for kernel in of_quant() {
                for x in &operands {
                    check(&device, kernel, (&tensor, &objects), x, 16);
                }
            }
        }
    }
}

#[test]
fn planes_and_base_give_the_same_bits() {
    let Some((_guard, device)) = device() else { return };
    // Kernels of one family differ in where the integers come from, and in nothing that rounds.
    let tensor = Tensor::random(QuantType::Q6_K, 200, 1280, 11);
    let x = Operand::new(&device, 150, 1280, 12);
    let objects = device.objects(&tensor);
    let run = |kernel: &MmqKernel| {
        let y = device.upload(&vec![f32::NAN; 150 * 200]);
        let args = device.args(kernel, &objects, (&x.device, 150), &y);
        device.launch(kernel, &device.prepare(kernel), args);
        device.download(&y).into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let family: Vec<_> = MMQ_KERNELS.iter().filter(|k| k.module == "mmq_q6_k").collect();
    assert_eq!(family.len(), 9);
    let expected = run(family[0]);
    for kernel in family {
        assert!(run(kernel) == expected, "{} differs in bits", kernel.name);
    }
}
