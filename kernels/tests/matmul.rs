//! Products against an independent reference, and tiers, batches, splits and planes against each
//! other, bit for bit.

#![allow(clippy::unwrap_used)] // what fails here fails the test
#![allow(clippy::single_range_in_vec_init)] // a list of ranges may have one

mod fixture;

use std::sync::atomic::Ordering::Relaxed;

use fixture::{Fixture, activations, product, product_from, quantized};
use format_spec::{PlaneKind, QuantType};
use kernels::Tier;
use kernels::cpu::{GEMV_MAX_TOKENS, Label, Matmul, MatmulOptions};

const BATCHES: [usize; 7] = [1, 2, 3, 5, 7, 33, 64];

/// Tiers that this machine has; `REQUIRE_ISA` names one that must be among them, `ONLY_ISA` one that is
/// tested alone.
fn tiers() -> Vec<Tier> {
    if let Ok(name) = std::env::var("ONLY_ISA") {
        return vec![Tier::parse(&name).unwrap().require().unwrap()];
    }
    if let Ok(name) = std::env::var("REQUIRE_ISA") {
        Tier::parse(&name).unwrap().require().unwrap();
    }
    Tier::ALL.iter().copied().filter(|tier| tier.available()).collect()
}

/// Shapes `(n_rows, row_len)`: odd rows, rows of fewer than eight chunks, chunks not in eights.
fn shapes(quant: QuantType) -> Vec<(usize, usize)> {
    let mut shapes = vec![(1, 256), (33, 512), (17, 1024)];
    if quant.block_elems() <= 32 {
        shapes.extend([(3, 32), (16, 96), (50, 576), (31, 896), (2, 224), (5, 2880)]);
    } else {
        shapes.extend([(3, 768), (50, 1536), (2, 2816)]);
    }
    if quant.is_float() {
        shapes.extend([(7, 1), (4, 15), (19, 100)]);
    }
    shapes
}

fn assert_same_bits(expected: &[f32], found: &[f32], what: &str) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (i, (e, f)) in expected.iter().zip(found).enumerate() {
        let same = e.to_bits() == f.to_bits() || e.is_nan() && f.is_nan();
        assert!(
            same,
            "{what}: output {i} is {f:e} ({:08x}), not {e:e} ({:08x})",
            f.to_bits(),
            e.to_bits()
        );
    }
}

/// `x` as the 8-bit form stands for it: scale amax / 127 for each 32 elements.
fn rounded(x: &[f32]) -> Vec<f64> {
    x.chunks(32)
        .flat_map(|chunk| {
            let amax = chunk.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let (d, inv) = (f64::from(amax / 127.0), 127.0 / amax);
            chunk.iter().map(move |x| d * f64::from((x * inv).round_ties_even()))
        })
        .collect()
}

/// The scalar tier against f64 sums over `QuantType`'s dequantized weights.
#[test]
fn scalar_is_the_product_of_dequantized_weights() {
    for &quant in QuantType::ALL {
        for (n_rows, row_len) in shapes(quant) {
            let n_tokens = 2;
            let fixture = Fixture::new(quant, n_rows, row_len, row_len as u64);
            let x = activations(n_tokens, row_len, 7);
            let mut acts = kernels::cpu::Activations::new(Tier::Scalar).unwrap();
            acts.resize(n_tokens, row_len);
            acts.x_mut().copy_from_slice(&x);
            if !quant.is_float() {
                acts.quantize();
            }
            let y = product(&fixture.matmul(Tier::Scalar), &acts, &[0..n_rows]);
            let w = fixture.dequantized();
            for t in 0..n_tokens {
                let x = &x[t * row_len..][..row_len];
                let x: Vec<f64> = if quant.is_float() {
                    x.iter().map(|&x| f64::from(x)).collect()
                } else {
                    rounded(x)
                };
                for r in 0..n_rows {
                    let terms = w[r * row_len..][..row_len].iter().zip(&x);
                    let (mut sum, mut magnitude) = (0.0, 0.0);
                    for (&w, &x) in terms {
                        sum += f64::from(w) * x;
                        magnitude += (f64::from(w) * x).abs();
                    }
                    // Chains add at most row_len / 8 rounded terms; a type with a minimum cancels
                    // scale * q against it, each of which may exceed the weight by 2^6.
                    let rounding = f64::from(f32::EPSILON) * (row_len as f64).sqrt() * 2.0;
                    let tolerance = rounding
                        * (magnitude + 64.0 * 0.02 * x.iter().map(|x| x.abs()).sum::<f64>());
                    let found = f64::from(y[t * n_rows + r]);
                    assert!(
                        (found - sum).abs() <= tolerance,
                        "{} {n_rows}x{row_len}: token {t} row {r}: {found} is not {sum} +- {tolerance}",
                        quant.name()
                    );
                }
            }
        }
    }
}

