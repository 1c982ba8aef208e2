//! Tiny random models of every architecture with weights of any quant type.

use crate::gguf_writer::GgufBuilder;
use format_spec::QuantType;

/// Rows of the embedding.
pub const N_VOCAB: u64 = 96;
const N_LAYER: u64 = 7;
const N_EMBD: u64 = 256;
const N_FF: u64 = 512;
const N_EXPERT: u64 = 5;
const N_EXPERT_USED: u64 = 2;
/// Inner width of an expert that is not as wide as a feed-forward network.
const N_FF_EXPERT: u64 = 256;
/// Query heads.
pub const N_HEAD: u64 = 4;
/// Key and value heads.
pub const N_HEAD_KV: u64 = 2;
/// Elements of a head: not `N_EMBD / N_HEAD`, so that nobody takes one for the other.
pub const HEAD_DIM: u64 = 128;

/// A generator of numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between -1 and 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// What stands in the second half of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    /// A feed-forward network.
    Dense,
    /// Experts of this inner width, one tensor for all.
    Stacked(u64),
    /// The same, a tensor each.
    Split(u64),
}

/// A valid model of `architecture` whose matrices take the quant types of `quants` in turn.
///
/// # Panics
/// If a type's blocks have no known place for their scale.
pub fn tiny_model(architecture: &str, quants: &[QuantType]) -> GgufBuilder {
    let second =
        if architecture == "qwen3moe" { Second::Stacked(N_FF_EXPERT) } else { Second::Dense };
    build(architecture, quants, second)
}

/// As [`tiny_model`], `llama` with experts in place of feed-forward networks: one tensor for those
/// of a layer or (`split`) a tensor each, as in files of 2023.
pub fn tiny_mixtral(quants: &[QuantType], split: bool) -> GgufBuilder {
    build("llama", quants, if split { Second::Split(N_FF) } else { Second::Stacked(N_FF) })
}

fn build(architecture: &str, quants: &[QuantType], second: Second) -> GgufBuilder {
    let mut random = Random(architecture.len() as u64);
    let key = |name: &str| format!("{architecture}.{name}");
    let mut file = GgufBuilder::new()
        .kv_str("general.architecture", architecture)
        .kv_u32(&key("block_count"), N_LAYER as u32)
        .kv_u32(&key("context_length"), 4096)
        .kv_u32(&key("embedding_length"), N_EMBD as u32)
        .kv_u32(&key("feed_forward_length"), N_FF as u32)
        .kv_u32(&key("attention.head_count"), N_HEAD as u32)
        .kv_u32(&key("attention.head_count_kv"), N_HEAD_KV as u32)
        .kv_u32(&key("attention.key_length"), HEAD_DIM as u32)
        .kv_u32(&key("attention.value_length"), HEAD_DIM as u32)
        .kv_f32(&key("attention.layer_norm_rms_epsilon"), 1e-6);
    if architecture == "gemma3" {
        file = file.kv_u32(&key("attention.sliding_window"), 5);
    }
    if second != Second::Dense {
        file = file
            .kv_u32(&key("expert_count"), N_EXPERT as u32)
            .kv_u32(&key("expert_used_count"), N_EXPERT_USED as u32);
    }
    if architecture == "qwen3moe" {
        file = file.kv_u32(&key("expert_feed_forward_length"), N_FF_EXPERT as u32);
    }
    let mut n_matrices = 0;
    let mut tensors: Vec<(String, Vec<u64>)> = vec![
        ("token_embd.weight".into(), vec![N_EMBD, N_VOCAB]),
        ("output_norm.weight".into(), vec![N_EMBD]),
    ];
    for layer in 0..N_LAYER {
        for (name, dims) in layer_tensors(architecture, second) {
            tensors.push((format!("blk.{layer}.{name}"), dims));
        }
    }
    for (name, dims) in tensors {
        let n_elems: u64 = dims.iter().product();
        let (quant, data) = if dims.len() == 1 {
            let base = if name.ends_with("bias") { 0.0 } else { 1.0 };
            let values = (0..n_elems).flat_map(|_| (base + 0.3 * random.unit()).to_le_bytes());
            (QuantType::F32, values.collect())
        } else if name.ends_with("ffn_gate_inp.weight") {
            // Never quantized; three times the gain, so that a token prefers some experts.
            let values = (0..n_elems).flat_map(|_| (0.3 * random.unit()).to_le_bytes());
            (QuantType::F32, values.collect())
        } else {
            n_matrices += 1;
            let quant = quants[n_matrices % quants.len()];
            (quant, weights(quant, n_elems, dims[0], &mut random))
        };
        file = file.tensor(&name, &dims, quant, &data);
    }
    file
}

/// Reproducible weights of a tensor, all of them finite.
///
/// # Panics
/// If the type's blocks have no known place for their scale.
pub fn random_weights(quant: QuantType, dims: &[u64], seed: u64) -> Vec<u8> {
    weights(quant, dims.iter().product(), dims.first().copied().unwrap_or(1), &mut Random(seed))
}

