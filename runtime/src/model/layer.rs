//! The parts that transformer layers are built from. Which tensors of which shape they are is
//! `format_spec::model`'s.

use super::{Scratch, Step, expert_shape};
use crate::backend::{Activation, AttentionStep, Backend, Bind, ExpertMatrices};
use crate::error::Result;
use crate::loader::Loader;
use format_spec::model::Config;
use std::ops::Range;

/// Query, key, value and output projections.
pub(super) struct Attention<B: Backend> {
    pub(super) norm: B::Vector,
    pub(super) q: B::Matrix,
    pub(super) k: B::Matrix,
    pub(super) v: B::Matrix,
    pub(super) out: B::Matrix,
}

impl<B: Backend> Attention<B> {
    pub(super) fn load<'a>(layer: usize, loader: &mut Loader<'_, 'a, B>) -> Result<Self>
    where
        B: Bind<'a>,
    {
        let name = |part: &str| format!("blk.{layer}.attn_{part}");
        Ok(Self {
            norm: loader.vector(&name("norm.weight"))?,
            q: loader.matrix(&name("q"))?,
            k: loader.matrix(&name("k"))?,
            v: loader.matrix(&name("v"))?,
            out: loader.matrix(&name("output"))?,
        })
    }

    pub(super) fn matrices(&self, visit: &mut dyn FnMut(&B::Matrix)) {
        for matrix in [&self.q, &self.k, &self.v, &self.out] {
            visit(matrix);
        }
    }
}

/// What a layer's attention is besides its projections.
pub(super) struct Heads<'l, B: Backend> {
    /// Gains of the norms over queries' and keys' heads.
    pub(super) norms: Option<(&'l B::Vector, &'l B::Vector)>,
    /// Whether heads are rotated by the angles of layers with a window.
    pub(super) is_local: bool,
    pub(super) window: Option<usize>,
    /// Whether only wanted rows matter behind the keys and values.
    pub(super) is_last: bool,
}

impl<B: Backend> Attention<B> {
    /// What layer `layer` of the cache attends to, in `s.attended`, from the residual stream. Says
    /// whether there is a row that anybody wants.
    pub(super) fn attend(
        &self,
        be: &B,
        (cache, layer): (&mut B::Cache, usize),
        s: &mut Scratch<B>,
        step: &Step<'_>,
        c: &Config,
        heads: &Heads<'_, B>,
    ) -> bool {
        let (eps, window, scale) = (c.norm_eps, heads.window, c.attention_scale);
        let qkv = [(&mut s.q, &self.q), (&mut s.k, &self.k), (&mut s.v, &self.v)];
        be.norm_linear(qkv, &mut s.normed, &s.x, &self.norm, eps);
        let local = if heads.is_local { s.rotation_local.as_ref() } else { None };
        let rotation = local.unwrap_or(&s.rotation);
        let mut attention = AttentionStep { layer, first_pos: step.first_pos, scale, window };
        if step.tokens.len() == 1 && step.wanted == (0..1) {
            let norms = heads.norms.map(|(q, k)| (q, k, eps));
            let qkv = (&s.q, &s.k, &s.v);
            if be.attend_alone(&mut s.attended, cache, qkv, rotation, norms, attention) {
                return true;
            }
        }
        if let Some((q_norm, k_norm)) = heads.norms {
            be.norm_heads(&mut s.q, q_norm, eps);
            be.norm_heads(&mut s.k, k_norm, eps);
        }
        let qkv = (&mut s.q, &mut s.k, &s.v);
        be.rotate_and_store(cache, layer, step.first_pos, qkv, rotation);
        if heads.is_last {
            // The keys and values are stored; from here on only wanted rows matter.
            be.keep(&mut s.q, step.wanted.clone());
            be.keep(&mut s.x, step.wanted.clone());
            attention.first_pos += step.wanted.start;
            if step.wanted.is_empty() {
                return false;
            }
        }
        be.attention(&mut s.attended, &s.q, cache, attention);
        true
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
    pub(super) fn load<'a>(layer: usize, loader: &mut Loader<'_, 'a, B>) -> Result<Self>
    where
        B: Bind<'a>,
    {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}");
        Ok(Self {
            norm: loader.vector(&name("norm.weight"))?,
            gate: loader.matrix(&name("gate"))?,
            up: loader.matrix(&name("up"))?,
            down: loader.matrix(&name("down"))?,
        })
    }

    /// What the down projection multiplies, in `s.gated`, from the residual stream.
    pub(super) fn gate(&self, be: &B, s: &mut Scratch<B>, eps: f32, activation: Activation) {
        let pair = [(&mut s.gate, &self.gate), (&mut s.up, &self.up)];
        let from = (&s.x, &self.norm, eps);
        be.norm_gated(&mut s.gated, pair, &mut s.normed, from, activation);
    }

