//! The properties of the fuzz targets on the committed corpus, and on a fixed sequence of changes of
//! it: what a fuzzer does for hours, for seconds in every test run.

use std::fs;
use std::path::{Path, PathBuf};

use format_spec::QuantType;
use proptest::prelude::*;
use tests::gguf_writer::GgufBuilder;
use tests::packing::pack;
use tests::properties;
use tests::tiny_model::{random_weights, smallest_model};

type Property = fn(&[u8]);

/// The targets, each with how many changed inputs are tried in a test run.
const TARGETS: [(&str, Property, usize); 5] = [
    ("gguf", properties::gguf, 10_000),
    ("container", properties::container, 3000),
    ("tokenizer", properties::tokenizer, 10_000),
    ("template", properties::template, 400),
    ("planes", properties::planes, 1000),
];

fn corpus_dir(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

/// The committed corpus of a target, in the order of names.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = corpus_dir(target);
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let bytes = fs::read(&path).unwrap();
            (path.file_name().unwrap().to_string_lossy().into_owned(), bytes)
        })
        .collect()
}

/// xorshift64: the same changes in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// One of the things that fuzzers do to an input.
fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    const NUMBERS: [u64; 9] =
        [0, 1, 7, 32, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, u64::MAX];
    if bytes.is_empty() {
        bytes.push(random.below(256) as u8);
        return;
    }
    let at = random.below(bytes.len());
    match random.below(7) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.below(256) as u8,
        2 => {
            let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
            let n = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
            bytes[at..at + n].copy_from_slice(&number[..n]);
        }
        3 => bytes.truncate(at),
        4 => {
            let end = (at + 1 + random.below(16)).min(bytes.len());
            bytes.drain(at..end);
        }
        5 => {
            let end = (at + 1 + random.below(32)).min(bytes.len());
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        _ if other.is_empty() => bytes.push(0),
        _ => {
            let from = random.below(other.len());
            let to = (from + 1 + random.below(64)).min(other.len());
            bytes.splice(at..at, other[from..to].iter().copied());
        }
    }
}

fn replay(target: &str) {
    let &(_, property, n_changed) =
        TARGETS.iter().find(|(name, ..)| *name == target).expect("a target");
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "no corpus for {target}");
    for (name, bytes) in &corpus {
        // The name of the input is all that a panic lacks.
        let outcome = std::panic::catch_unwind(|| property(bytes));
        assert!(outcome.is_ok(), "{target}/{name}");
    }
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for i in 0..n_changed {
        let (name, bytes) = &corpus[random.below(corpus.len())];
        let (_, other) = &corpus[random.below(corpus.len())];
        let mut changed = bytes.clone();
        for _ in 0..=random.below(4) {
            change(&mut changed, other, &mut random);
        }
        let outcome = std::panic::catch_unwind(|| property(&changed));
        if outcome.is_err() {
            let path = std::env::temp_dir().join(format!("minfer-{target}-{i}"));
            let _ = fs::write(&path, &changed);
            panic!("{target}: change {i} of {name}, written to {}", path.display());
        }
    }
}

#[test]
fn gguf() {
    replay("gguf");
}

#[test]
fn container() {
    replay("container");
}

#[test]
fn tokenizer() {
    replay("tokenizer");
}

#[test]
fn template() {
    replay("template");
}

#[test]
fn planes() {
    replay("planes");
}

fn cases(n: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(n) }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn any_bytes_of_any_type_come_back(head: [u8; 3], bytes: Vec<u8>) {
        properties::planes(&[&head[..], &bytes].concat());
    }

    #[test]
    fn any_strings_make_a_tokenizer_or_an_error(
        kind: u8,
        text: String,
        tokens in proptest::collection::vec(any::<Vec<u8>>(), 0..12),
        merges in proptest::collection::vec("[a-c]{1,3} [a-c]{1,3}", 0..6),
        more: Vec<u8>,
    ) {
        let merges: Vec<_> = merges.iter().map(String::as_bytes).collect();
        let parts = [tokens.join(&0xfe), merges.join(&0xfe), more].join(&0xff);
        properties::tokenizer(&[&[kind], text.as_bytes(), &[0xff], &parts].concat());
    }

    #[test]
    fn any_text_is_a_template_or_an_error(
        text in "(\\{\\{|\\}\\}|\\{%|%\\}|messages|for m in|endfor|if|endif|\\[0\\]|\\.content|[ -~]){0,20}"
    ) {
        properties::template(text.as_bytes());
    }

    #[test]
    fn a_field_of_any_value_behind_right_hashes(at in 0usize..1 << 16, value: [u8; 8], n in 1usize..9) {
        let mut file = pack(&smallest_model(), "default");
        let at = at % (file.len() - 8);
        file[at..at + n].copy_from_slice(&value[..n]);
        properties::container(&file);
    }
}

