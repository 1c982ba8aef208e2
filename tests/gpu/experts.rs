//! Mixtures of experts on a GPU: logits against the CPU's, and what ran.

use crate::Test;
use crate::model::{ids, on_gpu, options};
use format_spec::QuantType;
use format_spec::container::Container;
use runtime::{LoadOptions, LogitsWanted, Model, Prefill, Session};
use std::ops::ControlFlow;
use tests::packing::pack;
use tests::tiny_model::{tiny_mixtral, tiny_model};

pub(crate) const TESTS: &[Test] = &[
    ("normed_heads_agree_with_the_cpu", normed_heads_agree_with_the_cpu),
    ("experts_agree_with_the_cpu", experts_agree_with_the_cpu),
    ("experts_of_many_tokens_agree_with_the_cpu", experts_of_many_tokens_agree_with_the_cpu),
    ("experts_are_launched_once_for_all", experts_are_launched_once_for_all),
    (
        "experts_that_differ_in_type_agree_with_the_cpu",
        experts_that_differ_in_type_agree_with_the_cpu,
    ),
];

const N_TOKENS: u32 = 37;
/// Largest difference of a position's logits from the CPU's, in units of their deviation. Products
/// of few tokens and int8 ones have the CPU's integers and other sums; bf16 ones round anew.
const CLOSE: f32 = 0.15;
const CLOSE_BF16: f32 = 0.25;
/// Positions of a hundred that must be close. A near-tie of two experts may go either way.
const N_CLOSE: usize = 75;

/// Logits of every position: in batches, or step by step as text is made.
fn logits(model: &Model<'_>, ids: &[u32], n_batch: usize) -> Vec<f32> {
    let mut session = Session::new(model, 512).unwrap();
    let mut all = Vec::new();
    if n_batch == 1 {
        for &id in ids {
            all.extend_from_slice(session.decode(id).unwrap());
        }
        return all;
    }
    let mut sink = |_: usize, logits: &[f32]| {
        all.extend_from_slice(logits);
        ControlFlow::Continue(())
    };
    session.prefill(ids, n_batch, LogitsWanted::all(&mut sink)).unwrap();
    all
}

fn on_cpu(file: &[u8], ids: &[u32]) -> Vec<f32> {
    let container = Container::parse(file).unwrap();
    let options = LoadOptions { n_threads: 2, ..LoadOptions::default() };
    let model = Model::open(file, &container, &options).unwrap();
    logits(&model, ids, 64)
}

/// Asserts that at least `n_close` positions of a hundred are close.
fn assert_agree(what: &str, found: &[f32], expected: &[f32], close: f32, n_close: usize) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let mean = expected.iter().sum::<f32>() / expected.len() as f32;
    let variance = expected.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / expected.len() as f32;
    let n_vocab = tests::tiny_model::N_VOCAB as usize;
    let rows = found.chunks_exact(n_vocab).zip(expected.chunks_exact(n_vocab));
    let mut off: Vec<f32> = rows
        .map(|(found, expected)| {
            let pairs = found.iter().zip(expected);
            pairs.map(|(f, e)| (f - e).abs() / variance.sqrt()).fold(0.0, f32::max)
        })
        .collect();
    assert!(found.iter().all(|logit| logit.is_finite()), "{what}");
    off.sort_by(f32::total_cmp);
    let at = |percent: usize| off[(off.len() * percent / 100).min(off.len() - 1)];
    println!("  {what}: off by {:.4}, {:.4}, {:.4} (50, 90, 100 %)", at(50), at(90), at(100));
    assert!(at(n_close) < close, "{what}: {n_close} % are off by up to {}", at(n_close));
}

fn normed_heads_agree_with_the_cpu() {
    let gguf = tiny_model("qwen3", &[QuantType::Q4_K, QuantType::Q8_0]).build();
    let file = pack(&gguf, "default");
    let expected = on_cpu(&file, &ids(N_TOKENS));
    for (prefill, close) in [(Prefill::Mmq, CLOSE), (Prefill::Bf16, CLOSE_BF16)] {
        on_gpu(&file, &options(prefill), true, |model| {
            for n_batch in [64, 1] {
                let found = logits(model, &ids(N_TOKENS), n_batch);
                let what = format!("qwen3, {prefill:?}, batches of {n_batch}");
                assert_agree(&what, &found, &expected, close, 100);
            }
        });
    }
}

