//! minfer-bench end to end, on a tiny model.

// Helpers outside `#[test]` functions fail a test the same way.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod fixture;

use format_spec::QuantType;
use format_spec::plane::PlaneKind;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

struct Model {
    folder: TempDir,
    path: PathBuf,
}

fn model() -> Model {
    let folder = tempfile::tempdir().unwrap();
    let gguf = fixture::gguf().kv_bool("tokenizer.ggml.add_bos_token", true);
    let path = fixture::write(folder.path(), "model.mpk", &gguf);
    Model { folder, path }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minfer-bench"));
    command.args(args);
    // What the caller's environment says must not change a test.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MINFER_") {
            command.env_remove(name);
        }
    }
    command
}

#[derive(Debug)]
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Run {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    #[track_caller]
    fn fails(self, code: i32, message: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let errors: Vec<_> = self.err.lines().filter(|l| l.starts_with("error:")).collect();
        assert_eq!(errors.len(), 1, "{self:?}");
        assert!(errors[0].contains(message), "{message:?} not in {self:?}");
    }
}

fn run(path: &Path, args: &[&str]) -> Run {
    let cpu = [path.to_str().unwrap(), "--device", "cpu", "-t", "2"];
    Run::from(command(&[&cpu, args].concat()).output().unwrap())
}

/// Without limits, whose measurement takes memory and time.
const FEW: &[&str] = &["-r", "2", "--no-limits"];

fn few(path: &Path, args: &[&str]) -> Run {
    run(path, &[FEW, args].concat())
}

fn json(text: &str) -> Vec<Value> {
    match serde_json::from_str(text).unwrap() {
        Value::Array(rows) => rows,
        other => panic!("{other}"),
    }
}

#[test]
fn tests_are_made_in_order_and_timed() {
    let m = model();
    let args = ["-p", "8,16", "-n", "4", "-d", "0,8", "-pg", "4,2", "-o", "json"];
    let rows = json(&few(&m.path, &args).ok());
    let tests: Vec<_> = rows
        .iter()
        .map(|row| ["n_prompt", "n_gen", "n_depth"].map(|key| row[key].as_u64().unwrap()))
        .collect();
    assert_eq!(
        tests,
        [[8, 0, 0], [16, 0, 0], [0, 4, 0], [4, 2, 0], [8, 0, 8], [16, 0, 8], [0, 4, 8], [4, 2, 8]]
    );
    for row in &rows {
        let samples: Vec<u64> =
            row["samples_ns"].as_array().unwrap().iter().map(|ns| ns.as_u64().unwrap()).collect();
        assert_eq!(samples.len(), 2);
        let mean = (samples[0] + samples[1]) as f64 / 2.0;
        assert!((row["avg_ns"].as_f64().unwrap() - mean).abs() <= 1.0, "{row}");
        assert!((row["median_ns"].as_f64().unwrap() - mean).abs() <= 1.0, "{row}");
        let n_tokens = row["n_prompt"].as_f64().unwrap() + row["n_gen"].as_f64().unwrap();
        let first = row["samples_ts"][0].as_f64().unwrap();
        assert!((first - 1e9 * n_tokens / samples[0] as f64).abs() < 1e-3, "{row}");
        assert_eq!(row["backends"], "CPU");
        assert_eq!(row["n_threads"], 2);
        assert_eq!(row["planes"], "padded");
        assert_eq!(row["limit_per_s"], Value::Null);
    }
}

