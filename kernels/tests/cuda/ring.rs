//! Products through the ring in shared memory: against the CPU's oracle, and what is made on the way
//! against the launches that it replaces.

use crate::fixture::{Fixture, activations, product, quantized};
use crate::products::{Forms, OnDevice, magnitudes, on_device_as};
use crate::{POISON, Test, assert_close};
use format_spec::QuantType;
use format_spec::plane::PlaneKind;
use kernels::Tier;
use kernels::cuda::{Buffer, Gate, GemvOut, Gpu, OperandRef, RingGate, RingSource};
use std::sync::Arc;

pub(crate) const TESTS: &[Test] = &[
    ("ring_agrees_with_the_cpu", ring_agrees_with_the_cpu),
    ("ring_takes_mixed_types", ring_takes_mixed_types),
    ("ring_adds_to_rows_of_several_matrices", ring_adds_to_rows_of_several_matrices),
    ("ring_normalizes", ring_normalizes),
    ("ring_normalizes_for_several_matrices", ring_normalizes_for_several_matrices),
    ("ring_gates", ring_gates),
    ("ring_gates_what_it_normalizes", ring_gates_what_it_normalizes),
];

const QUANTS: [QuantType; 4] = [QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K, QuantType::Q8_0];
const KINDS: [PlaneKind; 2] = [PlaneKind::Planar, PlaneKind::Padded];

/// One super-block and more, teams of several sizes, rows in segments (the last of one or two
/// super-blocks, or nearly full), odd rows, fewer and more units than blocks, more steps than slots.
const SHAPES: &[(usize, usize)] = &[
    (1, 256),
    (7, 768),
    (33, 3584),
    (130, 2304),
    (9, 4352),
    (6, 4608),
    (2601, 512),
    (6001, 1536),
    (13, 18944),
    (1100, 8960),
];

/// Rows that end inside what would be a super-block.
const SHORT: &[(usize, usize)] = &[(37, 800), (37, 896), (9, 32)];

fn reads(gpu: &Gpu, device: &OnDevice, quant: QuantType, kind: PlaneKind) -> bool {
    let reads = gpu.ring_reads(&device.weight);
    let expected = gpu.has_sm90() && (quant != QuantType::Q8_0 || kind == PlaneKind::Planar);
    assert_eq!(reads, expected, "{} {}", quant.name(), kind.name());
    reads
}

fn poisoned(gpu: &Arc<Gpu>, n: usize) -> Buffer<f32> {
    let y = gpu.alloc::<f32>(n).unwrap();
    gpu.fill_words(y.all(), POISON).unwrap();
    y
}

fn read(gpu: &Arc<Gpu>, from: &Buffer<f32>) -> Vec<f32> {
    let mut values = vec![0.0; from.len()];
    gpu.read(&mut values, from.all()).unwrap();
    values
}

fn out<'b>(device: &'b OnDevice, y: &'b Buffer<f32>) -> GemvOut<'b> {
    GemvOut { weight: &device.weight, y: y.all(), bias: None, add: false }
}

/// The oracle's product with one token.
fn expected(fixture: &Fixture, x: &[f32]) -> Vec<f64> {
    let (matmul, rows) = (fixture.matmul(Tier::Scalar), 0..fixture.n_rows);
    let y = product(&matmul, &quantized(Tier::Scalar, x, 1), std::slice::from_ref(&rows));
    y.iter().map(|&y| f64::from(y)).collect()
}

