//! `minfer-pack`: turns a GGUF model into a packed `.mpk`.

mod args;
mod inspect;
#[path = "../shared/keep.rs"]
mod keep;
#[path = "../shared/open_input.rs"]
mod open_input;
mod report;

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use cli::output::{Output, Target};
use cli::{Bytes, ExitCode, Failure, Ui};
use preprocess::{Error, Input, Packer, PartName, verify};

use args::Args;
use report::Summary;

fn main() -> std::process::ExitCode {
    cli::run(|args: &Args| &args.global, run)
}

fn run(args: Args, ui: &Ui) -> Result<ExitCode, Failure> {
    let start = Instant::now();
    refuse_dash(&args)?;
    set_up(ui)?;
    let input = &open_input::open(&args.input)?;
    if args.inspect {
        return inspect::run(input, ui);
    }
    let output = output_path(&args, input)?;
    let files = input.readers();
    let target = match args.dry_run {
        true => None,
        false => Some(Target::new(&output, &files, args.force)?),
    };
    keep::keep(&output, &format_spec::gguf::MAGIC, "a GGUF")?;
    let in_input = |error: Error| error.failure(&args.input);
    let packer = Packer::new(input, &args.planes).map_err(in_input)?;
    ui.set("warnings", Vec::<String>::new());
    for note in packer.notes() {
        ui.warn(format_args!("{note}"));
    }
    say_what_will_not_run(&args, &packer, ui)?;
    let summary = Summary { packer: &packer, input_bytes: input.len_bytes() };
    match target {
        None => {
            summary.dry_run(&output, ui)?;
            // What is in the way of the real run, short of a file that --force would replace.
            Target::new(&output, &files, true).map(|_| ExitCode::Ok)
        }
        Some(target) => {
            for stale in target.remove_stale() {
                ui.warn(format_args!("removed {}, which a killed run had left", stale.display()));
            }
            check_memory(&args, &packer, ui)?;
            let path = target.path().to_path_buf();
            ui.verbose(1, format_args!("{}", summary.table()));
            let root = write(&args, &packer, target, ui)?;
            summary.done(&path, root, !args.no_verify, start.elapsed(), ui);
            Ok(ExitCode::Ok)
        }
    }
}

fn refuse_dash(args: &Args) -> Result<(), Failure> {
    let dash = Path::new("-");
    if args.input == dash {
        return Err(Failure::usage(
            "`-` is refused: the input must be a file that can be read at any place",
        ));
    }
    if [&args.output, &args.output_flag].iter().any(|path| path.as_deref() == Some(dash)) {
        return Err(Failure::usage(
            "`-` is refused: the output is written out of order, to a file",
        ));
    }
    Ok(())
}

/// What `minfer-run` will refuse: an error if `--strict`, else a warning.
fn say_what_will_not_run(args: &Args, packer: &Packer<'_, File>, ui: &Ui) -> Result<(), Failure> {
    let (obstacle, template) = (packer.obstacle(), packer.template_problem());
    ui.set("runnable", obstacle.is_none() && template.is_none());
    if args.strict {
        let obstacle = obstacle.map(|error| Error::from(error.clone()).failure(&args.input));
        let template = template.map(|error| error.failure(&args.input));
        return obstacle.or(template).map_or(Ok(()), Err);
    }
    if let Some(error) = obstacle {
        ui.warn_gravely(format_args!("minfer-run cannot run this model: {error}"));
    }
    if let Some(error) = template {
        ui.warn_gravely(format_args!(
            "minfer-run cannot chat with this model: {error} (--raw and --chat-template-file do \
             without)"
        ));
    }
    Ok(())
}

/// Signals, and the pool that everything runs on.
fn set_up(ui: &Ui) -> Result<(), Failure> {
    let fail = |what: &str, error: &dyn std::error::Error| {
        Failure::failed(format!("cannot set up {what}: {error}"))
    };
    cli::output::remove_on_signal().map_err(|error| fail("signals", &error))?;
    rayon::ThreadPoolBuilder::new()
        .num_threads(ui.threads())
        .build_global()
        .map_err(|error| fail("threads", &error))
}

