//! A session: one sequence of tokens, its cache, and the steps that extend it.

use crate::Model;
use crate::error::{Error, Result};
use crate::lane::Run;
use crate::report::Timings;
use std::ops::{ControlFlow, Range};
use std::time::Instant;

/// Logits computed together are at most this many bytes (but one row at least).
/// Enough rows for a product to be worth unpacking the output matrix once more.
const LOGITS_BYTES: usize = 64 << 20;

/// Most tokens of a step: what every backend can launch at once. Longer batches are cut.
const MAX_BATCH: usize = 1 << 15;

/// Receives the logits of one prompt position: its index in the prompt, and `[n_vocab]` logits.
pub type LogitsSink<'s> = dyn FnMut(usize, &[f32]) -> ControlFlow<()> + 's;

/// Which logits a prefill computes.
pub enum LogitsWanted<'s> {
    /// None: the prompt is only remembered.
    None,
    /// Those after the last token.
    Last,
    /// Those of every prompt token from this index on, in order. Breaking off ends the prefill
    /// with [`Error::Stopped`].
    From(usize, &'s mut LogitsSink<'s>),
}

impl<'s> LogitsWanted<'s> {
    /// Those of every prompt token.
    pub fn all(sink: &'s mut LogitsSink<'s>) -> Self {
        Self::From(0, sink)
    }
}

/// What [`Session::decode_greedy`] came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice<'s> {
    /// The token was chosen where the logits are.
    Token(u32),
    /// No logit is finite.
    NotFinite,
    /// The choice is the caller's, from these logits, `[n_vocab]`.
    Open(&'s [f32]),
}

/// One sequence being extended.
///
/// A token's logits depend on the tokens before it and on nothing else: not on how the prompt was
/// cut into batches, nor on the number of threads.
pub struct Session<'m, 'a> {
    model: &'m Model<'a>,
    run: Box<dyn Run + 'm>,
    /// Rows of logits that the last computation left.
    n_logits: usize,
    n_past: usize,
    n_ctx: usize,
    /// Whether tokens are chosen where the logits are.
    run_chooses: bool,
    timings: Timings,
}

impl<'m, 'a> Session<'m, 'a> {
    /// An empty session of at most `n_ctx` positions. Memory is taken as positions are used.
    ///
    /// # Errors
    /// If the kernels' tier is not to be had, which a loaded model rules out.
    pub fn new(model: &'m Model<'a>, n_ctx: usize) -> Result<Self> {
        Ok(Self {
            model,
            run: model.run(n_ctx)?,
            n_logits: 0,
            n_past: 0,
            n_ctx,
            run_chooses: false,
            timings: Timings::default(),
        })
    }

    /// Positions in use.
    pub fn n_past(&self) -> usize {
        self.n_past
    }

    /// Positions there are.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Forgets positions from `n_past` on. More than are in use changes nothing.
    pub fn truncate(&mut self, n_past: usize) {
        self.n_past = self.n_past.min(n_past);
    }

    /// Makes room for positions `0..n_positions` now, so that no step up to there has to.
    ///
    /// # Errors
    /// If memory cannot be had.
    pub fn reserve(&mut self, n_positions: usize) -> Result<()> {
        self.run.reserve(n_positions.min(self.n_ctx))
    }

    /// Bytes that keys and values take now.
    pub fn cache_bytes(&self) -> u64 {
        self.run.cache_bytes()
    }

    /// Tokens and time so far.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Extends the sequence by `tokens`, `n_batch` at a time, and returns the logits after the
    /// last one, `[n_vocab]` (empty unless `wanted` includes them).
    ///
    /// # Errors
    /// If there is no token, an id is not below `n_vocab`, the context is full, memory is, or the
    /// receiver of the logits stops. Nothing is added then, except that a stop leaves the
    /// batches before it.
    pub fn prefill(
        &mut self,
        tokens: &[u32],
        n_batch: usize,
        mut wanted: LogitsWanted<'_>,
    ) -> Result<&[f32]> {
        let start = Instant::now();
        self.check(tokens)?;
        let first_wanted = match &wanted {
            LogitsWanted::None => tokens.len(),
            LogitsWanted::Last => tokens.len() - 1,
            LogitsWanted::From(first, _) => *first,
        };
        self.run.reserve(self.n_past + tokens.len())?;
        let mut n_done = 0;
        for batch in tokens.chunks(n_batch.clamp(1, MAX_BATCH)) {
            let first = first_wanted.saturating_sub(n_done).min(batch.len());
            self.step(batch, first..batch.len())?;
            let sink = match &mut wanted {
                LogitsWanted::From(_, sink) => Some(&mut **sink),
                _ => None,
            };
            self.deliver(batch.len() - first, n_done + first, sink)?;
            n_done += batch.len();
        }
        self.timings.n_prefill_tokens += tokens.len() as u64;
        if first_wanted >= tokens.len() {
            self.run.finish()?;
            self.timings.prefill += start.elapsed();
            return Ok(&[]);
        }
        let n_vocab = self.model.n_vocab();
        let logits = self.run.read(self.n_logits)?;
        self.timings.prefill += start.elapsed();
        Ok(&logits[logits.len().saturating_sub(n_vocab)..])
    }