fn ring_agrees_with_the_cpu(gpu: &Arc<Gpu>) {
    for quant in QUANTS {
        let more = if quant == QuantType::Q8_0 { SHORT } else { &[] };
        for &(n_rows, row_len) in SHAPES.iter().chain(more) {
            let fixture = Fixture::new(quant, n_rows, row_len, 7);
            let x = activations(1, row_len, 11);
            let forms = Forms::new(gpu, &x);
            let source = RingSource::Operand(forms.get());
            let bias: Vec<f32> = (0..n_rows).map(|i| i as f32 / 8.0 - 3.0).collect();
            let on_device = gpu.upload(&bias).unwrap();
            let (plain, scale) = (expected(&fixture, &x), magnitudes(&fixture, &x));
            let sum = |(y, &bias): (&f64, &f32)| y + f64::from(bias) + 0.25;
            let added: Vec<f64> = plain.iter().zip(&bias).map(sum).collect();
            for kind in KINDS {
                let device = on_device_as(gpu, &fixture, kind);
                if !reads(gpu, &device, quant, kind) {
                    continue;
                }
                let what = format!("{} {} {n_rows}x{row_len}", quant.name(), kind.name());
                let y = poisoned(gpu, n_rows);
                gpu.ring(&[out(&device, &y)], &source, None).unwrap();
                assert_close(&what, &read(gpu, &y), &plain, &scale, 2e-5);
                assert!(gpu.ring_has_room(n_rows), "{what}");
                let y = gpu.upload(&vec![0.25f32; n_rows]).unwrap();
                let bias = Some(on_device.all());
                let add = GemvOut { bias, add: true, ..out(&device, &y) };
                gpu.ring(&[add], &source, None).unwrap();
                let what = format!("{what}, added");
                let scale: Vec<f64> = scale.iter().map(|scale| scale + 400.0).collect();
                assert_close(&what, &read(gpu, &y), &added, &scale, 2e-5);
            }
        }
    }
}

/// Types that share a launch: through the kernel of all types, and that of two.
fn ring_takes_mixed_types(gpu: &Arc<Gpu>) {
    let all = [(QuantType::Q4_K, 33), (QuantType::Q5_K, 640), (QuantType::Q6_K, 5)];
    let two = [(QuantType::Q6_K, 33), (QuantType::Q4_K, 640), (QuantType::Q6_K, 5)];
    for (shapes, row_len) in [(all, 4352), (all, 1024), (two, 4352), (two, 1024)] {
        let fixtures = shapes.map(|(quant, n_rows)| Fixture::new(quant, n_rows, row_len, 3));
        let x = activations(1, row_len, 5);
        let forms = Forms::new(gpu, &x);
        for kind in KINDS {
            let devices = fixtures.each_ref().map(|fixture| on_device_as(gpu, fixture, kind));
            if !gpu.has_sm90() {
                continue;
            }
            let ys = shapes.map(|(_, n_rows)| poisoned(gpu, n_rows));
            let outs: Vec<_> = devices.iter().zip(&ys).map(|(device, y)| out(device, y)).collect();
            let before = gpu.n_launches();
            gpu.ring(&outs, &RingSource::Operand(forms.get()), None).unwrap();
            assert_eq!(gpu.n_launches(), before + 1, "one launch for three matrices");
            for (fixture, y) in fixtures.iter().zip(&ys) {
                let what = format!("{} {} of three, {row_len}", fixture.quant.name(), kind.name());
                let scale = magnitudes(fixture, &x);
                assert_close(&what, &read(gpu, y), &expected(fixture, &x), &scale, 2e-5);
            }
        }
    }
}

