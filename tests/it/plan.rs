//! What the packer says that a model costs, where it depends on the architecture.

use format_spec::QuantType;
use preprocess::{Input, Packer, PlaneSet};
use tests::gguf_writer::GgufBuilder;
use tests::tiny_model::{tiny_mixtral, tiny_model};

/// Bytes read for a decoded token.
fn token_bytes(gguf: GgufBuilder) -> u64 {
    let gguf = gguf.build();
    let len = gguf.len() as u64;
    let input = Input::open(gguf, len).unwrap();
    let packer = Packer::new(&input, &PlaneSet::default()).unwrap();
    packer.plan().figures().total(|row| row.token_bytes)
}

#[test]
fn a_token_reads_the_experts_that_it_goes_to() {
    let with = |mut gguf: GgufBuilder, architecture: &str, n_used: u32| {
        let key = format!("{architecture}.expert_used_count");
        gguf.kvs_mut().retain(|kv| kv.key != key.as_bytes());
        token_bytes(gguf.kv_u32(&key, n_used))
    };
    // Seven layers of five experts, each three matrices of 256 rows of 256 elements: 272 bytes.
    let one = 7 * 3 * 256 * 272;
    let moe = |n_used| with(tiny_model("qwen3moe", &[QuantType::Q8_0]), "qwen3moe", n_used);
    for n_used in 1..5 {
        assert_eq!(moe(n_used + 1) - moe(n_used), one, "{n_used}");
    }
    // As stacks or each in tensors of its own; the names of a dense model are no experts'.
    let mixtral = |split, n_used| with(tiny_mixtral(&[QuantType::Q8_0], split), "llama", n_used);
    assert_eq!(mixtral(true, 2), mixtral(false, 2));
    assert_eq!(mixtral(true, 4) - mixtral(true, 2), 2 * 2 * one, "twice as wide");
    let dense = || tiny_model("llama", &[QuantType::Q8_0]);
    let counted = dense().kv_u32("llama.expert_count", 4);
    assert_eq!(with(counted, "llama", 2), token_bytes(dense()));
}
