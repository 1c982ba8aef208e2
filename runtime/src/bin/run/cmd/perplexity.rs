//! `--perplexity`: the measure of llama-perplexity, so that the figures compare.

use crate::interrupt;
use crate::prompt::text_file;
use crate::report;
use crate::setup::{Job, device, failure};
use cli::{ExitCode, Failure};
use runtime::{LogitsWanted, Session};
use std::ops::ControlFlow;
use std::path::Path;

/// Tokens of a chunk; the second half is scored.
const CHUNK: usize = 512;

/// Sums over the scored tokens.
#[derive(Debug, Default)]
struct Score {
    nll: f64,
    nll_squared: f64,
    n: u64,
}

impl Score {
    /// Adds the negative log likelihood of `token` under `logits`.
    fn add(&mut self, logits: &[f32], token: u32) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from((l - max).exp())).sum();
        let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let nll = sum.ln() - f64::from(logit - max);
        self.nll += nll;
        self.nll_squared += nll * nll;
        self.n += 1;
    }

    fn perplexity(&self) -> f64 {
        (self.nll / self.n as f64).exp()
    }

    /// Standard error of the perplexity.
    fn error(&self) -> f64 {
        let n = self.n as f64;
        let mean = self.nll / n;
        let variance = self.nll_squared / n - mean * mean;
        (variance.max(0.0) / (n - 1.0)).sqrt() * self.perplexity()
    }
}

/// Prints `Final estimate: PPL = ...`; the running estimates go to standard error.
///
/// # Errors
/// If the text is shorter than two chunks, or what the session reports.
pub(super) fn run(job: &mut Job<'_, '_>, path: &Path) -> Result<ExitCode, Failure> {
    let text = text_file(path)?;
    // llama-perplexity drops one newline at the end of its file.
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let tokenizer = job.tokenizer()?;
    let tokens = tokenizer.encode(text, false, true);
    if tokens.len() < 2 * CHUNK {
        return Err(Failure::input(format!(
            "{}: has {} tokens, at least {} are needed",
            path.display(),
            tokens.len(),
            2 * CHUNK
        )));
    }
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    let model = job.load()?;
    let mut session = Session::new(&model, CHUNK).map_err(failure)?;
    let _listening = interrupt::listen();
    let n_batch = job.args.device.batch as usize;
    let mut score = Score::default();
    let n_chunks = tokens.len() / CHUNK;
    for (i, chunk) in tokens.chunks_exact(CHUNK).enumerate() {
        let mut input = chunk.to_vec();
        if let Some(bos) = bos {
            input[0] = bos;
        }
        session.truncate(0);
        let mut sink = |at: usize, logits: &[f32]| {
            if interrupt::asked() {
                return ControlFlow::Break(());
            }
            if let Some(&next) = chunk.get(at + 1) {
                score.add(logits, next);
            }
            ControlFlow::Continue(())
        };
        let wanted = LogitsWanted::From(CHUNK / 2, &mut sink);
        let fed = session.prefill(&input, n_batch, wanted).map(|_| ());
        if interrupt::asked() {
            return Err(interrupted(job, i, n_chunks));
        }
        fed.map_err(failure)?;
        job.ui.note(format_args!("[{}/{n_chunks}] {:.4}", i + 1, score.perplexity()));
    }
    let (perplexity, error) = (score.perplexity(), score.error());
    if job.ui.is_json() {
        job.ui.set("perplexity", perplexity);
        job.ui.set("perplexity_error", error);
        job.ui.set("n_chunks", n_chunks);
        job.ui.set("timings", report::timings_json(&job.clock, session.timings()));
    } else {
        job.ui.print(format!("Final estimate: PPL = {perplexity:.4} +/- {error:.5}\n"))?;
    }
    report::summary(job, &device(&model), session.timings(), 0, None);
    if job.args.inspect.explain {
        super::explain::after_run(job, &model);
    }
    Ok(ExitCode::Ok)
}

/// An estimate from a part of the text would pass for the text's: there is none.
fn interrupted(job: &Job<'_, '_>, n_done: usize, n_chunks: usize) -> Failure {
    let message = format!("interrupted after {n_done} of {n_chunks} chunks");
    let failure = Failure::new(ExitCode::Interrupted, message);
    report::interruption(job, &failure);
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_logits_give_the_vocabulary_size() {
        let mut score = Score::default();
        for token in 0..4 {
            score.add(&[7.5; 4], token);
        }
        assert!((score.perplexity() - 4.0).abs() < 1e-9);
        assert!(score.error().abs() < 1e-6);
    }
}
