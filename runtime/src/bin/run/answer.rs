//! One answer: sampling, decoding and streaming until something ends it.

use crate::interrupt;
use crate::setup::failure;
use cli::{ExitCode, Failure};
use runtime::sampler::{SampleError, Sampler};
use runtime::stream::TextStream;
use runtime::tokenizer::Tokenizer;
use runtime::{Choice, LogitsWanted, Session};
use std::time::{Duration, Instant};

/// What ends an answer besides the model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    /// Most tokens.
    pub(crate) n_predict: Option<usize>,
    /// Stop strings.
    pub(crate) stops: Vec<String>,
    /// Most time.
    pub(crate) max_time: Option<Duration>,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The model ended it with this token.
    EndOfGeneration(u32),
    /// This stop string came up.
    Text(String),
    /// The wanted number of tokens is reached.
    Length,
    /// The context is full.
    Context,
    /// ^C.
    Interrupted,
    /// `--max-time`.
    Time,
}

impl Stop {
    /// As printed in the summary and in JSON.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::EndOfGeneration(_) => "eos",
            Self::Text(_) => "stop",
            Self::Length => "length",
            Self::Context => "context",
            Self::Interrupted => "interrupted",
            Self::Time => "time",
        }
    }
}

/// A finished answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// What was shown.
    pub(crate) text: String,
    /// Every token sampled, an end-of-generation token included.
    pub(crate) token_ids: Vec<u32>,
    /// Why it ended.
    pub(crate) stop: Stop,
}

/// Feeds `tokens` to the session and returns the logits after the last one. Goes batch by batch, so
/// that ^C is noticed in between; the results do not depend on it.
///
/// # Errors
/// What the session reports; interruption (130).
pub(crate) fn feed<'s>(
    session: &'s mut Session<'_, '_>,
    tokens: &[u32],
    n_batch: usize,
) -> Result<&'s [f32], Failure> {
    let last_batch = tokens.len().saturating_sub(1) / n_batch * n_batch;
    let (first, last) = tokens.split_at(last_batch);
    for batch in first.chunks(n_batch) {
        check_interrupt()?;
        session.prefill(batch, n_batch, LogitsWanted::None).map_err(failure)?;
    }
    check_interrupt()?;
    session.prefill(last, n_batch, LogitsWanted::Last).map_err(failure)
}

/// # Errors
/// Interruption (130), if ^C was pressed.
pub(crate) fn check_interrupt() -> Result<(), Failure> {
    if interrupt::asked() {
        return Err(Failure::new(ExitCode::Interrupted, "interrupted while reading the prompt"));
    }
    Ok(())
}

/// Generates until something ends the answer. Shows text as it becomes certain.
pub(crate) struct Generator<'g, 'm, 'a, 't> {
    pub(crate) session: &'g mut Session<'m, 'a>,
    pub(crate) sampler: &'g mut Sampler,
    /// Without one there are tokens but no text, and none of them ends the answer.
    pub(crate) tokenizer: Option<&'g Tokenizer<'t>>,
    pub(crate) limits: &'g Limits,
}

impl Generator<'_, '_, '_, '_> {
    /// Answers from the session's state. `first` is the first token of the answer, already
    /// sampled from the logits after the prompt (nothing: no token is wanted).
    ///
    /// # Errors
    /// What session, sampler and `show` report.
    pub(crate) fn run(
        &mut self,
        first: Option<u32>,
        mut show: impl FnMut(&str) -> Result<(), Failure>,
    ) -> Result<Answer, Failure> {
        let start = Instant::now();
        let mut stream = TextStream::new(&self.limits.stops);
        let mut answer = Answer { text: String::new(), token_ids: Vec::new(), stop: Stop::Length };
        let Some(mut token) = first else { return Ok(answer) };
        let on_device = match self.sampler.plain_greedy() {
            Some(banned) => self.session.choose_greedily(&banned).map_err(failure)?,
            None => false,
        };
        loop {
            self.sampler.accept(token);
            answer.token_ids.push(token);
            if self.tokenizer.is_some_and(|t| t.is_eog(token)) {
                answer.stop = Stop::EndOfGeneration(token);
                break;
            }
            if let Some(tokenizer) = self.tokenizer.filter(|t| !t.is_control(token)) {
                let text = stream.push(tokenizer.piece(token));
                show(&text)?;
                answer.text += &text;
            }
            let stopped =
                stream.stopped().map(|which| Stop::Text(self.limits.stops[which].clone()));
            if let Some(stop) = stopped.or_else(|| self.limit(answer.token_ids.len(), start)) {
                answer.stop = stop;
                break;
            }
            let more = self.limits.n_predict.is_none_or(|most| answer.token_ids.len() + 1 < most);
            let choice = if on_device {
                self.session.decode_greedy(token, more)
            } else {
                self.session.decode(token).map(Choice::Open)
            };
            token = match choice.map_err(failure)? {
                Choice::Token(token) => token,
                Choice::NotFinite => {
                    return Err(Failure::failed(SampleError::NotFinite.to_string()));
                }
                Choice::Open(logits) => choose(self.sampler, self.tokenizer, logits)?,
            };
        }
        let rest = stream.finish();
        show(&rest)?;
        answer.text += &rest;
        Ok(answer)
    }

    fn limit(&self, n_generated: usize, start: Instant) -> Option<Stop> {
        if self.limits.n_predict.is_some_and(|most| n_generated >= most) {
            Some(Stop::Length)
        } else if interrupt::asked() {
            Some(Stop::Interrupted)
        } else if self.limits.max_time.is_some_and(|most| start.elapsed() >= most) {
            Some(Stop::Time)
        } else if self.session.n_past() >= self.session.n_ctx() {
            Some(Stop::Context)
        } else {
            None
        }
    }
}

/// Samples a token from `logits`, `[n_vocab]`.
///
/// # Errors
/// If no logit is finite.
pub(crate) fn choose(
    sampler: &mut Sampler,
    tokenizer: Option<&Tokenizer<'_>>,
    logits: &[f32],
) -> Result<u32, Failure> {
    // Rows of the output matrix beyond the vocabulary are padding and have no text.
    let n_tokens = tokenizer.map_or(logits.len(), |t| logits.len().min(t.n_tokens() as usize));
    sampler.sample(&logits[..n_tokens]).map_err(|e| Failure::failed(e.to_string()))
}
