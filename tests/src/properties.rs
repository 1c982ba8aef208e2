//! What must hold for any bytes: one function for each reader of untrusted input.
//!
//! The fuzz targets in `fuzz/` call these with what the fuzzer makes up; `it/fuzz_replay.rs` with
//! the committed corpus and a fixed sequence of changes of it, in every test run.

use std::ops::ControlFlow;
use std::sync::OnceLock;

use format_spec::container::{Container, ObjectDigest, sha256};
use format_spec::plane::{Geometry, Layout, PlaneKind, find_mismatch};
use format_spec::vocab::{BakeOptions, VocabView, bake};
use format_spec::{Gguf, QuantType};
use preprocess::{Class, verify};
use runtime::template::{Clock, RenderOptions, Template};
use runtime::tokenizer::Tokenizer;
use runtime::{LoadOptions, Model, Session};
use serde_json::json;

use crate::gguf_writer::GgufBuilder;
use crate::packing::{try_pack, unpack};

/// Longest input that is worth running: what matters happens in small files.
pub const MAX_BYTES: usize = 1 << 20;

/// A GGUF file is refused, or consistent in itself; what can be packed comes back byte for byte.
///
/// # Panics
/// If not.
pub fn gguf(file: &[u8]) {
    let Ok(gguf) = Gguf::parse(file) else {
        // The packer uses the same reader: whatever this refused, it must not take.
        if Gguf::parse_part_header(file).is_err() {
            assert!(try_pack(&[file.to_vec()], "none").is_err());
        }
        return;
    };
    consistent(&gguf, file);
    for planes in ["default", "planar", "tile"] {
        match try_pack(&[file.to_vec()], planes) {
            Ok(packed) => {
                let back = unpack(&packed).unwrap_or_else(|e| panic!("does not come back: {e}"));
                assert!(back == [file], "other bytes come back");
            }
            Err(error) => assert_eq!(error.class(), Class::Input, "{error}"),
        }
    }
}

/// Calls everything that a file can influence and checks what must hold for any accepted file.
///
/// # Panics
/// If it does not.
pub fn consistent(gguf: &Gguf<'_>, file: &[u8]) {
    let mut covered = gguf.header_len();
    for (key, value) in gguf.metadata().iter() {
        assert_eq!(gguf.metadata().get(key).map(|v| v.value_type()), Some(value.value_type()));
        let m = gguf.metadata();
        let _ = (m.u32(key), m.u64(key), m.f32(key), m.bool(key), m.str(key), value.to_string());
        let _ = (m.strs(key).is_ok(), m.ints(key).is_ok(), m.f32s(key).is_ok());
        if let Some(array) = value.as_array() {
            assert_eq!(array.iter().count(), array.len());
        }
    }
    let file_len = file.len() as u64;
    let mut end = gguf.header_len();
    for tensor in gguf.tensors() {
        assert!(tensor.range().start >= end, "tensors overlap");
        end = tensor.range().end;
        assert_eq!(gguf.tensor(tensor.name()), Some(tensor));
        assert_eq!(gguf.data(tensor).len() as u64, tensor.n_bytes());
        assert!(tensor.n_rows() > 0 && tensor.row_len() > 0);
        covered += tensor.n_bytes();
    }
    covered += gguf.padding(file_len).map(|range| range.end - range.start).sum::<u64>();
    let trailing = gguf.trailing(file_len);
    assert_eq!(covered + (trailing.end - trailing.start), file_len, "bytes unaccounted for");
}

/// A container with right hashes over whatever is in it: refused, or safe to verify, to turn back
/// and to run.
///
/// # Panics
/// If not.
pub fn container(file: &[u8]) {
    let mut file = file.to_vec();
    reseal(&mut file);
    let Ok(container) = Container::parse(&file) else { return };
    let len = file.len() as u64;
    for object in container.objects() {
        assert!(object.range().end <= len && object.offset >= container.header().data_offset);
    }
    let findings = verify::hashes(&file, &container, &|_| ()).unwrap_or_default();
    // All hashes are right, so that only padding can be wrong.
    assert!(findings.iter().all(|found| found.problem.contains("padding")), "{findings:?}");
    let _ = verify::gaps(&file, &container);
    let _ = verify::deep(&file, &container, &|_| ());
    if let Ok(back) = unpack(&file) {
        assert_eq!(back.len(), container.source().n_shards());
    }
    let _ = generate(&file, &[1, 2], 2);
}