#[test]
fn tiers_batches_and_splits_agree_in_every_bit() {
    for &quant in QuantType::ALL {
        for (n_rows, row_len) in shapes(quant) {
            let fixture = Fixture::new(quant, n_rows, row_len, 31 * row_len as u64 + n_rows as u64);
            let scalar = fixture.matmul(Tier::Scalar);
            let most = BATCHES[BATCHES.len() - 1];
            let x = activations(most, row_len, 99);
            let float = quant.is_float() && !row_len.is_multiple_of(32);
            let acts = |tier, n_tokens: usize| {
                if float {
                    let mut acts = kernels::cpu::Activations::new(tier).unwrap();
                    acts.resize(n_tokens, row_len);
                    acts.x_mut().copy_from_slice(&x[..n_tokens * row_len]);
                    return acts;
                }
                quantized(tier, &x[..n_tokens * row_len], n_tokens)
            };
            // Each token on its own, by the scalar tier, is what everything must equal.
            let expected = product(&scalar, &acts(Tier::Scalar, most), &[0..n_rows]);
            for tier in tiers() {
                let matmul = fixture.matmul(tier);
                for n_tokens in BATCHES {
                    let what = format!(
                        "{} {} {n_rows}x{row_len}, {n_tokens} tokens",
                        tier.name(),
                        quant.name()
                    );
                    let acts = acts(tier, n_tokens);
                    let whole = product(&matmul, &acts, &[0..n_rows]);
                    assert_same_bits(&expected[..n_tokens * n_rows], &whole, &what);
                    let (a, b) = (n_rows / 3, n_rows - n_rows / 4);
                    let split = product(&matmul, &acts, &[b..n_rows, 0..a, a..b]);
                    assert_same_bits(
                        &expected[..n_tokens * n_rows],
                        &split,
                        &format!("{what}, split"),
                    );
                }
            }
        }
        let ran: Vec<_> = tiers().iter().map(|tier| tier.name()).collect();
        println!("{}: {}", quant.name(), ran.join(" "));
    }
}

#[test]
fn prefill_reads_the_q6_k_planes_and_gets_the_same_bits() {
    let planes = [PlaneKind::Exp, PlaneKind::Dsc];
    for (n_rows, row_len) in [(64, 256), (40, 512), (24, 768), (33, 1536), (5, 256)] {
        let fixture = Fixture::new(QuantType::Q6_K, n_rows, row_len, 5);
        for tier in tiers() {
            let padded = fixture.matmul(tier);
            let exp = Matmul::new(tier, fixture.weight(&planes), MatmulOptions::default()).unwrap();
            let off = MatmulOptions { exp_plane: false, ..MatmulOptions::default() };
            let off = Matmul::new(tier, fixture.weight(&planes), off).unwrap();
            for n_tokens in BATCHES {
                let x = quantized(tier, &activations(n_tokens, row_len, 3), n_tokens);
                let expected = product(&padded, &x, &[0..n_rows]);
                assert_same_bits(&expected, &product(&exp, &x, &[0..n_rows]), "exp");
                assert_same_bits(&expected, &product(&off, &x, &[0..n_rows]), "exp off");
            }
            let many = BATCHES.iter().filter(|&&n| n > GEMV_MAX_TOKENS).count() as u64;
            let few = BATCHES.len() as u64 - many;
            let count = |matmul: &Matmul<'_>| {
                let l = matmul.launches();
                [&l.gemv_padded, &l.gemm_padded, &l.gemm_exp].map(|n| n.load(Relaxed))
            };
            assert_eq!(count(&padded), [few, many, 0]);
            assert_eq!(count(&exp), [few, 0, many]);
            assert_eq!(count(&off), [few, many, 0]);
            assert_eq!(exp.explain_prefill().label, Label::Exp);
            assert_eq!(off.explain_prefill().label, Label::Off);
            assert_eq!(padded.explain_prefill().label, Label::Base("padded"));
            assert_eq!(exp.explain_decode().object, "padded");
            let lone =
                Matmul::new(tier, fixture.weight(&planes[..1]), MatmulOptions::default()).unwrap();
            assert_eq!(lone.explain_prefill().label, Label::Fallback);
        }
    }
}

