//! Routing, and products of tokens with their experts' matrices, against the CPU's.

use crate::fixture::{Fixture, activations, product_from, quantized};
use crate::products::{Forms, magnitudes, on_device_as};
use crate::{POISON, Test, assert_close};
use format_spec::QuantType;
use format_spec::plane::PlaneKind;
use kernels::Tier;
use kernels::cpu::ops::{Choice, Ops};
use kernels::cuda::{
    Buffer, DeviceWeight, ExpertOut, ExpertTable, Gpu, MAX_EXPERTS, OperandRef, RoutingShape,
    SortedRows,
};
use std::sync::Arc;

pub(crate) const TESTS: &[Test] = &[
    ("router_logits_agree_with_f64", router_logits_agree_with_f64),
    ("route_agrees_with_the_cpu", route_agrees_with_the_cpu),
    ("route_takes_ties_and_nans", route_takes_ties_and_nans),
    ("sorted_rows_come_back", sorted_rows_come_back),
    ("gemv_experts_agrees_with_the_cpu", gemv_experts_agrees_with_the_cpu),
    ("gemv_experts_reads_matrices_of_their_own", gemv_experts_reads_matrices_of_their_own),
    ("gemv_experts_reads_types_that_differ", gemv_experts_reads_types_that_differ),
    ("products_of_many_tokens_agree_with_the_cpu", products_of_many_tokens_agree_with_the_cpu),
];

fn bits(choices: &[Choice]) -> Vec<[u32; 2]> {
    choices.iter().map(|choice| [choice.expert, choice.weight.to_bits()]).collect()
}

fn choices_of(found: &[[u32; 2]]) -> Vec<Choice> {
    let choice = |&[expert, weight]: &[u32; 2]| Choice { expert, weight: f32::from_bits(weight) };
    found.iter().map(choice).collect()
}

fn router_logits_agree_with_f64(gpu: &Arc<Gpu>) {
    for (n_tokens, n_expert, width) in [
        (1, 8, 96),
        (1, 128, 2048),
        (3, 61, 5120),
        (4, 5, 32),
        (5, 8, 96),
        (8, 3, 32),
        (130, 128, 2048),
        (17, 61, 768),
    ] {
        let fixture = Fixture::new(QuantType::F32, n_expert, width, 3);
        let device = on_device_as(gpu, &fixture, PlaneKind::Padded);
        let x = activations(n_tokens, width, 5);
        let from = gpu.upload(&x).unwrap();
        let logits = gpu.alloc::<f32>(n_tokens * n_expert).unwrap();
        gpu.fill_words(logits.all(), POISON).unwrap();
        gpu.router_logits(logits.all(), &device.weight, from.all(), n_tokens).unwrap();
        let mut found = vec![0.0; logits.len()];
        gpu.read(&mut found, logits.all()).unwrap();
        let w = fixture.dequantized();
        let sum = |x: &[f32], w: &[f32]| {
            w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>()
        };
        let rows = x.chunks_exact(width);
        let expected: Vec<f64> =
            rows.flat_map(|x| w.chunks_exact(width).map(move |w| sum(x, w))).collect();
        let what = format!("{n_tokens} x {n_expert} x {width}");
        assert_close(&what, &found, &expected, &magnitudes(&fixture, &x), 2e-6);
    }
}

/// What the device routes, from poisoned memory.
fn route(gpu: &Arc<Gpu>, logits: &[f32], shape: RoutingShape) -> Vec<Choice> {
    let n_tokens = logits.len() / shape.n_expert;
    let from = gpu.upload(logits).unwrap();
    let choices = gpu.upload(&vec![[POISON; 2]; shape.n_pairs(n_tokens)]).unwrap();
    gpu.route(choices.all(), from.all(), shape, n_tokens).unwrap();
    let mut found = vec![[0; 2]; choices.len()];
    gpu.read(&mut found, choices.all()).unwrap();
    choices_of(&found)
}

/// What the CPU's oracle routes.
fn routed(logits: &[f32], shape: RoutingShape) -> Vec<Choice> {
    let ops = Ops::new(Tier::Scalar).unwrap();
    let mut choices = vec![Choice::default(); logits.len() / shape.n_expert * shape.n_used];
    let rows = logits.chunks_exact(shape.n_expert);
    for (row, choices) in rows.zip(choices.chunks_exact_mut(shape.n_used)) {
        ops.route(choices, &mut row.to_vec());
    }
    choices
}

