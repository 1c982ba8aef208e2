//! Norms, activations, sampling, recorded launches.

use crate::fixture::{Rng, activations};
use crate::{POISON, Test, assert_close};
use half::bf16;
use kernels::cuda::{Buffer, Chooser, Gate, Gpu, OperandRef};
use std::sync::Arc;

pub(crate) const TESTS: &[Test] = &[
    ("norms_agree_with_f64", norms_agree_with_f64),
    ("operands_are_quantized_as_on_the_cpu", operands_are_quantized_as_on_the_cpu),
    ("gates_agree_with_f64", gates_agree_with_f64),
    ("wide_and_narrow_write_the_same_bits", wide_and_narrow_write_the_same_bits),
    ("soft_cap_and_sums", soft_cap_and_sums),
    ("argmax_is_the_first_largest", argmax_is_the_first_largest),
    ("argmax_refuses_what_is_not_finite", argmax_refuses_what_is_not_finite),
    ("recordings_repeat", recordings_repeat),
    ("the_probe_reads_every_word", the_probe_reads_every_word),
    ("limits_are_those_of_a_device", limits_are_those_of_a_device),
];

fn read(gpu: &Arc<Gpu>, buffer: &Buffer<f32>) -> Vec<f32> {
    let mut out = vec![0.0; buffer.len()];
    gpu.read(&mut out, buffer.all()).unwrap();
    out
}

fn normed(row: &[f32], gain: &[f32], eps: f64) -> Vec<f64> {
    let mean: f64 = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    row.iter().zip(gain).map(|(&v, &g)| f64::from(v) * scale * f64::from(g)).collect()
}

fn norms_agree_with_f64(gpu: &Arc<Gpu>) {
    for (n_tokens, width) in [(1, 32), (3, 576), (2, 3584), (33, 896), (80, 896)] {
        let x = activations(n_tokens, width, 3);
        let gain: Vec<f32> = (0..width).map(|i| 0.5 + (i % 7) as f32).collect();
        let (x_device, gain_device) = (gpu.upload(&x).unwrap(), gpu.upload(&gain).unwrap());
        let out = gpu.alloc::<f32>(x.len()).unwrap();
        gpu.fill_words(out.all(), POISON).unwrap();
        let operand = OperandRef { f32: Some(out.all()), ..OperandRef::default() };
        gpu.rmsnorm(&operand, x_device.all(), gain_device.all(), n_tokens, 1e-6).unwrap();
        let expected: Vec<f64> =
            x.chunks_exact(width).flat_map(|row| normed(row, &gain, 1e-6)).collect();
        assert_close("rmsnorm", &read(gpu, &out), &expected, &[20.0], 2e-6);
        // An int8 form beside it: where there are few elements, one a thread.
        let (q, ds, twin) = (
            gpu.alloc(x.len()).unwrap(),
            gpu.alloc(x.len() / 32).unwrap(),
            gpu.alloc::<f32>(x.len()).unwrap(),
        );
        let operand =
            OperandRef { f32: Some(twin.all()), bf16: None, int8: Some((q.all(), ds.all())) };
        gpu.rmsnorm(&operand, x_device.all(), gain_device.all(), n_tokens, 1e-6).unwrap();
        assert_close("rmsnorm with int8", &read(gpu, &twin), &expected, &[20.0], 2e-6);
        let sum = gpu.upload(&vec![1.0f32; x.len()]).unwrap();
        gpu.add_rmsnorm(sum.all(), x_device.all(), gain_device.all(), n_tokens, 1e-6).unwrap();
        let added: Vec<f64> = expected.iter().map(|v| v + 1.0).collect();
        assert_close("add_rmsnorm", &read(gpu, &sum), &added, &[20.0], 2e-6);
        gpu.rmsnorm_heads(x_device.all(), gain_device.all(), 1e-6).unwrap();
        assert_close("rmsnorm_heads", &read(gpu, &x_device), &expected, &[20.0], 2e-6);
    }
}

fn operands_are_quantized_as_on_the_cpu(gpu: &Arc<Gpu>) {
    // One element a thread, and eight.
    for n_tokens in [5, 190] {
        check_quantized(gpu, n_tokens);
    }
}

