//! minfer-run end to end, on a tiny model whose every answer is known.

// Helpers outside `#[test]` functions fail a test the same way.
#![allow(clippy::unwrap_used)]

mod fixture;
#[allow(dead_code)]
mod harness;

use fixture::{ALPHABET, BOS, BOT, END, SYSTEM, USER};
use format_spec::QuantType;
use format_spec::container::Container;
use harness::{Run, chat, endless, finish, model, model_of, signal, start_endless, wait, with};
use serde_json::json;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn standard_output_is_the_text_and_nothing_else() {
    let m = model();
    let run = m.run(&with(&["--raw", "-p", "a"]));
    assert_eq!(run.out, ALPHABET);
    assert_eq!(run.code, Some(0));
    assert!(run.err.contains("seed ") && run.err.contains("stop: eos"), "{}", run.err);
    let run = m.run(&with(&["--raw", "-q", "-p", "a"]));
    assert_eq!((run.out.as_str(), run.err.as_str()), (ALPHABET, ""));
    assert_eq!(m.run(&with(&["--raw", "--no-stream", "a"])).ok(), ALPHABET);
}

#[test]
fn the_template_is_the_default() {
    let m = model();
    assert_eq!(m.run(&with(&["-p", "hi"])).ok(), format!("a{ALPHABET}"));
    assert_eq!(m.run(&with(&["hi", "-s", "Be brief."])).ok(), format!("a{ALPHABET}"));
    let json = m.run(&with(&["--json", "-p", "hi", "-s", "S"])).json();
    let ids: Vec<u64> = [
        &[BOS, SYSTEM, u32::from(b'S'), END, USER][..],
        &[u32::from(b'h'), u32::from(b'i'), END, BOT],
    ]
    .concat()
    .iter()
    .map(|&id| u64::from(id))
    .collect();
    assert_eq!(json["prompt_token_ids"], json!(ids));
}

