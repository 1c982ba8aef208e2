//! `minfer-unpack`: rebuilds the GGUF that a container was packed from.

mod args;
#[path = "../shared/keep.rs"]
mod keep;

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use cli::output::{Output, Target};
use cli::{Bytes, ExitCode, Failure, Seconds, Ui};
use preprocess::{Error, Input, PartName, Unpacker, WriteAt};

use args::Args;

fn main() -> std::process::ExitCode {
    cli::run(|args: &Args| &args.global, run)
}

fn run(args: Args, ui: &Ui) -> Result<ExitCode, Failure> {
    let start = Instant::now();
    let dash = Path::new("-");
    if args.input == dash || args.output.as_deref() == Some(dash) {
        return Err(Failure::usage(
            "`-` is refused: both files are used out of order, at any place in them",
        ));
    }
    let fail = |what: &str, error: &dyn std::error::Error| {
        Failure::failed(format!("cannot set up {what}: {error}"))
    };
    cli::output::remove_on_signal().map_err(|error| fail("signals", &error))?;
    rayon::ThreadPoolBuilder::new()
        .num_threads(ui.threads())
        .build_global()
        .map_err(|error| fail("threads", &error))?;
    let (file, len_bytes) = cli::open_regular(&args.input)?;
    let original =
        file.try_clone().map_err(|error| Failure::io(&args.input, "cannot open", &error))?;
    let in_input = |error: Error| error.failure(&args.input);
    let input = Input::open_container(file, len_bytes).map_err(in_input)?;
    let unpacker = Unpacker::new(&input).map_err(in_input)?;
    let lens = unpacker.file_lens();
    let targets: Result<Vec<_>, _> = output_paths(&args, lens.len())?
        .iter()
        .map(|path| Target::new(path, &[&original], args.force))
        .collect();
    let targets = targets?;
    for target in &targets {
        keep::keep(target.path(), &format_spec::container::MAGIC, "a container")?;
    }
    unpacker.notes().iter().for_each(|note| ui.warn(format_args!("{note}")));
    for stale in targets.iter().flat_map(Target::remove_stale) {
        ui.warn(format_args!("removed {}, which a killed run had left", stale.display()));
    }
    check_memory(&args, &unpacker, ui)?;
    let names: Vec<_> = targets.iter().map(|target| target.path().to_path_buf()).collect();
    write(&args, &unpacker, targets, ui)?;
    let total = lens.iter().fold(0u64, |sum, len| sum.saturating_add(*len));
    let elapsed = start.elapsed();
    let shown: Vec<_> = names.iter().map(|name| name.display().to_string()).collect();
    ui.note(format_args!(
        "{}: unpacked {} tensors, {} -> {} in {} ({:.0} MB/s){}",
        shown.join(", "),
        unpacker.n_tensors(),
        Bytes(len_bytes),
        Bytes(total),
        Seconds(elapsed),
        total as f64 / 1e6 / elapsed.as_secs_f64().max(1e-9),
        if args.no_verify { ", not verified" } else { ", verified" },
    ));
    ui.set("tensors", unpacker.n_tensors());
    ui.set("outputs", shown);
    ui.set("output_bytes", total);
    ui.set("verified", !args.no_verify);
    ui.set("elapsed_ms", u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
    Ok(ExitCode::Ok)
}

/// The files to write: the given name or the container's with `.gguf`, once for each file.
fn output_paths(args: &Args, n_files: usize) -> Result<Vec<PathBuf>, Failure> {
    let given = match &args.output {
        Some(output) => output.clone(),
        None if args.input.extension().is_some_and(|e| e.eq_ignore_ascii_case("mpk")) => {
            args.input.with_extension("gguf")
        }
        None => {
            let mut name = args.input.file_name().unwrap_or(OsStr::new("model")).to_os_string();
            name.push(".gguf");
            args.input.with_file_name(name)
        }
    };
    if n_files == 1 {
        return Ok(vec![given]);
    }
    let Some(name) = given.file_name().filter(|_| !given.is_dir()) else {
        return Err(Failure::usage(format!(
            "{}: names no file; the model has {n_files} files: give what their names start with",
            given.display()
        )));
    };
    let n_files = n_files as u64;
    Ok((1..=n_files)
        .map(|part| given.with_file_name(PartName::made(name, part, n_files)))
        .collect())
}

/// Being told now is better than being killed later.
fn check_memory(args: &Args, unpacker: &Unpacker<'_, File>, ui: &Ui) -> Result<(), Failure> {
    let needed = unpacker.working_bytes(ui.threads());
    match cli::available_memory() {
        Some(available) if available < needed => Err(Failure::new(
            ExitCode::Memory,
            format!(
                "{}: unpacking needs {} of memory, {} are available; fewer threads need less (-t 1)",
                args.input.display(),
                Bytes(needed),
                Bytes(available),
            ),
        )),
        _ => Ok(()),
    }
}

fn write(
    args: &Args,
    unpacker: &Unpacker<'_, File>,
    targets: Vec<Target>,
    ui: &Ui,
) -> Result<(), Failure> {
    let stages: &[&str] = if args.no_verify { &["unpack"] } else { &["unpack", "verify"] };
    let progress = ui.progress(stages);
    let outputs: Result<Vec<_>, _> = targets
        .into_iter()
        .zip(unpacker.file_lens())
        .map(|(target, len_bytes)| target.create(len_bytes))
        .collect();
    let outputs = outputs?;
    {
        let stage = progress.stage("unpack", unpacker.base_bytes());
        let files: Vec<&dyn WriteAt> =
            outputs.iter().map(|output| output.file() as &dyn WriteAt).collect();
        unpacker
            .write(&files, &|n_bytes| stage.add(n_bytes))
            .map_err(|error| write_failure(args, &outputs, &error))?;
    }
    // Reading back needs no synced pages, so the two go on at once.
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| outputs.iter().try_for_each(Output::sync));
        let verified = match args.no_verify {
            true => Ok(()),
            false => {
                let stage = progress.stage("verify", unpacker.check_bytes());
                read_back(unpacker, &outputs, &|n_bytes| stage.add(n_bytes))
            }
        };
        synced.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        verified
    })?;
    Output::commit_all(outputs)
}

/// Opens the written files anew and compares every byte of them.
fn read_back(
    unpacker: &Unpacker<'_, File>,
    outputs: &[Output],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    let Some(first) = outputs.first() else { return Ok(()) };
    let mut files = Vec::new();
    for (output, len_bytes) in outputs.iter().zip(unpacker.file_lens()) {
        files.push((output.reopen()?, len_bytes));
    }
    let not_verified = |path: &Path, problem: String| Error::NotVerified(problem).failure(path);
    let written = Input::open_parts(files).map_err(|(i, error)| {
        let output = outputs.get(i).unwrap_or(first);
        not_verified(output.path(), error.to_string())
    })?;
    let findings =
        unpacker.check(&written, progress).map_err(|error| error.failure(first.path()))?;
    findings.first().map_or(Ok(()), |found| {
        Err(not_verified(first.path(), format!("{}: {}", found.tensor, found.problem)))
    })
}

/// The failure for an error while unpacking: which of the files is it about?
fn write_failure(args: &Args, outputs: &[Output], error: &Error) -> Failure {
    if let Error::Write { output, what, source } = error
        && let Some(output) = outputs.get(*output)
    {
        return output.write_failure(&format!("cannot write {what}"), source);
    }
    error.failure(&args.input)
}
