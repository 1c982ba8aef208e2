//! Tokenizer keys that are wrong on purpose, tables that are, and round trips of any text.

use std::time::{Duration, Instant};

use format_spec::vocab::{Attr, BakeOptions, Baked, Special, VocabView, bake, byte_to_char};
use format_spec::{Error, Gguf};
use proptest::prelude::*;
use runtime::tokenizer::Tokenizer;
use tests::gguf_writer::GgufBuilder;

use crate::vocab::tables;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const EOS: &str = "tokenizer.ggml.eos_token_id";

/// Id of the first of the words of [`spm`].
const FIRST: u32 = 259;

/// A SentencePiece vocabulary: `<unk>`, `<s>`, `</s>`, the 256 bytes, then (string, type, score).
fn spm(words: &[(&str, i32, f32)]) -> GgufBuilder {
    let mut rows: Vec<(String, i32, f32)> =
        vec![("<unk>".into(), 2, 0.0), ("<s>".into(), 3, 0.0), ("</s>".into(), 3, 0.0)];
    rows.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 6, 0.0)));
    rows.extend(words.iter().map(|&(text, ty, score)| (text.to_owned(), ty, score)));
    let texts: Vec<_> = rows.iter().map(|row| &row.0).collect();
    GgufBuilder::new()
        .kv_str("tokenizer.ggml.model", "llama")
        .kv_bool("tokenizer.ggml.add_space_prefix", false)
        .kv_strs(TOKENS, &texts)
        .kv_i32s(TYPES, &rows.iter().map(|row| row.1).collect::<Vec<_>>())
        .kv_f32s(SCORES, &rows.iter().map(|row| row.2).collect::<Vec<_>>())
}

/// A byte-level vocabulary: the 256 bytes, then `words`; all normal tokens.
fn bpe(words: &[&str], merges: &[&str]) -> GgufBuilder {
    let mut texts: Vec<String> = (0..=255).map(|byte| byte_to_char(byte).to_string()).collect();
    texts.extend(words.iter().map(|&word| word.to_owned()));
    GgufBuilder::new()
        .kv_str("tokenizer.ggml.model", "gpt2")
        .kv_str("tokenizer.ggml.pre", "gpt-2")
        .kv_strs(TOKENS, &texts)
        .kv_strs(MERGES, merges)
}

fn baked(builder: &GgufBuilder) -> Result<Baked, Error> {
    let bytes = builder.build();
    let gguf = Gguf::parse(&bytes).unwrap();
    bake(gguf.metadata(), &BakeOptions::default()).map(Option::unwrap)
}

fn ids(builder: &GgufBuilder, text: &str) -> Vec<u32> {
    let baked = baked(builder).unwrap();
    Tokenizer::from(VocabView::new(&baked.bytes).unwrap()).encode(text, false, false)
}

/// Baking fails, and the message names `what`.
fn refused(builder: &GgufBuilder, what: &str) {
    let message = baked(builder).unwrap_err().to_string();
    assert!(message.contains(what), "{what}: {message}");
}

#[test]
fn arrays_of_a_wrong_type_or_length_are_refused_by_name() {
    let all = spm(&[("a", 1, 0.0)]);
    for key in [TOKENS, TYPES, SCORES] {
        let base = || all.clone().without_kv(key);
        refused(&base().kv_str(key, "x"), key);
        refused(&base().kv_u32(key, 1), key);
        refused(&base().kv_u8s(key, &[1; 300]), key);
        refused(&base().kv_bools(key, &[true; 300]), key);
        refused(&base().kv_f64s(key, &[1.0; 300]), key);
        if key != TOKENS {
            refused(&base().kv_strs(key, &["x"; 300]), key);
            refused(&base().kv_i32s(key, &[1; 259]), key);
        }
    }
    refused(&all.clone().without_kv(TOKENS), TOKENS);
    refused(&all.clone().without_kv(TOKENS).kv_strs::<&str>(TOKENS, &[]), TOKENS);
    refused(&all.clone().without_kv(SCORES).kv_f32s(SCORES, &[f32::NAN; 300]), SCORES);
    refused(&all.clone().kv_str("tokenizer.ggml.add_bos_token", "yes"), "add_bos_token");
    refused(&all.clone().kv_i32(EOS, -1), EOS);
    // Longer arrays, integer scores and none at all load, as in llama.cpp.
    let longer = all.clone().without_kv(SCORES).kv_i32s(SCORES, &[1; 300]);
    for builder in [longer, all.clone().without_kv(SCORES), all.clone().without_kv(TYPES)] {
        assert_eq!(ids(&builder, "a"), [FIRST]);
    }
    let words = bpe(&["ab"], &["a b"]);
    refused(&words.clone().without_kv(MERGES), MERGES);
    refused(&words.without_kv(MERGES).kv_u8s(MERGES, &[1]), MERGES);
}

