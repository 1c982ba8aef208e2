//! One test: warm-up, repetitions, and a clock that runs only while the test does.

use crate::device::failure;
use crate::plan::Test;
use crate::subject::Subject;
use cli::Failure;
use runtime::{Choice, LogitsWanted, Model, Session};
use std::time::Instant;

/// How a test is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) n_repetitions: usize,
    pub(crate) warm_up: bool,
    /// Whether the model chooses the tokens.
    pub(crate) greedy: bool,
}

/// Nanoseconds of each repetition.
///
/// The cache has room for all positions beforehand, as llama-bench's has. Each repetition starts
/// from an empty cache, or from the same `n_depth` positions.
///
/// # Errors
/// What the session reports.
pub(crate) fn samples(
    model: &Model<'_>,
    subject: &Subject,
    test: &Test,
    way: Way,
    mut say: impl FnMut(&str),
) -> Result<Vec<u64>, Failure> {
    let mut session = Session::new(model, test.n_ctx()).map_err(failure)?;
    session.reserve(test.n_ctx()).map_err(failure)?;
    let on_device = way.greedy && session.choose_greedily(&[]).map_err(failure)?;
    let mut run = Run {
        session,
        tokens: Tokens::new(model.n_tokens() as u32, subject.bos),
        n_batch: test.n_ubatch,
        greedy: way.greedy,
        on_device,
    };
    if way.warm_up {
        say("warmup run");
        run.prompt(test.n_prompt)?;
        run.generate(test.n_gen.min(2))?;
    }
    run.session.truncate(0);
    if test.n_depth > 0 {
        say("depth run");
        run.prompt(test.n_depth)?;
    }
    let mut samples = Vec::with_capacity(way.n_repetitions);
    for i in 0..way.n_repetitions {
        run.session.truncate(test.n_depth);
        say(&format!("run {}/{}", i + 1, way.n_repetitions));
        let start = Instant::now();
        run.prompt(test.n_prompt)?;
        run.generate(test.n_gen)?;
        samples.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1));
    }
    Ok(samples)
}

struct Run<'m, 'a> {
    session: Session<'m, 'a>,
    tokens: Tokens,
    n_batch: usize,
    greedy: bool,
    on_device: bool,
}

impl Run<'_, '_> {
    fn prompt(&mut self, n_tokens: usize) -> Result<(), Failure> {
        if n_tokens == 0 {
            return Ok(());
        }
        let tokens: Vec<u32> = (0..n_tokens).map(|i| self.tokens.at(i)).collect();
        let prefill = self.session.prefill(&tokens, self.n_batch, LogitsWanted::Last);
        prefill.map(|_| ()).map_err(failure)
    }

    fn generate(&mut self, n_tokens: usize) -> Result<(), Failure> {
        let mut token = self.tokens.at(0);
        for i in 0..n_tokens {
            let choice = if self.on_device {
                self.session.decode_greedy(token, i + 1 < n_tokens)
            } else {
                self.session.decode(token).map(Choice::Open)
            };
            token = match choice.map_err(failure)? {
                Choice::Token(token) => token,
                Choice::NotFinite => return Err(Failure::failed("no logit is finite")),
                Choice::Open(logits) if self.greedy => largest(logits),
                Choice::Open(_) => self.tokens.random(),
            };
        }
        Ok(())
    }
}

/// The first of the largest.
fn largest(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in (0u32..).zip(logits) {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    best.0
}

/// Random tokens, the same in every run of the program.
struct Tokens {
    state: u64,
    n_tokens: u32,
    bos: Option<u32>,
}

impl Tokens {
    fn new(n_tokens: u32, bos: Option<u32>) -> Self {
        Self { state: 0x2545_f491_4f6c_dd1d, n_tokens: n_tokens.max(1), bos }
    }

    /// Token `i` of a sequence: the first is BOS where the model wants one.
    fn at(&mut self, i: usize) -> u32 {
        match self.bos {
            Some(bos) if i == 0 => bos,
            _ => self.random(),
        }
    }

    fn random(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        ((self.state >> 32) as u32) % self.n_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_in_the_vocabulary_and_differ() {
        let mut tokens = Tokens::new(300, Some(7));
        let sequence: Vec<u32> = (0..1000).map(|i| tokens.at(i)).collect();
        assert_eq!(sequence[0], 7);
        assert!(sequence.iter().all(|&token| token < 300));
        let mut distinct = sequence.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 200, "{}", distinct.len());
        assert_eq!(Tokens::new(300, Some(7)).at(1), sequence[1]);
        assert!(Tokens::new(1, None).at(0) == 0);
    }

    #[test]
    fn of_equal_logits_the_first() {
        assert_eq!(largest(&[0.0, 2.0, f32::NAN, 2.0]), 1);
        assert_eq!(largest(&[f32::NEG_INFINITY]), 0);
    }
}