fn layer_tensors(architecture: &str, second: Second) -> Vec<(String, Vec<u64>)> {
    let (n_q, n_kv) = (N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM);
    let mut tensors = vec![
        ("attn_norm.weight", vec![N_EMBD]),
        ("attn_q.weight", vec![N_EMBD, n_q]),
        ("attn_k.weight", vec![N_EMBD, n_kv]),
        ("attn_v.weight", vec![N_EMBD, n_kv]),
        ("attn_output.weight", vec![n_q, N_EMBD]),
        ("ffn_norm.weight", vec![N_EMBD]),
    ];
    match architecture {
        "qwen2" => tensors.extend([
            ("attn_q.bias", vec![n_q]),
            ("attn_k.bias", vec![n_kv]),
            ("attn_v.bias", vec![n_kv]),
        ]),
        "qwen3" | "qwen3moe" => tensors.extend([
            ("attn_q_norm.weight", vec![HEAD_DIM]),
            ("attn_k_norm.weight", vec![HEAD_DIM]),
        ]),
        "gemma3" => tensors.extend([
            ("attn_q_norm.weight", vec![HEAD_DIM]),
            ("attn_k_norm.weight", vec![HEAD_DIM]),
            ("post_attention_norm.weight", vec![N_EMBD]),
            ("post_ffw_norm.weight", vec![N_EMBD]),
        ]),
        _ => (),
    }
    let mut tensors: Vec<(String, Vec<u64>)> =
        tensors.into_iter().map(|(name, dims)| (name.to_owned(), dims)).collect();
    if second != Second::Dense {
        tensors.push(("ffn_gate_inp.weight".to_owned(), vec![N_EMBD, N_EXPERT]));
    }
    for (part, is_down) in [("gate", false), ("up", false), ("down", true)] {
        let shape = |n_ff| if is_down { vec![n_ff, N_EMBD] } else { vec![N_EMBD, n_ff] };
        match second {
            Second::Dense => tensors.push((format!("ffn_{part}.weight"), shape(N_FF))),
            Second::Stacked(n_ff) => {
                let dims = [shape(n_ff), vec![N_EXPERT]].concat();
                tensors.push((format!("ffn_{part}_exps.weight"), dims));
            }
            Second::Split(n_ff) => tensors
                .extend((0..N_EXPERT).map(|i| (format!("ffn_{part}.{i}.weight"), shape(n_ff)))),
        }
    }
    tensors
}

/// Random weights of about unit gain over rows of `row_len`.
fn weights(quant: QuantType, n_elems: u64, row_len: u64, random: &mut Random) -> Vec<u8> {
    let gain = 1.7 / (row_len as f32).sqrt();
    let n_blocks = n_elems / quant.block_elems() as u64;
    let mut data = Vec::new();
    for _ in 0..n_blocks {
        match quant {
            QuantType::F32 => data.extend((gain * random.unit()).to_le_bytes()),
            QuantType::F16 => {
                data.extend(half::f16::from_f32(gain * random.unit()).to_le_bytes());
            }
            QuantType::BF16 => {
                data.extend(half::bf16::from_f32(gain * random.unit()).to_le_bytes());
            }
            _ => data.extend(block(quant, gain, random)),
        }
    }
    data
}

/// A block of random bytes, its scale set to what gives weights of magnitude `gain`, and its
/// minimum to what centres them.
fn block(quant: QuantType, gain: f32, random: &mut Random) -> Vec<u8> {
    let mut block: Vec<u8> =
        (0..quant.block_bytes()).map(|_| (random.next() >> 32) as u8).collect();
    // Where d stands, the largest centred quant times sub-scale; where the minimum stands and what
    // it must be in units of d.
    let (d_at, reach, min_at) = match quant {
        QuantType::Q4_0 => (0, 8.0, None),
        QuantType::Q5_0 => (0, 16.0, None),
        QuantType::Q8_0 => (0, 128.0, None),
        QuantType::Q4_1 => (0, 8.0, Some((2, -7.5))),
        QuantType::Q5_1 => (0, 16.0, Some((2, -15.5))),
        QuantType::Q2_K => (80, 30.0, Some((82, 1.5))),
        QuantType::Q3_K => (108, 128.0, None),
        QuantType::Q4_K => (0, 500.0, Some((2, 7.5))),
        QuantType::Q5_K => (0, 1000.0, Some((2, 15.5))),
        QuantType::Q6_K => (208, 4096.0, None),
        _ => panic!("{} has no known scale", quant.name()),
    };
    let d = gain / reach * (1.0 + 0.5 * random.unit());
    block[d_at..d_at + 2].copy_from_slice(&half::f16::from_f32(d).to_le_bytes());
    if let Some((at, factor)) = min_at {
        block[at..at + 2].copy_from_slice(&half::f16::from_f32(d * factor).to_le_bytes());
    }
    block
}

