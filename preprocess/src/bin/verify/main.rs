//! `minfer-verify`: checks packed models.

mod args;
mod check;
#[path = "../shared/open_input.rs"]
mod open_input;
mod print;

use std::path::Path;

use cli::{ExitCode, Failure, Ui};

use args::Args;
use check::{Outcome, Source};

fn main() -> std::process::ExitCode {
    cli::run(|args: &Args| &args.global, run)
}

fn run(args: Args, ui: &Ui) -> Result<ExitCode, Failure> {
    let fail = |what: &str, error: &dyn std::error::Error| {
        Failure::failed(format!("cannot set up {what}: {error}"))
    };
    // The default action would do, but for the JSON reader and the exit code of a shell's child.
    cli::signal::on_signal(|signal| cli::signal::exit(signal))
        .map_err(|error| fail("signals", &error))?;
    rayon::ThreadPoolBuilder::new()
        .num_threads(ui.threads())
        .build_global()
        .map_err(|error| fail("threads", &error))?;
    if args.list || args.metadata || args.print_sha256 || args.root {
        return print::run(&args, ui);
    }
    let source = match &args.source {
        Some(path) => Some(open_source(path)?),
        None => None,
    };
    let mut outcomes = Vec::new();
    for model in &args.models {
        let outcome = check::model(model, &args, source.as_ref(), ui);
        check::print(model, &outcome, &args, ui)?;
        outcomes.push((model, outcome));
    }
    check::summary(&outcomes, &args, ui);
    let worst = outcomes.iter().map(|(_, outcome)| outcome.code()).max_by_key(|code| code.code());
    Ok(worst.unwrap_or(ExitCode::Ok))
}

fn open_source(path: &Path) -> Result<Source, Failure> {
    let input = open_input::open(path)?;
    if input.container().is_ok_and(|container| container.is_some()) {
        let path = path.display();
        return Err(Failure::input(format!("{path}: is an .mpk; --source wants the GGUF")));
    }
    Ok(Source { path: path.to_path_buf(), input })
}

impl Outcome {
    /// The exit code that this file alone would give.
    fn code(&self) -> ExitCode {
        match self {
            Self::Checked { findings, .. } if findings.is_empty() => ExitCode::Ok,
            Self::Checked { .. } => ExitCode::Failed,
            Self::Unusable(failure) => failure.code,
        }
    }
}