    pub(super) fn matrices(&self, visit: &mut dyn FnMut(&B::Matrix)) {
        for matrix in [&self.gate, &self.up, &self.down] {
            visit(matrix);
        }
    }
}

/// A layer's second half: a feed-forward network gated by SiLU, or experts that are such networks.
pub(super) enum FeedForwardOrExperts<B: Backend> {
    Dense(FeedForward<B>),
    Experts { norm: B::Vector, experts: B::Experts },
}

impl<B: Backend> FeedForwardOrExperts<B> {
    pub(super) fn load<'a>(
        config: &Config,
        layer: usize,
        loader: &mut Loader<'_, 'a, B>,
    ) -> Result<Self>
    where
        B: Bind<'a>,
    {
        let (Some(experts), Some(shape)) = (config.experts, expert_shape(config)) else {
            return Ok(Self::Dense(FeedForward::load(layer, loader)?));
        };
        let name = |part: &str| format!("blk.{layer}.ffn_{part}.weight");
        let mut parts = |part: &str| {
            if experts.are_stacked {
                return Ok(vec![loader.weight(&name(&format!("{part}_exps")))?]);
            }
            (0..experts.n_expert).map(|i| loader.weight(&name(&format!("{part}.{i}")))).collect()
        };
        let (gate, up, down) = (parts("gate")?, parts("up")?, parts("down")?);
        let router = loader.weight(&name("gate_inp"))?;
        let matrices = ExpertMatrices { router, gate, up, down };
        Ok(Self::Experts {
            norm: loader.vector(&name("norm"))?,
            experts: loader.experts(matrices, shape)?,
        })
    }

    /// Adds to the residual stream what the network makes of it.
    pub(super) fn add(&self, be: &B, s: &mut Scratch<B>, eps: f32) {
        match (self, &mut s.mixture) {
            (Self::Dense(ffn), _) => {
                ffn.gate(be, s, eps, Activation::Silu);
                be.linear_add(&mut s.x, &mut s.delta, &ffn.down, &s.gated);
            }
            (Self::Experts { norm, experts }, Some(mixture)) => {
                be.norm(&mut s.normed, &s.x, norm, eps);
                be.add_experts(&mut s.x, &s.normed, experts, mixture);
            }
            (Self::Experts { .. }, None) => unreachable!("a model with experts has a mixture"),
        }
    }

    pub(super) fn matrices(&self, be: &B, visit: &mut dyn FnMut(&B::Matrix)) {
        match self {
            Self::Dense(ffn) => ffn.matrices(visit),
            Self::Experts { experts, .. } => be.matrices(experts).visit(visit),
        }
    }
}

/// What stands before and behind the layers, as far as these layers are the first or the last.
pub(super) struct Ends<B: Backend> {
    embedding: Option<B::Matrix>,
    norm: Option<B::Vector>,
    /// `None` if the embedding serves here too (tied).
    output: Option<B::Matrix>,
}

impl<B: Backend> Ends<B> {
    pub(super) fn load<'a>(
        config: &Config,
        layers: &Range<usize>,
        loader: &mut Loader<'_, 'a, B>,
    ) -> Result<Self>
    where
        B: Bind<'a>,
    {
        let (is_first, is_last) = (layers.start == 0, layers.end == config.n_layer);
        let output = if is_last { loader.optional_matrix("output")? } else { None };
        let is_tied = is_last && output.is_none();
        Ok(Self {
            embedding: (is_first || is_tied).then(|| loader.matrix("token_embd")).transpose()?,
            norm: is_last.then(|| loader.vector("output_norm.weight")).transpose()?,
            output,
        })
    }

    /// The residual stream before the first layer.
    pub(super) fn embed(&self, be: &B, s: &mut Scratch<B>, tokens: &[u32], scale: f32) {
        if let Some(embedding) = &self.embedding {
            be.embed(&mut s.x, embedding, tokens, scale);
        }
    }

    /// Logits of `rows` of the residual stream behind the last layer.
    pub(super) fn logits(&self, be: &B, s: &mut Scratch<B>, rows: Range<usize>, eps: f32) {
        if let (Some(norm), Some(output)) = (&self.norm, self.output()) {
            be.select(&mut s.last, &s.x, rows);
            be.norm_linear([(&mut s.logits, output)], &mut s.normed, &s.last, norm, eps);
        }
    }

    fn output(&self) -> Option<&B::Matrix> {
        self.output.as_ref().or(self.embedding.as_ref())
    }

    pub(super) fn matrices(&self, visit: &mut dyn FnMut(&B::Matrix)) {
        if let (Some(_), Some(output)) = (&self.norm, self.output()) {
            visit(output);
        }
    }
}