/// Makes every hash of a container right, as far as its tables can be found. Written from
/// `docs/FORMAT.md`, not with the writer.
pub fn reseal(file: &mut [u8]) {
    const INDEX_HEAD: usize = 112;
    const OBJECT: usize = 96;
    const FIELD: usize = 112;
    let u32_at = |file: &[u8], at: usize| {
        let bytes = file.get(at..).and_then(|bytes| bytes.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize)
    };
    let u64_at = |file: &[u8], at: usize| {
        let bytes = file.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
        bytes.and_then(|bytes| usize::try_from(u64::from_le_bytes(*bytes)).ok()).unwrap_or(0)
    };
    let put = |file: &mut [u8], at: usize, bytes: &[u8]| {
        if let Some(slot) = at.checked_add(bytes.len()).and_then(|end| file.get_mut(at..end)) {
            slot.copy_from_slice(bytes);
        }
    };
    let section = |file: &[u8], offset_at: usize| {
        let start = u64_at(file, offset_at);
        let end = start.checked_add(u64_at(file, offset_at + 8))?;
        file.get(start..end).map(sha256)
    };
    let index = u64_at(file, 24).min(file.len());
    let n_objects = u32_at(file, index + 96).min(file.len() / OBJECT);
    let n_fields = u32_at(file, index + 100).min(file.len() / FIELD);
    let mut leaf_at = index + INDEX_HEAD + n_objects * OBJECT + n_fields * FIELD;
    for i in 0..n_objects {
        let record = index + INDEX_HEAD + i * OBJECT;
        let start = u64_at(file, record + 40);
        let end = start.saturating_add(u64_at(file, record + 48));
        let Some(bytes) = file.get(start..end) else { continue };
        let digest = ObjectDigest::of(bytes);
        put(file, record + 56, &digest.xxh3.to_le_bytes());
        put(file, record + 64, &digest.sha256);
        put(file, leaf_at, digest.leaves.as_flattened());
        leaf_at += 32 * digest.leaves.len();
    }
    for (offset_at, digest_at) in [(index, index + 16), (index + 48, index + 64)] {
        if let Some(digest) = section(file, offset_at).filter(|_| u64_at(file, offset_at) > 0) {
            put(file, digest_at, &digest);
        }
    }
    if let Some(digest) = section(file, 24) {
        put(file, 40, &digest);
    }
    let header_len = u32_at(file, 12);
    if let Some(digest) = header_len.checked_sub(32).and_then(|end| file.get(..end)).map(sha256) {
        put(file, header_len - 32, &digest);
    }
}

/// Opens a container as `minfer-run` does and generates some tokens, greedily.
///
/// # Errors
/// Why it cannot be run.
pub fn generate(file: &[u8], prompt: &[u32], n_tokens: usize) -> Result<Vec<u32>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let container = Container::parse(file).map_err(|error| text(&error))?;
    if let Some(vocab) = container.vocab_bytes() {
        VocabView::new(vocab).map_err(|error| text(&error))?;
    }
    let options = LoadOptions { n_threads: 1, ..LoadOptions::default() };
    let model = Model::open(file, &container, &options).map_err(|error| text(&error))?;
    let n_ctx = prompt.len() + n_tokens;
    let mut session = Session::new(&model, n_ctx).map_err(|error| text(&error))?;
    let mut tokens = Vec::new();
    let last = runtime::LogitsWanted::Last;
    let mut logits = session.prefill(prompt, 8, last).map_err(|error| text(&error))?.to_vec();
    while tokens.len() < n_tokens {
        let best = (0u32..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        let Some((token, _)) = best else { break };
        tokens.push(token);
        if tokens.len() < n_tokens {
            logits = session.decode(token).map_err(|error| text(&error))?.to_vec();
        }
    }
    Ok(tokens)
}

/// Logits at every position of `ids`, row after row.
///
/// # Errors
/// Why it cannot be run.
pub fn logits(file: &[u8], ids: &[u32]) -> Result<Vec<f32>, String> {
    let container = Container::parse(file).map_err(|error| error.to_string())?;
    let options = LoadOptions { n_threads: 1, ..LoadOptions::default() };
    let model = Model::open(file, &container, &options).map_err(|error| error.to_string())?;
    let mut session = Session::new(&model, ids.len()).map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    let mut sink = |_: usize, logits: &[f32]| {
        all.extend_from_slice(logits);
        ControlFlow::Continue(())
    };
    session
        .prefill(ids, 16, runtime::LogitsWanted::all(&mut sink))
        .map_err(|error| error.to_string())?;
    Ok(all)
}