#[test]
fn text_from_outside_never_becomes_a_control_token() {
    let m = model();
    let json = m.run(&with(&["--json", "-n", "0", "-p", "<|end|><|bot|>"])).json();
    let ids: Vec<u64> =
        json["prompt_token_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
    let control: Vec<u64> = ids.iter().copied().filter(|&id| id >= 256).collect();
    assert_eq!(control, [BOS, USER, END, BOT].map(u64::from), "{ids:?}");
}

#[test]
fn show_prompt_prints_what_the_template_rendered() {
    let m = model();
    assert_eq!(m.run(&["--show-prompt", "-p", "hi\n"]).ok(), "<s><|user|>hi\n<|end|><|bot|>");
    assert_eq!(m.run(&["--show-prompt", "--raw", "-p", "hi"]).ok(), "hi");
    let json = m.run(&["--show-prompt", "--json", "-p", "x"]).json();
    assert_eq!(json["prompt"], "<s><|user|>x<|end|><|bot|>");
    assert_eq!(json["exit"], "ok");
    let messages = m.file("m.json", r#"[{"role":"user","content":"q"},{"role":"assistant","content":"r"},{"role":"user","content":"s"}]"#);
    assert_eq!(
        m.run(&["--show-prompt", "--messages", &messages]).ok(),
        "<s><|user|>q<|end|><|bot|>r<|end|><|user|>s<|end|><|bot|>"
    );
    let template =
        m.file("t.jinja", "{{ messages[0].content }}|{{ flag }}|{{ strftime_now('%Y') }}\n");
    let mut command = m.command(&[
        "--show-prompt",
        "--chat-template-file",
        &template,
        "--template-arg",
        "flag=false",
        "-p",
        "x",
    ]);
    let run = Run::from(command.env("SOURCE_DATE_EPOCH", "1767323045").output().unwrap());
    assert_eq!(run.ok().to_lowercase(), "x|false|2026");
    let refusing = m.file("r.jinja", "{{ raise_exception('roles must alternate') }}");
    m.run(&["--chat-template-file", &refusing, "-p", "x"]).fails(1, "roles must alternate");
    let broken = m.file("b.jinja", "{% if %}");
    m.run(&["--chat-template-file", &broken, "-p", "x"]).fails(3, "template");
}

#[test]
fn exactly_one_bos() {
    let wants_bos = |template: &str| {
        model_of(
            &fixture::gguf()
                .kv_bool("tokenizer.ggml.add_bos_token", true)
                .kv_str("tokenizer.chat_template", template),
        )
    };
    for template in ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"] {
        let json = wants_bos(template).run(&with(&["--json", "-n", "0", "-p", "x"])).json();
        assert_eq!(json["prompt_token_ids"], json!([BOS, 0x78]), "{template}");
    }
    let m = wants_bos("");
    assert_eq!(
        m.run(&["--raw", "--json", "-n", "0", "-p", "x"]).json()["prompt_token_ids"],
        json!([BOS, 0x78])
    );
    let none = m.run(&["--raw", "--no-bos", "--json", "-n", "0", "-p", "x"]).json();
    assert_eq!(none["prompt_token_ids"], json!([0x78]));
}

#[test]
fn an_empty_prompt_is_the_bos_or_wrong_use() {
    let m = model();
    let json = m.run(&["--raw", "--json", "-n", "0", "-p", ""]).json();
    assert_eq!(json["prompt_token_ids"], json!([BOS]));
    let without = model_of(
        &fixture::gguf()
            .without_kv("tokenizer.ggml.bos_token_id")
            .kv_bool("tokenizer.ggml.add_bos_token", false),
    );
    // Without the key llama.cpp's default for this tokenizer, 11, is the BOS.
    let json = without.run(&["--raw", "--json", "-n", "0", "-p", ""]).json();
    assert_eq!(json["prompt_token_ids"], json!([11]));
    m.run(&["--raw", "--no-bos", "-p", ""]).fails(2, "empty");
    let ids = m.file("ids.json", "[]");
    m.run(&["--ids", &ids]).fails(2, "empty");
}

#[test]
fn tokenize_takes_the_text_as_it_is() {
    let m = model_of(&fixture::gguf().kv_bool("tokenizer.ggml.add_bos_token", true));
    assert_eq!(m.run(&["--tokenize", "-p", "ab"]).ok(), format!("[{BOS},97,98]\n"));
    assert_eq!(m.run(&["--tokenize", "--no-bos", "--raw", "-p", "ab"]).ok(), "[97,98]\n");
    assert_eq!(m.run(&["--tokenize", "-p", ""]).ok(), "[]\n");
    assert_eq!(m.run(&["--tokenize"]).ok(), "[]\n");
    assert_eq!(
        m.run(&["--tokenize", "--json", "--no-bos", "-p", ""]).json()["token_ids"],
        json!([])
    );
    let json = m.run(&["--tokenize", "--json", "--no-bos", "-p", "<|end|>"]).json();
    assert_eq!(json["token_ids"].as_array().unwrap().len(), 7);
    let file = m.file("text", b"a\r\n\n");
    assert_eq!(m.run(&["--tokenize", "--no-bos", "-f", &file]).ok(), "[97,13,10,10]\n");
    assert_eq!(m.run_with_stdin(&["--tokenize", "--no-bos"], b"b\n").ok(), "[98,10]\n");
    let bad = m.file("bad", b"ab\xff");
    m.run(&["--tokenize", "-f", &bad]).fails(3, "offset 2");
    m.run(&["--tokenize", "-f", "/nonexistent"]).fails(4, "/nonexistent");
}

#[test]
fn standard_input_is_read_only_without_another_prompt() {
    let m = model();
    assert_eq!(m.run_with_stdin(&with(&["--raw"]), b"a").ok(), ALPHABET);
    assert_eq!(m.run_with_stdin(&with(&["--raw", "-f", "-"]), b"a").ok(), ALPHABET);
    // An open pipe that never ends must not be waited for.
    let mut child = m.command(&with(&["--raw", "-p", "a"])).stdin(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take();
    assert!(wait(&mut child, Duration::from_secs(60)).is_some(), "waits for standard input");
    drop(stdin);
}

#[test]
fn stop_strings_span_tokens_and_are_never_printed() {
    let m = model();
    let run = |args: &[&str]| m.run(&with(&[&["--raw", "-p", "a"], args].concat())).ok();
    assert_eq!(run(&["--stop", "klm"]), "bcdefghij");
    assert_eq!(run(&["--stop", "klx", "--stop", "nop"]), "bcdefghijklm");
    assert_eq!(run(&["--stop", "yz€"]), "bcdefghijklmnopqrstuvwx");
    assert_eq!(run(&["--stop", "z?"]), ALPHABET);
    assert_eq!(run(&["--stop", "b"]), "");
    let json = m.run(&with(&["--raw", "--json", "-p", "a", "--stop", "de"])).json();
    assert_eq!(json["text"], "bc");
    assert_eq!(json["stop_reason"], "stop");
    assert_eq!(json["stop_text"], "de");
}

#[test]
fn the_length_is_counted_in_tokens() {
    let m = model();
    let run = |n: &str| m.run(&with(&["--raw", "-p", "a", "-n", n]));
    assert_eq!(run("3").ok(), "bcd");
    assert_eq!(run("0").ok(), "");
    // 27 tokens end within the three bytes of the euro sign.
    assert_eq!(run("27").ok(), "bcdefghijklmnopqrstuvwxyz\u{fffd}");
    assert_eq!(run("28").ok(), ALPHABET);
}

#[test]
fn json_is_one_object() {
    let m = model();
    let json = m.run(&with(&["--raw", "--json", "-p", "a", "--top-k", "7", "--seed", "83"])).json();
    assert_eq!(json["schema"], "minfer.run/1");
    assert_eq!(json["text"], ALPHABET);
    assert_eq!(json["exit"], "ok");
    assert_eq!(json["stop_reason"], "eos");
    assert_eq!(json["seed"], 83);
    assert_eq!(json["n_prompt_tokens"], 1);
    let ids = json["token_ids"].as_array().unwrap();
    assert_eq!(ids.len(), 29);
    assert_eq!(ids[28], END);
    assert_eq!(json["sampling"]["temp"], json!({"value": 0.0, "origin": "flag"}));
    assert_eq!(json["sampling"]["top_k"], json!({"value": 7, "origin": "flag"}));
    assert_eq!(json["sampling"]["min_p"], json!({"value": 0.05, "origin": "built-in"}));
    assert!(json["timings"]["predicted_n"].is_u64());
    let failed = m.run(&["--json", "-p", "x", "--device", "cuda:9999"]);
    assert_eq!(failed.code, Some(6));
    assert_eq!(failed.json()["exit"], "device");
}

#[test]
fn sampling_values_come_from_flag_variable_model_and_default() {
    let m = model_of(
        &fixture::gguf()
            .kv_bool("tokenizer.ggml.add_bos_token", false)
            .kv_f32("general.sampling.temp", 0.25)
            .kv_i32("general.sampling.top_k", 9)
            .kv_f32("general.sampling.top_p", 0.5),
    );
    let mut command = m.command(&["--raw", "--json", "-p", "a", "-n", "1", "--temp", "0.75"]);
    let run =
        Run::from(command.env("MINFER_TOP_K", "3").env("MINFER_TEMP", "0.1").output().unwrap());
    let json = run.json();
    assert_eq!(json["sampling"]["temp"], json!({"value": 0.75, "origin": "flag"}));
    assert_eq!(json["sampling"]["top_k"], json!({"value": 3, "origin": "env"}));
    assert_eq!(json["sampling"]["top_p"], json!({"value": 0.5, "origin": "model"}));
    assert_eq!(json["sampling"]["min_p"]["origin"], "built-in");
}

#[test]
fn a_reported_seed_gives_the_same_text_again() {
    let m = model();
    let wild = [
        "--raw", "--json", "-p", "a", "-n", "24", "--temp", "40", "--top-k", "0", "--top-p", "1",
        "--min-p", "0",
    ];
    let first = m.run(&wild).json();
    let seed = first["seed"].to_string();
    let again = |seed: &str| m.run(&[&wild[..], &["--seed", seed]].concat()).json();
    assert_eq!(again(&seed)["token_ids"], first["token_ids"]);
    assert_ne!(again("1")["token_ids"], again("2")["token_ids"]);
}

#[test]
fn bias_and_ignore_eos_change_the_choice() {
    let m = model();
    let json = m
        .run(&with(&[
            "--raw",
            "--json",
            "-p",
            "a",
            "-n",
            "2",
            "--logit-bias",
            "98-inf",
            "--logit-bias",
            "113+1000",
        ]))
        .json();
    assert_eq!(json["text"], "qq");
    m.run(&with(&["--raw", "-p", "a", "--logit-bias", "261+1"])).fails(2, "261");
    let json = m.run(&with(&["--raw", "--json", "-p", "x", "-n", "20", "--ignore-eos"])).json();
    assert_eq!(json["stop_reason"], "length");
}

#[test]
fn ids_are_used_as_they_stand_and_logits_are_written() {
    let m = model_of(&fixture::gguf().kv_bool("tokenizer.ggml.add_bos_token", true));
    let ids = m.file("ids.json", r#"{"token_ids": [97, 98, 99, 255, 100]}"#);
    let json = m.run(&with(&["--ids", &ids, "--json", "-n", "2"])).json();
    assert_eq!(json["text"], "ef");
    assert_eq!(json["n_prompt_tokens"], 5);
    let out = m.file("out.f32", "old contents that are longer than nothing");
    let expected = [98u32, 99, 100, 255, 101];
    let mut files = Vec::new();
    for batch in ["512", "1", "2"] {
        let run = m.run(&with(&["--ids", &ids, "--logits", &out, "-b", batch]));
        assert_eq!(run.ok(), "");
        let bytes = fs::read(&out).unwrap();
        assert_eq!(bytes.len(), 5 * 261 * 4);
        let values: Vec<f32> =
            bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
        for (row, expected) in values.chunks_exact(261).zip(expected) {
            let best = (0..261).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            assert_eq!(best as u32, expected);
        }
        files.push(bytes);
    }
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]), "results depend on the batch");
    // With -n it goes on.
    assert_eq!(m.run(&with(&["--ids", &ids, "--logits", &out, "-n", "3"])).ok(), "efg");
    m.run(&["--ids", &ids, "--logits", m.path.to_str().unwrap()]).fails(2, "the model itself");
    m.run(&["--ids", &ids, "--logits", "/nonexistent/x"]).fails(4, "/nonexistent/x");
    m.run(&["--ids", &ids, "--logits", &ids]).fails(2, "the file of --ids");
    // What cannot be computed leaves the file as it was, also behind the first batch.
    let (wrong, kept) = (m.file("wrong.json", "[3, 4, 99999]"), m.file("kept", "kept"));
    m.run(&["--ids", &wrong, "--logits", &kept, "-b", "1"]).fails(3, "99999");
    assert_eq!(fs::read(&kept).unwrap(), b"kept");
    let too_large = m.file("big.json", "[261]");
    m.run(&["--ids", &too_large]).fails(3, "261");
    m.run(&["-p", "x", "--logits", &out]).fails(2, "--ids");
}

