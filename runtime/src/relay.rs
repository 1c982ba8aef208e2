//! A sequence whose first layers run on one backend and whose last on another: the residual stream
//! crosses between them, once a step.

use crate::backend::Backend;
use crate::error::Result;
use crate::lane::{Lane, Run};
use std::ops::Range;

/// Two lanes, one behind the other.
pub(crate) struct Relay<'m, A: Backend, B: Backend> {
    /// From the embeddings on.
    head: Lane<'m, A>,
    /// To the logits.
    tail: Lane<'m, B>,
}

impl<'m, A: Backend, B: Backend> Relay<'m, A, B> {
    pub(crate) fn new(head: Lane<'m, A>, tail: Lane<'m, B>) -> Self {
        Self { head, tail }
    }

    /// Runs the first layers and hands over what they leave.
    fn hand_over(&mut self, tokens: &[u32], first_pos: usize) -> Result<()> {
        self.head.forward(tokens, first_pos, 0..tokens.len())?;
        let stream = self.head.stream(tokens.len())?;
        self.tail.start_from(stream)
    }
}

impl<A: Backend, B: Backend> Run for Relay<'_, A, B> {
    fn reserve(&mut self, n_positions: usize) -> Result<()> {
        self.head.reserve(n_positions)?;
        self.tail.reserve(n_positions)
    }

    fn forward(&mut self, tokens: &[u32], first_pos: usize, wanted: Range<usize>) -> Result<()> {
        self.hand_over(tokens, first_pos)?;
        self.tail.forward(tokens, first_pos, wanted)
    }

    fn logits(&mut self, rows: Range<usize>) -> Result<()> {
        self.tail.logits(rows)
    }

    fn decode(&mut self, token: u32, pos: usize) -> Result<()> {
        self.hand_over(&[token], pos)?;
        self.tail.decode(token, pos)
    }

    fn choose_greedily(&mut self, n_tokens: usize, banned: &[u32]) -> Result<bool> {
        self.tail.choose_greedily(n_tokens, banned)
    }

    fn decode_greedy(&mut self, token: u32, pos: usize, ahead: bool) -> Result<Option<u32>> {
        self.hand_over(&[token], pos)?;
        self.tail.decode_greedy(token, pos, ahead)
    }

    fn read(&mut self, n_rows: usize) -> Result<&[f32]> {
        self.tail.read(n_rows)
    }

    fn finish(&self) -> Result<()> {
        self.head.finish()?;
        self.tail.finish()
    }

    fn cache_bytes(&self) -> u64 {
        self.head.cache_bytes() + self.tail.cache_bytes()
    }
}