/// A vocabulary of whatever strings: refused, or a tokenizer whose ids are in range and, for a
/// byte-level vocabulary, whose text comes back. And the same bytes as baked tables.
///
/// # Panics
/// If not.
pub fn tokenizer(data: &[u8]) {
    if let Ok(view) = VocabView::new(data) {
        use_tokenizer(view, "ab \u{e9}\n<|x|>");
    }
    let Some((&kind, rest)) = data.split_first() else { return };
    let mut pieces = rest.split(|&byte| byte == 0xff);
    let text = String::from_utf8_lossy(pieces.next().unwrap_or_default()).into_owned();
    let tokens: Vec<&[u8]> = pieces.next().unwrap_or_default().split(|&b| b == 0xfe).collect();
    let merges: Vec<&[u8]> = pieces.next().unwrap_or_default().split(|&b| b == 0xfe).collect();
    let more = pieces.next().unwrap_or_default();
    let mut words: Vec<Vec<u8>> = Vec::new();
    let is_spm = kind & 1 == 1;
    match (kind & 2 == 0, is_spm) {
        (true, true) => words.extend((0..256).map(|b| format!("<0x{b:02X}>").into_bytes())),
        (true, false) => words.extend(
            (0..=255).map(|b| format_spec::vocab::byte_to_char(b).to_string().into_bytes()),
        ),
        _ => {}
    }
    let n_bytes = words.len();
    words.extend(tokens.iter().map(|token| token.to_vec()));
    let types: Vec<i32> = (0..words.len())
        .map(|i| match i.checked_sub(n_bytes) {
            Some(i) => i32::from(more.get(i).copied().unwrap_or(1) as i8),
            None if is_spm => 6,
            None => 1,
        })
        .collect();
    let mut file = GgufBuilder::new()
        .kv_str("tokenizer.ggml.model", if is_spm { "llama" } else { "gpt2" })
        .kv_strs("tokenizer.ggml.tokens", &words)
        .kv_i32s("tokenizer.ggml.token_type", &types);
    if is_spm {
        let score = |i: usize| f32::from(more.get(i).copied().unwrap_or(0) as i8);
        let scores: Vec<f32> = (0..words.len()).map(score).collect();
        file = file.kv_f32s("tokenizer.ggml.scores", &scores);
    } else {
        let pres = ["gpt-2", "qwen2", "llama-bpe", "default", "no such"];
        let pre = pres.get(usize::from(kind >> 4) % pres.len()).copied().unwrap_or("gpt-2");
        file = file.kv_str("tokenizer.ggml.pre", pre).kv_strs("tokenizer.ggml.merges", &merges);
    }
    if let Some(&id) = more.last() {
        file = file.kv_u32("tokenizer.ggml.eos_token_id", u32::from(id));
    }
    if kind & 4 != 0 {
        file = file.kv_bool("tokenizer.ggml.add_bos_token", kind & 8 != 0);
    }
    let bytes = file.build();
    let gguf = Gguf::parse(&bytes).unwrap_or_else(|error| panic!("our own file: {error}"));
    let Ok(Some(baked)) = bake(gguf.metadata(), &BakeOptions::default()) else { return };
    let view = VocabView::new(&baked.bytes)
        .unwrap_or_else(|error| panic!("our own tables are refused: {error}"));
    use_tokenizer(view, &text);
}

/// Everything that a tokenizer does.
fn use_tokenizer(view: VocabView<'_>, text: &str) {
    let tokenizer = Tokenizer::from(view);
    for parse_special in [false, true] {
        let ids = tokenizer.encode(text, parse_special, true);
        assert!(ids.iter().all(|&id| id < tokenizer.n_tokens()));
        let _ = tokenizer.decode(&ids);
    }
    let n = tokenizer.n_tokens();
    for id in [0, n.saturating_sub(1), n, u32::MAX] {
        let _ = (tokenizer.piece(id), tokenizer.is_eog(id));
    }
}

