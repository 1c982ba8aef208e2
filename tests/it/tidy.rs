//! House rules that no compiler checks. `docs/ARCHITECTURE.md` names each of these tests beside
//! the invariant that it guards.

use std::fs;
use std::path::{Path, PathBuf};

/// Files that hold `unsafe`, as path prefixes from the root. Everything else must do without.
const UNSAFE_ALLOWED: &[&str] = &[
    // SIMD kernels, and the output view that workers share.
    "kernels/src/cpu/",
    "kernels/src/view.rs",
    // The driver's interface is C, and launches hand it raw parameters.
    "kernels/src/cuda/",
    // The thread pool hands borrowed closures to its workers.
    "runtime/src/backend/cpu/pool/",
    // The line that maps the model, and the handler of a file that shrinks under it.
    "runtime/src/bin/shared/open.rs",
    "runtime/src/bin/shared/bus_error.rs",
];

/// Longest Rust file that needs no reason.
const MAX_LINES: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_path_buf()
}

fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|e| e.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            walk(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Every Rust source of the workspace as (path from the root, text without comment lines).
fn sources(dirs: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let mut files = Vec::new();
    for dir in dirs {
        walk(&root.join(dir), &mut files);
    }
    assert!(!files.is_empty(), "no sources below {dirs:?}");
    files
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            let text = fs::read_to_string(&path).unwrap();
            let code: Vec<&str> =
                text.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
            (name, code.join("\n"))
        })
        .collect()
}

const LIBRARIES: &[&str] = &["format-spec/src", "kernels/src", "preprocess/src", "runtime/src"];

fn is_binary(name: &str) -> bool {
    name.contains("/src/bin/")
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs")
}

/// The part of a file before its inline unit tests; a `mod tests;` line ends nothing.
fn without_tests(code: &str) -> &str {
    let marker = "#[cfg(test)]\nmod ";
    let inline = code.match_indices(marker).find(|(at, _)| {
        code[at + marker.len()..].lines().next().is_some_and(|line| line.ends_with('{'))
    });
    inline.map_or(code, |(at, _)| &code[..at])
}

fn assert_absent(dirs: &[&str], words: &[&str], exempt: impl Fn(&str) -> bool, rule: &str) {
    let mut found = Vec::new();
    for (name, code) in sources(dirs) {
        if is_test(&name) || exempt(&name) {
            continue;
        }
        for word in words {
            if without_tests(&code).contains(word) {
                found.push(format!("{name}: {word}"));
            }
        }
    }
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

fn dependencies(manifest: &str) -> String {
    let text = fs::read_to_string(root().join(manifest)).unwrap();
    text.lines().filter(|l| !l.starts_with("name") && !l.starts_with("description")).collect()
}

#[test]
fn packer_and_runtime_meet_only_through_the_file() {
    assert!(!dependencies("preprocess/Cargo.toml").contains("runtime"));
    assert!(!dependencies("preprocess/Cargo.toml").contains("kernels"));
    assert!(!dependencies("runtime/Cargo.toml").contains("preprocess"));
}

#[test]
fn kernels_depend_on_format_spec_alone_and_nothing_on_tests() {
    for member in ["format-spec", "format-spec/cli", "kernels", "preprocess", "runtime"] {
        let deps = dependencies(&format!("{member}/Cargo.toml"));
        assert!(!deps.contains("tests"), "{member} depends on tests");
        if member == "kernels" || member == "format-spec" {
            for other in ["preprocess", "runtime", "cli"] {
                assert!(!deps.contains(other), "{member} depends on {other}");
            }
        }
    }
}

#[test]
fn format_spec_opens_no_file_and_has_no_unsafe() {
    let lib = fs::read_to_string(root().join("format-spec/src/lib.rs")).unwrap();
    assert!(lib.contains("#![forbid(unsafe_code)]"));
    assert_absent(
        &["format-spec/src"],
        &["std::fs", "File::", "std::thread", "std::env", "rayon"],
        |_| false,
        "format-spec takes bytes and returns values",
    );
}

#[test]
fn kernels_see_no_path_model_or_thread() {
    assert_absent(
        &["kernels/src"],
        &["std::fs", "std::path", "std::thread::spawn", "std::env::var", "blk.", "Container"],
        |_| false,
        "kernels take slices and return slices",
    );
}

#[test]
fn runtime_calls_no_intrinsic_and_names_no_quant_type() {
    assert_absent(
        &["runtime/src"],
        &["core::arch", "std::arch::x86", "QuantType::Q", "dequantize_block"],
        |_| false,
        "the runtime leaves weights to the kernels",
    );
}

#[test]
fn only_binaries_print_read_the_environment_or_exit() {
    assert_absent(
        LIBRARIES,
        &["process::exit", "env::var", "println!", "eprintln!"],
        is_binary,
        "libraries return values",
    );
}

#[test]
fn unsafe_stays_where_it_is_argued() {
    assert_absent(
        &["format-spec", "kernels/src", "preprocess/src", "runtime/src"],
        &["unsafe {", "unsafe fn", "unsafe impl"],
        |name| UNSAFE_ALLOWED.iter().any(|prefix| name.starts_with(prefix)),
        "unsafe outside the places listed in this test",
    );
}

#[test]
fn no_source_file_is_a_whole_crate() {
    let mut dirs = LIBRARIES.to_vec();
    dirs.extend(["format-spec/cli/src", "tests/src", "tests/it"]);
    let root = root();
    for (name, _) in sources(&dirs) {
        let lines = fs::read_to_string(root.join(&name)).unwrap().lines().count();
        assert!(lines <= MAX_LINES, "{name} has {lines} lines, at most {MAX_LINES}");
    }
}

#[test]
fn documents_exist_and_their_links_lead_somewhere() {
    let root = root();
    for doc in
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/ARCHITECTURE.md", "docs/FORMAT.md"]
    {
        let path = root.join(doc);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{doc}: {e}"));
        for link in text.split("](").skip(1).filter_map(|s| s.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let file = path.parent().unwrap().join(target);
            assert!(file.exists(), "{doc} links to {target}, which does not exist");
        }
    }
}