#[test]
fn unknown_tokenizers_and_pre_tokenizers_are_refused_by_name() {
    let model = |name: &str| {
        spm(&[]).without_kv("tokenizer.ggml.model").kv_str("tokenizer.ggml.model", name)
    };
    refused(&model("t5"), "'t5'");
    refused(&model("llama\u{0}"), "tokenizer.ggml.model");
    let base = bpe(&[], &[]).without_kv("tokenizer.ggml.pre");
    refused(&base.clone().kv_str("tokenizer.ggml.pre", "no-such-pre"), "'no-such-pre'");
    // A missing one is llama.cpp's default, with a warning.
    let missing = baked(&base).unwrap();
    assert!(missing.warnings.iter().any(|warning| warning.contains("tokenizer.ggml.pre")));
    assert_eq!(VocabView::new(&missing.bytes).unwrap().pre(), "default");
    // --pre says which to take instead.
    let bytes = base.kv_str("tokenizer.ggml.pre", "no-such-pre").build();
    let options = BakeOptions { pre: Some("qwen2".into()), ..BakeOptions::default() };
    let chosen = bake(Gguf::parse(&bytes).unwrap().metadata(), &options).unwrap().unwrap();
    assert_eq!(VocabView::new(&chosen.bytes).unwrap().pre(), "qwen2");
    // No tokenizer at all is no error here.
    let none = GgufBuilder::new().build();
    let none = bake(Gguf::parse(&none).unwrap().metadata(), &BakeOptions::default());
    assert!(none.unwrap().is_none());
}

#[test]
fn special_ids_out_of_range_are_ignored_with_a_warning() {
    for id in [260, u32::MAX] {
        let baked = baked(&spm(&[("a", 1, 0.0)]).kv_u32(EOS, id)).unwrap();
        assert!(baked.warnings.iter().any(|warning| warning.contains(EOS)), "{:?}", baked.warnings);
        // The default of the kind stands.
        assert_eq!(VocabView::new(&baked.bytes).unwrap().special(Special::Eos), Some(2));
    }
    // Where the default itself does not exist there is none.
    let one = GgufBuilder::new().kv_str("tokenizer.ggml.model", "llama").kv_strs(TOKENS, &["a"]);
    let baked = baked(&one).unwrap();
    let view = VocabView::new(&baked.bytes).unwrap();
    assert_eq!((view.special(Special::Bos), view.special(Special::Eos)), (None, None));
    let tokenizer = Tokenizer::from(view);
    assert!(!tokenizer.add_bos());
    assert_eq!(tokenizer.encode("", false, true), [0u32; 0]);
    // The space prefix and 'b' cannot be expressed: the unknown token, which is token 0, stands for them.
    assert!(tokenizer.encode("b", true, true).iter().all(|&id| id == 0));
}

#[test]
fn odd_tokens_load() {
    let long = "x".repeat(100_000);
    let words = [
        ("<0x-1>", 6, 0.0),
        ("<0xZZ>", 6, 0.0),
        ("<0x100>", 6, 0.0),
        ("", 1, 0.0),
        (long.as_str(), 4, 0.0),
        ("twin", 4, 0.0),
        ("twin", 4, 0.0),
    ];
    let baked = baked(&spm(&words)).unwrap();
    assert_eq!(baked.warnings.iter().filter(|w| w.contains("names no byte")).count(), 3);
    assert!(baked.warnings.iter().any(|w| w.contains("is empty")));
    let view = VocabView::new(&baked.bytes).unwrap();
    let tokenizer = Tokenizer::from(view);
    assert_eq!(view.piece(FIRST), b"<0x-1>");
    assert_eq!(view.piece(FIRST + 3), b"");
    let start = Instant::now();
    assert_eq!(tokenizer.encode(&long, false, false), [FIRST + 4]);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(tokenizer.piece(FIRST + 4).len(), 100_000);
    // Of equal strings the last is found.
    assert_eq!(view.token(b"twin"), Some(FIRST + 6));
    assert_eq!(view.piece(3 + 0x41), b"A");
}

