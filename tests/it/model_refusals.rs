//! Models that cannot run are refused with the key or tensor, what is expected and what is there.

use format_spec::QuantType;
use format_spec::container::Container;
use runtime::{Error, LoadOptions, LogitsWanted, Model, Session};
use std::ops::ControlFlow;
use tests::gguf_writer::GgufBuilder;
use tests::packing::pack;
use tests::tiny_model::{tiny_mixtral, tiny_model};

fn tiny(architecture: &str) -> GgufBuilder {
    tiny_model(architecture, &[QuantType::Q8_0])
}

/// The message with which a model is refused.
fn refusal(gguf: GgufBuilder) -> String {
    let file = pack(&gguf.build(), "none");
    let container = Container::parse(&file).unwrap();
    match Model::open(&file, &container, &LoadOptions::default()) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// The file without `key`, if it has it.
fn replace(mut gguf: GgufBuilder, key: &str) -> GgufBuilder {
    gguf.kvs_mut().retain(|kv| kv.key != key.as_bytes());
    gguf
}

fn accepted(gguf: GgufBuilder) -> bool {
    refusal(gguf) == "accepted"
}

#[test]
fn a_valid_model_is_accepted() {
    for architecture in format_spec::model::ARCHITECTURES {
        assert!(accepted(tiny(architecture)), "{architecture}");
    }
}

#[test]
fn an_unknown_architecture_is_refused_by_name() {
    let expected = "architecture \"mamba\" is not supported \
                    (supported: llama, qwen2, qwen3, qwen3moe, gemma3)";
    assert_eq!(refusal(tiny("mamba")), expected);
    assert_eq!(
        refusal(tiny("llama").without_kv("general.architecture")),
        "key general.architecture: expected the name of an architecture, found nothing"
    );
}

#[test]
fn hyper_parameters_that_no_model_has_are_refused() {
    let cases = [
        ("block_count", 0, "1 to 16777216"),
        ("block_count", 512, "at most the 65 tensors there are"),
        ("block_count", u32::MAX, "1 to 16777216"),
        ("context_length", 0, "1 to 1073741824"),
        ("embedding_length", 0, "1 to 16777216"),
        ("feed_forward_length", 0, "1 to 16777216"),
        ("attention.head_count", 0, "1 to 16777216"),
        ("attention.head_count_kv", 0, "1 to 16777216"),
        ("attention.head_count_kv", 3, "a divisor of 4 query heads"),
        ("attention.key_length", 0, "1 to 16777216"),
        ("attention.key_length", 60, "a multiple of 16 (a head has 60 elements)"),
        ("attention.value_length", 64, "128, as for keys"),
        ("rope.dimension_count", 0, "1 to 16777216"),
        ("rope.dimension_count", 130, "an even number up to 128"),
        ("rope.dimension_count", 3, "an even number up to 128"),
    ];
    for (key, value, expected) in cases {
        let full = format!("llama.{key}");
        let file = replace(tiny("llama"), &full).kv_u32(&full, value);
        assert_eq!(refusal(file), format!("key {full}: expected {expected}, found u32 {value}"));
    }
}

#[test]
fn experts_that_no_model_has_are_refused() {
    let with = |key: &str, value: u32| {
        let full = format!("qwen3moe.{key}");
        refusal(replace(tiny("qwen3moe"), &full).kv_u32(&full, value))
    };
    for (key, value, expected) in [
        ("expert_count", 0, "1 to 512"),
        ("expert_count", 513, "0 to 512"),
        ("expert_count", u32::MAX, "0 to 512"),
        ("expert_used_count", 0, "1 to 5"),
        ("expert_used_count", 6, "1 to 5"),
        ("expert_feed_forward_length", 0, "1 to 16777216"),
        ("expert_group_count", 2, "0 or 1 (groups are not supported)"),
    ] {
        let message = format!("key qwen3moe.{key}: expected {expected}, found u32 {value}");
        assert_eq!(with(key, value), message);
    }
    assert_eq!(with("expert_group_count", 1), "accepted");
    let without = |key: &str| refusal(tiny("qwen3moe").without_kv(&format!("qwen3moe.{key}")));
    assert_eq!(
        without("expert_used_count"),
        "key qwen3moe.expert_used_count: expected 1 to 5 (of the experts), found nothing"
    );
    // A share of the feed-forward network, 512 wide, for each of two experts: what the file has.
    assert_eq!(without("expert_feed_forward_length"), "accepted");
    // Shapes follow from the keys.
    assert_eq!(
        with("expert_count", 4),
        "tensor blk.0.ffn_gate_inp.weight: expected [4, 256], found [5, 256]"
    );
    assert_eq!(
        with("expert_feed_forward_length", 128),
        "tensor blk.0.ffn_gate_exps.weight: expected [640, 256], found [1280, 256]"
    );
}

#[test]
fn experts_are_refused_where_the_architecture_has_none() {
    for architecture in ["qwen2", "qwen3", "gemma3"] {
        let key = format!("{architecture}.expert_count");
        assert!(accepted(tiny(architecture).kv_u32(&key, 0)));
        let message = refusal(tiny(architecture).kv_u32(&key, 8));
        let expected = "expected 0 (the architecture has no experts), found u32 8";
        assert_eq!(message, format!("key {key}: {expected}"));
    }
    // `llama` may have some: then they must be there.
    let file = tiny("llama").kv_u32("llama.expert_count", 4);
    assert_eq!(
        refusal(file.kv_u32("llama.expert_used_count", 2)),
        "tensor blk.0.ffn_gate_inp.weight: expected [4, 256], found nothing"
    );
}

#[test]
fn experts_in_tensors_of_their_own_are_counted() {
    let mixtral = || tiny_mixtral(&[QuantType::Q8_0], true);
    assert!(accepted(mixtral()));
    let key = "llama.expert_count";
    let message = refusal(replace(mixtral(), key).kv_u32(key, 512));
    let expected = "expected a number of which 7 layers have tensors of their own";
    assert!(message.starts_with(&format!("key {key}: {expected} (there are ")), "{message}");
    let mut file = mixtral();
    file.tensors_mut().retain(|tensor| tensor.name != b"blk.3.ffn_up.4.weight");
    assert_eq!(refusal(file), "tensor blk.3.ffn_up.4.weight: expected [512, 256], found nothing");
}

#[test]
fn required_keys_are_required() {
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ] {
        let full = format!("qwen2.{key}");
        let message = refusal(tiny("qwen2").without_kv(&full));
        let (start, end) = (format!("key {full}: expected "), ", found nothing");
        assert!(message.starts_with(&start) && message.ends_with(end), "{message}");
    }
}

