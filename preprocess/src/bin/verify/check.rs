//! Checking one container, and what is said about it.

use std::fmt::Write as _;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use cli::{Bytes, ExitCode, Failure, Seconds, Ui, hex};
use format_spec::container::{Container, Object};
use preprocess::verify::{self, Finding};
use preprocess::{Error, Input};
use serde_json::{Value, json};

use crate::args::Args;
use crate::print;

/// Differences from the source that are listed without `-v`.
const SHOWN_DIFFERENCES: usize = 3;

/// The GGUF of `--source`.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) input: Input<File>,
}

/// What came of one file.
pub(crate) enum Outcome {
    /// It could be looked at.
    Checked {
        /// What is wrong with it.
        findings: Vec<Finding>,
        /// Those of them that are differences from `--source`.
        from_source: Range<usize>,
        /// Root, hex.
        root: String,
        /// Its objects: tensor, kind and geometry.
        objects: Vec<(String, String)>,
    },
    /// It could not be read, or its header or index is not to be trusted.
    Unusable(Failure),
}

/// Checks a file to the level that was asked for.
pub(crate) fn model(path: &Path, args: &Args, source: Option<&Source>, ui: &Ui) -> Outcome {
    check(path, args, source, ui).unwrap_or_else(Outcome::Unusable)
}

fn check(path: &Path, args: &Args, source: Option<&Source>, ui: &Ui) -> Result<Outcome, Failure> {
    let start = Instant::now();
    let (file, len_bytes) = cli::open_regular(path)?;
    let in_model = |error: Error| error.failure(path);
    let front = verify::read_front(&file, len_bytes).map_err(in_model)?;
    let container = verify::open(&front, len_bytes).map_err(in_model)?;
    let mut findings = verify::gaps(&file, &container).map_err(in_model)?;
    let mut from_source = 0..0;
    if !args.quick {
        let mut stages = vec!["hash"];
        stages.extend(source.map(|_| "source"));
        stages.extend(args.deep.then_some("deep"));
        let progress = ui.progress(&stages);
        {
            let stage = progress.stage("hash", verify::hashes_bytes(&container));
            let add = |n_bytes| stage.add(n_bytes);
            findings.extend(verify::hashes(&file, &container, &add).map_err(in_model)?);
        }
        if let Some(source) = source {
            let stage = progress.stage("source", verify::source_bytes(&container));
            let add = |n_bytes| stage.add(n_bytes);
            let found = verify::source(&file, &container, &source.input, &add);
            let start = findings.len();
            findings.extend(found.map_err(|error| two_files(path, &source.path, &error))?);
            from_source = start..findings.len();
        }
        if args.deep {
            check_memory(path, &container)?;
            let stage = progress.stage("deep", verify::deep_bytes(&container));
            let add = |n_bytes| stage.add(n_bytes);
            findings.extend(verify::deep(&file, &container, &add).map_err(in_model)?);
        }
    }
    let elapsed = start.elapsed();
    ui.verbose(
        1,
        format_args!(
            "{}: {} objects, {} in {} ({:.0} MB/s), root {}",
            path.display(),
            container.objects().len(),
            Bytes(len_bytes),
            Seconds(elapsed),
            len_bytes as f64 / 1e6 / elapsed.as_secs_f64().max(1e-9),
            hex(&container.root()),
        ),
    );
    let (root, objects) = (hex(&container.root()), objects(&container));
    Ok(Outcome::Checked { findings, from_source, root, objects })
}

/// Being told now is better than being killed later.
fn check_memory(path: &Path, container: &Container<'_>) -> Result<(), Failure> {
    let needed = verify::deep_memory_bytes(container);
    match cli::available_memory() {
        Some(available) if available < needed => Err(Failure::new(
            ExitCode::Memory,
            format!(
                "{}: --deep needs {} of memory, {} are available",
                path.display(),
                Bytes(needed),
                Bytes(available),
            ),
        )),
        _ => Ok(()),
    }
}

/// Reading failed while both files were read: the message says which tensor, this says where.
fn two_files(model: &Path, source: &Path, error: &Error) -> Failure {
    let mut failure = error.failure(model);
    let _ = write!(failure.message, " (compared with {})", source.display());
    failure
}

fn objects(container: &Container<'_>) -> Vec<(String, String)> {
    let split = |object: &Object| {
        let rest = object.name.strip_prefix(&object.tensor).unwrap_or(&object.name);
        (object.tensor.clone(), rest.trim_start_matches('_').to_owned())
    };
    container.objects().iter().map(split).collect()
}

