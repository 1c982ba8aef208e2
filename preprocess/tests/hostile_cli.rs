//! Every malformed GGUF of the reader's tests through the built packer: the same text behind the
//! file's name, exit 3, no output, in whatever profile this runs.

extern crate self as tests; // the shared cases name the writer by the crate that it is in

#[path = "../../tests/it/gguf_cases.rs"]
mod gguf_cases;
#[path = "../../tests/src/gguf_writer.rs"]
#[allow(dead_code)] // not all of the writer is used here
pub mod gguf_writer;

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{Bench, expect, pack, unpack};

#[test]
fn the_packer_refuses_every_malformed_file() {
    let bench = Bench::new();
    let (input, out) = (bench.path("bad.gguf"), bench.path("out.mpk"));
    let mut n_cases = 0;
    for (name, file, expected) in gguf_cases::all_cases() {
        fs::write(&input, &file).expect("writing");
        let start = Instant::now();
        let (stdout, stderr) = expect(pack([&input, &out]), 3);
        assert!(start.elapsed() < Duration::from_secs(10), "{name}: {:?}", start.elapsed());
        assert_eq!(stdout, "", "{name}");
        let line = stderr.strip_prefix(&format!("error: {}: ", input.display()));
        let line = line.unwrap_or_else(|| panic!("{name}: {stderr}")).trim_end();
        // What is a part of a model or a container of a few bytes is told in other words.
        if expected.contains("split over") {
            assert!(line.contains("split over") && line.contains("must end in"), "{name}: {line}");
        } else if name == "mpk container" {
            assert!(line.starts_with("container header at offset 0 needs bytes 0..128"), "{line}");
        } else {
            assert_eq!(line, expected, "{name}");
        }
        assert_eq!(stderr.lines().count(), 1, "{name}: {stderr}");
        assert!(!out.exists(), "{name}");
        n_cases += 1;
    }
    assert!(n_cases > 100, "{n_cases}");
    assert_eq!(bench.names(), ["bad.gguf", "tiny.gguf"]);
}

/// A container of a few pages with a field that claims more: exit 3, and nothing is written.
#[test]
fn the_unpacker_refuses_every_damaged_front() {
    let (bench, mpk) = Bench::packed();
    let sound = common::read(&mpk);
    let out = bench.path("out.gguf");
    for at in (8..128).step_by(8) {
        for value in [0u64, 1, u64::MAX] {
            let mut file = sound.clone();
            file[at..at + 8].copy_from_slice(&value.to_le_bytes());
            if file == sound {
                continue;
            }
            fs::write(&mpk, &file).expect("writing");
            let (_, stderr) = expect(unpack([&mpk, &out]), 3);
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
            assert!(!out.exists());
        }
    }
}