#[test]
fn text_never_merges_into_a_control_token() {
    // Each step up to the control token is a token of its own, so that merges lead to it.
    let steps = [("<|", 1, 1.0), ("<|x", 1, 2.0), ("<|x|", 1, 3.0), ("<|x|>", 3, 4.0)];
    let text = "<|x|>";
    assert_eq!(ids(&spm(&steps), text), [FIRST + 2, 3 + u32::from(b'>')]);
    let merges = ["< |", "<| x", "<|x |", "<|x| >"];
    let control = bpe(&["<|", "<|x", "<|x|", "<|x|>"], &merges)
        .without_kv("tokenizer.ggml.pre")
        .kv_str("tokenizer.ggml.pre", "gemma4")
        .kv_i32s(TYPES, &[vec![1; 259], vec![3]].concat());
    let got = ids(&control, text);
    assert!(!got.contains(&259), "{got:?}");
    // As a normal token it is reached: the test can fail.
    let normal = control.without_kv(TYPES);
    assert_eq!(ids(&normal, text), [259]);
}

#[test]
fn user_defined_tokens_are_found_in_any_text_and_control_tokens_only_where_asked() {
    let words = [("<think>", 4, 0.0), ("<|end|>", 3, 0.0), ("a", 1, 0.0), ("<think", 4, 0.0)];
    let baked = baked(&spm(&words)).unwrap();
    let tokenizer = Tokenizer::from(VocabView::new(&baked.bytes).unwrap());
    let text = "a<think>a<|end|>";
    let plain = tokenizer.encode(text, false, false);
    assert_eq!(plain[..3], [FIRST + 2, FIRST, FIRST + 2]);
    assert!(!plain.contains(&(FIRST + 1)));
    assert_eq!(tokenizer.encode(text, true, false), [FIRST + 2, FIRST, FIRST + 2, FIRST + 1]);
    assert!(tokenizer.is_eog(FIRST + 1) && tokenizer.vocab().attr(FIRST).any(Attr::USER_DEFINED));
    assert_eq!(tokenizer.decode(&plain), text);
}

/// Everything that a tokenizer does, with tables that nobody vouches for.
fn use_all(view: VocabView<'_>) {
    let tokenizer = Tokenizer::from(view);
    for text in ["", "a b", "abab\u{e9}\n<|x|><s>", "\u{2581}\u{1f999}"] {
        for parse_special in [false, true] {
            let ids = tokenizer.encode(text, parse_special, true);
            assert!(ids.iter().all(|&id| id < tokenizer.n_tokens()));
            let _ = tokenizer.decode(&ids);
        }
    }
    for id in [0, tokenizer.n_tokens() - 1, tokenizer.n_tokens(), u32::MAX] {
        let _ = (tokenizer.piece(id), tokenizer.is_eog(id), view.text(id), view.score(id));
    }
}

#[test]
fn damaged_tables_are_refused_or_harmless() {
    let spm = spm(&[("ab", 1, 1.0), ("<|x|>", 3, 0.0), ("\u{2581}b", 4, 0.0)]);
    let bpe = bpe(&["ab", "abab"], &["a b", "ab ab", "q z"]);
    for builder in [spm, bpe] {
        let bytes = baked(&builder).unwrap().bytes;
        use_all(VocabView::new(&bytes).unwrap());
        for n_bytes in 0..bytes.len() {
            assert!(VocabView::new(&bytes[..n_bytes]).is_err(), "{n_bytes} bytes");
        }
        assert!(VocabView::new(&[bytes.as_slice(), &[0]].concat()).is_err());
        let mut n_refused = 0;
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                match VocabView::new(&damaged) {
                    Ok(view) => use_all(view),
                    Err(_) => n_refused += 1,
                }
            }
        }
        assert!(n_refused > bytes.len() / 4, "{n_refused} of {}", bytes.len());
    }
}

#[test]
fn baking_is_deterministic() {
    let builder = bpe(&["ab"], &["a b", "x y", "xy z"]);
    assert_eq!(baked(&builder).unwrap().bytes, baked(&builder).unwrap().bytes);
}

#[test]
fn any_text_comes_back() {
    for name in ["gpt-2", "llama-bpe", "qwen2", "llama-spm"] {
        let tables = tables(name);
        let tokenizer = Tokenizer::from(VocabView::new(&tables).unwrap());
        let config =
            ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) };
        let text = prop_oneof![any::<String>(), "[ a-z'\n\t0-9<|>_\u{a0}\u{301}]{0,80}"];
        proptest!(config, |(text in text)| {
            // U+2581 is how a SentencePiece vocabulary writes a space.
            prop_assume!(name != "llama-spm" || !text.contains('\u{2581}'));
            let ids = tokenizer.encode(&text, false, false);
            prop_assert_eq!(tokenizer.decode(&ids), text.clone());
            prop_assert!(ids.iter().all(|&id| !tokenizer.is_control(id)));
        });
    }
}