/// A chat template: an error or a text, in bounded time, without panic.
pub fn template(source: &[u8]) {
    let source = String::from_utf8_lossy(source);
    let Ok(template) = Template::new(&source) else { return };
    let options = RenderOptions {
        bos_token: "<s>".into(),
        eos_token: "</s>".into(),
        clock: Clock::from_source_date_epoch(Some("1767323045")).unwrap_or_default(),
        ..RenderOptions::default()
    };
    let messages = [
        json!({"role": "system", "content": "be brief"}),
        json!({"role": "user", "content": "<|im_end|> {{ 7 * 7 }} <s>"}),
        json!({"role": "assistant", "content": "no"}),
    ];
    static TABLES: OnceLock<Vec<u8>> = OnceLock::new();
    let tables = TABLES.get_or_init(chat_tables);
    let tokenizer = VocabView::new(tables).ok().map(Tokenizer::from);
    if let Ok(rendered) = template.render(&messages, &options, tokenizer.as_ref())
        && let Some(tokenizer) = &tokenizer
    {
        let ids = tokenizer.encode_rendered(&rendered);
        assert!(ids.iter().all(|&id| id < tokenizer.n_tokens()));
    }
}

/// A byte-level vocabulary with some control tokens.
fn chat_tables() -> Vec<u8> {
    let bytes = (0..=255).map(|byte| format_spec::vocab::byte_to_char(byte).to_string());
    let words: Vec<String> =
        bytes.chain(["<|im_start|>", "<|im_end|>", "<s>", "</s>"].map(str::to_owned)).collect();
    let types: Vec<i32> = (0..words.len()).map(|i| if i < 256 { 1 } else { 3 }).collect();
    let file = GgufBuilder::new()
        .kv_str("tokenizer.ggml.model", "gpt2")
        .kv_str("tokenizer.ggml.pre", "gpt-2")
        .kv_strs("tokenizer.ggml.tokens", &words)
        .kv_i32s("tokenizer.ggml.token_type", &types)
        .kv_strs::<&str>("tokenizer.ggml.merges", &[])
        .build();
    let baked = Gguf::parse(&file)
        .and_then(|gguf| bake(gguf.metadata(), &BakeOptions::default()))
        .unwrap_or_else(|error| panic!("our own vocabulary: {error}"));
    baked.map(|baked| baked.bytes).unwrap_or_default()
}

/// Any bytes of any type in any shape: every base gives them back, every plane says what the base
/// says.
///
/// # Panics
/// If not.
pub fn planes(data: &[u8]) {
    let Some(([quant, n_rows, n_blocks], bytes)) = data.split_first_chunk::<3>() else { return };
    let quant = QuantType::ALL[usize::from(*quant) % QuantType::ALL.len()];
    let n_rows = u64::from(n_rows % 21) + 1;
    let n_blocks = u64::from(n_blocks % 4) + 1;
    let geometry = Geometry { n_rows, row_len: n_blocks * quant.block_elems() as u64 };
    let n_bytes = (n_rows * n_blocks) as usize * quant.block_bytes();
    let gguf: Vec<u8> = if bytes.is_empty() {
        vec![0; n_bytes]
    } else {
        bytes.iter().copied().cycle().take(n_bytes).collect()
    };
    let mut base: Option<(Layout, Vec<u8>)> = None;
    for &kind in PlaneKind::ALL.iter().filter(|kind| kind.applies_to(quant)) {
        let layout = Layout::new(kind, quant, geometry)
            .unwrap_or_else(|error| panic!("a layout of a sound shape: {error}"));
        let mut object = vec![0xa5; layout.len_bytes() as usize];
        layout
            .write_units(&gguf, 0..layout.n_units(), &mut object)
            .unwrap_or_else(|error| panic!("{}: {error}", kind.name()));
        assert_eq!(layout.padding().first_nonzero(0, &object), None, "{}", kind.name());
        if kind.is_base() {
            let mut back = vec![0xa5; n_bytes];
            layout
                .restore_units(&object, &mut back)
                .unwrap_or_else(|error| panic!("{}: {error}", kind.name()));
            assert!(back == gguf, "{} does not give its bytes back", kind.name());
        }
        match &base {
            None => base = Some((layout, object)),
            Some((base_layout, base_object)) => {
                let pair = ((base_layout, base_object.as_slice()), (&layout, object.as_slice()));
                let found = find_mismatch(pair.0, pair.1, 0..n_rows);
                assert!(found.is_none(), "{}: {found:?}", kind.name());
            }
        }
    }
}