#[test]
fn floats_that_no_model_has_are_refused() {
    for (key, value) in [
        ("attention.layer_norm_rms_epsilon", f32::NAN),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("rope.freq_base", -1.0),
        ("rope.freq_base", f32::INFINITY),
        ("rope.scaling.factor", f32::NAN),
    ] {
        let full = format!("llama.{key}");
        let message = refusal(replace(tiny("llama"), &full).kv_f32(&full, value));
        let start = format!("key {full}: expected a finite number above 0, found ");
        assert!(message.starts_with(&start), "{message}");
    }
}

#[test]
fn rope_scaling_of_an_unknown_type_is_refused() {
    let with = |kind: &str| tiny("llama").kv_str("llama.rope.scaling.type", kind);
    assert!(accepted(with("none")));
    assert!(accepted(with("linear")));
    assert!(accepted(with("yarn")));
    let message = refusal(with("spiral"));
    assert!(message.starts_with("key llama.rope.scaling.type: expected none"), "{message}");
}

#[test]
fn counts_may_be_given_once_a_layer_if_they_agree() {
    let key = "llama.attention.head_count_kv";
    assert!(accepted(tiny("llama").without_kv(key).kv_u32s(key, &[2; 7])));
    let message = refusal(tiny("llama").without_kv(key).kv_u32s(key, &[2, 2, 2, 2, 2, 2, 1]));
    assert!(message.contains("one number, the same for all 7 layers"), "{message}");
    assert!(!accepted(tiny("llama").without_kv(key).kv_u32s(key, &[2; 6])));
    assert!(!accepted(tiny("llama").without_kv(key).kv_u32s(key, &[0; 7])));
}

#[test]
fn a_bias_without_its_matrix_is_refused() {
    let bias: Vec<u8> = (0..96).flat_map(|_| 1.0f32.to_le_bytes()).collect();
    let file = tiny("llama").tensor("output.bias", &[96], QuantType::F32, &bias);
    assert_eq!(
        refusal(file),
        "tensor output.bias: expected nothing (there is no output.weight), found [96]"
    );
}

