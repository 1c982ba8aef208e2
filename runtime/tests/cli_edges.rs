//! minfer-run where input is odd, the environment says something, or a signal comes.

// Helpers outside `#[test]` functions fail a test the same way.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod fixture;
#[allow(dead_code)]
mod harness;

use fixture::ALPHABET;
use format_spec::QuantType;
use format_spec::plane::PlaneKind;
use harness::{Model, Run, chat, endless, finish, model, model_as, signal, with};
use serde_json::json;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// What was said before is still there for `/regen`.
#[test]
fn a_chat_survives_bytes_that_are_no_utf8() {
    let m = model();
    let state = m.folder.path().join("state");
    let run = chat(&m.path, &state, b"hello\ncaf\xe9 bar\n/regen\n/exit\n");
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(run.out.matches("not valid UTF-8").count(), 1, "{run:?}");
    assert_eq!(run.out.matches(ALPHABET).count(), 2, "{run:?}");
}

#[test]
fn tools_beside_messages_reach_the_template_and_other_keys_are_named() {
    let m = model();
    let template = m.file(
        "t.jinja",
        "{{ messages[0].content }}|{% if tools %}{{ tools[0].function.name }}{% endif %}",
    );
    let show = |messages: &str, args: &[&str]| {
        let messages = m.file("m.json", messages);
        let fixed = ["--show-prompt", "--chat-template-file", &template, "--messages", &messages];
        m.run(&[&fixed, args].concat())
    };
    let with_tools = r#"{"model": "x", "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "weather"}}], "temperature": 0}"#;
    let run = show(with_tools, &[]);
    assert!(run.err.contains("not used: model, temperature ("), "{run:?}");
    assert_eq!(run.ok(), "hi|weather");
    // The flag is stronger than the file.
    let flag = ["--template-arg", r#"tools=[{"function": {"name": "clock"}}]"#];
    assert_eq!(show(with_tools, &flag).ok(), "hi|clock");
    let run = show(r#"{"messages": [{"role": "user", "content": "hi"}], "tools": null}"#, &[]);
    assert!(!run.err.contains("not used"), "{run:?}");
    assert_eq!(run.ok(), "hi|");
    show(r#"{"messages": [{"role": "user"}], "tools": {}}"#, &[]).fails(3, "`tools`");
}

#[test]
fn the_order_of_samplers_may_come_from_its_variable() {
    let m = model();
    let mut command = m.command(&with(&["--raw", "--json", "-p", "a", "-n", "1"]));
    let json =
        Run::from(command.env("MINFER_SAMPLERS", "top_k;temperature").output().unwrap()).json();
    let expected = json!({"value": "top_k;temperature", "origin": "env"});
    assert_eq!(json["sampling"]["samplers"], expected);
    command.arg("--samplers=min_p");
    let json = Run::from(command.output().unwrap()).json();
    assert_eq!(json["sampling"]["samplers"], json!({"value": "min_p", "origin": "flag"}));
}

#[test]
fn a_file_without_ids_is_told_both_keys() {
    let m = model();
    let ids = m.file("ids.json", r#"{"tokens": [1]}"#);
    m.run(&["--ids", &ids]).fails(3, "under `ids` or `token_ids`");
}

/// Whether `--logits out.f32` is being written.
fn has_temporary(m: &Model) -> bool {
    let mut entries = fs::read_dir(m.folder.path()).unwrap();
    entries.any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with(".out.f32.tmp-"))
}

/// Starts writing the logits of a prompt that takes minutes.
fn start_logits(m: &Model, args: &[&str]) -> Child {
    let ids = m.file("ids.json", serde_json::to_string(&vec![65; 200_000]).unwrap());
    let out = m.file("out.f32", "kept");
    let fixed = ["--device", "cpu", "-b", "1", "--ids", &ids, "--logits", &out];
    let mut child = m.command(&[&fixed, args].concat()).spawn().unwrap();
    let start = Instant::now();
    while !has_temporary(m) {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("no temporary file");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn interrupted_logits_leave_what_was_there() {
    let m = endless();
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let child = start_logits(&m, &[]);
        signal(&child, name);
        let run = finish(child);
        assert_eq!(run.code, Some(code), "{run:?}");
        assert_eq!(fs::read(m.folder.path().join("out.f32")).unwrap(), b"kept", "{name}");
        assert!(!has_temporary(&m), "{name}");
    }
}

#[test]
fn logits_go_to_standard_output_as_they_come() {
    let m = model();
    let ids = m.file("ids.json", "[97, 98, 99]");
    let args = ["--ids", &ids, "--logits", "/dev/stdout"];
    let piped = m.command(&args).output().unwrap();
    assert_eq!(piped.status.code(), Some(0), "{piped:?}");
    assert_eq!(piped.stdout.len(), 3 * fixture::N_VOCAB * 4);
    // The file that is open, not another in its place.
    let file = File::create(m.folder.path().join("redirected")).unwrap();
    let mut command = m.command(&args);
    assert!(command.stdout(file.try_clone().unwrap()).status().unwrap().success());
    assert_eq!(file.metadata().unwrap().len(), piped.stdout.len() as u64);
    // A link stays, and the file behind it is written.
    let (link, behind) = (m.folder.path().join("link"), m.file("behind", "old"));
    std::os::unix::fs::symlink(&behind, &link).unwrap();
    m.run(&["--ids", &ids, "--logits", link.to_str().unwrap()]).ok();
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(fs::read(&behind).unwrap(), piped.stdout);
}

#[test]
fn an_interrupted_prompt_ends_with_the_object() {
    let m = endless();
    let child = start_logits(&m, &["--json"]);
    signal(&child, "INT");
    let json = finish(child).json();
    assert_eq!(json["exit"], "interrupted");
    assert_eq!(json["stop_reason"], "interrupted");
    assert_eq!(json["n_prompt_tokens"], 200_000);
    assert_eq!(json["prompt_token_ids"].as_array().unwrap().len(), 200_000);
}

#[test]
fn an_interrupted_perplexity_ends_with_the_object() {
    let m = model();
    let text = m.file("text", "A".repeat(512 * 5000));
    let args = ["--device", "cpu", "--json", "--perplexity", &text];
    let mut child = m.command(&args).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.starts_with("[1/5000]"), "{line}");
    signal(&child, "INT");
    // Read on, so that the child is not held up.
    let rest = std::thread::spawn(move || stderr.lines().last().unwrap().unwrap());
    let run = finish(child);
    assert_eq!(run.code, Some(130), "{run:?}");
    let json = run.json();
    assert_eq!(json["stop_reason"], "interrupted");
    assert!(json.get("perplexity").is_none(), "{json}");
    assert!(rest.join().unwrap().contains("of 5000 chunks"));
}

#[test]
fn a_variable_is_blamed_for_its_value_and_an_empty_one_is_unset() {
    let m = model();
    let run = |name: &str, value: &str, args: &[&str]| {
        let mut command = m.command(&[&["--raw", "-p", "a", "-n", "1"], args].concat());
        Run::from(command.env(name, value).output().unwrap())
    };
    for (name, flag) in [
        ("MINFER_TEMP", "--temp"),
        ("MINFER_DEVICE", "--device"),
        ("MINFER_THREADS", "--threads"),
        ("MINFER_CTX_SIZE", "--ctx-size"),
    ] {
        let failed = run(name, "x", &[]).fails(2, &format!("'x' for '{name}'"));
        assert!(!failed.err.contains(flag), "{failed:?}");
        // Whoever gives a flag is told about the flag.
        run(name, "x", &[flag, "y"]).fails(2, flag);
        run(name, "", &[]).ok();
        assert_eq!(run(name, "", &["--json"]).json()["exit"], "ok");
    }
    let json = run("MINFER_SEED", "1.5", &["--json"]).json();
    assert!(json["error"].as_str().unwrap().contains("'MINFER_SEED'"), "{json}");
    run("MINFER_CPU", "", &[]).ok();
}

/// The process waits for its prompt, so that its handlers are there and nothing listens.
#[test]
fn a_signal_that_ends_the_process_at_once_leaves_an_object() {
    let m = model();
    let pipe = m.folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let exits = [("INT", 130, "interrupted"), ("TERM", 143, "terminated"), ("QUIT", 131, "quit")];
    for (name, code, exit) in exits {
        for json in [true, false] {
            let mut command = m.command(&["--raw", "-f", pipe.to_str().unwrap()]);
            let child = command.args(json.then_some("--json")).spawn().unwrap();
            // Opens when the other side does.
            let writer = File::options().write(true).open(&pipe).unwrap();
            signal(&child, name);
            let run = finish(child);
            drop(writer);
            assert_eq!(run.code, Some(code), "{run:?}");
            match json {
                true => assert_eq!(run.json(), json!({"exit": exit})),
                false => assert_eq!(run.out, ""),
            }
        }
    }
}

/// Whatever device is used, and before any file is looked at.
#[test]
fn a_switch_that_is_none_is_the_variables_fault_on_any_device() {
    let m = model();
    let nowhere = Model { path: m.folder.path().join("nowhere.mpk"), folder: m.folder };
    let cases = [
        ("MINFER_GPU_RING", "banana", "MINFER_GPU_RING=banana: expected 0 (off) or 1 (on)"),
        ("MINFER_CPU_TILE", "2", "MINFER_CPU_TILE=2: expected 0 (off) or 1 (on)"),
        ("MINFER_GPU_LOAD", "disk", "MINFER_GPU_LOAD=disk: expected pinned, map or map:MIB"),
        ("MINFER_GPU_LOAD", "map:0", "MINFER_GPU_LOAD=map:0: out of range: expected 1 to 1048576"),
        ("MINFER_GPU_GEMM", "mine", "MINFER_GPU_GEMM=mine: expected auto, own or cublas"),
        ("MINFER_GPU_MEMORY", "much", "MINFER_GPU_MEMORY=much: \"much\" is not a size"),
    ];
    for (name, value, message) in cases {
        for device in ["cpu", "auto", "cuda"] {
            let mut command = nowhere.command(&["-p", "x", "--device", device]);
            let run = Run::from(command.env(name, value).output().unwrap());
            assert!(run.err.starts_with(&format!("error: {message}")), "{run:?}");
            assert_eq!(run.code, Some(2), "{run:?}");
        }
    }
}

#[test]
fn a_variable_that_is_no_text_is_named() {
    let m = model();
    let bytes = OsStr::from_bytes(b"a\xff");
    let names =
        ["MINFER_TEMP", "MINFER_SEED", "MINFER_DEVICE", "MINFER_THREADS", "MINFER_GPU_RING"];
    for name in names {
        let mut command = m.command(&["--raw", "-p", "a", "-n", "1"]);
        let run = Run::from(command.env(name, bytes).output().unwrap());
        run.fails(2, name);
    }
    let mut command = m.command(&["--raw", "-p", "a", "-n", "1"]);
    command.env("MINFER_TEMP", bytes).env("MINFER_SEED", bytes);
    Run::from(command.output().unwrap()).fails(2, "' is not valid UTF-8");
    // The flag wins, and a flag that is no text is no variable's fault.
    let mut command = m.command(&["--raw", "-p", "a", "-n", "1", "--temp", "0"]);
    Run::from(command.env("MINFER_TEMP", bytes).output().unwrap()).ok();
    let mut command = m.command(&["--raw", "-p", "a", "-n", "1", "--temp"]);
    let run = Run::from(command.arg(bytes).env("MINFER_SEED", bytes).output().unwrap());
    let run = run.fails(2, "invalid UTF-8");
    assert!(!run.err.contains("MINFER_"), "{run:?}");
}

#[test]
fn a_number_that_is_too_large_is_out_of_range_and_no_other_thing() {
    let m = model();
    let huge = "99999999999999999999999999999999999999999999";
    for (flag, range) in [
        ("-n", "-1 to 2147483647"),
        ("-c", "0 to 1073741824"),
        ("-b", "1 to 32768"),
        ("-t", "1 to 1024"),
        ("-ngl", "0 to 2147483647"),
        ("--seed", "0 to 18446744073709551615, or -1"),
    ] {
        for number in ["4294967296000000000000", huge] {
            let run = m.run(&["--raw", "-p", "a", flag, number]);
            let run = run.fails(2, &format!("out of range: expected {range}"));
            assert!(run.err.contains(&format!("'{number}'")), "{run:?}");
        }
        let error = m.run(&["--raw", "-p", "a", flag, "many"]).err;
        assert!(error.contains("expected ") && !error.contains("out of range"), "{error}");
    }
    let run = |args: &[&str]| m.run(&[&["--raw", "-p", "a"], args].concat());
    run(&["-t", "-1"]).fails(2, "out of range: expected 1 to 1024");
    run(&["--device", "cuda:99999999999999999999"]).fails(2, "out of range: expected 0 to");
    run(&["--logit-bias", "99999999999+1"]).fails(2, "expected 0 to 4294967295");
    run(&["--max-time", "1e99"]).fails(2, "expected above 0, up to 1000000000");
    run(&["--top-k", huge]).fails(2, &format!("from -1 to 16777216, found {huge}"));
    run(&["--temp", "1e99"]).fails(2, "from 0 to 3.4028235e38, found 1e99");
}

/// A pipe without a word in it is no prompt; one that was given and is empty is one.
#[test]
fn an_empty_standard_input_is_no_prompt() {
    let m = model();
    for args in [&[][..], &["--raw"], &["-s", "Be brief."], &["--escape"]] {
        let run = m.run(&with(args)).fails(2, "no prompt: standard input is empty");
        assert_eq!(run.out, "");
        m.run_with_stdin(&with(args), b"").fails(2, "no prompt: standard input is empty");
    }
    assert_eq!(m.run(&with(&["--json"])).json()["exit"], "usage");
    let empty = m.file("empty", "");
    for args in [&["-p", ""][..], &["-f", &empty], &["-f", "-"], &[""]] {
        let json = m.run(&with(&[&["--json", "-n", "1"], args].concat())).json();
        assert_eq!(
            (json["exit"].as_str(), json["n_prompt_tokens"].as_u64()),
            (Some("ok"), Some(4))
        );
    }
    assert_eq!(m.run_with_stdin(&with(&["--raw", "-n", "1"]), b"\n").ok(), "\n");
    assert_eq!(m.run(&["--tokenize"]).ok(), "[]\n");
    assert_eq!(m.run(&["--show-prompt"]).ok(), "<s><|user|><|end|><|bot|>");
}

/// Nobody asked for the detour of a base that the CPU has no kernels for; what a variable switches
/// off somebody did.
#[test]
fn strict_refuses_what_is_slower_than_the_container_could_be() {
    let gguf = fixture::gguf_of(QuantType::Q8_0);
    let run = |base: PlaneKind, flags: &[&str], switch: Option<&str>| {
        let m = model_as(&gguf, base);
        let fixed = ["--device", "cpu", "--raw", "-p", "a", "-n", "2"];
        let mut command = m.command(&with(&[&fixed, flags].concat()));
        command.envs(switch.map(|name| (name, "0")));
        Run::from(command.output().unwrap())
    };
    let slow = "7 of 8 matrices are slow here: no kernel is made for what the file holds of them";
    let refused = run(PlaneKind::Planar, &["--strict"], None).fails(6, slow);
    assert!(refused.err.contains("model.mpk: 7 of 8"), "{refused:?}");
    assert!(refused.err.contains("(blk.0.attn_q.weight: "), "{refused:?}");
    assert_eq!(refused.out, "");
    let warned = run(PlaneKind::Planar, &[], None);
    assert_eq!(warned.err.matches(slow).count(), 1, "{warned:?}");
    assert_eq!(warned.ok(), "bc");
    let json = run(PlaneKind::Planar, &["--json", "--explain"], None).json();
    let row = &json["explain"][0];
    assert_eq!((&row["prefill"]["slow"], &row["decode"]["slow"]), (&json!(true), &json!(true)));
    // The output is f32, for which there is no such base.
    assert_eq!(json["explain"][7]["decode"]["slow"], json!(false));
    for base in [PlaneKind::Padded, PlaneKind::Tile] {
        let run = run(base, &["--strict"], None);
        assert!(!run.err.contains("slow"), "{run:?}");
        assert_eq!(run.ok(), "bc");
    }
    let off = run(PlaneKind::Tile, &["--strict", "--json", "--explain"], Some("MINFER_CPU_TILE"));
    assert!(!off.err.contains("slow"), "{off:?}");
    let row = &off.json()["explain"][0]["decode"];
    assert_eq!((&row["label"], &row["slow"]), (&json!("off"), &json!(true)));
}