    /// Extends the sequence by one token and returns the logits after it, `[n_vocab]`.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn decode(&mut self, token: u32) -> Result<&[f32]> {
        let start = Instant::now();
        self.check(&[token])?;
        self.run.reserve(self.n_past + 1)?;
        self.run.decode(token, self.n_past)?;
        self.n_past += 1;
        self.n_logits = 1;
        let n_vocab = self.model.n_vocab();
        let logits = self.run.read(1)?;
        self.timings.n_decode_tokens += 1;
        self.timings.decode += start.elapsed();
        Ok(&logits[logits.len().saturating_sub(n_vocab)..])
    }

    /// Lets [`decode_greedy`](Self::decode_greedy) choose, on devices that can: the first largest
    /// logit, never a token of `banned`, never padding.
    ///
    /// # Errors
    /// If the device fails.
    pub fn choose_greedily(&mut self, banned: &[u32]) -> Result<bool> {
        self.run_chooses = self.run.choose_greedily(self.model.n_tokens(), banned)?;
        Ok(self.run_chooses)
    }

    /// As [`decode`](Self::decode), with the choice made where the logits are, after
    /// [`choose_greedily`](Self::choose_greedily). `more`: another call with the token that this
    /// one returns is likely, and its step may begin already.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn decode_greedy(&mut self, token: u32, more: bool) -> Result<Choice<'_>> {
        if !self.run_chooses {
            return self.decode(token).map(Choice::Open);
        }
        let start = Instant::now();
        self.check(&[token])?;
        let ahead = more && self.n_past + 1 < self.n_ctx;
        self.run.reserve(self.n_past + 1 + usize::from(ahead))?;
        let chosen = self.run.decode_greedy(token, self.n_past, ahead)?;
        self.n_past += 1;
        self.n_logits = 0;
        self.timings.n_decode_tokens += 1;
        self.timings.decode += start.elapsed();
        Ok(chosen.map_or(Choice::NotFinite, Choice::Token))
    }

    /// Whether these tokens can be fed next; whoever writes as they come asks beforehand.
    ///
    /// # Errors
    /// Those of [`prefill`](Self::prefill) that depend on the tokens alone.
    pub fn check(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::NoTokens);
        }
        let n_vocab = self.model.n_vocab();
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= n_vocab) {
            return Err(Error::TokenOutOfRange { token, n_vocab });
        }
        let (n_past, n_tokens, n_ctx) = (self.n_past, tokens.len(), self.n_ctx);
        if n_tokens > n_ctx - n_past {
            return Err(Error::ContextFull { n_past, n_tokens, n_ctx });
        }
        Ok(())
    }

    fn step(&mut self, tokens: &[u32], wanted: Range<usize>) -> Result<()> {
        self.run.forward(tokens, self.n_past, wanted)?;
        self.n_past += tokens.len();
        Ok(())
    }

    /// Computes the logits of the `n_rows` rows that the step left, in pieces of bounded size.
    /// Without a receiver only the last row's are computed.
    fn deliver(
        &mut self,
        n_rows: usize,
        first_index: usize,
        sink: Option<&mut LogitsSink<'_>>,
    ) -> Result<()> {
        let n_vocab = self.model.n_vocab();
        let Some(sink) = sink else {
            if n_rows > 0 {
                self.run.logits(n_rows - 1..n_rows)?;
                self.n_logits = 1;
            }
            return Ok(());
        };
        let n_together = (LOGITS_BYTES / (n_vocab * size_of::<f32>())).max(1);
        for first in (0..n_rows).step_by(n_together) {
            let rows = first..n_rows.min(first + n_together);
            self.run.logits(rows.clone())?;
            self.n_logits = rows.len();
            let logits = self.run.read(rows.len())?;
            for (row, logits) in rows.zip(logits.chunks_exact(n_vocab)) {
                if sink(first_index + row, logits).is_break() {
                    return Err(Error::Stopped);
                }
            }
        }
        Ok(())
    }
}
