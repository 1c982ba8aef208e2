//! Logits of tiny models against llama.cpp's (`golden/models/README.md`).

use format_spec::container::Container;
use runtime::{LoadOptions, LogitsWanted, Model, Session};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use tests::packing::pack;

/// Largest difference from llama.cpp's logits, in units of their standard deviation. The models'
/// weights are f32 on both sides; ours rounds keys and values to f16, which alone moves llama.cpp's
/// own logits of these models by 0.005 to 0.009. A wrong window, base or norm moves them by 1.
const TOLERANCE: f32 = 0.01;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/models").join(name)
}

fn ids() -> Vec<u32> {
    let text = std::fs::read(golden("ids.json")).unwrap();
    serde_json::from_slice::<Vec<u32>>(&text).unwrap()
}

fn floats(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(golden(name)).unwrap();
    bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
}

/// What f16 keys and values move llama.cpp's own logits of qwen3moe by.
const MIXED_TOLERANCE: f32 = 0.016;

/// Weights are quantized here, activations of 8 bits beside them; llama.cpp's own logits of such a
/// model are off by 0.06.
const QUANTIZED_TOLERANCE: f32 = 0.06;

fn check(name: &str) {
    check_against(name, name, TOLERANCE);
}

/// The logits of a model against those that stand in another's name.
fn check_against(name: &str, logits: &str, tolerance: f32) {
    let file = pack(&std::fs::read(golden(&format!("{name}.gguf"))).unwrap(), "default");
    let container = Container::parse(&file).unwrap();
    let model = Model::open(&file, &container, &LoadOptions::default()).unwrap();
    let expected = floats(&format!("{logits}.f32"));
    let mean = expected.iter().sum::<f32>() / expected.len() as f32;
    let variance = expected.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / expected.len() as f32;
    let mut session = Session::new(&model, 64).unwrap();
    let mut worst = (0.0f32, 0);
    let n_vocab = model.n_vocab();
    let mut n_seen = 0;
    let mut sink = |position: usize, logits: &[f32]| {
        n_seen += 1;
        for (ours, theirs) in logits.iter().zip(&expected[position * n_vocab..]) {
            assert!(ours.is_finite());
            let difference = (ours - theirs).abs() / variance.sqrt();
            if difference > worst.0 {
                worst = (difference, position);
            }
        }
        ControlFlow::Continue(())
    };
    session.prefill(&ids(), 16, LogitsWanted::all(&mut sink)).unwrap();
    assert_eq!(n_seen * n_vocab, expected.len());
    assert!(worst.0 < tolerance, "{name}: off by {} at position {}", worst.0, worst.1);
}

#[test]
fn llama_agrees_with_llama_cpp() {
    check("llama");
}

#[test]
fn llama_3_frequencies_and_linear_scaling_agree_with_llama_cpp() {
    check("llama3");
}

#[test]
fn qwen2_agrees_with_llama_cpp() {
    check("qwen2");
}

#[test]
fn yarn_agrees_with_llama_cpp() {
    check("yarn");
}

#[test]
fn gemma3_agrees_with_llama_cpp() {
    check("gemma3");
}

#[test]
fn qwen3_agrees_with_llama_cpp() {
    check("qwen3");
}

#[test]
fn qwen3moe_agrees_with_llama_cpp() {
    check_against("qwen3moe", "qwen3moe", MIXED_TOLERANCE);
}

#[test]
fn mixtral_agrees_with_llama_cpp() {
    check("mixtral");
}

/// llama.cpp reads such files no more: the logits are those of the same weights in stacks.
#[test]
fn experts_in_tensors_of_their_own_agree_with_llama_cpp() {
    check_against("mixtral_split", "mixtral", TOLERANCE);
}

#[test]
fn quantized_experts_agree_with_llama_cpp() {
    check_against("qwen3moe_quants", "qwen3moe_quants", QUANTIZED_TOLERANCE);
}