#[test]
fn a_base_of_another_kind_gives_the_same_bits() {
    let bases = PlaneKind::ALL.iter().filter(|kind| kind.is_base());
    let pairs = bases.flat_map(|kind| QuantType::ALL.iter().map(move |&quant| (*kind, quant)));
    for (kind, quant) in pairs.filter(|(kind, quant)| kind.applies_to(*quant)) {
        // Rows that fill no unit and no granule, and ranges that begin within both.
        let (n_rows, row_len) = (71, 512);
        let fixture = Fixture::new(quant, n_rows, row_len, 9);
        let weight = kernels::Weight::new(fixture.plane(kind), &[]).unwrap();
        for tier in tiers() {
            let padded = fixture.matmul(tier);
            let other = Matmul::new(tier, weight, MatmulOptions::default()).unwrap();
            for n_tokens in BATCHES {
                let x = quantized(tier, &activations(n_tokens, row_len, 4), n_tokens);
                let expected = product(&padded, &x, &[0..n_rows]);
                let ranges = [0..3, 3..37, 37..71];
                let what = format!("{} {} {}", kind.name(), tier.name(), quant.name());
                assert_same_bits(&expected, &product(&other, &x, &ranges), &what);
            }
            assert_eq!(other.explain_prefill().label.name(), kind.name());
            assert_eq!(other.explain_decode().object, kind.name());
        }
        let mut row = vec![f32::NAN; row_len];
        for (r, expected) in fixture.dequantized().chunks_exact(row_len).enumerate() {
            weight.dequantize_row(r, &mut row);
            assert_same_bits(expected, &row, &format!("{} {}", kind.name(), quant.name()));
        }
    }
}

#[test]
fn tile_switched_off_gives_the_same_bits_and_says_so() {
    let fixture = Fixture::new(QuantType::Q4_K, 40, 512, 3);
    let tile = kernels::Weight::new(fixture.plane(PlaneKind::Tile), &[]).unwrap();
    let off = MatmulOptions { tile_units: false, ..MatmulOptions::default() };
    for tier in tiers() {
        for (weight, reads) in [(tile, "tile"), (fixture.weight(&[PlaneKind::Tile]), "padded")] {
            let matmul = Matmul::new(tier, weight, off).unwrap();
            for n_tokens in [1, GEMV_MAX_TOKENS + 1] {
                let x = quantized(tier, &activations(n_tokens, 512, 3), n_tokens);
                let expected = product(&fixture.matmul(tier), &x, &[0..40]);
                assert_same_bits(&expected, &product(&matmul, &x, &[0..40]), "tile off");
            }
            let l = matmul.launches();
            let counts = [&l.gemv_padded, &l.gemm_padded, &l.gemv_tile, &l.gemm_tile];
            assert_eq!(counts.map(|n| n.load(Relaxed)), [1, 1, 0, 0]);
            for explain in [matmul.explain_prefill(), matmul.explain_decode()] {
                assert_eq!((explain.label, explain.object), (Label::Off, reads));
            }
        }
    }
}