#[test]
fn perplexity_ends_with_llama_cpps_line() {
    let m = model();
    // `A` is always followed by `A`: the model is certain, the perplexity 1.
    let text = m.file("text", "A".repeat(1100));
    assert_eq!(m.run(&["--perplexity", &text]).ok(), "Final estimate: PPL = 1.0000 +/- 0.00000\n");
    let json = m.run(&["--perplexity", &text, "--json"]).json();
    assert_eq!(json["n_chunks"], 2);
    let short = m.file("short", "A".repeat(1023));
    m.run(&["--perplexity", &short]).fails(3, "1023 tokens");
}

#[test]
fn a_full_context_ends_with_a_clear_message() {
    let m = model();
    let run = m.run(&with(&["--raw", "-p", "AAAA", "-c", "16"])).fails(1, "context");
    // Four positions for the prompt, twelve answers that were fed, and one more that was sampled.
    assert_eq!(run.out, "A".repeat(13));
    let json = m.run(&with(&["--raw", "--json", "-p", "AAAA", "-c", "16"])).json();
    assert_eq!(
        (json["stop_reason"].clone(), json["exit"].clone()),
        (json!("context"), json!("failed"))
    );
    let run =
        m.run(&with(&["--raw", "-p", "AAAAA", "-c", "4"])).fails(1, "the prompt has 5 tokens");
    assert_eq!(run.out, "");
    assert_eq!(m.run(&with(&["--raw", "-p", "AAAA", "-c", "4", "-n", "1"])).ok(), "A");
}