fn check_quantized(gpu: &Arc<Gpu>, n_tokens: usize) {
    let mut x = activations(n_tokens, 352, 9);
    x[64..96].fill(0.0);
    let from = gpu.upload(&x).unwrap();
    let q = gpu.alloc::<i8>(x.len()).unwrap();
    let ds = gpu.alloc::<[f32; 2]>(x.len() / 32).unwrap();
    gpu.fill_words(q.all(), POISON).unwrap();
    gpu.fill_words(ds.all(), POISON).unwrap();
    let operand = OperandRef { int8: Some((q.all(), ds.all())), ..OperandRef::default() };
    gpu.convert(&operand, from.all()).unwrap();
    let (mut q_found, mut ds_found) = (vec![0; x.len()], vec![[0.0; 2]; x.len() / 32]);
    gpu.read(&mut q_found, q.all()).unwrap();
    gpu.read(&mut ds_found, ds.all()).unwrap();
    for (i, chunk) in x.chunks_exact(32).enumerate() {
        let amax = chunk.iter().fold(0.0f32, |top, v| top.max(v.abs()));
        let inverse = if amax == 0.0 { 0.0 } else { 127.0 / amax };
        let q: Vec<i8> = chunk.iter().map(|v| (v * inverse).round_ties_even() as i8).collect();
        assert_eq!(q, q_found[32 * i..32 * i + 32], "chunk {i}");
        let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
        let d = amax / 127.0;
        assert_eq!(ds_found[i], [d, d * sum as f32], "chunk {i}");
    }
}

fn gates_agree_with_f64(gpu: &Arc<Gpu>) {
    check_gates(gpu, 3);
    check_gates(gpu, 47);
}

fn check_gates(gpu: &Arc<Gpu>, n_tokens: usize) {
    let (gate, up) = (activations(n_tokens, 1536, 5), activations(n_tokens, 1536, 6));
    let (gate_device, up_device) = (gpu.upload(&gate).unwrap(), gpu.upload(&up).unwrap());
    for kind in [Gate::Silu, Gate::GeluTanh] {
        let out = gpu.alloc::<f32>(gate.len()).unwrap();
        gpu.fill_words(out.all(), POISON).unwrap();
        let operand = OperandRef { f32: Some(out.all()), ..OperandRef::default() };
        gpu.gate(&operand, gate_device.all(), up_device.all(), kind).unwrap();
        let bent = |g: f64| match kind {
            Gate::Silu => g / (1.0 + (-g).exp()),
            Gate::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
                0.5 * g * (1.0 + inner.tanh())
            }
        };
        let expected: Vec<f64> =
            gate.iter().zip(&up).map(|(&g, &u)| bent(f64::from(g)) * f64::from(u)).collect();
        let scale: Vec<f64> = expected.iter().map(|v| v.abs() + 0.1).collect();
        assert_close(&format!("{kind:?}"), &read(gpu, &out), &expected, &scale, 4e-6);
        // An int8 form beside it. bf16 is the same rounded.
        let (q, ds) = (gpu.alloc(gate.len()).unwrap(), gpu.alloc(gate.len() / 32).unwrap());
        let halves = gpu.alloc::<bf16>(gate.len()).unwrap();
        gpu.fill_words(halves.all(), POISON).unwrap();
        let only_bf16 = OperandRef { bf16: Some(halves.all()), ..OperandRef::default() };
        gpu.gate(&only_bf16, gate_device.all(), up_device.all(), kind).unwrap();
        let with_int8 =
            OperandRef { f32: Some(out.all()), bf16: None, int8: Some((q.all(), ds.all())) };
        gpu.gate(&with_int8, gate_device.all(), up_device.all(), kind).unwrap();
        let mut found = vec![bf16::ZERO; gate.len()];
        gpu.read(&mut found, halves.all()).unwrap();
        let rounded: Vec<bf16> = read(gpu, &out).into_iter().map(bf16::from_f32).collect();
        assert_eq!(found, rounded, "{kind:?}: bf16 and f32");
    }
}