/// Every shape, tier and batch from `tile` against the scalar tier with `tile` switched off, which
/// rebuilds its rows.
#[test]
fn tile_units_give_the_same_bits_in_every_tier() {
    for &quant in QuantType::ALL.iter().filter(|&&quant| PlaneKind::Tile.applies_to(quant)) {
        for (n_rows, row_len) in shapes(quant) {
            if quant.is_float() && row_len % 32 > 0 {
                continue;
            }
            let fixture = Fixture::new(quant, n_rows, row_len, 13 * row_len as u64);
            let tile = kernels::Weight::new(fixture.plane(PlaneKind::Tile), &[]).unwrap();
            let beside = fixture.weight(&[PlaneKind::Tile]);
            let most = BATCHES[BATCHES.len() - 1];
            let x = activations(most, row_len, 99);
            let acts = |tier, n_tokens: usize| quantized(tier, &x[..n_tokens * row_len], n_tokens);
            let off = MatmulOptions { tile_units: false, ..MatmulOptions::default() };
            let scalar = Matmul::new(Tier::Scalar, tile, off).unwrap();
            let expected = product(&scalar, &acts(Tier::Scalar, most), &[0..n_rows]);
            assert_eq!(scalar.explain_decode().label, Label::Off);
            for tier in tiers() {
                for weight in [tile, beside] {
                    let matmul = Matmul::new(tier, weight, MatmulOptions::default()).unwrap();
                    for n_tokens in BATCHES {
                        let what = format!(
                            "{} {} {n_rows}x{row_len}, {n_tokens} tokens",
                            tier.name(),
                            quant.name()
                        );
                        let acts = acts(tier, n_tokens);
                        let expected = &expected[..n_tokens * n_rows];
                        assert_same_bits(expected, &product(&matmul, &acts, &[0..n_rows]), &what);
                        let (a, b) = (n_rows / 3, n_rows - n_rows / 4);
                        let split = product(&matmul, &acts, &[b..n_rows, 0..a, a..b]);
                        assert_same_bits(expected, &split, &format!("{what}, split"));
                    }
                    let many = BATCHES.iter().filter(|&&n| n > GEMV_MAX_TOKENS).count() as u64;
                    let few = BATCHES.len() as u64 - many;
                    let launches = matmul.launches();
                    // The split's parts that start with the first row count, an empty one too.
                    let n = 2 + u64::from(n_rows < 3);
                    let found = [&launches.gemv_tile, &launches.gemm_tile];
                    assert_eq!(found.map(|n| n.load(Relaxed)), [n * few, n * many]);
                    assert_eq!(launches.gemv_padded.load(Relaxed), 0);
                    assert_eq!(launches.gemm_padded.load(Relaxed), 0);
                    assert_eq!(matmul.explain_decode().label, Label::Tile);
                    assert_eq!(matmul.explain_prefill().object, "tile");
                }
            }
        }
    }
}

/// A stack of experts is one weight: the product with one expert's rows is a part of the product
/// with all, in every path, also where its rows begin inside a unit of the base.
#[test]
fn rows_of_one_expert_are_a_product_of_their_own() {
    let (n_experts, n_rows, row_len) = (4, 22, 512);
    for quant in [QuantType::Q6_K, QuantType::Q4_K, QuantType::Q8_0, QuantType::F16] {
        let fixture = Fixture::new(quant, n_experts * n_rows, row_len, 21);
        let planes = [PlaneKind::Exp, PlaneKind::Dsc];
        let planes = planes.into_iter().filter(|kind| kind.applies_to(quant)).collect::<Vec<_>>();
        let mut weights = vec![fixture.weight(&planes), fixture.weight(&[])];
        for kind in [PlaneKind::Planar, PlaneKind::Tile] {
            if kind.applies_to(quant) {
                weights.push(kernels::Weight::new(fixture.plane(kind), &[]).unwrap());
            }
        }
        let count = |matmul: &Matmul<'_>| {
            let l = matmul.launches();
            [&l.gemv_padded, &l.gemm_padded, &l.gemm_exp, &l.gemv_tile, &l.gemm_tile]
                .map(|n| n.load(Relaxed))
                .into_iter()
                .sum::<u64>()
        };
        for (tier, weight) in
            tiers().iter().flat_map(|&tier| weights.iter().map(move |w| (tier, w)))
        {
            let matmul = Matmul::new(tier, *weight, MatmulOptions::default()).unwrap();
            for n_tokens in BATCHES {
                let x = quantized(tier, &activations(n_tokens, row_len, 4), n_tokens);
                let all = product(&matmul, &x, &[0..n_experts * n_rows]);
                let before = count(&matmul);
                for expert in 0..n_experts {
                    let first = expert * n_rows;
                    let expected: Vec<f32> = all
                        .chunks_exact(n_experts * n_rows)
                        .flat_map(|y| &y[first..first + n_rows])
                        .copied()
                        .collect();
                    let (a, b) = (first + n_rows / 3, first + n_rows);
                    let found = product_from(&matmul, &x, first, &[a..b, first..a], n_rows);
                    let what = format!("{} {}, expert {expert}", tier.name(), quant.name());
                    assert_same_bits(&expected, &found, &what);
                }
                let after = count(&matmul);
                assert_eq!(after - before, n_experts as u64, "a product an expert");
            }
        }
    }
}