#[test]
fn wrong_use_is_exit_2() {
    let m = model();
    for args in [
        &["-p", "x", "-f", "y"][..],
        &["x", "-p", "y"],
        &["--temp", "-1", "-p", "x"],
        &["-n", "-5", "-p", "x"],
        &["-b", "0", "-p", "x"],
        &["--samplers", "magic", "-p", "x"],
        &["--nonsense"],
    ] {
        let run = m.run(args);
        assert_eq!(run.code, Some(2), "{args:?} {run:?}");
        assert_eq!(run.out, "");
    }
    let run = Run::from(m.command(&["-p", "x"]).env("MINFER_CPU", "abacus").output().unwrap());
    run.fails(2, "abacus");
}

#[test]
fn unusable_files_are_named() {
    let m = model();
    let run = |path: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minfer-run"));
        Run::from(command.arg(path).args(args).stdin(Stdio::null()).output().unwrap())
    };
    let gguf = m.file("my model.gguf", fixture::gguf().build());
    let message = run(&gguf, &["-p", "x"]).fails(3, "GGUF");
    assert!(message.err.contains(&format!("minfer-pack '{gguf}'")), "{message:?}");
    run("/nonexistent.mpk", &["-p", "x"]).fails(4, "/nonexistent.mpk");
    run(&m.file("text.mpk", "hello, this is no model"), &["-p", "x"]).fails(3, "text.mpk");
    run(&m.file("empty.mpk", ""), &["-p", "x"]).fails(3, "empty");
    let bytes = fs::read(&m.path).unwrap();
    run(&m.file("cut.mpk", &bytes[..bytes.len() / 2]), &["-p", "x"]).fails(3, "cut.mpk");
    m.run(&["-p", "x", "--device", "cuda:9999"]).fails(6, "cuda:9999");
}