/// Bits of every form that `run` writes, in one kernel form, which the counters must name.
fn forms(
    gpu: &Arc<Gpu>,
    n: usize,
    wide: bool,
    run: &dyn Fn(&OperandRef<'_>),
) -> (Vec<u32>, Vec<u16>, Vec<i8>, Vec<[u32; 2]>) {
    let (values, halves) = (gpu.alloc::<f32>(n).unwrap(), gpu.alloc::<bf16>(n).unwrap());
    let (q, ds) = (gpu.alloc::<i8>(n).unwrap(), gpu.alloc::<[f32; 2]>(n / 32).unwrap());
    gpu.fill_words(values.all(), POISON).unwrap();
    gpu.fill_words(halves.all(), POISON).unwrap();
    gpu.fill_words(q.all(), POISON).unwrap();
    gpu.fill_words(ds.all(), POISON).unwrap();
    let operand = OperandRef {
        f32: Some(values.all()),
        bf16: Some(halves.all()),
        int8: Some((q.all(), ds.all())),
    };
    in_form(gpu, wide, || run(&operand));
    let mut found = (vec![bf16::ZERO; n], vec![0; n], vec![[0.0; 2]; n / 32]);
    gpu.read(&mut found.0, halves.all()).unwrap();
    gpu.read(&mut found.1, q.all()).unwrap();
    gpu.read(&mut found.2, ds.all()).unwrap();
    (
        read(gpu, &values).into_iter().map(f32::to_bits).collect(),
        found.0.into_iter().map(bf16::to_bits).collect(),
        found.1,
        found.2.into_iter().map(|pair| pair.map(f32::to_bits)).collect(),
    )
}

/// One launch of `run`, which is to be of eight elements a thread, or of one.
pub(crate) fn in_form(gpu: &Arc<Gpu>, wide: bool, run: impl FnOnce()) {
    let before = gpu.n_wide();
    gpu.set_wide(wide);
    run();
    gpu.set_wide(true);
    let after = gpu.n_wide();
    let launches = (after.0 - before.0, after.1 - before.1);
    assert_eq!(launches, if wide { (1, 0) } else { (0, 1) }, "(wide, narrow) launches");
}

/// More than the 65,536 elements from which an int8 form is written by eight a thread, too.
fn wide_and_narrow_write_the_same_bits(gpu: &Arc<Gpu>) {
    for (n_tokens, width) in [(47, 1536), (80, 896), (19, 3584), (2100, 32), (9, 8192)] {
        let n = n_tokens * width;
        // Whole numbers: sums of their squares are exact in any order.
        let x: Vec<f32> = activations(n_tokens, width, 3)
            .into_iter()
            .map(|v| (v * 8.0).round().clamp(-32.0, 32.0))
            .collect();
        assert!(x.iter().any(|&v| v != 0.0), "not all zeros");
        let gain: Vec<f32> = (0..width).map(|i| 0.3 + (i % 7) as f32).collect();
        let (x, gain) = (gpu.upload(&x).unwrap(), gpu.upload(&gain).unwrap());
        let gate = gpu.upload(&activations(n_tokens, width, 5)).unwrap();
        let up = gpu.upload(&activations(n_tokens, width, 6)).unwrap();
        let same = |what: &str, run: &dyn Fn(&OperandRef<'_>)| {
            let same = forms(gpu, n, true, run) == forms(gpu, n, false, run);
            assert!(same, "{what} of {n_tokens} x {width}: forms differ");
        };
        same("rmsnorm", &|out| gpu.rmsnorm(out, x.all(), gain.all(), n_tokens, 1e-6).unwrap());
        same("convert", &|out| gpu.convert(out, gate.all()).unwrap());
        for kind in [Gate::Silu, Gate::GeluTanh] {
            same("gate", &|out| gpu.gate(out, gate.all(), up.all(), kind).unwrap());
        }
        // What is no number does not become one: its chunk's scale is none either.
        let mut x = activations(n_tokens, width, 5);
        x[5] = f32::NAN;
        let x = gpu.upload(&x).unwrap();
        for wide in [true, false] {
            let ds = forms(gpu, n, wide, &|out| gpu.convert(out, x.all()).unwrap()).3;
            let is_nan = [0, 1].map(|chunk: usize| f32::from_bits(ds[chunk][0]).is_nan());
            assert_eq!(is_nan, [true, false], "scales of {n_tokens} x {width}, wide {wide}");
        }
    }
}

fn soft_cap_and_sums(gpu: &Arc<Gpu>) {
    let x = activations(1, 1000, 5);
    let (a, b) = (gpu.upload(&x).unwrap(), gpu.upload(&x).unwrap());
    gpu.soft_cap(a.all(), 3.0).unwrap();
    gpu.add(b.all(), a.all()).unwrap();
    let bias: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let bias_device = gpu.upload(&bias).unwrap();
    gpu.add_bias(b.all(), bias_device.all()).unwrap();
    let capped: Vec<f64> = x.iter().map(|&v| 3.0 * (f64::from(v) / 3.0).tanh()).collect();
    assert_close("soft_cap", &read(gpu, &a), &capped, &[1.0], 1e-6);
    let sums: Vec<f64> = capped
        .iter()
        .zip(&x)
        .enumerate()
        .map(|(i, (c, &v))| c + f64::from(v) + f64::from(bias[i % 100]))
        .collect();
    assert_close("sums", &read(gpu, &b), &sums, &[100.0], 1e-6);
}

fn argmax_is_the_first_largest(gpu: &Arc<Gpu>) {
    let mut rng = Rng::new(5);
    for n in [1, 2, 255, 4097, 152_064] {
        let mut x: Vec<f32> = (0..n).map(|_| rng.f32()).collect();
        let top = rng.next() as usize % n;
        x[top] = 2.0;
        x[n - 1] = x[n - 1].max(if top == n - 1 { 2.0 } else { f32::MIN });
        if n > 255 {
            x[n - 1] = 2.0;
            x[0] = f32::NAN;
        }
        let expected = x.iter().position(|&v| v == 2.0).unwrap();
        // Beyond the tokens there is padding, which must not be chosen.
        x.resize(n + 40, 9.0);
        let device = gpu.upload(&x).unwrap();
        let chooser = Chooser::new(gpu, n, &[]).unwrap();
        let step = gpu.upload(&[6u32, 77]).unwrap();
        for pos in 6..9 {
            gpu.choose(&chooser, device.all(), step.all()).unwrap();
            chooser.launched(pos).unwrap();
            assert_eq!(chooser.chosen(pos).unwrap(), Some(expected as u32), "{n} logits");
            let mut next = [0; 2];
            gpu.read(&mut next, step.all()).unwrap();
            assert_eq!(next, [pos as u32 + 1, expected as u32], "the next step");
        }
    }
}

/// The choice of the CPU's sampler: no NaN, no infinity, no banned token, 0 equal to -0.
fn argmax_refuses_what_is_not_finite(gpu: &Arc<Gpu>) {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let choose = |logits: &[f32], banned: &[u32]| {
        let chooser = Chooser::new(gpu, logits.len(), banned).unwrap();
        let device = gpu.upload(logits).unwrap();
        let step = gpu.upload(&[0u32, 5]).unwrap();
        gpu.choose(&chooser, device.all(), step.all()).unwrap();
        chooser.launched(0).unwrap();
        let chosen = chooser.chosen(0).unwrap();
        let mut next = [0; 2];
        gpu.read(&mut next, step.all()).unwrap();
        assert_eq!(next[1], chosen.unwrap_or(0), "the next step stays inside the vocabulary");
        chosen
    };
    assert_eq!(choose(&[nan, -3.0, f32::from_bits(0xffc0_0001), -1.0, -2.0], &[]), Some(3));
    assert_eq!(choose(&[nan; 70], &[]), None);
    assert_eq!(choose(&[-inf; 3], &[]), None);
    assert_eq!(choose(&[nan, -inf, f32::MIN], &[]), Some(2));
    assert_eq!(choose(&[1.0, inf, f32::MAX], &[]), None);
    assert_eq!(choose(&[-1.0, -0.0, 0.0], &[]), Some(1));
    assert_eq!(choose(&[-0.0, f32::from_bits(1)], &[]), Some(1));
    let mut logits = vec![0.0; 100];
    (logits[31], logits[32], logits[64], logits[99]) = (4.0, 5.0, 3.0, 3.0);
    assert_eq!(choose(&logits, &[32]), Some(31));
    assert_eq!(choose(&logits, &[31, 32, 5000]), Some(64));
    assert_eq!(choose(&logits, &[31, 32, 64]), Some(99));
    assert_eq!(choose(&logits, &(0..100).collect::<Vec<_>>()), None);
}

fn recordings_repeat(gpu: &Arc<Gpu>) {
    let x = gpu.upload(&[1.0f32; 64]).unwrap();
    let recording = gpu
        .record(|| {
            gpu.add(x.all(), x.all())?;
            gpu.add(x.all(), x.all())
        })
        .unwrap();
    assert_eq!(read(gpu, &x), [1.0; 64], "recording runs nothing");
    for _ in 0..3 {
        recording.launch().unwrap();
    }
    assert_eq!(read(gpu, &x), [64.0; 64]);
}

fn the_probe_reads_every_word(gpu: &Arc<Gpu>) {
    for n_words in [4usize, 1024, 8 * 1024, 1_000_004, 40_000_000] {
        let (sum, words) = gpu.probe_sum(n_words).unwrap();
        let expected = words.iter().fold(0u32, |sum, &word| sum.wrapping_add(word));
        assert_eq!(sum, expected, "{n_words} words");
        // Numbers that a product can take, and no pattern.
        for word in &words {
            for half in [word & 0xffff, word >> 16] {
                let value = bf16::from_bits(half as u16).to_f32();
                assert!((1.0..2.0).contains(&value.abs()), "{value}");
            }
        }
        assert!(n_words < 5 || words.windows(2).filter(|w| w[0] == w[1]).count() * 1000 < n_words);
    }
}

/// Neither a cache nor a clock that did not run: 20 GB/s to 50 TB/s, 1 to 50,000 TFLOP/s.
fn limits_are_those_of_a_device(gpu: &Arc<Gpu>) {
    let read = gpu.measure_read().unwrap();
    assert!((2e10..5e13).contains(&read), "{read:e} bytes a second");
    println!("reads {:.0} GB/s", read / 1e9);
    if let Some(products) = gpu.measure_bf16_products().unwrap() {
        assert!((1e12..5e16).contains(&products), "{products:e} operations a second");
        println!("multiplies bf16 at {:.0} TFLOP/s", products / 1e12);
    }
}