fn route_agrees_with_the_cpu(gpu: &Arc<Gpu>) {
    for (n_expert, n_used) in [(1, 1), (8, 2), (31, 31), (33, 4), (128, 8), (MAX_EXPERTS, 10)] {
        let shape = RoutingShape { n_expert, n_used };
        for n_tokens in [1, 3, 130] {
            let logits = activations(n_tokens, n_expert, n_expert as u64);
            let (found, expected) = (route(gpu, &logits, shape), routed(&logits, shape));
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let what = format!("{shape:?}, pair {i}");
                assert_eq!(found.expert, expected.expert, "{what}");
                assert!((found.weight - expected.weight).abs() <= 1e-6, "{what}: {found:?}");
            }
        }
    }
}

fn route_takes_ties_and_nans(gpu: &Arc<Gpu>) {
    for n_expert in [8, 100, 300] {
        let shape = RoutingShape { n_expert, n_used: 4 };
        let mut logits = vec![0.5; 3 * n_expert];
        (logits[5], logits[n_expert - 1]) = (2.0, 2.0);
        logits[n_expert + 3] = f32::NAN;
        logits[2 * n_expert + 6] = f32::INFINITY;
        let (found, expected) = (route(gpu, &logits, shape), routed(&logits, shape));
        let experts = |choices: &[Choice]| choices.iter().map(|c| c.expert).collect::<Vec<_>>();
        assert_eq!(experts(&found), experts(&expected), "{n_expert}");
        assert!(found[4..].iter().all(|choice| choice.weight.is_nan()), "{found:?}");
    }
}

/// Random choices, some experts without any token.
fn random_choices(shape: RoutingShape, n_tokens: usize) -> Vec<Choice> {
    let mut logits = activations(n_tokens, shape.n_expert, 77);
    for row in logits.chunks_exact_mut(shape.n_expert) {
        row[shape.n_expert / 2] = -1e4;
        row[0] += 1.0;
    }
    routed(&logits, shape)
}

fn sorted(gpu: &Arc<Gpu>, shape: RoutingShape, n_tokens: usize) -> Buffer<u32> {
    gpu.upload(&vec![POISON; shape.n_sorted_words(n_tokens)]).unwrap()
}

/// Gathered rows, weighted by one, are the tokens themselves.
fn sorted_rows_come_back(gpu: &Arc<Gpu>) {
    for (n_expert, n_used, n_tokens) in [(8, 2, 5), (1, 1, 7), (60, 4, 300), (MAX_EXPERTS, 8, 70)] {
        let (shape, width) = (RoutingShape { n_expert, n_used }, 96);
        let mut choices = random_choices(shape, n_tokens);
        choices.iter_mut().for_each(|choice| choice.weight = 1.0 / n_used as f32);
        let choices = gpu.upload(&bits(&choices)).unwrap();
        let words = sorted(gpu, shape, n_tokens);
        let rows = SortedRows::new(shape, n_tokens, words.all());
        gpu.sort_by_expert(&rows, choices.all()).unwrap();
        let x = activations(n_tokens, width, 3);
        let forms = Forms::new(gpu, &x);
        let n = shape.n_pairs(n_tokens) * width;
        let gathered = gpu.alloc::<half::bf16>(n).unwrap();
        gpu.fill_words(gathered.all(), POISON).unwrap();
        let to = OperandRef { bf16: Some(gathered.all()), ..OperandRef::default() };
        gpu.gather_rows(&to, &forms.get(), &rows, width).unwrap();
        let mut values = vec![half::bf16::ZERO; n];
        gpu.read(&mut values, gathered.all()).unwrap();
        let values: Vec<f32> = values.iter().map(|v| v.to_f32()).collect();
        let y = gpu.upload(&values).unwrap();
        let start = vec![0.25f32; n_tokens * width];
        let sum = gpu.upload(&start).unwrap();
        let place = Some(rows.place());
        gpu.add_experts(sum.all(), y.all(), choices.all(), place, (n_tokens, n_used)).unwrap();
        let mut found = start;
        gpu.read(&mut found, sum.all()).unwrap();
        let expected: Vec<f64> = x.iter().map(|&x| 0.25 + f64::from(x)).collect();
        let scale: Vec<f64> = x.iter().map(|&x| 1.0 + f64::from(x.abs())).collect();
        assert_close(&format!("{shape:?}, {n_tokens}"), &found, &expected, &scale, 1.0 / 255.0);
    }
}