#[test]
fn verify_reads_every_byte_on_request() {
    // Factors of 1 change nothing, but do not fill a whole unit of the data section.
    let ones: Vec<u8> = [1f32; 16].iter().flat_map(|v| v.to_le_bytes()).collect();
    let m = model_of(&fixture::gguf().tensor("rope_freqs.weight", &[16], QuantType::F32, &ones));
    let mut bytes = fs::read(&m.path).unwrap();
    // The last object ends just before the padding of the file.
    let last = bytes.iter().rposition(|&b| b != 0).unwrap();
    bytes[last] ^= 1;
    fs::write(&m.path, &bytes).unwrap();
    assert_eq!(m.run(&with(&["--raw", "-n", "1", "-p", "a"])).code, Some(0));
    for level in ["fast", "full"] {
        m.run(&["--verify", level, "--raw", "-n", "1", "-p", "a"]).fails(1, "minfer-verify");
    }
    // Padding belongs to no object, but is part of the file.
    bytes[last] ^= 1;
    let gap = Container::parse(&bytes).unwrap().zero_gaps().last().unwrap().clone();
    bytes[gap.start as usize] = 1;
    fs::write(&m.path, bytes).unwrap();
    for level in ["fast", "full"] {
        m.run(&["--verify", level, "--raw", "-n", "1", "-p", "a"]).fails(1, "must be zero");
    }
}

