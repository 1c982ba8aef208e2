//! One prompt, one answer.

use super::{explain, logits, stdout_is_terminal};
use crate::answer::{Answer, Generator, Stop, choose, feed};
use crate::interrupt;
use crate::prompt::Prompt;
use crate::report;
use crate::setup::{Job, device, failure};
use cli::{ExitCode, Failure};
use runtime::{Model, Session};

/// Runs the prompt and prints the answer.
///
/// # Errors
/// Whatever stops it early, a full context included.
pub(super) fn run(job: &mut Job<'_, '_>, prompt: Prompt) -> Result<ExitCode, Failure> {
    let ids = job.prompt_ids(prompt)?;
    check_output(job)?;
    report::prompt_json(job, &ids);
    let model = job.load()?;
    let n_ctx = job.n_ctx(&model)?;
    job.check_fits(ids.len(), n_ctx)?;
    job.ui.set("n_ctx", n_ctx);
    let mut session = Session::new(&model, n_ctx).map_err(failure)?;
    let _listening = interrupt::listen();
    let outcome = answer(job, &model, &mut session, &ids)
        .inspect_err(|failure| report::interruption(job, failure));
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
            logits::write(job, model.config().n_vocab, session, ids, path)?
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
    finish(job, model, session, &answer, seed)
}

/// Prints what is still to be printed and maps the end of the answer to an exit code.
fn finish(
    job: &Job<'_, '_>,
    model: &Model<'_>,
    session: &Session<'_, '_>,
    answer: &Answer,
    seed: u64,
) -> Result<ExitCode, Failure> {
    let ui = job.ui;
    if ui.is_json() {
        report::answer_json(job, answer);
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