const N_EXPERT: usize = 6;

/// What each pair's expert makes of its row of `x`, one product of the scalar tier a pair.
fn expected(fixture: &Fixture, x: &[f32], pairs: &[(u32, usize)]) -> Vec<f64> {
    let (matmul, row_len) = (fixture.matmul(Tier::Scalar), fixture.row_len);
    let n_rows = fixture.n_rows / N_EXPERT;
    let product = |&(expert, row): &(u32, usize)| {
        let x = quantized(Tier::Scalar, &x[row * row_len..][..row_len], 1);
        let first = expert as usize * n_rows;
        let rows = first..first + n_rows;
        product_from(&matmul, &x, first, std::slice::from_ref(&rows), n_rows)
    };
    pairs.iter().flat_map(product).map(f64::from).collect()
}

/// As [`expected`], with activations in bf16 and exact weights and sums; and the magnitudes of the
/// terms, which rounding is relative to.
fn exact(fixture: &Fixture, x: &[f32], pairs: &[(u32, usize)]) -> (Vec<f64>, Vec<f64>) {
    let (w, row_len, n_rows) = (fixture.dequantized(), fixture.row_len, fixture.n_rows / N_EXPERT);
    let x: Vec<f64> = x.iter().map(|&x| half::bf16::from_f32(x).to_f64()).collect();
    let sums = |&(expert, row): &(u32, usize)| {
        let (w, x) = (&w, &x[row * row_len..][..row_len]);
        (0..n_rows).map(move |r| {
            let w = &w[(expert as usize * n_rows + r) * row_len..][..row_len];
            let terms = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * x);
            terms.fold((0.0, 1e-3), |(sum, magnitude), t| (sum + t, magnitude + t.abs()))
        })
    };
    pairs.iter().flat_map(sums).unzip()
}

/// Types with the bases that a GEMV reads.
fn forms() -> impl Iterator<Item = (QuantType, PlaneKind)> {
    // Under a memory checker everything takes its time.
    let few = std::env::var("KERNELS_FEW").is_ok();
    let is_wanted = move |quant| !few || matches!(quant, QuantType::Q4_K | QuantType::F16);
    let kinds = [PlaneKind::Padded, PlaneKind::Planar, PlaneKind::Tile];
    let all = QuantType::ALL.iter().flat_map(move |&quant| kinds.map(|kind| (quant, kind)));
    all.filter(move |&(quant, kind)| kind.applies_to(quant) && is_wanted(quant))
}

fn gemv_experts_agrees_with_the_cpu(gpu: &Arc<Gpu>) {
    let shape = RoutingShape { n_expert: N_EXPERT, n_used: 3 };
    for (quant, base) in forms() {
        for (n_rows, row_len) in [(4, 256), (24, 768), (132, 1024)] {
            let fixture = Fixture::new(quant, N_EXPERT * n_rows, row_len, 5);
            let device = on_device_as(gpu, &fixture, base);
            let table = ExpertTable::new(gpu, &[&device.weight], N_EXPERT).unwrap();
            assert_eq!(table.n_rows(), n_rows);
            for (n_tokens, repeat) in [(1, 3), (1, 1), (4, 3), (3, 1)] {
                let n_pairs = shape.n_pairs(n_tokens);
                let choices = random_choices(shape, n_tokens);
                let x = activations(n_pairs / repeat, row_len, 11);
                let pairs: Vec<_> =
                    choices.iter().enumerate().map(|(i, c)| (c.expert, i / repeat)).collect();
                let expected = expected(&fixture, &x, &pairs);
                let (_, scale) = exact(&fixture, &x, &pairs);
                let choices = gpu.upload(&bits(&choices)).unwrap();
                let forms = Forms::new(gpu, &x);
                let ys = [(); 2].map(|()| gpu.alloc::<f32>(n_pairs * n_rows).unwrap());
                let outs = ys.each_ref().map(|y| {
                    gpu.fill_words(y.all(), POISON).unwrap();
                    ExpertOut { table: &table, y: y.all() }
                });
                // Matrices that are found by their descriptors have a launch each.
                let n = ExpertTable::n_together(&[&table, &table]);
                assert_eq!(n, if base == PlaneKind::Tile { 1 } else { 2 });
                for outs in outs.chunks(n) {
                    let (x, rows) = (forms.get(), (n_pairs, repeat));
                    gpu.gemv_experts(outs, &x, choices.all(), rows).unwrap();
                }
                for y in &ys {
                    let mut found = vec![0.0; y.len()];
                    gpu.read(&mut found, y.all()).unwrap();
                    let (quant, kind) = (quant.name(), base.name());
                    let what = format!("{quant} {kind} {n_rows}x{row_len}, {n_tokens}, {repeat}");
                    assert_close(&what, &found, &expected, &scale, 2e-5);
                }
            }
        }
    }
}