#[test]
fn bytes_and_operations_are_those_of_the_model() {
    let m = model();
    let rows = json(&few(&m.path, &["-p", "8", "-n", "4", "-o", "json"]).ok());
    // Seven matrices of 64 x 64 and an output of 261 x 64, all f32.
    let (layers, output) = (7 * 64 * 64, 261 * 64);
    assert_eq!(rows[0]["prompt_ops"], 2 * (8 * layers + output));
    assert_eq!(rows[1]["token_weight_bytes"], 4 * (layers + output));
    // 64 keys and 64 values of two bytes; 1 + 2 + 3 + 4 read and 4 written, over 4 tokens.
    assert_eq!(rows[1]["token_kv_bytes"], 14 * 256 / 4);
    assert_eq!(rows[0]["model_n_params"], layers + 2 * output + 3 * 64);
    assert_eq!(rows[0]["model_size"], 4 * (layers + 2 * output + 3 * 64));
    assert_eq!(rows[0]["container_bytes"], m.path.metadata().unwrap().len());
    assert_eq!(rows[0]["model_type"], "llama 62K f32");
}

#[test]
fn limits_are_measured_beside_the_tests() {
    let m = model();
    let rows = json(&run(&m.path, &["-r", "1", "-p", "8", "-n", "2", "-o", "json"]).ok());
    assert!(rows[0]["limit_per_s"].as_f64().unwrap() > 1e9, "{}", rows[0]);
    assert!(rows[1]["limit_name"].as_str().unwrap().starts_with("memory read, "), "{}", rows[1]);
    // A processor of this century, and no cache.
    let read = rows[1]["limit_per_s"].as_f64().unwrap();
    assert!((1e8..1e13).contains(&read), "{read}");
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap();
        let percent = 100.0 * number("reached_per_s") / number("limit_per_s");
        assert!((number("limit_percent") - percent).abs() < 1e-3, "{row}");
    }
}

#[test]
fn every_format_prints_every_row() {
    let m = model();
    let tests = ["-p", "4", "-n", "2"];
    let of = |format: &str| few(&m.path, &[&tests[..], &["-o", format]].concat()).ok();
    let md = of("md");
    let lines: Vec<&str> = md.lines().collect();
    assert!(lines[0].starts_with("| model                          |       size |     params | backend    | threads |            test |                  t/s |"), "{md}");
    assert!(
        lines[2].contains("|             pp4 |") && lines[3].contains("|             tg2 |"),
        "{md}"
    );
    assert!(lines[2].contains(" ± ") && lines[5].starts_with("build: "), "{md}");
    let csv = of("csv");
    assert_eq!(csv.lines().count(), 3);
    assert!(
        csv.starts_with("build_commit,build_number,cpu_info,gpu_info,backends,model_filename,")
    );
    assert_eq!(json(&of("json")).len(), 2);
    let objects: Vec<Value> =
        of("jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 2);
    assert_eq!(of("sql").matches("INSERT INTO llama_bench ").count(), 2);
}

#[test]
fn the_other_stream_may_have_another_format() {
    let m = model();
    let run = few(&m.path, &["-p", "4", "-n", "0", "-o", "jsonl", "-oe", "md"]);
    assert!(run.err.starts_with("| model "), "{run:?}");
    assert_eq!(run.ok().lines().count(), 1);
}

#[test]
fn json_is_one_object() {
    let m = model();
    let result: Value = serde_json::from_str(&few(&m.path, &["-p", "4", "--json"]).ok()).unwrap();
    assert_eq!(result["schema"], "minfer.bench/1");
    assert_eq!(result["exit"], "ok");
    assert_eq!(result["tests"].as_array().unwrap().len(), 2);
}

#[test]
fn tiers_models_and_greedy_choice() {
    let m = model();
    let path = m.path.to_str().unwrap();
    let args = ["-m", path, "--tier", "scalar", "--greedy", "-p", "0", "-n", "4", "-o", "json"];
    let rows = json(&few(&m.path, &args).ok());
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row["tier"] == "scalar" && row["greedy"] == true), "{rows:?}");
    let table = few(&m.path, &["-m", path, "-p", "4", "-n", "0"]).ok();
    assert!(table.lines().next().unwrap().contains("| planes "), "{table}");
}

