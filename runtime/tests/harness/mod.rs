//! Running minfer-run on the fixture, and what the tests want to know of a run.

use crate::fixture::{self, GgufBuilder, TEMPLATE};
use format_spec::plane::PlaneKind;
use serde_json::Value;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) struct Model {
    pub(crate) folder: TempDir,
    pub(crate) path: PathBuf,
}

pub(crate) fn model_of(gguf: &GgufBuilder) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = fixture::write(folder.path(), "model.mpk", gguf);
    Model { folder, path }
}

/// With this base where the quant types have it.
pub(crate) fn model_as(gguf: &GgufBuilder, base: PlaneKind) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.mpk");
    fs::write(&path, fixture::pack_as(&gguf.build(), base)).unwrap();
    Model { folder, path }
}

/// With a chat template and without add_bos.
pub(crate) fn model() -> Model {
    model_of(
        &fixture::gguf()
            .kv_str("tokenizer.chat_template", TEMPLATE)
            .kv_bool("tokenizer.ggml.add_bos_token", false),
    )
}

impl Model {
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minfer-run"));
        command.arg(&self.path).args(args);
        // What the caller's environment says must not change a test.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MINFER_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run::from(self.command(args).output().unwrap())
    }

    pub(crate) fn run_with_stdin(&self, args: &[&str], input: &[u8]) -> Run {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        Run::from(child.wait_with_output().unwrap())
    }

    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Run {
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let value: Value =
            serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        assert_eq!(self.out.lines().count(), 1, "{self:?}");
        value
    }

    #[track_caller]
    pub(crate) fn fails(self, code: i32, message: &str) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        let errors: Vec<_> = self.err.lines().filter(|l| l.starts_with("error:")).collect();
        assert_eq!(errors.len(), 1, "{self:?}");
        assert!(errors[0].contains(message), "{message:?} not in {self:?}");
        self
    }
}

pub(crate) const GREEDY: [&str; 2] = ["--temp", "0"];

pub(crate) fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&GREEDY, args].concat()
}

pub(crate) fn wait(child: &mut Child, patience: Duration) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < patience {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    None
}

/// A model that says `A` for a very long time.
pub(crate) fn endless() -> Model {
    let mut gguf = fixture::gguf().without_kv("llama.context_length");
    gguf = gguf.kv_u32("llama.context_length", 1 << 20);
    model_of(&gguf.kv_bool("tokenizer.ggml.add_bos_token", false))
}

/// Starts an endless answer and waits for its first byte.
pub(crate) fn start_endless(m: &Model) -> Child {
    let mut child = m.command(&with(&["--raw", "-p", "A"])).spawn().unwrap();
    let mut byte = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"A");
    child
}

pub(crate) fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Reads on so that the child does not block on a full pipe.
pub(crate) fn finish(child: Child) -> Run {
    Run::from(child.wait_with_output().unwrap())
}

/// A chat on a pseudo-terminal, which `script` provides.
pub(crate) fn chat(model: &Path, state: &Path, lines: &[u8]) -> Run {
    let command = format!("{} {} --temp 0", env!("CARGO_BIN_EXE_minfer-run"), model.display());
    let mut child = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("XDG_STATE_HOME", state)
        .env("TERM", "dumb")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for line in lines.split_inclusive(|&byte| byte == b'\n') {
        stdin.write_all(line).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    Run {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
