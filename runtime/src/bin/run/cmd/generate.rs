//! One prompt, one answer.

use super::{explain, stdout_is_terminal};
use crate::answer::{Answer, Generator, Stop, check_interrupt, choose, feed};
use crate::interrupt;
use crate::prompt::Prompt;
use crate::report;
use crate::setup::{Job, device, failure};
use cli::{ExitCode, Failure};
use runtime::{LogitsWanted, Model, Session};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Runs the prompt and prints the answer.
///
/// # Errors
/// Whatever stops it early, a full context included.
pub(super) fn run(job: &mut Job<'_, '_>, prompt: Prompt) -> Result<ExitCode, Failure> {
    let ids = job.prompt_ids(prompt)?;
    check_output(job)?;
    let model = job.load()?;
    let n_ctx = job.n_ctx(&model)?;
    job.check_fits(ids.len(), n_ctx)?;
    job.ui.set("n_ctx", n_ctx);
    let mut session = Session::new(&model, n_ctx).map_err(failure)?;
    let _listening = interrupt::listen();
    let outcome = answer(job, &model, &mut session, &ids);
    if job.args.inspect.explain {
        explain::after_run(job, &model);
    }
    outcome
}

/// Refuses to print text, or to look for it, where no tokenizer makes text of tokens.
fn check_output(job: &Job<'_, '_>) -> Result<(), Failure> {
    let length = &job.args.length;
    let only_logits = job.args.inspect.logits.is_some() && length.predict.is_none();
    let prints = !job.ui.is_json() && !only_logits && length.predict != Some(0);
    if prints || !length.stop.is_empty() { job.tokenizer().map(|_| ()) } else { Ok(()) }
}

fn answer(
    job: &Job<'_, '_>,
    model: &Model<'_>,
    session: &mut Session<'_, '_>,
    ids: &[u32],
) -> Result<ExitCode, Failure> {
    let settings = job.settings()?;
    let seed = job.seed();
    job.ui.set("seed", seed);
    job.ui.set("sampling", report::sampling_json(&settings));
    let mut sampler = job.sampler(&settings, session.n_ctx(), seed);
    ids.iter().for_each(|&id| sampler.accept(id));
    let mut limits = job.limits();
    let n_batch = job.args.device.batch as usize;
    let logits = match &job.args.inspect.logits {
        Some(path) => {
            if job.args.length.predict.is_none() {
                limits.n_predict = Some(0);
            }
            write_logits(job, session, ids, path)?
        }
        None => feed(session, ids, n_batch)?,
    };
    let first = match limits.n_predict {
        Some(0) => None,
        _ => Some(choose(&mut sampler, job.tokenizer, logits)?),
    };
    let mut generator =
        Generator { session, sampler: &mut sampler, tokenizer: job.tokenizer, limits: &limits };
    let streams = !job.ui.is_json() && !job.args.inspect.no_stream;
    let answer = generator.run(first, |text| match text {
        text if streams && !text.is_empty() => job.ui.print(text),
        _ => Ok(()),
    })?;
    finish(job, model, session, ids, &answer, seed)
}

/// Prints what is still to be printed and maps the end of the answer to an exit code.
fn finish(
    job: &Job<'_, '_>,
    model: &Model<'_>,
    session: &Session<'_, '_>,
    ids: &[u32],
    answer: &Answer,
    seed: u64,
) -> Result<ExitCode, Failure> {
    let ui = job.ui;
    if ui.is_json() {
        report::answer_json(job, ids, answer);
        ui.set("timings", report::timings_json(&job.clock, session.timings()));
    } else {
        if job.args.inspect.no_stream {
            ui.print(&answer.text)?;
        }
        // A terminal's next prompt belongs on its own line; a file gets the text alone.
        if stdout_is_terminal() && !answer.text.is_empty() && !answer.text.ends_with('\n') {
            ui.print("\n")?;
        }
    }
    if job.args.inspect.timings {
        report::timings(job, session.timings());
    }
    report::summary(job, &device(model), session.timings(), seed, Some(&answer.stop));
    match answer.stop {
        Stop::Context => Err(Failure::failed(format!(
            "context: all {} positions are used; the answer is cut off (-c sets the size)",
            session.n_ctx()
        ))),
        Stop::Interrupted => Ok(ExitCode::Interrupted),
        _ => Ok(ExitCode::Ok),
    }
}

/// Feeds the prompt and writes the logits of each of its positions to `path` as they come.
/// Returns those of the last.
fn write_logits<'s>(
    job: &Job<'_, '_>,
    session: &'s mut Session<'_, '_>,
    ids: &[u32],
    path: &Path,
) -> Result<&'s [f32], Failure> {
    let n_batch = job.args.device.batch as usize;
    let cannot = |e: &std::io::Error| Failure::io(path, "cannot write", e);
    refuse_inputs(job, path)?;
    // Before the file is touched: what cannot be computed leaves it as it was.
    session.check(ids).map_err(failure)?;
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path).map_err(|e| cannot(&e))?);
    let mut bytes = Vec::new();
    let n_last = ids.len().saturating_sub(1) / n_batch * n_batch;
    let mut written = Ok(());
    let mut sink = |_: usize, logits: &[f32]| {
        bytes.clear();
        bytes.extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
        written = out.write_all(&bytes);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    for batch in ids[..n_last].chunks(n_batch) {
        check_interrupt()?;
        let fed = session.prefill(batch, n_batch, LogitsWanted::all(&mut sink)).map(|_| ());
        if let Err(e) = fed {
            written.map_err(|e| cannot(&e))?;
            return Err(failure(e));
        }
    }
    let fed = session.prefill(&ids[n_last..], n_batch, LogitsWanted::all(&mut sink));
    written.map_err(|e| cannot(&e))?;
    let logits = fed.map_err(failure)?;
    out.flush().map_err(|e| cannot(&e))?;
    job.ui.verbose(
        1,
        format_args!("wrote {} x {} logits to {}", ids.len(), logits.len(), path.display()),
    );
    Ok(logits)
}

/// Writing over the mapped model would destroy it under our feet, and over the ids what was read.
fn refuse_inputs(job: &Job<'_, '_>, path: &Path) -> Result<(), Failure> {
    let id = |metadata: std::io::Result<std::fs::Metadata>| {
        metadata.ok().map(|metadata| (metadata.dev(), metadata.ino()))
    };
    let Some(out) = id(path.metadata()) else { return Ok(()) };
    if id(job.file.file.metadata()) == Some(out) {
        return Err(Failure::usage("--logits would overwrite the model itself"));
    }
    if job.args.prompt.ids.as_ref().is_some_and(|ids| id(ids.metadata()) == Some(out)) {
        return Err(Failure::usage("--logits would overwrite the file of --ids"));
    }
    Ok(())
}