fn experts_agree_with_the_cpu() {
    use QuantType::{F16, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    let models = [
        ("qwen3moe of q4_K and q6_K", tiny_model("qwen3moe", &[Q4_K, Q6_K]).build()),
        ("qwen3moe of q8_0 and f16", tiny_model("qwen3moe", &[Q8_0, F16, Q4_0]).build()),
        ("mixtral", tiny_mixtral(&[Q4_K, Q5_K], false).build()),
        ("mixtral in parts", tiny_mixtral(&[Q6_K], true).build()),
    ];
    for (name, gguf) in &models {
        let expected = on_cpu(&pack(gguf, "none"), &ids(N_TOKENS));
        for (planes, prefill, close) in [
            ("none", Prefill::Mmq, CLOSE),
            ("default", Prefill::Auto, CLOSE),
            ("none", Prefill::Bf16, CLOSE_BF16),
            ("planar", Prefill::Mmq, CLOSE_BF16),
            ("cuda-fast", Prefill::Bf16, CLOSE_BF16),
            ("cpu-fast", Prefill::Mmq, CLOSE_BF16),
        ] {
            on_gpu(&pack(gguf, planes), &options(prefill), true, |model| {
                for n_batch in [64, 7, 3, 1] {
                    let found = logits(model, &ids(N_TOKENS), n_batch);
                    let what = format!("{name}, {planes}, {prefill:?}, batches of {n_batch}");
                    assert_agree(&what, &found, &expected, close, N_CLOSE);
                }
            });
        }
    }
}

/// More tokens than a tile has rows, and so many that bf16 is the choice where it is the rule.
fn experts_of_many_tokens_agree_with_the_cpu() {
    let gguf = tiny_model("qwen3moe", &[QuantType::Q4_K, QuantType::Q6_K]).build();
    let file = pack(&gguf, "none");
    let expected = on_cpu(&file, &ids(400));
    for (prefill, close) in
        [(Prefill::Mmq, CLOSE), (Prefill::Bf16, CLOSE_BF16), (Prefill::Auto, CLOSE_BF16)]
    {
        on_gpu(&file, &options(prefill), true, |model| {
            let found = logits(model, &ids(400), 400);
            let what = format!("400 tokens, {prefill:?}");
            assert_agree(&what, &found, &expected, close, N_CLOSE);
        });
    }
}

fn experts_are_launched_once_for_all() {
    let gguf = tiny_model("qwen3moe", &[QuantType::Q4_K, QuantType::Q6_K]).build();
    for (planes, prefill, few, many, label) in [
        ("default", Prefill::Mmq, "gemv_experts_q", "experts_mmq_", "padded"),
        ("default", Prefill::Bf16, "gemv_experts_q", "dequant_q", "padded"),
        ("planar", Prefill::Mmq, "gemv_experts_planar_", "dequant_planar_", "planar"),
        ("cuda-fast", Prefill::Bf16, "gemv_experts_planar_", "experts_gemm_bf16", "bf16"),
        ("cpu-fast", Prefill::Auto, "gemv_experts_any", "dequant_any", "tile"),
    ] {
        on_gpu(&pack(&gguf, planes), &options(prefill), true, |model| {
            let mut session = Session::new(model, 512).unwrap();
            session.prefill(&ids(160), 80, LogitsWanted::Last).unwrap();
            for id in ids(9) {
                session.decode(id).unwrap();
            }
            let rows = model.explain();
            let of_experts: Vec<_> = rows
                .iter()
                .filter(|row| row.name.contains("_exps") || row.name.contains("_inp"))
                .collect();
            assert_eq!(of_experts.len(), 7 * 4);
            for row in of_experts {
                let found = (row.prefill.n_launches, row.decode.n_launches);
                // In the last layer the wanted row alone goes to experts.
                let expected = if row.name.starts_with("blk.6.") { (0, 10) } else { (2, 9) };
                assert_eq!(found, expected, "{planes}, {prefill:?}: {row:?}");
                if row.name.contains("_inp") {
                    assert_eq!(row.prefill.kernel, "moe_logits", "{row:?}");
                    continue;
                }
                assert!(row.prefill.kernel.starts_with(many), "{planes}, {prefill:?}: {row:?}");
                assert!(row.decode.kernel.starts_with(few), "{planes}, {prefill:?}: {row:?}");
                assert_eq!(row.prefill.label, label, "{planes}, {prefill:?}: {row:?}");
            }
        });
    }
}

/// Experts with tensors of their own that differ in type, as in Mixtral files of 2023, and those in a
/// base that no kernel is made for: slow, said, and right.
fn experts_that_differ_in_type_agree_with_the_cpu() {
    use QuantType::{F16, Q4_K, Q5_K, Q6_K, Q8_0};
    for (quants, planes) in [
        (&[Q4_K, Q6_K] as &[_], "none"),
        (&[Q4_K, F16], "default"),
        (&[Q4_K, Q6_K, Q8_0], "planar"),
        (&[Q4_K, Q5_K], "cuda-fast"),
        (&[Q4_K], "cpu-fast"),
        (&[Q4_K, Q6_K, Q8_0], "cpu-fast"),
    ] {
        let gguf = tiny_mixtral(quants, true).build();
        let expected = on_cpu(&pack(&gguf, "none"), &ids(N_TOKENS));
        for (prefill, close) in [(Prefill::Mmq, CLOSE_BF16), (Prefill::Bf16, CLOSE_BF16)] {
            on_gpu(&pack(&gguf, planes), &options(prefill), true, |model| {
                for n_batch in [64, 3, 1] {
                    let found = logits(model, &ids(N_TOKENS), n_batch);
                    let what = format!("{quants:?}, {planes}, {prefill:?}, batches of {n_batch}");
                    assert_agree(&what, &found, &expected, close, N_CLOSE);
                }
                let rows = model.explain();
                let mut experts = rows.iter().filter(|row| row.name.contains(".ffn_gate."));
                let any = |row: &runtime::report::MatmulReport| {
                    row.decode.kernel == "gemv_experts_any"
                        && row.decode.reason.contains("slowly")
                        && row.decode.n_launches > 0
                };
                assert!(experts.any(any), "{quants:?}, {planes}: {rows:?}");
            });
        }
    }
}