/// The smallest model that runs: one layer, an embedding of 32, 40 tokens with a byte-level
/// tokenizer of single letters. A container of it is a few pages long.
pub fn smallest_model() -> Vec<u8> {
    const N: u64 = 32;
    const N_TOKENS: u64 = 40;
    let mut random = Random(7);
    let letters: Vec<String> =
        (0..N_TOKENS as u8).map(|i| char::from(b'A' + i).to_string()).collect();
    let mut file = GgufBuilder::new()
        .kv_str("general.architecture", "llama")
        .kv_u32("llama.block_count", 1)
        .kv_u32("llama.context_length", 64)
        .kv_u32("llama.embedding_length", N as u32)
        .kv_u32("llama.feed_forward_length", N as u32)
        .kv_u32("llama.attention.head_count", 1)
        .kv_f32("llama.attention.layer_norm_rms_epsilon", 1e-6)
        .kv_str("tokenizer.ggml.model", "gpt2")
        .kv_str("tokenizer.ggml.pre", "gpt-2")
        .kv_strs("tokenizer.ggml.tokens", &letters)
        .kv_strs("tokenizer.ggml.merges", &["A B"; 0]);
    for (name, rows) in [
        ("token_embd.weight", N_TOKENS),
        ("output_norm.weight", 0),
        ("blk.0.attn_norm.weight", 0),
        ("blk.0.attn_q.weight", N),
        ("blk.0.attn_k.weight", N),
        ("blk.0.attn_v.weight", N),
        ("blk.0.attn_output.weight", N),
        ("blk.0.ffn_norm.weight", 0),
        ("blk.0.ffn_gate.weight", N),
        ("blk.0.ffn_up.weight", N),
        ("blk.0.ffn_down.weight", N),
    ] {
        if rows == 0 {
            let ones = (0..N).flat_map(|_| (1.0 + 0.3 * random.unit()).to_le_bytes());
            file = file.tensor(name, &[N], QuantType::F32, &ones.collect::<Vec<_>>());
        } else {
            let data = weights(QuantType::Q8_0, N * rows, N, &mut random);
            file = file.tensor(name, &[N, rows], QuantType::Q8_0, &data);
        }
    }
    file.build()
}

/// The model of the golden containers: one layer with matrices of the types that have planes, and a
/// byte-level tokenizer of 48 letters.
pub fn fixture_model() -> Vec<u8> {
    const N: u64 = 256;
    const N_TOKENS: u64 = 48;
    let mut random = Random(2026);
    let letters: Vec<String> =
        (0..N_TOKENS as u8).map(|i| char::from(b'A' + i).to_string()).collect();
    let mut file = GgufBuilder::new()
        .kv_str("general.architecture", "llama")
        .kv_str("general.name", "golden container")
        .kv_u32("llama.block_count", 1)
        .kv_u32("llama.context_length", 128)
        .kv_u32("llama.embedding_length", N as u32)
        .kv_u32("llama.feed_forward_length", 32)
        .kv_u32("llama.attention.head_count", 2)
        .kv_u32("llama.attention.head_count_kv", 1)
        .kv_u32("llama.attention.key_length", 32)
        .kv_u32("llama.attention.value_length", 32)
        .kv_u32("llama.rope.dimension_count", 32)
        .kv_u32("llama.vocab_size", N_TOKENS as u32)
        .kv_f32("llama.attention.layer_norm_rms_epsilon", 1e-6)
        .kv_str("tokenizer.ggml.model", "gpt2")
        .kv_str("tokenizer.ggml.pre", "gpt-2")
        .kv_strs("tokenizer.ggml.tokens", &letters)
        .kv_i32s("tokenizer.ggml.token_type", &[1; N_TOKENS as usize])
        .kv_strs("tokenizer.ggml.merges", &["A B"; 0])
        .kv_u32("tokenizer.ggml.eos_token_id", 0);
    use QuantType::{F32, Q4_K, Q5_K, Q6_K, Q8_0};
    let tensors: [(&str, &[u64], QuantType); 12] = [
        ("token_embd.weight", &[N, N_TOKENS], Q6_K),
        ("output_norm.weight", &[N], F32),
        ("output.weight", &[N, N_TOKENS], Q4_K),
        ("blk.0.attn_norm.weight", &[N], F32),
        ("blk.0.attn_q.weight", &[N, 64], Q4_K),
        ("blk.0.attn_k.weight", &[N, 32], Q6_K),
        ("blk.0.attn_v.weight", &[N, 32], Q5_K),
        ("blk.0.attn_output.weight", &[64, N], Q8_0),
        ("blk.0.ffn_norm.weight", &[N], F32),
        ("blk.0.ffn_gate.weight", &[N, 32], Q4_K),
        ("blk.0.ffn_up.weight", &[N, 32], Q6_K),
        ("blk.0.ffn_down.weight", &[32, N], Q8_0),
    ];
    for (name, dims, quant) in tensors {
        let data = if quant == F32 {
            (0..N).flat_map(|_| (1.0 + 0.3 * random.unit()).to_le_bytes()).collect()
        } else {
            weights(quant, dims.iter().product(), dims[0], &mut random)
        };
        file = file.tensor(name, dims, quant, &data);
    }
    file.build()
}
