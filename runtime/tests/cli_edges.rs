//! minfer-run where input is odd, the environment says something, or a signal comes.

// Helpers outside `#[test]` functions fail a test the same way.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod fixture;
#[allow(dead_code)]
mod harness;

use fixture::ALPHABET;
use harness::{Run, chat, model, with};
use serde_json::json;

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
