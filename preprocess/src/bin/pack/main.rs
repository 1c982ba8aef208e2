//! `minfer-pack`: turns a GGUF model into a packed `.mpk`.

mod args;
mod inspect;
mod output;
mod report;

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use cli::{Bytes, ExitCode, Failure, Ui};
use preprocess::{Class, Error, Input, Packer, verify};

use args::Args;
use output::{Output, Target};
use report::Summary;

fn main() -> std::process::ExitCode {
    cli::run(|args: &Args| &args.global, run)
}

fn run(args: Args, ui: &Ui) -> Result<ExitCode, Failure> {
    let start = Instant::now();
    refuse_dash(&args)?;
    set_up(ui)?;
    let (file, len_bytes) = cli::open_regular(&args.input)?;
    let target = match args.inspect || args.dry_run {
        true => None,
        false => Some(Target::new(&output_path(&args)?, &file, args.force)?),
    };
    let in_input = |error: Error| input_failure(&args.input, &error);
    let input = Input::open(file, len_bytes).map_err(in_input)?;
    if args.inspect {
        return inspect::run(&input, ui);
    }
    let packer = Packer::new(&input, &args.planes).map_err(in_input)?;
    for note in packer.notes() {
        ui.warn(format_args!("{note}"));
    }
    match packer.obstacle() {
        Some(error) if args.strict => return Err(in_input(error.clone().into())),
        Some(error) => ui.warn(format_args!("minfer-run cannot run this model: {error}")),
        None => {}
    }
    let summary = Summary { packer: &packer, input_bytes: len_bytes };
    match target {
        None => summary.dry_run(&output_path(&args)?, ui),
        Some(target) => {
            for stale in target.stale() {
                let path = stale.display();
                ui.warn(format_args!(
                    "{path} is what a killed minfer-pack left; it can be deleted"
                ));
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

/// Signals, and the pool that everything runs on.
fn set_up(ui: &Ui) -> Result<(), Failure> {
    let fail = |what: &str, error: &dyn std::error::Error| {
        Failure::failed(format!("cannot set up {what}: {error}"))
    };
    cli::signal::survive_file_size_limit().map_err(|error| fail("signals", &error))?;
    cli::signal::on_signal(|signal| {
        // Held until the process is gone, so that no new file is made meanwhile.
        let _guard = output::remove_temporary();
        cli::signal::exit(signal)
    })
    .map_err(|error| fail("signals", &error))?;
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
fn output_path(args: &Args) -> Result<PathBuf, Failure> {
    if let Some(output) = args.output.as_ref().or(args.output_flag.as_ref()) {
        return Ok(output.clone());
    }
    let has_extension =
        |wanted: &str| args.input.extension().is_some_and(|e| e.eq_ignore_ascii_case(wanted));
    if has_extension("mpk") {
        return Err(Failure::usage("the input is an .mpk: give the output a name of its own"));
    }
    if has_extension("gguf") {
        return Ok(args.input.with_extension("mpk"));
    }
    // Dots in a model's name are no extension: `llama-3.1` becomes `llama-3.1.mpk`.
    let mut name = args.input.file_name().unwrap_or(OsStr::new("model")).to_os_string();
    name.push(".mpk");
    Ok(args.input.with_file_name(name))
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
            .map_err(|error| failure(&args.input, &output, &error))?
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
        Error::Format(error) => output_failure(output, &Error::NotVerified(error.to_string())),
        error => output_failure(output, &error),
    })
}

/// The failure for an error about the input.
fn input_failure(input: &Path, error: &Error) -> Failure {
    let hint = if error.is_shrunk() { " (the file became shorter meanwhile)" } else { "" };
    Failure::new(code(error), format!("{}: {error}{hint}", input.display()))
}

fn output_failure(output: &Output, error: &Error) -> Failure {
    Failure::new(code(error), format!("{}: {error}", output.path().display()))
}

/// The failure for an error while packing: which of the two files is it about?
fn failure(input: &Path, output: &Output, error: &Error) -> Failure {
    match error {
        Error::Write { what, source } => {
            output.write_failure(&format!("cannot write {what}"), source)
        }
        Error::NotVerified(_) => output_failure(output, error),
        _ => input_failure(input, error),
    }
}

fn code(error: &Error) -> ExitCode {
    match error.class() {
        Class::Input => ExitCode::Input,
        Class::Io => ExitCode::Io,
        Class::Memory => ExitCode::Memory,
        Class::Failed => ExitCode::Failed,
    }
}
