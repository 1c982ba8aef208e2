//! Containers of version 1.0 with every kind of plane, written once: they stay readable, and run to
//! the same tokens, whatever becomes of the code. `golden/container/README.md` says where the
//! tokens come from.

use std::path::{Path, PathBuf};

use format_spec::PlaneKind;
use format_spec::container::Container;
use preprocess::verify;
use tests::packing::{pack, unpack};
use tests::properties::generate;
use tests::tiny_model::fixture_model;

/// The files, and the planes that each holds.
const FILES: [(&str, &str); 5] = [
    ("v1.0-model-padded.mpk", "none"),
    ("v1.0-model-exp-dsc.mpk", "default"),
    ("v1.0-model-eb-sb.mpk", "eb,sb"),
    ("v1.0-model-planar-bf16.mpk", "cuda-fast"),
    ("v1.0-model-tile.mpk", "cpu-fast"),
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/container").join(name)
}

fn read(name: &str) -> Vec<u8> {
    let path = golden(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Prompts and what llama.cpp made of each, greedily.
fn cases() -> Vec<(Vec<u32>, Vec<u32>)> {
    let cases: serde_json::Value = serde_json::from_slice(&read("v1.0-model.json")).unwrap();
    let list = |case: &serde_json::Value, key: &str| {
        let list = case[key].as_array().unwrap();
        list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let cases = cases.as_array().unwrap().iter();
    cases.map(|case| (list(case, "prompt"), list(case, "tokens"))).collect()
}

#[test]
fn every_kind_of_plane_is_among_them() {
    let mut kinds: Vec<PlaneKind> = Vec::new();
    for (name, _) in FILES {
        let file = read(name);
        let container = Container::parse(&file).unwrap();
        kinds.extend(container.objects().iter().map(|object| object.kind));
    }
    for kind in PlaneKind::ALL {
        assert!(kinds.contains(kind), "no golden container has {}: add one", kind.name());
    }
}

#[test]
fn they_verify_run_and_come_back() {
    let cases = cases();
    assert_eq!(cases.len(), 12);
    let gguf = read("v1.0-model.gguf");
    for (name, _) in FILES {
        let file = read(name);
        let container = Container::parse(&file).unwrap();
        assert_eq!(verify::gaps(&file, &container).unwrap(), [], "{name}");
        assert_eq!(verify::hashes(&file, &container, &|_| ()).unwrap(), [], "{name}");
        assert_eq!(verify::deep(&file, &container, &|_| ()).unwrap(), [], "{name}");
        for (prompt, expected) in &cases {
            let tokens = generate(&file, prompt, expected.len()).unwrap();
            assert_eq!(tokens, *expected, "{name} {prompt:?}");
        }
        assert!(unpack(&file).unwrap() == [gguf.as_slice()], "{name}");
    }
}

/// Bytes differ only with a new version: a change here needs one, and files of its own.
#[test]
fn the_same_input_still_gives_the_same_bytes() {
    let gguf = read("v1.0-model.gguf");
    for (name, planes) in FILES {
        for n_threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            let file = pool.install(|| pack(&gguf, planes));
            assert!(file == read(name), "{name} with {n_threads} threads");
        }
    }
}

/// Wrote them, and will not do it again: whatever is there stays.
#[test]
#[ignore = "writes files"]
fn write_those_that_are_missing() {
    let put = |name: &str, bytes: &[u8]| {
        if !golden(name).exists() {
            std::fs::write(golden(name), bytes).unwrap();
        }
    };
    put("v1.0-model.gguf", &fixture_model());
    let gguf = read("v1.0-model.gguf");
    for (name, planes) in FILES {
        put(name, &pack(&gguf, planes));
    }
}
