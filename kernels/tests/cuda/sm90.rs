//! The products that are made for Hopper alone.

use crate::fixture::activations;
use crate::products::{bf16s, check_gemm};
use crate::{POISON, assert_close};
use half::bf16;
use kernels::cuda::{Buffer, DenseMatrix, Gate, Gpu, SM90_KERNELS, Sm90Kernel};
use std::sync::Arc;

fn kernels(gpu: &Arc<Gpu>, gated: bool) -> impl Iterator<Item = &'static Sm90Kernel> {
    let here = gpu.has_sm90();
    if !here {
        println!("  left out: not a device of compute capability 9.0");
    }
    SM90_KERNELS.iter().filter(move |kernel| here && kernel.gated == gated)
}

pub(crate) fn agrees_with_f64(gpu: &Arc<Gpu>) {
    let names: Vec<_> = kernels(gpu, false).map(|kernel| kernel.name).collect();
    check_gemm(gpu, &names, |name, (y, w, x, bias, (n_tokens, n_rows, row_len), add)| {
        let kernel = SM90_KERNELS.iter().find(|kernel| kernel.name == name).unwrap();
        let bias = bias.map(Buffer::all);
        let matrix = DenseMatrix { w: w.all(), stride: row_len, n_rows, bias };
        gpu.gemm_sm90(kernel, &[(matrix, y.all())], x.all(), (n_tokens, row_len), add).unwrap();
    });
}

/// `[n_tokens, n_rows]` in f64, and what rounding is relative to.
fn exact(x: &[bf16], w: &[bf16], row_len: usize, bias: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let rows = || w.chunks_exact(row_len).zip(bias);
    x.chunks_exact(row_len)
        .flat_map(|x| {
            rows().map(move |(w, &bias)| {
                let terms = || w.iter().zip(x).map(|(w, x)| w.to_f64() * x.to_f64());
                let size = terms().map(f64::abs).sum::<f64>() + f64::from(bias.abs()) + 1.0;
                (terms().sum::<f64>() + f64::from(bias), size)
            })
        })
        .unzip()
}

pub(crate) fn shares_a_launch(gpu: &Arc<Gpu>) {
    for kernel in kernels(gpu, false) {
        for (n_tokens, rows, row_len) in
            [(5, [300, 40, 520], 104), (300, [512, 128, 128], 640), (140, [8, 260, 3], 72)]
        {
            let x = bf16s(&activations(n_tokens, row_len, 41));
            let x_device = gpu.upload(&x).unwrap();
            // Rows lie further apart than they are long.
            let stride = row_len + 24;
            let made = rows.map(|n_rows| {
                let w = bf16s(&activations(n_rows, row_len, n_rows as u64));
                let mut apart = vec![bf16::NAN; n_rows * stride];
                for (to, from) in apart.chunks_exact_mut(stride).zip(w.chunks_exact(row_len)) {
                    to[..row_len].copy_from_slice(from);
                }
                let bias: Vec<f32> = (0..n_rows).map(|i| i as f32 * 0.5 - 9.0).collect();
                let device = (gpu.upload(&apart).unwrap(), gpu.upload(&bias).unwrap());
                let y = gpu.alloc::<f32>(n_tokens * n_rows).unwrap();
                gpu.fill_words(y.all(), POISON).unwrap();
                (w, bias, device, y)
            });
            let outs = made.each_ref().map(|(_, bias, device, y)| {
                let (n_rows, bias_device) = (bias.len(), Some(device.1.all()));
                let w = device.0.all();
                (DenseMatrix { w, stride, n_rows, bias: bias_device }, y.all())
            });
            gpu.gemm_sm90(kernel, &outs, x_device.all(), (n_tokens, row_len), false).unwrap();
            for (w, bias, _, y) in &made {
                let (expected, scale) = exact(&x, w, row_len, bias);
                let mut found = vec![0.0; y.len()];
                gpu.read(&mut found, y.all()).unwrap();
                let what = format!("{}: {n_tokens}x{}x{row_len}", kernel.name, bias.len());
                assert_close(&what, &found, &expected, &scale, 2e-6);
            }
        }
    }
}

pub(crate) fn gates(gpu: &Arc<Gpu>) {
    for kernel in kernels(gpu, true) {
        for (n_tokens, n_rows, row_len) in [(5, 136, 104), (300, 512, 256), (129, 40, 72)] {
            for activation in [Gate::Silu, Gate::GeluTanh] {
                let x = bf16s(&activations(n_tokens, row_len, 43));
                // Gates around zero, where the activations bend, and far from it.
                let gate: Vec<f32> =
                    activations(n_rows, row_len, 44).iter().map(|w| w * 0.1).collect();
                let (gate, up) = (bf16s(&gate), bf16s(&activations(n_rows, row_len, 45)));
                let bias: Vec<f32> = (0..n_rows).map(|i| i as f32 * 0.5 - 20.0).collect();
                let none = vec![0.0; n_rows];
                let (x_device, bias_device) = (gpu.upload(&x).unwrap(), gpu.upload(&bias).unwrap());
                let (g, u) = (gpu.upload(&gate).unwrap(), gpu.upload(&up).unwrap());
                let stride = row_len;
                let of_gate = DenseMatrix { w: g.all(), stride, n_rows, bias: None };
                let bias_device = Some(bias_device.all());
                let of_up = DenseMatrix { w: u.all(), stride, n_rows, bias: bias_device };
                let y = gpu.upload(&vec![bf16::NAN; n_tokens * n_rows]).unwrap();
                let both = (&of_gate, &of_up);
                let shape = (n_tokens, row_len);
                gpu.gated_sm90(kernel, y.all(), both, activation, x_device.all(), shape).unwrap();
                let mut found = vec![bf16::ZERO; y.len()];
                gpu.read(&mut found, y.all()).unwrap();
                let (gates, _) = exact(&x, &gate, row_len, &none);
                let (ups, scale) = exact(&x, &up, row_len, &bias);
                for (i, ((g, u), scale)) in gates.iter().zip(&ups).zip(&scale).enumerate() {
                    let bent = match activation {
                        Gate::Silu => g / (1.0 + (-g).exp()),
                        Gate::GeluTanh => {
                            let inner = (2.0 / std::f64::consts::PI).sqrt();
                            0.5 * g * (1.0 + (inner * (g + 0.044715 * g * g * g)).tanh())
                        }
                    };
                    let (expected, found) = (bent * u, found[i].to_f64());
                    // Half a unit of bf16, and what f32 sums are off.
                    let bound = expected.abs() / 256.0 + (bent.abs() + 1.0) * scale * 4e-6;
                    let off = (found - expected).abs();
                    assert!(off <= bound, "{}[{i}]: {found}, not {expected}", kernel.name);
                }
            }
        }
    }
}