/// Matrices whose rows meet within blocks, with a bias each and something to be added to.
fn ring_adds_to_rows_of_several_matrices(gpu: &Arc<Gpu>) {
    let shapes = [(QuantType::Q4_K, 1300), (QuantType::Q6_K, 270), (QuantType::Q4_K, 131)];
    let row_len = 1536;
    let fixtures = shapes.map(|(quant, n_rows)| Fixture::new(quant, n_rows, row_len, 3));
    let x = activations(1, row_len, 5);
    let forms = Forms::new(gpu, &x);
    for kind in KINDS {
        let devices = fixtures.each_ref().map(|fixture| on_device_as(gpu, fixture, kind));
        if !gpu.has_sm90() {
            continue;
        }
        let at = |m: usize, i: usize| (i % 97) as f32 / 8.0 - 3.0 * m as f32;
        let biases = [0, 1, 2].map(|m| {
            let bias: Vec<f32> = (0..shapes[m].1).map(|i| at(m, i)).collect();
            gpu.upload(&bias).unwrap()
        });
        let ys = shapes.map(|(_, n_rows)| gpu.upload(&vec![0.25f32; n_rows]).unwrap());
        let add = |m: usize| GemvOut {
            weight: &devices[m].weight,
            y: ys[m].all(),
            bias: Some(biases[m].all()),
            add: true,
        };
        gpu.ring(&[add(0), add(1), add(2)], &RingSource::Operand(forms.get()), None).unwrap();
        for (m, (fixture, y)) in fixtures.iter().zip(&ys).enumerate() {
            let what = format!("matrix {m}, {}", kind.name());
            let plain = expected(fixture, &x);
            let sum = |(i, y): (usize, &f64)| y + f64::from(at(m, i)) + 0.25;
            let added: Vec<f64> = plain.iter().enumerate().map(sum).collect();
            let scale = magnitudes(fixture, &x);
            let scale: Vec<f64> = scale.iter().map(|scale| scale + 20.0).collect();
            assert_close(&what, &read(gpu, y), &added, &scale, 2e-5);
        }
    }
}

fn gains(gpu: &Arc<Gpu>, n: usize) -> Buffer<f32> {
    let gain: Vec<f32> = (0..n).map(|i| 0.5 + (i % 7) as f32 / 7.0).collect();
    gpu.upload(&gain).unwrap()
}

/// The norm alone: an integer may be the next one where the sum of squares differs in its last bit.
fn ring_normalizes(gpu: &Arc<Gpu>) {
    for (quant, kind, n_rows, row_len) in [
        (QuantType::Q4_K, PlaneKind::Planar, 100, 3584),
        (QuantType::Q6_K, PlaneKind::Padded, 37, 512),
        (QuantType::Q4_K, PlaneKind::Padded, 40, 8192),
        (QuantType::Q8_0, PlaneKind::Planar, 65, 4384),
    ] {
        let fixture = Fixture::new(quant, n_rows, row_len, 9);
        let device = on_device_as(gpu, &fixture, kind);
        if !reads(gpu, &device, quant, kind) {
            continue;
        }
        let (x, gain) = (gpu.upload(&activations(1, row_len, 5)).unwrap(), gains(gpu, row_len));
        let normed = Forms::new(gpu, &vec![0.0; row_len]);
        let to = OperandRef { bf16: None, ..normed.get() };
        gpu.rmsnorm(&to, x.all(), gain.all(), 1, 1e-6).unwrap();
        let (twin, y) = (poisoned(gpu, n_rows), poisoned(gpu, n_rows));
        gpu.gemv(&[out(&device, &twin)], &normed.get(), 1).unwrap();
        let source = RingSource::Norm { x: x.all(), gain: gain.all(), eps: 1e-6 };
        gpu.ring(&[out(&device, &y)], &source, None).unwrap();
        let twin: Vec<f64> = read(gpu, &twin).into_iter().map(f64::from).collect();
        let top = twin.iter().fold(0.0f64, |top, v| top.max(v.abs()));
        let what = format!("norm, {} {n_rows}x{row_len}", quant.name());
        assert_close(&what, &read(gpu, &y), &twin, &[top], 2e-3);
    }
}