#[test]
fn progress_is_llama_benchs() {
    let m = model();
    let run = few(&m.path, &["-p", "4", "-n", "0", "--progress"]);
    let lines: Vec<&str> = run.err.lines().collect();
    assert_eq!(
        lines,
        [
            "minfer-bench: benchmark 1/1: starting",
            "minfer-bench: benchmark 1/1: warmup run",
            "minfer-bench: benchmark 1/1: run 1/2",
            "minfer-bench: benchmark 1/1: run 2/2"
        ]
    );
}

#[test]
fn a_load_is_timed_in_new_processes() {
    let m = model();
    let rows = json(&few(&m.path, &["--load", "-o", "json"]).ok());
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    let number = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{key} of {row}"));
    assert_eq!((number("n_prompt"), number("n_gen")), (1, 0));
    assert_eq!(row["samples_ns"].as_array().unwrap().len(), 2);
    assert!(number("usable_ns") > 0 && number("usable_ns") < number("first_token_ns"), "{row}");
    assert_eq!(number("first_token_ns"), number("median_ns"));
    assert_eq!(number("loaded_bytes"), 4 * (7 * 64 * 64 + 261 * 64));
    assert!(number("peak_rss_bytes") > number("anon_rss_bytes"), "{row}");
    assert_eq!(number("kv_bytes"), 256 * 256);
    assert_eq!(row["cold"], false);
    let table = few(&m.path, &["--load", "-p", "3"]).ok();
    assert!(table.contains(" peak RSS |") && table.contains(" load pp3 |"), "{table}");
    let cold = run(&m.path, &["--load", "--cold", "-r", "1", "-o", "json"]);
    assert_eq!(json(&cold.ok())[0]["cold"], true);
    assert_eq!(row["context_ns"], Value::Null);
    Run::from(command(&["--load", "--child"]).output().unwrap()).fails(2, "--child needs a model");
    for flag in [&["-n", "4"][..], &["-d", "1"], &["-pg", "1,1"], &["--greedy"], &["--delay", "1"]]
    {
        few(&m.path, &[&["--load"], flag].concat()).fails(2, "a load ends with the first token");
    }
    few(&m.path, &["--load", "-p", "0"]).fails(2, "no first token without a prompt");
}

#[test]
fn what_fails_has_a_code_and_a_line() {
    let m = model();
    let missing = m.folder.path().join("missing.mpk");
    few(&missing, &[]).fails(4, "missing.mpk: cannot open");
    few(&missing, &["--load"]).fails(4, "missing.mpk: cannot open");
    let gguf = m.folder.path().join("x.gguf");
    std::fs::write(&gguf, fixture::gguf().build()).unwrap();
    few(&gguf, &[]).fails(3, "pack it once");
    few(&m.path, &["-p", "9-1"]).fails(2, "ends before it begins");
    few(&m.path, &["-fa", "0"]).fails(2, "attention never writes its scores");
    few(&m.path, &["--device", "cuda:99"]).fails(6, "cuda:99");
    few(&m.path, &["-p", "99999999999"]).fails(2, "out of range: expected 0 to 2147483647");
    few(&m.path, &["-r", "99999999999999999999"]).fails(2, "out of range: expected 1 to 100000");
    few(&m.path, &["-r", "-1"]).fails(2, "out of range: expected 1 to 100000");
    few(&m.path, &["-p", "-1"]).fails(2, "expected numbers and ranges such as");
    few(&m.path, &["-p", "1-4000", "-d", "1-4000"]).fails(2, "more than 65536 tests");
    let too_long = few(&m.path, &["-p", "4", "-n", "0", "-d", "1000000000"]);
    too_long.fails(5, "for keys and values");
    Run::from(command(&[]).output().unwrap()).fails(2, "no model");
}

#[test]
fn a_context_beyond_the_trained_one_is_said() {
    let m = model();
    let run = few(&m.path, &["-p", "5000", "-n", "0", "-r", "1", "--no-warmup"]);
    assert!(run.err.contains("tests of up to 5000 positions; the model was trained on 4096"));
    run.ok();
}