/// Being told now is better than being killed later.
fn check_memory(args: &Args, packer: &Packer<'_, File>, ui: &Ui) -> Result<(), Failure> {
    let needed = packer.working_bytes(ui.threads());
    match cli::available_memory() {
        Some(available) if available < needed => Err(Failure::new(
            ExitCode::Memory,
            format!(
                "{}: packing needs {} of memory, {} are available; fewer threads need less (-t 1)",
                args.input.display(),
                Bytes(needed),
                Bytes(available),
            ),
        )),
        _ => Ok(()),
    }
}

/// The given output, or the input's name with `.mpk`.
fn output_path(args: &Args, opened: &Input<File>) -> Result<PathBuf, Failure> {
    if let Some(output) = args.output.as_ref().or(args.output_flag.as_ref()) {
        return Ok(output.clone());
    }
    let input = &args.input;
    if opened.readers().len() > 1
        && let Some(part) = input.file_name().and_then(PartName::parse)
    {
        let mut name = part.name;
        name.push(".mpk");
        return Ok(input.with_file_name(name));
    }
    let has_extension =
        |wanted: &str| input.extension().is_some_and(|e| e.eq_ignore_ascii_case(wanted));
    if has_extension("mpk") {
        let what = match opened.container() {
            Ok(Some(_)) => "the input is an .mpk",
            _ => "the input is a GGUF whose name ends in .mpk",
        };
        return Err(Failure::usage(format!("{what}: give the output a name of its own")));
    }
    if has_extension("gguf") {
        return Ok(input.with_extension("mpk"));
    }
    // Dots in a model's name are no extension: `llama-3.1` becomes `llama-3.1.mpk`.
    let mut name = input.file_name().unwrap_or(OsStr::new("model")).to_os_string();
    name.push(".mpk");
    Ok(input.with_file_name(name))
}

fn write(
    args: &Args,
    packer: &Packer<'_, File>,
    target: Target,
    ui: &Ui,
) -> Result<[u8; 32], Failure> {
    let stages: &[&str] = if args.no_verify { &["pack"] } else { &["pack", "verify"] };
    let progress = ui.progress(stages);
    let output = target.create(packer.file_len())?;
    let root = {
        let stage = progress.stage("pack", packer.object_bytes());
        packer
            .write(output.file(), &|n_bytes| stage.add(n_bytes))
            .map_err(|error| write_failure(&args.input, &output, &error))?
    };
    // Reading back needs no synced pages, so the two go on at once.
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| output.sync());
        let verified = match args.no_verify {
            true => Ok(()),
            false => {
                let stage = progress.stage("verify", packer.object_bytes());
                read_back(&output, packer.file_len(), root, &|n_bytes| stage.add(n_bytes))
            }
        };
        synced.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        verified
    })?;
    output.commit()?;
    Ok(root)
}

/// Opens the written file anew and checks every byte of it.
fn read_back(
    output: &Output,
    len_bytes: u64,
    root: [u8; 32],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    let file = output.reopen()?;
    let check = || {
        let front = verify::read_front(&file, len_bytes)?;
        let container = verify::open(&front, len_bytes)?;
        if container.root() != root {
            return Err(Error::NotVerified("it has another root".to_owned()));
        }
        let mut findings = verify::gaps(&file, &container)?;
        findings.extend(verify::hashes(&file, &container, progress)?);
        match findings.first() {
            None => Ok(()),
            Some(first) => Err(Error::NotVerified(format!(
                "{} {}: bytes {}..{}: {}",
                first.tensor, first.object, first.bytes.start, first.bytes.end, first.problem
            ))),
        }
    };
    check().map_err(|error| match error {
        // Our own header that cannot be read is no fault of the input.
        Error::Format(error) => Error::NotVerified(error.to_string()).failure(output.path()),
        error => error.failure(output.path()),
    })
}

/// The failure for an error while packing: which of the two files is it about?
fn write_failure(input: &Path, output: &Output, error: &Error) -> Failure {
    match error {
        Error::Write { what, source, .. } => {
            output.write_failure(&format!("cannot write {what}"), source)
        }
        Error::NotVerified(_) => error.failure(output.path()),
        _ => error.failure(input),
    }
}