/// Queries, keys and values of two types, of which each step of a block finds room (9 units of 14 super-blocks, in all
/// blocks but four), and rows in segments.
fn ring_normalizes_for_several_matrices(gpu: &Arc<Gpu>) {
    let n_blocks = gpu.info().n_multiprocessors as usize;
    if !gpu.has_sm90() || n_blocks < 8 {
        return;
    }
    for (row_len, kind) in [3584, 8192].into_iter().flat_map(|n| KINDS.map(|kind| (n, kind))) {
        let units = [9 * (n_blocks - 4) - 16, 16, 32];
        let shapes =
            [(QuantType::Q4_K, units[0]), (QuantType::Q4_K, units[1]), (QuantType::Q6_K, units[2])];
        let devices = shapes.map(|(quant, n)| {
            let n_rows = if row_len > 4096 { n } else { 4 * n };
            on_device_as(gpu, &Fixture::new(quant, n_rows, row_len, 9), kind)
        });
        let (x, gain) = (gpu.upload(&activations(1, row_len, 5)).unwrap(), gains(gpu, row_len));
        let normed = Forms::new(gpu, &vec![0.0; row_len]);
        let to = OperandRef { bf16: None, ..normed.get() };
        gpu.rmsnorm(&to, x.all(), gain.all(), 1, 1e-6).unwrap();
        let made =
            |devices: &[OnDevice; 3]| devices.each_ref().map(|d| poisoned(gpu, d.weight.n_rows()));
        let (twins, ys) = (made(&devices), made(&devices));
        for (device, twin) in devices.iter().zip(&twins) {
            gpu.gemv(&[out(device, twin)], &normed.get(), 1).unwrap();
        }
        let outs: Vec<_> = devices.iter().zip(&ys).map(|(device, y)| out(device, y)).collect();
        let source = RingSource::Norm { x: x.all(), gain: gain.all(), eps: 1e-6 };
        gpu.ring(&outs, &source, None).unwrap();
        for (i, (twin, y)) in twins.iter().zip(&ys).enumerate() {
            let twin: Vec<f64> = read(gpu, twin).into_iter().map(f64::from).collect();
            let top = twin.iter().fold(0.0f64, |top, v| top.max(v.abs()));
            let what = format!("norm for matrix {i} of three, {} {row_len}", kind.name());
            assert_close(&what, &read(gpu, y), &twin, &[top], 2e-3);
        }
    }
}

/// A pair behind its norm, as models have it.
fn ring_gates_what_it_normalizes(gpu: &Arc<Gpu>) {
    for (quant, kind, n_rows, row_len) in [
        (QuantType::Q4_K, PlaneKind::Planar, 4864, 3584),
        (QuantType::Q6_K, PlaneKind::Padded, 1504, 4608),
        (QuantType::Q4_K, PlaneKind::Planar, 1504, 8192),
        (QuantType::Q8_0, PlaneKind::Planar, 2592, 896),
        (QuantType::Q4_K, PlaneKind::Planar, 2592, 256),
    ] {
        let devices =
            [3, 4].map(|seed| on_device_as(gpu, &Fixture::new(quant, n_rows, row_len, seed), kind));
        if !reads(gpu, &devices[0], quant, kind) {
            continue;
        }
        let (x, gain) = (gpu.upload(&activations(1, row_len, 5)).unwrap(), gains(gpu, row_len));
        let normed = Forms::new(gpu, &vec![0.0; row_len]);
        let to = OperandRef { bf16: None, ..normed.get() };
        gpu.rmsnorm(&to, x.all(), gain.all(), 1, 1e-6).unwrap();
        let ys = [poisoned(gpu, n_rows), poisoned(gpu, n_rows)];
        let outs = [out(&devices[0], &ys[0]), out(&devices[1], &ys[1])];
        gpu.gemv(&outs, &normed.get(), 1).unwrap();
        let gated = Forms::new(gpu, &vec![0.0; n_rows]);
        let to = OperandRef { bf16: None, ..gated.get() };
        gpu.gate(&to, ys[0].all(), ys[1].all(), Gate::Silu).unwrap();
        let found = || {
            let mut f = vec![0.0f32; n_rows];
            gpu.read(&mut f, to.f32.unwrap()).unwrap();
            f
        };
        let twin: Vec<f64> = found().into_iter().map(f64::from).collect();
        let top = twin.iter().fold(0.0f64, |top, v| top.max(v.abs()));
        gpu.fill_words(to.f32.unwrap(), POISON).unwrap();
        let n_done = gpu.upload(&vec![0u32; n_rows / 32]).unwrap();
        let source = RingSource::Norm { x: x.all(), gain: gain.all(), eps: 1e-6 };
        let gate = RingGate { out: to, n_done: n_done.all(), kind: Gate::Silu };
        gpu.ring(&outs, &source, Some(&gate)).unwrap();
        let what = format!("norm and gate, {} {} {n_rows}x{row_len}", quant.name(), kind.name());
        assert_close(&what, &found(), &twin, &[top], 5e-3);
    }
}