/// What only shows when a model is opened ends the tests where it shows.
#[test]
fn rows_that_were_measured_are_printed_before_a_failure() {
    let m = model();
    let planar = m.folder.path().join("planar.mpk");
    let gguf = fixture::gguf_of(QuantType::Q8_0).build();
    std::fs::write(&planar, fixture::pack_as(&gguf, PlaneKind::Planar)).unwrap();
    let tests = [planar.to_str().unwrap(), "-p", "4", "-n", "0", "-o", "json"];
    let run = few(&m.path, &[&tests[..], &["--strict"]].concat());
    assert_eq!(json(&run.out).len(), 1);
    run.fails(6, "planar.mpk: 7 of 8 matrices are slow here");
    // Without it both are measured, and the second is said to be slow, once.
    let run = few(&m.path, &[&tests[..], &["-t", "1"]].concat());
    assert_eq!(run.err.matches("planar.mpk: 7 of 8 matrices are slow here").count(), 1, "{run:?}");
    assert_eq!(json(&run.ok()).len(), 4);
}

/// Whatever is known beforehand is said before the first test takes its minutes.
#[test]
fn models_are_checked_before_the_first_test() {
    let m = model();
    let file = |name: &str, bytes: &[u8]| {
        let path = m.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let sound = std::fs::read(&m.path).unwrap();
    let mut damaged = sound.clone();
    // The last object ends just before the padding of the file.
    let last = damaged.iter().rposition(|&byte| byte != 0).unwrap();
    damaged[last] ^= 1;
    let other = fixture::gguf().without_kv("general.architecture");
    let other = other.kv_str("general.architecture", "abacus").build();
    let wide = fixture::gguf().without_kv("llama.context_length");
    let wide = wide.kv_u32("llama.context_length", 8192).build();
    let missing = m.folder.path().join("missing.mpk").to_str().unwrap().to_owned();
    for (second, flags, code, message) in [
        (missing, &[][..], 4, "missing.mpk: cannot open"),
        (file("text.mpk", b"hello, this is no model"), &[], 3, "text.mpk"),
        (file("cut.mpk", &sound[..sound.len() / 2]), &[], 3, "cut.mpk"),
        (file("abacus.mpk", &fixture::pack(&other)), &[], 3, "abacus"),
        (file("damaged.mpk", &damaged), &["--verify", "full"], 1, "damaged.mpk"),
        (file("wide.mpk", &fixture::pack(&wide)), &["-d", "0,1000000000"], 5, "keys and values"),
    ] {
        let args = [&second, "-p", "4", "-n", "0", "-o", "jsonl", "--progress"];
        let run = few(&m.path, &[&args[..], flags].concat());
        assert!(!run.err.contains("starting") && run.out.is_empty(), "{run:?}");
        run.fails(code, message);
        if flags.is_empty() {
            let run = few(&m.path, &[&second, "--load", "-o", "jsonl"]);
            assert_eq!(run.out, "", "{run:?}");
            run.fails(code, message);
        }
    }
}

/// A line that was pasted from somewhere, with llama-bench's defaults spelled out.
#[test]
fn llama_benchs_batch_sizes_mean_here_what_they_mean_there() {
    let m = model();
    let args = ["-p", "4", "-n", "0", "-o", "json", "-b", "2048", "-ub", "512", "--poll", "0"];
    let rows = json(&few(&m.path, &[&args[..], &["-mg", "0", "--offline"]].concat()).ok());
    assert_eq!((&rows[0]["n_batch"], &rows[0]["n_ubatch"]), (&2048.into(), &512.into()));
    let table = few(&m.path, &["-p", "4", "-n", "0", "-b", "2048", "-ub", "256"]).ok();
    assert!(table.contains("|    2048 |      256 |"), "{table}");
    let mut command = command(&[m.path.to_str().unwrap(), "--device", "cpu"]);
    let run = Run::from(command.env("MINFER_BATCH", "0").output().unwrap());
    run.fails(2, "'0' for 'MINFER_BATCH': `0`: out of range: expected 1 to 32768");
    // A variable is no flag: -ub alone says what is computed together.
    for (flags, expected) in [(&["-ub", "128"][..], 128), (&["-b", "32"], 32), (&[], 64)] {
        let args = [&[m.path.to_str().unwrap(), "--device", "cpu", "--no-limits"], flags].concat();
        let mut command = crate::command(&args);
        command.args(["-p", "4", "-n", "0", "-r", "1", "-o", "json"]).env("MINFER_BATCH", "64");
        let rows = json(&Run::from(command.output().unwrap()).ok());
        assert_eq!(rows[0]["n_ubatch"], expected, "{flags:?}");
    }
}

#[test]
fn a_switch_that_is_none_is_the_variables_fault() {
    let m = model();
    for flags in [&["--device", "cpu"][..], &["--load", "--device", "auto"]] {
        let mut command = command(&[&[m.path.to_str().unwrap()], flags].concat());
        let run = Run::from(command.env("MINFER_GPU_RING", "banana").output().unwrap());
        run.fails(2, "error: MINFER_GPU_RING=banana: expected 0 (off) or 1 (on)");
    }
}

/// `docs/BENCH.md` has every key of ours, and every flag that `--help` has.
#[test]
fn keys_and_flags_are_documented() {
    let m = model();
    let doc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/BENCH.md");
    let doc = std::fs::read_to_string(doc).unwrap();
    let row = json(&few(&m.path, &["-p", "4", "-n", "0", "-o", "json"]).ok()).remove(0);
    let ours = row.as_object().unwrap().keys().skip_while(|key| *key != "median_ns");
    let mut n_keys = 0;
    for key in ours {
        assert!(doc.contains(&format!("`{key}`")), "{key} is not in docs/BENCH.md");
        n_keys += 1;
    }
    assert_eq!(n_keys, 30);
    let help = Run::from(command(&["--help"]).output().unwrap()).ok();
    let starts = |line: &str| line.trim_start().starts_with('-');
    let (own, foreign) = help.split_once("Flags of llama-bench that switch nothing here:").unwrap();
    let words = own.lines().filter(|line| starts(line)).flat_map(str::split_whitespace);
    let flags: Vec<&str> = words
        .filter(|word| word.starts_with("--"))
        .map(|word| word.split(['[', '=', '.', ',']).next().unwrap())
        .collect();
    assert!(flags.len() > 25 && flags.contains(&"--greedy"), "{flags:?}");
    for flag in flags {
        assert!(doc.contains(&format!("`{flag}`")), "{flag} is not in docs/BENCH.md");
    }
    // And what becomes of llama-bench's others, item by item.
    let (foreign, _) = foreign.split_once("\n\n").unwrap();
    let foreign: Vec<&str> = foreign.split([',', ':', '\n']).map(str::trim).collect();
    let items: Vec<&&str> = foreign.iter().filter(|item| item.starts_with('-')).collect();
    assert!(items.len() > 25 && items.contains(&&"-fa 1|on|auto"), "{items:?}");
    for item in items {
        assert!(doc.contains(&format!("`{item}`")), "{item} is not there");
    }
}

#[test]
fn help_completions_and_version_need_no_model() {
    let of = |args: &[&str]| Run::from(command(args).output().unwrap()).ok();
    let help = of(&["--help"]);
    assert!(help.contains("Usage: minfer-bench [OPTIONS] <MODEL.mpk>..."), "{help}");
    assert!(help.contains("128-512+128") && help.contains("Exit codes:"), "{help}");
    assert!(of(&["-h"]).contains("--load"));
    assert!(of(&["--version"]).contains("commit: "));
    assert!(of(&["--completions", "bash"]).contains("minfer-bench"));
}
