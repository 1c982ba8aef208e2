//! The commands: one file each, chosen here.

mod chat;
mod dry_run;
mod explain;
mod generate;
mod logits;
mod perplexity;
mod show_prompt;
mod tokenize;

use crate::args::Args;
use crate::open::ModelFile;
use crate::prompt::{self, Prompt};
use crate::report::{self, Clock};
use crate::setup::{Job, check_device};
use crate::switches::Switches;
use crate::{interrupt, setup};
use cli::{ExitCode, Failure, Ui};
use format_spec::vocab::VocabView;
use runtime::tokenizer::Tokenizer;
use std::io::{self, IsTerminal as _};
use std::time::Instant;

/// Checks the command line, opens the model and does what was asked.
///
/// # Errors
/// Whatever ends the command early.
pub(crate) fn dispatch(args: Args, ui: &Ui) -> Result<ExitCode, Failure> {
    args.check()?;
    let switches = Switches::read()?;
    check_device(args.device.device)?;
    setup::tier()?;
    interrupt::install()?;
    ui.set("schema", report::SCHEMA);
    ui.set("model", args.model().display().to_string());
    let start = Instant::now();
    let file = ModelFile::open(args.model())?;
    let container = file.container()?;
    let mut clock = Clock { open: start.elapsed(), ..Clock::default() };
    file.verify(&container, args.device.verify, ui)?;
    clock.verify = start.elapsed() - clock.open;
    let vocab = container.vocab_bytes().map(VocabView::new).transpose();
    let tokenizer = vocab.map_err(|e| Failure::format(&file.path, &e))?.map(Tokenizer::from);
    let tokenizer = tokenizer.as_ref();
    let (file, container) = (&file, &container);
    let mut job = Job { args: &args, ui, file, container, tokenizer, clock, switches };
    run(&mut job)
}

fn run(job: &mut Job<'_, '_>) -> Result<ExitCode, Failure> {
    let args = job.args;
    if args.inspect.dry_run {
        return dry_run::run(job);
    }
    if let Some(path) = &args.inspect.perplexity {
        return perplexity::run(job, path);
    }
    if args.inspect.explain && !args.has_prompt() {
        // A look at the table needs no prompt, so standard input is left alone.
        return explain::run(job);
    }
    match prompt::read(args, job.ui)? {
        Some(prompt) if args.inspect.tokenize => tokenize::run(job, &prompt),
        Some(prompt) if args.inspect.show_prompt => show_prompt::run(job, prompt),
        Some(prompt) => generate::run(job, prompt),
        None if args.inspect.tokenize || args.inspect.show_prompt => {
            Err(Failure::usage("no prompt: give PROMPT, -p, -f or pipe it in"))
        }
        None if args.global.json => {
            Err(Failure::usage("--json needs a prompt: a chat has no single result"))
        }
        None if args.prompt.raw => Err(Failure::usage("--raw needs a prompt")),
        None => chat::run(job),
    }
}

/// Whether a person reads standard output.
fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A prompt as text, where messages and ids make no sense.
///
/// # Errors
/// Wrong use.
fn text_of<'p>(prompt: &'p Prompt, what: &str) -> Result<&'p str, Failure> {
    match prompt {
        Prompt::Text(text) => Ok(text),
        _ => Err(Failure::usage(format!("{what} needs a text"))),
    }
}
