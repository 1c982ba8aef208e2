//! Models that pack and do not run: said before anything is written, refused with `--strict`.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use common::{Bench, expect, json, pack};

/// A real, if tiny, model that runs; made by another program.
fn runnable() -> Vec<u8> {
    let path: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models/llama.gguf");
    fs::read(path).expect("the golden model")
}

/// The model with the first `from` replaced by `to`, which is as long.
fn edited(from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = runnable();
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes());
    let at = at.expect("the text is in the file");
    bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
    bytes
}

#[test]
fn a_model_that_runs_packs_without_a_warning() {
    let bench = Bench::new();
    let input = bench.path("model.gguf");
    fs::write(&input, runnable()).expect("writing");
    let (_, stderr) = expect(pack([OsStr::new("--strict"), input.as_os_str()]), 0);
    assert!(!stderr.contains("warning"), "{stderr}");
    let (stdout, _) = expect(pack(["-n".as_ref(), "--json".as_ref(), input.as_os_str()]), 0);
    let result = json(&stdout);
    assert_eq!((&result["runnable"], &result["warnings"]), (&true.into(), &serde_json::json!([])));
}

#[test]
fn what_minfer_run_would_refuse_is_said_first_and_refused_if_strict() {
    // The value's type, its length and its text.
    let architecture = |name: &str| format!("\u{8}\0\0\0\u{5}\0\0\0\0\0\0\0{name}");
    let cases = [
        (
            edited(&architecture("llama"), &architecture("mamba")),
            "architecture \"mamba\" is not supported (supported: ",
        ),
        (edited("llama.block_count", "llama.block_coUNT"), "key llama.block_count: expected 1 to "),
        (
            edited("blk.0.attn_q.weight", "blk.0.attn_Q.weight"),
            "tensor blk.0.attn_q.weight: expected [",
        ),
    ];
    for (bytes, reason) in cases {
        let bench = Bench::new();
        let (input, output) = (bench.path("model.gguf"), bench.path("model.mpk"));
        fs::write(&input, bytes).expect("writing");
        let (_, stderr) = expect(pack([OsStr::new("--strict"), input.as_os_str()]), 3);
        let line = stderr.lines().last().expect("a message");
        assert!(line.contains("model.gguf") && line.contains(reason), "{stderr}");
        assert!(!output.exists(), "refused before any output exists");
        let (_, stderr) = expect(pack([&input]), 0);
        let warning = format!("minfer-run cannot run this model: {reason}");
        assert!(stderr.lines().next().is_some_and(|line| line.contains(&warning)), "{stderr}");
        assert!(output.exists());
        // Scripts read it in the object, and -q leaves it.
        let dry = |flags: &[&str], code| {
            let flags = flags.iter().map(OsStr::new);
            expect(pack(flags.chain([OsStr::new("-n"), input.as_os_str()])), code)
        };
        let (stdout, stderr) = dry(&["-q", "--json"], 0);
        assert!(stderr.starts_with(&format!("warning: {warning}")), "{stderr}");
        let result = json(&stdout);
        assert_eq!(result["runnable"], false);
        let found = result["warnings"].as_array().expect("a list");
        assert_eq!(found.len(), 1, "{stdout}");
        assert!(found[0].as_str().is_some_and(|text| text.starts_with(&warning)), "{stdout}");
        assert_eq!(dry(&["-qq"], 0).1, "");
        assert_eq!(json(&dry(&["--json", "--strict"], 3).0)["runnable"], false);
    }
}

/// The model that runs, with a chat template as its first key.
fn with_template(source: &str) -> Vec<u8> {
    const KEY: &str = "tokenizer.chat_template";
    let mut bytes = runnable();
    let n_keys = bytes[16..24].try_into().map(u64::from_le_bytes).expect("a count");
    bytes[16..24].copy_from_slice(&(n_keys + 1).to_le_bytes());
    // What is put in keeps the tensors aligned.
    let around = 8 + KEY.len() + 4 + 8;
    let source = format!("{source:<0$}", (around + source.len()).next_multiple_of(32) - around);
    let len = |text: &str| (text.len() as u64).to_le_bytes();
    let key = [&len(KEY)[..], KEY.as_bytes(), &8u32.to_le_bytes()].concat();
    bytes.splice(24..24, [key.as_slice(), &len(&source), source.as_bytes()].concat());
    bytes
}

#[test]
fn a_chat_template_that_minfer_run_cannot_read_is_said_and_refused_if_strict() {
    let bench = Bench::new();
    let (input, output) = (bench.path("model.gguf"), bench.path("model.mpk"));
    let good = "{% for m in messages %}{% generation %}{{ m.content|unheard_of }}\
                {% endgeneration %}{% endfor %}";
    fs::write(&input, with_template(good)).expect("writing");
    let (_, stderr) = expect(pack([OsStr::new("--strict"), input.as_os_str()]), 0);
    assert!(!stderr.contains("warning"), "{stderr}");
    fs::remove_file(&output).expect("removing");
    fs::write(&input, with_template("{% for m in messages %}x")).expect("writing");
    let problem = "key tokenizer.chat_template is not valid: syntax error: ";
    let args = [OsStr::new("--strict"), OsStr::new("--json"), input.as_os_str()];
    let (stdout, stderr) = expect(pack(args), 3);
    assert!(stderr.contains(&format!("model.gguf: {problem}")), "{stderr}");
    assert_eq!(json(&stdout)["runnable"], false);
    assert!(!output.exists(), "refused before any output exists");
    let (_, stderr) = expect(pack([OsStr::new("-q"), input.as_os_str()]), 0);
    let warning = format!("warning: minfer-run cannot chat with this model: {problem}");
    assert!(stderr.starts_with(&warning), "{stderr}");
    assert!(output.exists());
}