/// Matrices that are tensors of their own give what a stack of them gives.
fn gemv_experts_reads_matrices_of_their_own(gpu: &Arc<Gpu>) {
    let (n_rows, row_len) = (24, 512);
    let stack = Fixture::new(QuantType::Q4_K, N_EXPERT * n_rows, row_len, 9);
    let part_bytes = stack.gguf.len() / N_EXPERT;
    let parts: Vec<_> = (0..N_EXPERT)
        .map(|i| {
            let part = stack.gguf[i * part_bytes..][..part_bytes].to_vec();
            on_device_as(
                gpu,
                &Fixture::of(QuantType::Q4_K, n_rows, row_len, part),
                PlaneKind::Padded,
            )
        })
        .collect();
    let weights: Vec<&DeviceWeight> = parts.iter().map(|part| &part.weight).collect();
    let table = ExpertTable::new(gpu, &weights, N_EXPERT).unwrap();
    let pairs: Vec<_> = (0..N_EXPERT as u32).map(|expert| (expert, 0)).collect();
    let x = activations(1, row_len, 2);
    let (expected, (_, scale)) = (expected(&stack, &x, &pairs), exact(&stack, &x, &pairs));
    let choices: Vec<[u32; 2]> = pairs.iter().map(|&(expert, _)| [expert, 0]).collect();
    let choices = gpu.upload(&choices).unwrap();
    let y = gpu.alloc::<f32>(N_EXPERT * n_rows).unwrap();
    let out = ExpertOut { table: &table, y: y.all() };
    let forms = Forms::new(gpu, &x);
    gpu.gemv_experts(&[out], &forms.get(), choices.all(), (N_EXPERT, N_EXPERT)).unwrap();
    let mut found = vec![0.0; y.len()];
    gpu.read(&mut found, y.all()).unwrap();
    assert_close("matrices of their own", &found, &expected, &scale, 2e-5);
    // Some are missing, or of another shape: refused.
    assert!(ExpertTable::new(gpu, &weights[1..], N_EXPERT).is_err());
    let other = Fixture::new(QuantType::Q4_K, n_rows, 2 * row_len, 9);
    let other = on_device_as(gpu, &other, PlaneKind::Padded);
    let mixed: Vec<_> = weights[1..].iter().copied().chain([&other.weight]).collect();
    assert!(ExpertTable::new(gpu, &mixed, N_EXPERT).is_err());
    assert!(ExpertTable::new(gpu, &weights[..1], 5).is_err(), "24 rows of 5 experts");
}

/// Experts that differ in type and in base, each compared with a product of its own.
fn gemv_experts_reads_types_that_differ(gpu: &Arc<Gpu>) {
    let (n_rows, row_len) = (24, 512);
    let of = |(quant, base)| {
        let fixture = Fixture::new(quant, n_rows, row_len, 9);
        let device = on_device_as(gpu, &fixture, base);
        (fixture, device)
    };
    let experts: [_; N_EXPERT] = [
        (QuantType::Q4_K, PlaneKind::Padded),
        (QuantType::Q6_K, PlaneKind::Padded),
        (QuantType::F16, PlaneKind::Padded),
        (QuantType::Q4_K, PlaneKind::Planar),
        (QuantType::Q8_0, PlaneKind::Tile),
        (QuantType::Q5_0, PlaneKind::Padded),
    ]
    .map(of);
    let weights: Vec<&DeviceWeight> = experts.iter().map(|(_, device)| &device.weight).collect();
    let table = ExpertTable::new(gpu, &weights, N_EXPERT).unwrap();
    assert!(table.is_read_by_descriptors() && !table.has_mmq() && !table.has_bf16());
    let x = activations(1, row_len, 2);
    let (mut sums, mut scale) = (Vec::new(), Vec::new());
    for (fixture, _) in &experts {
        let row = quantized(Tier::Scalar, &x, 1);
        let rows = 0..n_rows;
        let matmul = fixture.matmul(Tier::Scalar);
        let products = product_from(&matmul, &row, 0, std::slice::from_ref(&rows), n_rows);
        sums.extend(products.into_iter().map(f64::from));
        scale.extend(magnitudes(fixture, &x));
    }
    let choices: Vec<[u32; 2]> = (0..N_EXPERT as u32).map(|expert| [expert, 0]).collect();
    let choices = gpu.upload(&choices).unwrap();
    let y = gpu.alloc::<f32>(N_EXPERT * n_rows).unwrap();
    gpu.fill_words(y.all(), POISON).unwrap();
    let out = ExpertOut { table: &table, y: y.all() };
    let forms = Forms::new(gpu, &x);
    gpu.gemv_experts(&[out], &forms.get(), choices.all(), (N_EXPERT, N_EXPERT)).unwrap();
    let mut found = vec![0.0; y.len()];
    gpu.read(&mut found, y.all()).unwrap();
    assert_close("types that differ", &found, &sums, &scale, 2e-5);
}