#[test]
fn explain_and_dry_run_show_without_running() {
    let m = model();
    let table = m.run(&["--explain"]).ok();
    assert!(table.contains("blk.0.ffn_down.weight") && table.contains("padded"), "{table}");
    let json = m
        .run(&with(&["--explain", "--json", "--raw", "-n", "4", "-p", "aaaaaaaaaaaaaaaaaaaaaaaa"]))
        .json();
    let rows = json["explain"].as_array().unwrap();
    // Keys are computed for every prompt token, whatever the last layer leaves out.
    let keys = rows.iter().find(|row| row["tensor"] == "blk.0.attn_k.weight").unwrap();
    assert_eq!(keys["prefill"]["n_launches"], 1, "{keys}");
    assert_eq!(keys["decode"]["n_launches"], 3, "{keys}");
    let table = m.run(&["--dry-run", "-c", "100"]).ok();
    assert!(table.contains("KV cache f16 (100 tokens)"), "{table}");
    let run = m.run(&["--dry-run", "-c", "1000000000"]);
    assert_eq!(run.code, Some(5), "{run:?}");
    m.run(&["-p", "x", "-c", "1000000000"]).fails(5, "keys and values");
    assert_eq!(m.run(&with(&["--strict", "--raw", "-n", "2", "-p", "a"])).ok(), "bc");
}

#[test]
fn a_model_without_tokenizer_runs_on_ids() {
    let m = model_of(&fixture::gguf().without_kv("tokenizer.ggml.model"));
    assert!(m.run(&["--explain"]).ok().contains("blk.0.ffn_down.weight"));
    assert!(m.run(&["--dry-run"]).ok().contains("KV cache"));
    let ids = m.file("ids", "[97]");
    let json = m.run(&with(&["--ids", &ids, "-n", "3", "--json"])).json();
    assert_eq!(json["token_ids"], json!([98, 99, 100]), "{json}");
    assert_eq!(json["text"], "");
    let logits = m.file("logits", "");
    m.run(&["--ids", &ids, "--logits", &logits]).ok();
    assert_eq!(fs::metadata(&logits).unwrap().len(), 4 * fixture::N_VOCAB as u64);
    m.run(&["--ids", &ids, "--json", "--logit-bias", "100000+1"]).fails(2, "--logit-bias");
    // What needs text says so.
    for args in [&["-p", "x"][..], &["--raw", "x"], &["--tokenize", "x"], &["--ids", &ids]] {
        m.run(args).fails(3, "holds no tokenizer");
    }
}

#[test]
fn every_tier_and_thread_count_gives_the_same() {
    let m = model();
    // Names a tier that this machine must have.
    let required = std::env::var("REQUIRE_ISA").ok();
    for tier in ["scalar", "avx2", "avxvnni", "avx512", "neon", "dotprod", "i8mm"] {
        for threads in ["1", "3"] {
            let mut command =
                m.command(&with(&["--device", "cpu", "--raw", "-p", "a", "-t", threads]));
            let run = Run::from(command.env("MINFER_CPU", tier).output().unwrap());
            if run.code == Some(6) {
                // The processor does not have this tier.
                assert_ne!(required.as_deref(), Some(tier), "{run:?}");
                continue;
            }
            assert_eq!(run.ok(), ALPHABET, "{tier} {threads}");
        }
    }
}

