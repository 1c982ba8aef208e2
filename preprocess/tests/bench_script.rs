//! `scripts/bench_vs_llamacpp.py` with the built packer, and programs that stand in for both benches.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Bench, PACK, VERIFY};

/// What llama-bench and minfer-bench print for `-p 512 -n 128 -o json`, as far as it is read.
const ROWS: &str = r#"[{"n_prompt": 512, "n_gen": 0, "avg_ts": SPEED}, {"n_prompt": 0, "n_gen": 128, "avg_ts": 8}]"#;

/// A folder with the programs that the script calls.
struct Programs {
    bench: Bench,
    dir: tempfile::TempDir,
}

#[derive(Debug)]
struct Done {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Programs {
    fn new() -> Self {
        let programs = Self { bench: Bench::new(), dir: tempfile::tempdir().expect("a folder") };
        symlink(PACK, programs.path("minfer-pack")).expect("a link");
        programs.put("llama-bench", &format!("echo '{}'", ROWS.replace("SPEED", "100")));
        // The container must be that of the GGUF, and by this packer.
        let check = format!("{VERIFY} -q --source {} \"$2\" || exit 1", programs.gguf().display());
        let rows = ROWS.replace("SPEED", "250");
        programs.put("minfer-bench", &format!("{check}\necho \"$2\" >&2\necho '{rows}'"));
        programs
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn gguf(&self) -> &Path {
        &self.bench.gguf
    }

    /// A shell script in place of a program.
    fn put(&self, name: &str, body: &str) {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("writing");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
    }

    fn command(&self, flags: &[&str], gguf: &Path) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/bench_vs_llamacpp.py");
        // Tests may run in the background or under nohup, and what ignores a signal there its children do.
        let mut command = Command::new("env");
        command
            .args(["--default-signal=HUP,INT", "python3", "-B"])
            .arg(script)
            .arg("--peer")
            .arg(self.dir.path());
        command.arg("--bin").arg(self.dir.path()).args(["--rounds", "2"]).args(flags).arg(gguf);
        command
    }

    fn run(&self, flags: &[&str], gguf: &Path) -> Done {
        let output = self.command(flags, gguf).output();
        let output = output.expect("python3, which the tests of scripts need");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Done { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    #[track_caller]
    fn fails(&self, flags: &[&str], gguf: &Path, code: i32, message: &str) {
        let done = self.run(flags, gguf);
        assert_eq!(done.code, Some(code), "{done:?}");
        let last = done.err.lines().last().unwrap_or_default();
        assert!(last.starts_with("bench_vs_llamacpp.py: error: "), "{done:?}");
        assert!(last.contains(message), "{done:?}");
        assert!(!done.err.contains("Traceback"), "{done:?}");
    }
}

#[test]
fn the_container_is_always_this_packers_of_this_file() {
    let programs = Programs::new();
    // What an older version, or the same of another file, may have left.
    let stale = programs.bench.path("tiny.none.mpk");
    fs::write(&stale, b"of another day").expect("writing");
    let done = programs.run(&["--planes", "none"], programs.gguf());
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.out.contains("| tiny.gguf | prefill 512 | 100.0 (100.0..100.0) | 250.0 (250.0..250.0) | 2.50 | 2.50 |"), "{done:?}");
    assert!(done.err.is_empty(), "{done:?}");
    assert_eq!(fs::read(&stale).expect("reading"), b"of another day");
    assert_eq!(programs.bench.names(), ["tiny.gguf", "tiny.none.mpk"], "nothing stays behind");
}

#[test]
fn a_program_that_fails_is_told_with_what_it_said() {
    let programs = Programs::new();
    let sound = programs.gguf();
    programs.put(
        "minfer-bench",
        "echo 'note: it begins' >&2; echo 'error: no such device' >&2; exit 6",
    );
    programs.fails(&[], sound, 1, "minfer-bench ended with 6: error: no such device");
    assert!(programs.run(&[], sound).err.contains("note: it begins\n"), "and what came before");
    programs.put("minfer-bench", "kill -9 $$");
    programs.fails(&[], sound, 1, "minfer-bench was ended by signal 9: it said nothing");
    programs.put("minfer-bench", "echo '[]'");
    programs.fails(&[], sound, 1, "minfer-bench printed 0 of 2 tests");
    for speed in ["0", "-1", "null", "\"fast\"", "NaN", "Infinity"] {
        programs.put("minfer-bench", &format!("echo '{}'", ROWS.replace("SPEED", speed)));
        programs.fails(&[], sound, 1, "minfer-bench did not print the rows of its tests: ");
    }
    programs.put("minfer-bench", "echo 'no list'");
    programs.fails(&[], sound, 1, "minfer-bench did not print the rows of its tests: ");
    programs.put("llama-bench", "echo 'failed to load' >&2; exit 1");
    programs.fails(&[], sound, 1, "llama-bench ended with 1: failed to load");
    // Whatever a parser of arguments adds behind its error.
    let planes = ["--planes", "nonsense"];
    programs.fails(
        &planes,
        sound,
        1,
        "minfer-pack ended with 2: error: invalid value 'nonsense' for",
    );
    let broken = programs.bench.path("broken.gguf");
    fs::write(&broken, b"GGUF").expect("writing");
    programs.fails(&[], &broken, 1, "minfer-pack ended with 3: error: ");
    assert_eq!(programs.bench.names(), ["broken.gguf", "tiny.gguf"], "nothing stays behind");
}

#[test]
fn wrong_use_is_2() {
    let programs = Programs::new();
    let huge = "9".repeat(5000);
    for count in ["0", "-1", "x", "99999999999999999999", &huge] {
        let message = "expected a whole number from 1 to 1024";
        programs.fails(&[&format!("--rounds={count}")], programs.gguf(), 2, message);
    }
    programs.fails(&[], Path::new("missing.gguf"), 2, "missing.gguf: neither a model of");
    programs.fails(&["all"], Path::new("missing.gguf"), 2, "missing.gguf: neither a model of");
    fs::remove_file(programs.path("llama-bench")).expect("removing");
    programs.fails(&[], programs.gguf(), 2, "no llama-bench in it");
}

/// However the script ends, its folder goes.
#[test]
fn signals_and_a_full_disk_leave_nothing_behind() {
    let programs = Programs::new();
    // Its parent is the script.
    for (signal, code) in [("HUP", 129), ("INT", 130), ("TERM", 143)] {
        programs.put("minfer-bench", &format!("kill -{signal} $PPID; exec sleep 60"));
        let done = programs.run(&[], programs.gguf());
        assert_eq!(done.code, Some(code), "{signal}: {done:?}");
        assert!(!done.err.contains("Traceback"), "{done:?}");
        assert_eq!(programs.bench.names(), ["tiny.gguf"], "{signal}");
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device");
    let output = programs.command(&[], programs.gguf()).stdout(full).output().expect("python3");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{err}");
    let expected = "bench_vs_llamacpp.py: error: standard output: No space left on device\n";
    assert_eq!(err, expected);
    assert_eq!(programs.bench.names(), ["tiny.gguf"]);
}
