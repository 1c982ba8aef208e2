//! Counts in a file must not size allocations: hostile files are read under a memory limit, in a
//! child process, since a refused allocation aborts.

use std::process::Command;
use std::time::{Duration, Instant};

use format_spec::Gguf;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::{gguf_cases, gguf_hostile};

const CHILD: &str = "MINFER_TEST_MEMORY_CHILD";

/// Reads every malformed file, then large files of many small entries.
fn child() {
    let limit = Some(512 << 20);
    setrlimit(Resource::As, Rlimit { current: limit, maximum: limit })
        .expect("a lower limit is allowed");
    assert!(Vec::<u8>::new().try_reserve_exact(1 << 30).is_err(), "the limit does not bite");
    for (name, file, _) in gguf_cases::all_cases() {
        let start = Instant::now();
        assert!(Gguf::parse(&file).is_err(), "{name} accepted");
        assert!(start.elapsed() < Duration::from_secs(1), "{name} took {:?}", start.elapsed());
    }
    for (name, file) in
        [("keys", gguf_hostile::many_keys()), ("tensors", gguf_hostile::many_tensors())]
    {
        let start = Instant::now();
        let gguf = Gguf::parse(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        let n = gguf.metadata().len() + gguf.tensors().len();
        assert_eq!(n, gguf_hostile::MANY, "{name}");
        assert!(start.elapsed() < Duration::from_secs(10), "{name} took {:?}", start.elapsed());
    }
}

#[test]
fn hostile_files_are_read_in_512_mib() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::hostile_files_are_read_in_512_mib", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(text.contains("1 passed"), "the child ran no test:\n{text}");
}