/// The `exp` plane holds values that the base does not: what was read shows in the result.
#[test]
fn prefill_really_reads_the_planes() {
    let (base, other) =
        (Fixture::new(QuantType::Q6_K, 32, 512, 1), Fixture::new(QuantType::Q6_K, 32, 512, 2));
    let mixed = kernels::Weight::new(
        base.plane(PlaneKind::Padded),
        &[other.plane(PlaneKind::Exp), other.plane(PlaneKind::Dsc)],
    )
    .unwrap();
    for tier in tiers() {
        let matmul = Matmul::new(tier, mixed, MatmulOptions::default()).unwrap();
        for (n_tokens, source) in [(1, &base), (GEMV_MAX_TOKENS + 1, &other)] {
            let x = quantized(tier, &activations(n_tokens, 512, 3), n_tokens);
            let expected = product(&source.matmul(tier), &x, &[0..32]);
            assert_same_bits(&expected, &product(&matmul, &x, &[0..32]), "mixed");
        }
    }
}

#[test]
fn non_finite_and_tiny_activations_stay_in_their_token() {
    let specials = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-38, -0.0, f32::MAX, 1e-45];
    for &quant in QuantType::ALL {
        let fixture = Fixture::new(quant, 18, 512, 77);
        for tier in tiers() {
            for n_tokens in [specials.len(), 1 + GEMV_MAX_TOKENS, 2] {
                let mut x = activations(n_tokens, 512, 11);
                for (t, special) in specials.iter().enumerate().take(n_tokens) {
                    x[t * 512 + 40 * t] = *special;
                    if *special == 1e-45 {
                        x[t * 512..][..512].fill(*special);
                    }
                }
                let scalar = product(
                    &fixture.matmul(Tier::Scalar),
                    &quantized(Tier::Scalar, &x, n_tokens),
                    &[0..18],
                );
                let found =
                    product(&fixture.matmul(tier), &quantized(tier, &x, n_tokens), &[0..18]);
                assert_same_bits(&scalar, &found, &format!("{} {}", tier.name(), quant.name()));
                assert!(found[..18].iter().all(|y| y.is_nan()), "{}: a NaN is seen", quant.name());
                if n_tokens > 4 {
                    assert!(found[3 * 18..5 * 18].iter().all(|y| y.is_finite()), "others are not");
                }
            }
        }
    }
}

/// All stored values at an end of their range against activations of 127 and -127: where an i16
/// in between would overflow.
#[test]
fn extreme_values_do_not_saturate() {
    for &quant in QuantType::ALL.iter().filter(|quant| !quant.is_float()) {
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let fixture = Fixture::filled(quant, 16, 512, byte);
            for n_tokens in [1, GEMV_MAX_TOKENS + 2] {
                for sign in [1.0, -1.0] {
                    let x = vec![sign; n_tokens * 512];
                    let expected = product(
                        &fixture.matmul(Tier::Scalar),
                        &quantized(Tier::Scalar, &x, n_tokens),
                        &[0..16],
                    );
                    for tier in tiers() {
                        let x = quantized(tier, &x, n_tokens);
                        let found = product(&fixture.matmul(tier), &x, &[0..16]);
                        let what = format!("{} {} of {byte:#x}", tier.name(), quant.name());
                        assert_same_bits(&expected, &found, &what);
                        let tile = fixture.weight(&[PlaneKind::Tile]);
                        let tile = Matmul::new(tier, tile, MatmulOptions::default()).unwrap();
                        assert_same_bits(&expected, &product(&tile, &x, &[0..16]), &what);
                    }
                }
            }
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let (a, b) =
        (Fixture::new(QuantType::Q6_K, 8, 256, 1), Fixture::new(QuantType::Q6_K, 8, 512, 1));
    let message = |result: kernels::Result<kernels::Weight<'_>>| result.unwrap_err().to_string();
    let padded = a.plane(PlaneKind::Padded);
    assert_eq!(
        message(kernels::Weight::new(padded, &[b.plane(PlaneKind::Exp)])),
        "row length of a plane: expected 256, found 512"
    );
    assert_eq!(
        message(kernels::Weight::new(a.plane(PlaneKind::Exp), &[])),
        "plane 'exp' cannot be used here: it is no base"
    );
    let exp = a.plane(PlaneKind::Exp);
    assert_eq!(
        message(kernels::Weight::new(padded, &[exp, exp])),
        "plane 'exp' cannot be used here: it is given twice"
    );
    assert!(kernels::PlaneRef::new(exp.layout(), &[0; 3]).is_err());
}
