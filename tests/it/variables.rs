//! Every environment variable that is read is in a table, and every one in a table is read.

use runtime::sampler::Knob;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the sources of commands are.
const COMMANDS: &[&str] = &["format-spec", "kernels/src", "preprocess/src", "runtime/src"];

/// Where those of builds, tests and scripts are.
const OTHERS: &[&str] = &[
    "format-spec/cli/build.rs",
    "format-spec/src/container/tests",
    "kernels/emulated",
    "kernels/examples",
    "kernels/tests",
    "preprocess/tests",
    "runtime/examples",
    "runtime/tests",
    "scripts",
    "tests/examples",
    "tests/fuzz/fuzz_targets",
    "tests/golden",
    "tests/gpu",
    "tests/it",
    "tests/memory",
    "tests/src",
    "test.sh",
    "demo.sh",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_path_buf()
}

fn walk(path: &Path, out: &mut Vec<(PathBuf, String)>) {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        entries.for_each(|entry| walk(&entry.unwrap().path(), out));
        return;
    }
    let extension = path.extension().unwrap_or_default();
    if ["rs", "sh", "py", "cpp"].iter().any(|wanted| extension == *wanted) {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        out.push((path.strip_prefix(root()).unwrap().to_path_buf(), text));
    }
}

/// Sources below some paths, without comments.
fn sources(below: &[&str]) -> Vec<(String, String)> {
    let mut files = Vec::new();
    below.iter().for_each(|path| walk(&root().join(path), &mut files));
    assert!(!files.is_empty(), "no sources below {below:?}");
    let this = Path::new("tests/it/variables.rs");
    files.retain(|(path, _)| path != this);
    let code = |text: String| {
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        text.lines().filter(is_code).collect::<Vec<_>>().join("\n")
    };
    files.into_iter().map(|(path, text)| (path.display().to_string(), code(text))).collect()
}

/// The name that `text` begins with.
fn name(text: &str) -> Option<&str> {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
    text.starts_with(|c: char| c.is_ascii_uppercase()).then(|| &text[..end])
}

/// Names behind each occurrence of `before` that `after` follows.
fn names<'t>(text: &'t str, before: &str, after: &[char]) -> BTreeSet<&'t str> {
    let rests = text.split(before).skip(1);
    let found = rests.filter_map(|rest| {
        let name = name(rest)?;
        rest[name.len()..].starts_with(after).then_some(name)
    });
    found.collect()
}

/// The first column of the table below a heading.
fn table(document: &str, heading: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).expect(heading);
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: Vec<&str> = rows.map(|row| row.split('`').next().unwrap()).collect();
    let set: BTreeSet<String> = rows.iter().map(|&row| row.to_owned()).collect();
    assert_eq!(set.len(), rows.len(), "{document}: a row twice");
    set
}

fn of_commands() -> BTreeSet<String> {
    table("docs/RUN.md", "Variables")
}

/// One function reads variables, so that an empty one is unset everywhere and none is overlooked here.
#[test]
fn commands_read_variables_in_one_place() {
    let mut places = Vec::new();
    for (path, code) in sources(COMMANDS) {
        let is_test = path.contains("/tests/") || path.ends_with("build.rs");
        if !is_test && code.contains("env::var") {
            places.push(path);
        }
    }
    assert_eq!(places, ["format-spec/cli/src/environment.rs"]);
}

#[test]
fn every_variable_of_a_command_is_in_the_table_and_no_other() {
    let mut read = BTreeSet::new();
    for (path, code) in sources(COMMANDS) {
        if path.contains("/tests/") || path.ends_with("build.rs") {
            continue;
        }
        // Of flags and of switches; `env!` is of builds.
        read.extend(names(&code, "\"MINFER_", &['"']).iter().map(|name| format!("MINFER_{name}")));
        for before in ["variable(\"", "env = \"", ".env(\""] {
            read.extend(names(&code, before, &['"']).iter().map(|&name| name.to_owned()));
        }
        let built = names(&code, "env!(\"", &['"']);
        read.retain(|name| !built.contains(name.as_str()));
    }
    let args = fs::read_to_string(root().join("runtime/src/bin/run/sampling_args.rs")).unwrap();
    assert!(args.contains("format!(\"MINFER_{}\", spec.name.to_uppercase())"));
    read.extend(Knob::ALL.iter().map(|knob| format!("MINFER_{}", knob.spec().name.to_uppercase())));
    assert!(read.len() > 40, "{read:?}");
    assert_eq!(read, of_commands(), "docs/RUN.md (right) has not what commands read (left)");
}

#[test]
fn variables_of_builds_tests_and_scripts_are_in_theirs() {
    let theirs = table("CONTRIBUTING.md", "Variables of builds, tests and scripts");
    let commands = of_commands();
    let mut read = BTreeSet::new();
    let all = sources(OTHERS);
    for (_, text) in &all {
        for reads in ["env::var(", "env::var_os(", "environ.get(", "environ[", "getenv("] {
            for quote in ['"', '\''] {
                read.extend(names(text, &format!("{reads}{quote}"), &[quote]));
            }
        }
        read.extend(names(text, "${", &[':', '-']));
    }
    // Of Cargo and Python, which build scripts and the scripts at the top follow.
    for given in ["TARGET", "CARGO_TARGET_DIR", "PYTHONPATH"] {
        assert!(read.remove(given), "{given}");
    }
    let known = |name: &&str| theirs.contains(*name) || commands.contains(*name);
    let unknown: Vec<_> = read.iter().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are in no table");
    let stale: Vec<_> = theirs.iter().filter(|name| !read.contains(name.as_str())).collect();
    assert!(stale.is_empty(), "CONTRIBUTING.md has {stale:?}, which nothing reads");
}