#[test]
fn an_interrupt_stops_the_answer_with_130() {
    let m = endless();
    let child = start_endless(&m);
    signal(&child, "INT");
    let run = finish(child);
    assert_eq!(run.code, Some(130), "{run:?}");
    assert!(run.err.contains("stop: interrupted"), "{}", run.err);
    // Nothing is being answered: a single ^C ends it.
    let mut child = m.command(&["--raw"]).stdin(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    signal(&child, "INT");
    let status = wait(&mut child, Duration::from_secs(60)).unwrap();
    // On a busy machine the signal may come before there is a handler.
    assert_eq!(status.code().or(status.signal().map(|s| 128 + s)), Some(130));
    let child = start_endless(&m);
    signal(&child, "TERM");
    assert_eq!(finish(child).code, Some(143));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let m = endless();
    let mut child = start_endless(&m);
    drop(child.stdout.take());
    let run = finish(child);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(!run.err.contains("error"), "{run:?}");
}

#[test]
fn a_file_that_shrinks_is_an_io_error() {
    let m = endless();
    let child = start_endless(&m);
    fs::OpenOptions::new().write(true).open(&m.path).unwrap().set_len(4096).unwrap();
    finish(child).fails(4, "became shorter");
}

#[test]
fn help_completions_and_version_need_no_model() {
    let run = |args: &[&str]| {
        Run::from(Command::new(env!("CARGO_BIN_EXE_minfer-run")).args(args).output().unwrap())
    };
    let help = run(&["--help"]).ok();
    for word in ["--temp", "--messages", "--perplexity", "--threads", "Exit codes", "Examples"] {
        assert!(help.contains(word), "{word}");
    }
    assert!(run(&["--version"]).ok().contains("minfer-run"));
    assert!(run(&["--completions", "bash"]).ok().contains("minfer-run"));
}

/// `docs/RUN.md` has every key that a run prints, and no stop reason or exit name that is not one.
#[test]
fn the_json_object_is_documented() {
    let m = model();
    let doc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/RUN.md");
    let doc = fs::read_to_string(doc).unwrap();
    let text = m.file("text", "A".repeat(1100));
    for args in [
        &["--temp", "0", "--raw", "-p", "a", "--stop", "de", "--explain"][..],
        &["--tokenize", "-p", "a"],
        &["--show-prompt", "-p", "a"],
        &["--perplexity", &text],
        &["--dry-run"],
        &["-p", "a", "--device", "cuda"],
    ] {
        let json = m.run(&[&["--json"], args].concat()).json();
        for key in json.as_object().unwrap().keys() {
            assert!(doc.contains(&format!("`{key}`")), "{key} is not in docs/RUN.md");
        }
        for key in json["timings"].as_object().into_iter().flat_map(|timings| timings.keys()) {
            assert!(doc.contains(&format!("`{key}`")), "{key} is not in docs/RUN.md");
        }
    }
    for code in cli::ExitCode::ALL {
        assert!(doc.contains(&format!("`{}`", code.name())), "{}", code.name());
    }
}

/// A chat on a pseudo-terminal, which `script` provides.
#[test]
fn a_chat_on_a_terminal() {
    let m = model();
    let state = m.folder.path().join("state");
    let run = chat(
        &m.path,
        &state,
        b"hello\n/regen\n/set temp=0.5\n/set\n/stats\n/clear\n/nonsense\n/exit\n",
    );
    assert_eq!(run.code, Some(0), "{run:?}");
    let n_answers = run.out.matches(ALPHABET).count();
    assert_eq!(n_answers, 2, "{run:?}");
    for text in ["temp = 0.5", "top_k", "context:", "forgotten", "no command /nonsense"] {
        assert!(run.out.contains(text), "{text}: {run:?}");
    }
    let history = fs::read_to_string(state.join("minfer/history")).unwrap();
    assert!(history.contains("hello") && history.contains("/regen"), "{history}");
}

/// The message is still there to be answered, and so is the answer that `/regen` took back.
#[test]
fn a_failed_regen_loses_nothing() {
    let m = model();
    let state = m.folder.path().join("state");
    // Twice this penalty, for a letter that the text has twice, makes its logit infinite.
    let run = chat(
        &m.path,
        &state,
        b"hello\n/set frequency_penalty=-3e38\n/regen\n/set frequency_penalty=0\n/regen\n/exit\n",
    );
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(run.out.matches("no logit is finite").count(), 1, "{run:?}");
    assert_eq!(run.out.matches(ALPHABET).count(), 2, "{run:?}");
}
