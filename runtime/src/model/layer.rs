//! The parts that transformer layers are built from: which tensors, of which shape.

use super::config::Config;
use crate::backend::{Backend, Bind};
use crate::error::Result;
use crate::loader::Loader;

/// Query, key, value and output projections.
pub(super) struct Attention<B: Backend> {
    pub(super) norm: B::Vector,
    pub(super) q: B::Matrix,
    pub(super) k: B::Matrix,
    pub(super) v: B::Matrix,
    pub(super) out: B::Matrix,
}

impl<B: Backend> Attention<B> {
    pub(super) fn load<'a>(
        config: &Config,
        layer: usize,
        loader: &mut Loader<'_, 'a, B>,
    ) -> Result<Self>
    where
        B: Bind<'a>,
    {
        let n_q = config.n_head * config.head_dim;
        let n_kv = config.n_head_kv * config.head_dim;
        let name = |part: &str| format!("blk.{layer}.attn_{part}");
        Ok(Self {
            norm: loader.vector(&format!("blk.{layer}.attn_norm.weight"), config.n_embd)?,
            q: loader.matrix(&name("q"), n_q, config.n_embd)?,
            k: loader.matrix(&name("k"), n_kv, config.n_embd)?,
            v: loader.matrix(&name("v"), n_kv, config.n_embd)?,
            out: loader.matrix(&name("output"), config.n_embd, n_q)?,
        })
    }

    pub(super) fn matrices(&self, visit: &mut dyn FnMut(&B::Matrix)) {
        for matrix in [&self.q, &self.k, &self.v, &self.out] {
            visit(matrix);
        }
    }
}

/// A gated feed-forward network.
pub(super) struct FeedForward<B: Backend> {
    pub(super) norm: B::Vector,
    pub(super) gate: B::Matrix,
    pub(super) up: B::Matrix,
    pub(super) down: B::Matrix,
}

impl<B: Backend> FeedForward<B> {
    pub(super) fn load<'a>(
        config: &Config,
        layer: usize,
        loader: &mut Loader<'_, 'a, B>,
    ) -> Result<Self>
    where
        B: Bind<'a>,
    {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}");
        Ok(Self {
            norm: loader.vector(&format!("blk.{layer}.ffn_norm.weight"), config.n_embd)?,
            gate: loader.matrix(&name("gate"), config.n_ff, config.n_embd)?,
            up: loader.matrix(&name("up"), config.n_ff, config.n_embd)?,
            down: loader.matrix(&name("down"), config.n_embd, config.n_ff)?,
        })
    }

    pub(super) fn matrices(&self, visit: &mut dyn FnMut(&B::Matrix)) {
        for matrix in [&self.gate, &self.up, &self.down] {
            visit(matrix);
        }
    }
}

/// Embedding, final norm, and the matrix that makes logits.
pub(super) struct Ends<B: Backend> {
    pub(super) embedding: B::Matrix,
    pub(super) norm: B::Vector,
    /// `None` if the embedding serves here too (tied).
    output: Option<B::Matrix>,
}

impl<B: Backend> Ends<B> {
    pub(super) fn load<'a>(config: &Config, loader: &mut Loader<'_, 'a, B>) -> Result<Self>
    where
        B: Bind<'a>,
    {
        Ok(Self {
            embedding: loader.matrix("token_embd", config.n_vocab, config.n_embd)?,
            norm: loader.vector("output_norm.weight", config.n_embd)?,
            output: loader.optional_matrix("output", config.n_vocab, config.n_embd)?,
        })
    }

    pub(super) fn output(&self) -> &B::Matrix {
        self.output.as_ref().unwrap_or(&self.embedding)
    }
}