fn ring_gates(gpu: &Arc<Gpu>) {
    // Rows that make 32 with other blocks' rows, blocks with less than 32 rows, rows in segments.
    for (activation, quant, kind, n_rows, row_len) in [
        (Gate::Silu, QuantType::Q4_K, PlaneKind::Planar, 2592, 512),
        (Gate::Silu, QuantType::Q4_K, PlaneKind::Padded, 4864, 896 * 2),
        (Gate::GeluTanh, QuantType::Q6_K, PlaneKind::Planar, 64, 2304),
        (Gate::GeluTanh, QuantType::Q5_K, PlaneKind::Padded, 6016, 3584),
        (Gate::Silu, QuantType::Q8_0, PlaneKind::Planar, 32, 4384),
        (Gate::Silu, QuantType::Q4_K, PlaneKind::Planar, 1504, 8192),
        (Gate::Silu, QuantType::Q5_K, PlaneKind::Planar, 2592, 1792),
        (Gate::Silu, QuantType::Q6_K, PlaneKind::Padded, 1504, 4608),
    ] {
        let devices =
            [3, 4].map(|seed| on_device_as(gpu, &Fixture::new(quant, n_rows, row_len, seed), kind));
        if !reads(gpu, &devices[0], quant, kind) {
            continue;
        }
        let what = format!("{} {} {n_rows}x{row_len}", quant.name(), kind.name());
        let forms = Forms::new(gpu, &activations(1, row_len, 5));
        let ys = [poisoned(gpu, n_rows), poisoned(gpu, n_rows)];
        let outs = [out(&devices[0], &ys[0]), out(&devices[1], &ys[1])];
        gpu.gemv(&outs, &forms.get(), 1).unwrap();
        let gated = Forms::new(gpu, &vec![0.0; n_rows]);
        let to = OperandRef { bf16: None, ..gated.get() };
        gpu.gate(&to, ys[0].all(), ys[1].all(), activation).unwrap();
        let (f32s, (q, ds)) = (to.f32.unwrap(), to.int8.unwrap());
        let found = || {
            let mut f = vec![0.0f32; n_rows];
            let (mut q8, mut d) = (vec![0i8; n_rows], vec![[0.0f32; 2]; n_rows / 32]);
            gpu.read(&mut f, f32s).unwrap();
            gpu.read(&mut q8, q).unwrap();
            gpu.read(&mut d, ds).unwrap();
            (f, q8, d)
        };
        let twin: Vec<f64> = found().0.into_iter().map(f64::from).collect();
        let top = twin.iter().fold(0.0f64, |top, v| top.max(v.abs()));
        let n_done = gpu.upload(&vec![0u32; n_rows / 32]).unwrap();
        for round in 0..3 {
            gpu.fill_words(f32s, POISON).unwrap();
            gpu.fill_words(q, POISON).unwrap();
            gpu.fill_words(ds, POISON).unwrap();
            let gate = RingGate { out: to, n_done: n_done.all(), kind: activation };
            gpu.ring(&outs, &RingSource::Operand(forms.get()), Some(&gate)).unwrap();
            let (f, q8, d) = found();
            assert_close(&format!("{what}, round {round}"), &f, &twin, &[top], 1e-5);
            // In int8: what `convert` makes of the same numbers, to the last bit.
            let again = Forms::new(gpu, &f);
            let (q, ds) = again.get().int8.unwrap();
            let (mut q_twin, mut d_twin) = (vec![0i8; n_rows], vec![[0.0f32; 2]; n_rows / 32]);
            gpu.read(&mut q_twin, q).unwrap();
            gpu.read(&mut d_twin, ds).unwrap();
            assert!(q8 == q_twin && d == d_twin, "{what}, round {round}: in int8");
        }
    }
}
