//! Any container runs on a GPU in any way, and says what the CPU says.

use crate::Test;
use crate::model::{all_logits, divergence, on_gpu, options};
use format_spec::QuantType;
use format_spec::container::Container;
use runtime::{LoadOptions, Model, Prefill};
use tests::packing::pack;
use tests::tiny_model::tiny_model;

pub(crate) const TESTS: &[Test] = &[
    ("every_container_says_the_same", every_container_says_the_same),
    ("every_type_says_the_same", every_type_says_the_same),
];

/// Batches that take the kernels of few tokens, of some, and of many.
const BATCHES: [usize; 5] = [1, 4, 5, 37, 100];

fn check(architecture: &str, quants: &[QuantType], planes: &[&str], most: f64) {
    let gguf = tiny_model(architecture, quants).build();
    let expected = {
        let file = pack(&gguf, "none");
        let container = Container::parse(&file).unwrap();
        let cpu = Model::open(&file, &container, &LoadOptions::default()).unwrap();
        all_logits(&cpu, 100, 64)
    };
    let n_vocab = expected.len() / 100;
    for &planes in planes {
        let file = pack(&gguf, planes);
        for prefill in [Prefill::Auto, Prefill::Mmq, Prefill::Bf16] {
            on_gpu(&file, &options(prefill), true, |model| {
                for n_batch in BATCHES {
                    let found = all_logits(model, 100, n_batch);
                    let what =
                        format!("{architecture} {quants:?} {planes} {prefill:?} -b {n_batch}");
                    assert!(found.iter().all(|logit| logit.is_finite()), "{what}");
                    let kl = divergence(&expected, &found, n_vocab);
                    assert!(kl <= most, "{what}: mean KL {kl}");
                }
            });
        }
    }
}

fn every_container_says_the_same() {
    let planes =
        ["none", "default", "planar", "cuda-fast", "padded,bf16", "padded,planar,exp", "cpu-fast"];
    for architecture in ["llama", "qwen2", "gemma3"] {
        check(architecture, &[QuantType::Q4_K, QuantType::Q6_K], &planes, 0.001);
    }
}

fn every_type_says_the_same() {
    for &quant in QuantType::ALL {
        check("llama", &[quant], &["default", "cuda-fast"], 0.002);
    }
    // Floats beside quantized ones: two forms of one operand.
    check("qwen2", &[QuantType::Q4_K, QuantType::F16, QuantType::Q5_0], &["default"], 0.002);
}
