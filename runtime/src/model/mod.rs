//! Architectures: one file each, registered in the table below.
//!
//! Hyper-parameters and tensor shapes come from `format_spec::model`. To add an architecture, add it
//! there, write `model/<name>.rs` with a `Net` that loads and runs, and add its `mod` line and its
//! table line here. A forward pass is straight-line code over `Backend`: read it from top to bottom.

mod gemma3;
mod layer;
mod llama;
mod qwen3;

use crate::backend::{Backend, Bind, CacheShape, ExpertShape};
use crate::error::Result;
use crate::loader::Loader;
use format_spec::model::Config;
use std::ops::Range;

macro_rules! architectures {
    ($($name:literal => $module:ident,)*) => {
        /// Names of the architectures that run.
        #[cfg(test)]
        const NAMES: &[&str] = &[$($name,)*];

        /// Binds the weights of layers `range` of `config.architecture`, and what stands before
        /// the first and behind the last.
        pub(crate) fn load<'a, B: Bind<'a> + 'a>(
            config: &mut Config,
            range: Range<usize>,
            loader: &mut Loader<'_, 'a, B>,
        ) -> Result<Box<dyn Network<B> + 'a>> {
            match config.architecture.as_str() {
                $($name => Ok(Box::new($module::Net::load(config, range, loader)?)),)*
                name => Err(format_spec::model::unknown(name).into()),
            }
        }
    };
}

architectures! {
    "llama" => llama,
    "qwen2" => llama,
    "qwen3" => qwen3,
    "qwen3moe" => qwen3,
    "gemma3" => gemma3,
}

/// A model's weights with the code that runs them.
pub(crate) trait Network<B: Backend>: Send + Sync {
    /// Puts the tokens' embeddings into `scratch.x`. Only where the first layer is.
    fn embed(&self, be: &B, scratch: &mut Scratch<B>, tokens: &[u32]);

    /// Runs the residual stream of the step's tokens, `scratch.x`, through the layers and fills the
    /// cache at their positions; behind the last layer leaves that of the wanted rows there.
    fn forward(&self, be: &B, cache: &mut B::Cache, scratch: &mut Scratch<B>, step: &Step<'_>);

    /// Computes `scratch.logits` of `rows` of `scratch.x`. Only where the last layer is.
    fn logits(&self, be: &B, scratch: &mut Scratch<B>, rows: Range<usize>);

    /// Calls `visit` for every matrix in order of use.
    fn matrices(&self, be: &B, visit: &mut dyn FnMut(&B::Matrix));
}

/// One run through the layers.
pub(crate) struct Step<'s> {
    /// Token ids, each below `n_vocab`.
    pub(crate) tokens: &'s [u32],
    /// Position of the first token; those before are in the cache.
    pub(crate) first_pos: usize,
    /// Which of `tokens` the caller wants logits for. The last layer leaves out the others.
    pub(crate) wanted: Range<usize>,
}

/// Buffers of a session, reused from step to step.
pub(crate) struct Scratch<B: Backend> {
    /// Residual stream, `[n_tokens, n_embd]`.
    pub(crate) x: B::Tensor,
    /// Normalized residual stream.
    pub(crate) normed: B::Operand,
    pub(crate) q: B::Tensor,
    pub(crate) k: B::Tensor,
    pub(crate) v: B::Tensor,
    /// Attention output, `[n_tokens, n_head * head_dim]`.
    pub(crate) attended: B::Operand,
    /// What a layer half adds to the residual stream.
    pub(crate) delta: B::Tensor,
    pub(crate) gate: B::Tensor,
    pub(crate) up: B::Tensor,
    /// Input of the down projection, `[n_tokens, n_ff]`.
    pub(crate) gated: B::Operand,
    /// What a layer's experts work in, where there are any.
    pub(crate) mixture: Option<B::Mixture>,
    pub(crate) rotation: B::Rotation,
    pub(crate) rotation_local: Option<B::Rotation>,
    /// Rows of `x` whose logits are computed together.
    pub(crate) last: B::Tensor,
    pub(crate) logits: B::Tensor,
}

impl<B: Backend> Scratch<B> {
    pub(crate) fn new(be: &B, config: &Config) -> Result<Self> {
        let n_q = config.n_head * config.head_dim;
        let n_kv = config.n_head_kv * config.head_dim;
        // Experts have buffers of their own.
        let n_ff = config.experts.map_or(config.n_ff, |experts| experts.n_ff);
        Ok(Self {
            x: be.tensor(config.n_embd),
            normed: be.operand(config.n_embd)?,
            q: be.tensor(n_q),
            k: be.tensor(n_kv),
            v: be.tensor(n_kv),
            attended: be.operand(n_q)?,
            delta: be.tensor(config.n_embd),
            gate: be.tensor(n_ff),
            up: be.tensor(n_ff),
            gated: be.operand(n_ff)?,
            mixture: expert_shape(config).map(|shape| be.mixture(shape)).transpose()?,
            rotation: be.rotation(&config.rope),
            rotation_local: config.rope_local.as_ref().map(|rope| be.rotation(rope)),
            last: be.tensor(config.n_embd),
            logits: be.tensor(config.n_vocab),
        })
    }
}

/// Shapes of a layer's experts.
fn expert_shape(config: &Config) -> Option<ExpertShape> {
    let experts = config.experts?;
    Some(ExpertShape {
        n_expert: experts.n_expert,
        n_used: experts.n_used,
        n_embd: config.n_embd,
        n_ff: experts.n_ff,
    })
}

/// Shape of the cache that sessions use for `n_layer` of a model's layers.
pub(crate) fn cache_shape(config: &Config, n_layer: usize, n_ctx: usize) -> CacheShape {
    CacheShape { n_layer, n_head_kv: config.n_head_kv, head_dim: config.head_dim, n_ctx }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_known_architecture_runs() {
        assert_eq!(super::NAMES, format_spec::model::ARCHITECTURES);
    }
}