#[test]
fn each_missing_tensor_is_named() {
    for architecture in format_spec::model::ARCHITECTURES {
        let n_tensors = tiny(architecture).tensors_mut().len();
        for i in 0..n_tensors {
            let mut file = tiny(architecture);
            let tensor = file.tensors_mut().remove(i);
            let name = String::from_utf8(tensor.name).unwrap();
            let message = refusal(file);
            if name.ends_with(".bias") {
                assert_eq!(message, "accepted", "biases are optional");
            } else {
                let start = format!("tensor {name}: expected [");
                assert!(message.starts_with(&start), "{message}");
                assert!(message.ends_with(", found nothing"), "{message}");
            }
        }
    }
}

#[test]
fn a_tensor_of_another_shape_is_refused() {
    let mut file = tiny("llama");
    let is_down = |name: &[u8]| name == b"blk.3.ffn_down.weight";
    let tensor = file.tensors_mut().iter_mut().find(|t| is_down(&t.name)).unwrap();
    tensor.dims.reverse();
    assert_eq!(
        refusal(file),
        "tensor blk.3.ffn_down.weight: expected [256, 512], found [512, 256]"
    );
}

#[test]
fn a_tensor_that_the_architecture_does_not_know_is_refused() {
    let file = tiny("llama").tensor("blk.0.extra.weight", &[4], QuantType::F32, &[0; 16]);
    assert_eq!(
        refusal(file),
        "tensor blk.0.extra.weight: expected nothing (the architecture has no such tensor), \
         found [4]"
    );
}

#[test]
fn a_vocabulary_and_an_embedding_must_fit() {
    let tokens = |n: usize| (0..n).map(|i| format!("t{i}")).collect::<Vec<_>>();
    let with = |n: usize| tiny("llama").kv_strs("tokenizer.ggml.tokens", &tokens(n));
    assert_eq!(
        refusal(with(97)),
        "tensor token_embd.weight: expected a row for each of 97 tokens, found 96 rows"
    );
    let file = pack(&with(90).build(), "none");
    let container = Container::parse(&file).unwrap();
    let model = Model::open(&file, &container, &LoadOptions::default()).unwrap();
    assert_eq!((model.n_vocab(), model.n_tokens()), (96, 90), "six rows are padding");
}

#[test]
fn calls_that_cannot_be_served_change_nothing() {
    let file = pack(&tiny("llama").build(), "none");
    let container = Container::parse(&file).unwrap();
    let model = Model::open(&file, &container, &LoadOptions::default()).unwrap();
    let mut session = Session::new(&model, 4).unwrap();
    let refused = |result: runtime::Result<&[f32]>| match result {
        Ok(_) => panic!("must be refused"),
        Err(error) => error,
    };
    assert!(matches!(refused(session.prefill(&[], 8, LogitsWanted::Last)), Error::NoTokens));
    let error = refused(session.prefill(&[1, 96], 8, LogitsWanted::Last));
    assert!(matches!(error, Error::TokenOutOfRange { token: 96, n_vocab: 96 }));
    let error = refused(session.prefill(&[1; 5], 8, LogitsWanted::Last));
    assert!(matches!(error, Error::ContextFull { n_past: 0, n_tokens: 5, n_ctx: 4 }));
    assert_eq!(session.n_past(), 0);
    session.prefill(&[1; 4], 8, LogitsWanted::Last).unwrap();
    let error = refused(session.decode(1));
    assert!(matches!(error, Error::ContextFull { n_past: 4, n_tokens: 1, n_ctx: 4 }));
    session.truncate(0);
    let mut stop = |_: usize, _: &[f32]| ControlFlow::Break(());
    let error = refused(session.prefill(&[1; 4], 2, LogitsWanted::all(&mut stop)));
    assert!(matches!(error, Error::Stopped));
    assert_eq!(session.n_past(), 2, "the batch before the stop is kept");
}

#[test]
fn a_huge_context_takes_no_memory_until_it_is_used() {
    let file = pack(&tiny("llama").build(), "none");
    let container = Container::parse(&file).unwrap();
    let model = Model::open(&file, &container, &LoadOptions::default()).unwrap();
    let mut session = Session::new(&model, usize::MAX / 2).unwrap();
    session.prefill(&[1; 300], 512, LogitsWanted::Last).unwrap();
    let per_token = model.memory().kv_bytes_per_token;
    assert_eq!(per_token, 7 * 2 * 2 * 128 * 2);
    assert!(session.cache_bytes() <= 1024 * per_token, "{}", session.cache_bytes());
}
