//! Tokenizers: llama.cpp's own vocabulary tests, round trips, hostile tables.

use std::path::{Path, PathBuf};

use format_spec::Gguf;
use format_spec::vocab::{BakeOptions, Special, VocabView, bake};
use lzma_rust2::XzReader;
use runtime::tokenizer::Tokenizer;

/// The vocabularies of `golden/vocab`.
const NAMES: [&str; 5] = ["gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"];

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/vocab").join(file)
}

/// The baked tables of a golden vocabulary.
pub(crate) fn tables(name: &str) -> Vec<u8> {
    let packed = std::fs::read(golden(&format!("{name}.gguf.xz"))).unwrap();
    let mut gguf = Vec::new();
    std::io::copy(&mut XzReader::new(packed.as_slice(), false), &mut gguf).unwrap();
    let gguf = Gguf::parse(&gguf).unwrap();
    bake(gguf.metadata(), &BakeOptions::default()).unwrap().unwrap().bytes
}

/// Inputs and expected ids, made by llama.cpp.
fn cases(name: &str) -> Vec<(String, Vec<u32>)> {
    let inputs = std::fs::read_to_string(golden(&format!("{name}.inp"))).unwrap();
    let ids = std::fs::read_to_string(golden(&format!("{name}.out"))).unwrap();
    let inputs = inputs.strip_suffix("\n__ggml_vocab_test__\n").unwrap();
    let cases: Vec<_> = inputs
        .split("\n__ggml_vocab_test__\n")
        .map(str::to_owned)
        .zip(
            ids.lines().map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect()),
        )
        .collect();
    assert_eq!(cases.len(), ids.lines().count(), "{name}");
    cases
}

#[test]
fn ids_are_llama_cpps() {
    for name in NAMES {
        let tables = tables(name);
        let tokenizer = Tokenizer::from(VocabView::new(&tables).unwrap());
        let cases = cases(name);
        assert!(cases.len() > 40, "{name}: {}", cases.len());
        for (text, ids) in cases {
            assert_eq!(tokenizer.encode(&text, false, false), ids, "{name}: {text:?}");
            let add_bos = tokenizer.encode(&text, false, true);
            assert_eq!(add_bos[usize::from(tokenizer.add_bos())..], ids, "{name}: {text:?}");
        }
        assert!(tokenizer.special(Special::Eos).is_some_and(|eos| tokenizer.is_eog(eos)));
    }
}