/// The seeds of the corpus: `BLESS=1` writes those that are not there. What a fuzzer found worth
/// keeping stands beside them.
#[test]
fn seeds_are_in_the_corpus() {
    let base = || GgufBuilder::new().kv_str("general.architecture", "llama");
    let mut types = base();
    for (i, &quant) in QuantType::ALL.iter().enumerate() {
        let dims = [quant.block_elems() as u64, 3];
        types = types.tensor(quant.name(), &dims, quant, &random_weights(quant, &dims, i as u64));
    }
    let q6_k = |file: GgufBuilder| {
        let (quant, dims) = (QuantType::Q6_K, [256, 2]);
        file.tensor("a.weight", &dims, quant, &random_weights(quant, &dims, 1))
    };
    let f32s = |name: &str, file: GgufBuilder| file.tensor(name, &[3], QuantType::F32, &[0; 12]);
    let part = f32s("x", base().kv_u16("split.no", 0).kv_u16("split.count", 2));
    let odd = f32s("x", base().alignment(8).pad_byte(7).trailing(b"tail"));
    let values = base()
        .kv_bool("bool", true)
        .kv_i8("i8", -1)
        .kv_u64("u64", u64::MAX)
        .kv_f64("f64", 0.5)
        .kv_strs("strings", &["a", "", "b"])
        .kv_u16s("numbers", &[1, 2]);
    let chat = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] | trim }}<|im_end|>\n\
                {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let odd_template = "{%- set ns = namespace(i=0) -%}{% macro f(x, y=2) %}{{ x ~ y }}{% endmacro %}\
                        {% for m in messages if m.role != 'system' %}{% set ns.i = ns.i + 1 %}\
                        {{ f(loop.index, y=m.content.split(' ')[0]) }}{{ m | tojson(indent=2) }}\
                        {{ raise_exception('no') if ns.i > 9 }}{% endfor %}{{ strftime_now('%d %b') }}";
    let tokenizer = |kind: u8, text: &str, tokens: &[&str], merges: &[&str], more: &[u8]| {
        let list = |words: &[&str]| words.join("\u{1}").replace('\u{1}', "\u{0}").into_bytes();
        let list = |words: &[&str]| {
            list(words).into_iter().map(|b| if b == 0 { 0xfe } else { b }).collect::<Vec<_>>()
        };
        let parts = [text.as_bytes().to_vec(), list(tokens), list(merges), more.to_vec()];
        [vec![kind], parts.join(&0xff)].concat()
    };
    let every_block = |quant: usize, n_rows: u8, n_blocks: u8| {
        [vec![quant as u8, n_rows, n_blocks], (0..=255).collect()].concat()
    };
    let mut seeds: Vec<(&str, String, Vec<u8>)> = vec![
        ("gguf", "empty".into(), base().build()),
        ("gguf", "types".into(), types.build()),
        ("gguf", "values".into(), values.build()),
        ("gguf", "odd".into(), odd.build()),
        ("gguf", "part".into(), part.build()),
        ("container", "q6_k".into(), pack(&q6_k(base()).build(), "default")),
        ("container", "planar".into(), pack(&q6_k(base()).build(), "planar,bf16")),
        ("container", "model".into(), pack(&smallest_model(), "none")),
        (
            "tokenizer",
            "bpe".into(),
            tokenizer(0, "ab c", &["ab", "abc"], &["a b", "ab c"], &[1, 3]),
        ),
        (
            "tokenizer",
            "spm".into(),
            tokenizer(1, "ab c", &["ab", "\u{2581}c", "<s>"], &[], &[1, 1, 3]),
        ),
        (
            "tokenizer",
            "few".into(),
            tokenizer(3, "", &["<0x41>", "<0xZZ>", "x", "x"], &[], &[6, 6]),
        ),
        ("template", "chat".into(), chat.into()),
        ("template", "odd".into(), odd_template.into()),
    ];
    for i in 0..QuantType::ALL.len() {
        seeds.push(("planes", QuantType::ALL[i].name().into(), every_block(i, i as u8, i as u8)));
    }
    for (target, name, bytes) in seeds {
        let path = corpus_dir(target).join(&name);
        if std::env::var_os("BLESS").is_some() && !path.exists() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        assert!(path.exists(), "{}: BLESS=1 writes it", path.display());
    }
}