fn products_of_many_tokens_agree_with_the_cpu(gpu: &Arc<Gpu>) {
    let shape = RoutingShape { n_expert: N_EXPERT, n_used: 2 };
    for (quant, base) in forms() {
        for (n_rows, row_len) in [(40, 512), (130, 768)] {
            let fixture = Fixture::new(quant, N_EXPERT * n_rows, row_len, 5);
            if base == PlaneKind::Planar && n_rows % 4 != 0 {
                continue;
            }
            let device = on_device_as(gpu, &fixture, base);
            let table = ExpertTable::new(gpu, &[&device.weight], N_EXPERT).unwrap();
            assert_eq!(table.has_mmq(), !quant.is_float() && base == PlaneKind::Padded);
            for n_tokens in [5, 70, 400] {
                let n_pairs = shape.n_pairs(n_tokens);
                let choices = random_choices(shape, n_tokens);
                let x = activations(n_tokens, row_len, 11);
                let on_gpu = gpu.upload(&bits(&choices)).unwrap();
                let words = sorted(gpu, shape, n_tokens);
                let rows = SortedRows::new(shape, n_tokens, words.all());
                gpu.sort_by_expert(&rows, on_gpu.all()).unwrap();
                let (tokens, gathered) =
                    (Forms::new(gpu, &x), Forms::new(gpu, &vec![f32::NAN; n_pairs * row_len]));
                let to = OperandRef { f32: None, ..gathered.get() };
                gpu.gather_rows(&to, &tokens.get(), &rows, row_len).unwrap();
                // Rows in order of experts: by number, then by pair.
                let mut order: Vec<usize> = (0..n_pairs).collect();
                order.sort_by_key(|&pair| choices[pair].expert);
                let pairs: Vec<_> = order.iter().map(|&p| (choices[p].expert, p / 2)).collect();
                let y = gpu.alloc::<f32>(n_pairs * n_rows).unwrap();
                let out = ExpertOut { table: &table, y: y.all() };
                let what = format!(
                    "{} {} {n_rows}x{row_len}, {n_tokens} tokens",
                    quant.name(),
                    base.name()
                );
                let (sums, scale) = exact(&fixture, &x, &pairs);
                let check = |expected: &[f64], tolerance, what: &str| {
                    let mut found = vec![0.0; y.len()];
                    gpu.read(&mut found, y.all()).unwrap();
                    assert_close(what, &found, expected, &scale, tolerance);
                };
                if table.has_mmq() {
                    gpu.fill_words(y.all(), POISON).unwrap();
                    gpu.mmq_experts(&out, &gathered.get(), &rows).unwrap();
                    check(&expected(&fixture, &x, &pairs), 2e-5, &format!("mmq {what}"));
                }
                gpu.fill_words(y.all(), POISON).unwrap();
                let dense = gpu.alloc::<half::bf16>(fixture.n_rows * row_len).unwrap();
                gpu.dequantize(dense.all(), &device.weight).unwrap();
                gpu.gemm_experts(&out, Some(dense.all()), &gathered.get(), &rows).unwrap();
                // Each weight is off by up to 2^-9 of itself.
                check(&sums, 0.0025, &format!("bf16 {what}"));
            }
        }
    }
}