/// Prints the lines about one file.
pub(crate) fn print(path: &Path, outcome: &Outcome, args: &Args, ui: &Ui) -> Result<(), Failure> {
    if args.status {
        return Ok(());
    }
    let name = print::one_line_name(path);
    let mut text = String::new();
    match outcome {
        Outcome::Unusable(failure) => {
            ui.error(format_args!("{failure}"));
            let what = match failure.code {
                ExitCode::Io | ExitCode::Memory => "FAILED open or read",
                _ => "FAILED (not a container that can be trusted)",
            };
            let _ = writeln!(text, "{name}: {what}");
        }
        Outcome::Checked { findings, from_source, objects, .. } => {
            if args.all {
                let is_bad = |tensor: &str, object: &str| {
                    findings.iter().any(|f| f.tensor == tensor && f.object == object)
                };
                for (tensor, object) in objects.iter().filter(|(t, o)| !is_bad(t, o)) {
                    let _ = writeln!(text, "{name}: {tensor}: OK in {object}");
                }
            }
            text.push_str(&failures(&name, findings, from_source, args));
            if findings.is_empty() && args.global.quiet == 0 {
                let _ = writeln!(text, "{name}: OK");
            }
        }
    }
    if ui.is_json() { Ok(()) } else { ui.print(text) }
}

/// A line for each finding; of differences from the source, which are all there are where it is
/// another file, the first ones.
fn failures(name: &str, findings: &[Finding], from_source: &Range<usize>, args: &Args) -> String {
    let mut text = String::new();
    let source = print::one_line_name(args.source.as_deref().unwrap_or(Path::new("")));
    let shown = match args.global.verbose {
        0 => from_source.start..from_source.end.min(from_source.start + SHOWN_DIFFERENCES),
        _ => from_source.clone(),
    };
    // A container that is damaged differs from its own source too.
    let is_sound = from_source.start == 0;
    for (i, finding) in findings.iter().enumerate() {
        if i == from_source.start && !from_source.is_empty() && is_sound {
            let _ = writeln!(
                text,
                "{name}: source: FAILED: {source} is not the file that it was packed from"
            );
        }
        if shown.contains(&i) || !from_source.contains(&i) {
            let _ = writeln!(text, "{name}: {}", line(finding));
        }
        if i + 1 == shown.end && shown.end < from_source.end {
            let more = from_source.end - shown.end;
            let _ =
                writeln!(text, "{name}: source: FAILED: {more} more differences (-v lists them)");
        }
    }
    text
}

fn line(finding: &Finding) -> String {
    let Finding { tensor, object, bytes, problem } = finding;
    let place = match bytes.is_empty() {
        true => String::new(),
        false => format!(" (bytes {}..{})", bytes.start, bytes.end),
    };
    let object = if object.is_empty() { String::new() } else { format!(" in {object}") };
    format!("{tensor}: FAILED{place}{object}: {problem}")
}

/// Warnings as sha256sum gives them, and the JSON result.
pub(crate) fn summary(outcomes: &[(&PathBuf, Outcome)], args: &Args, ui: &Ui) {
    let count = |wanted: &dyn Fn(&Outcome) -> bool| {
        outcomes.iter().filter(|(_, outcome)| wanted(outcome)).count()
    };
    let is_io = |outcome: &Outcome| matches!(outcome.code(), ExitCode::Io | ExitCode::Memory);
    let is_unusable = |outcome: &Outcome| matches!(outcome, Outcome::Unusable(_));
    if !args.status {
        let warn = |n: usize, one: &str, many: &str| {
            if n > 0 {
                ui.always(format_args!(
                    "minfer-verify: WARNING: {n} {}",
                    if n == 1 { one } else { many }
                ));
            }
        };
        warn(
            count(
                &|outcome| matches!(outcome, Outcome::Checked { findings, .. } if !findings.is_empty()),
            ),
            "model did NOT match",
            "models did NOT match",
        );
        warn(
            count(&|outcome| is_unusable(outcome) && !is_io(outcome)),
            "file is not a container that can be trusted",
            "files are not containers that can be trusted",
        );
        warn(
            count(&|outcome| is_unusable(outcome) && is_io(outcome)),
            "file could not be read",
            "files could not be read",
        );
    }
    if ui.is_json() {
        let files = outcomes.iter().map(|(path, outcome)| json_of(path, outcome));
        ui.set("files", files.collect::<Vec<Value>>());
    }
}

fn json_of(path: &Path, outcome: &Outcome) -> Value {
    let name = path.to_string_lossy();
    match outcome {
        Outcome::Unusable(failure) => {
            json!({"name": name, "result": failure.code.name(), "error": failure.message})
        }
        Outcome::Checked { findings, root, .. } => {
            let failures = findings.iter().map(|finding| {
                json!({
                    "tensor": finding.tensor,
                    "object": finding.object,
                    "start": finding.bytes.start,
                    "end": finding.bytes.end,
                    "problem": finding.problem,
                })
            });
            json!({
                "name": name,
                "result": outcome.code().name(),
                "root": root,
                "failures": failures.collect::<Vec<_>>(),
            })
        }
    }
}
