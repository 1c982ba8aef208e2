//! `qwen3` and `qwen3moe`: Qwen 3, dense and with experts. Halves are rotated; queries and keys are
//! normalized, a head at a time.

use super::layer::{Attention, Ends, FeedForwardOrExperts, Heads};
use super::{Network, Scratch, Step};
use crate::backend::{Backend, Bind};
use crate::error::Result;
use crate::loader::Loader;
use format_spec::model::Config;
use std::ops::Range;

struct Layer<B: Backend> {
    attn: Attention<B>,
    q_norm: B::Vector,
    k_norm: B::Vector,
    ffn: FeedForwardOrExperts<B>,
}

pub(super) struct Net<B: Backend> {
    config: Config,
    ends: Ends<B>,
    /// Which layers these are of all.
    range: Range<usize>,
    layers: Vec<Layer<B>>,
}

impl<B: Backend> Net<B> {
    pub(super) fn load<'a>(
        config: &mut Config,
        range: Range<usize>,
        loader: &mut Loader<'_, 'a, B>,
    ) -> Result<Self>
    where
        B: Bind<'a>,
    {
        let layers = range
            .clone()
            .map(|i| {
                Ok(Layer {
                    attn: Attention::load(i, loader)?,
                    q_norm: loader.vector(&format!("blk.{i}.attn_q_norm.weight"))?,
                    k_norm: loader.vector(&format!("blk.{i}.attn_k_norm.weight"))?,
                    ffn: FeedForwardOrExperts::load(config, i, loader)?,
                })
            })
            .collect::<Result<_>>()?;
        let ends = Ends::load(config, &range, loader)?;
        Ok(Self { ends, range, layers, config: config.clone() })
    }
}

impl<B: Backend> Network<B> for Net<B> {
    fn embed(&self, be: &B, s: &mut Scratch<B>, tokens: &[u32]) {
        self.ends.embed(be, s, tokens, self.config.embedding_scale);
    }

    fn forward(&self, be: &B, cache: &mut B::Cache, s: &mut Scratch<B>, step: &Step<'_>) {
        let c = &self.config;
        be.rotate_to(&mut s.rotation, step.first_pos + step.tokens.len());
        for (i, layer) in self.layers.iter().enumerate() {
            let attn = &layer.attn;
            let heads = Heads {
                norms: Some((&layer.q_norm, &layer.k_norm)),
                is_local: false,
                window: None,
                is_last: self.range.start + i + 1 == c.n_layer,
            };
            if !attn.attend(be, (cache, i), s, step, c, &heads) {
                return;
            }
            be.linear_add(&mut s.x, &mut s.delta, &attn.out, &s.attended);
            layer.ffn.add(be, s, c.norm_eps);
        }
    }

    fn logits(&self, be: &B, s: &mut Scratch<B>, rows: Range<usize>) {
        self.ends.logits(be, s, rows, self.config.norm_eps);
    }

    fn matrices(&self, be: &B, visit: &mut dyn FnMut(&B::Matrix)) {
        for layer in &self.layers {
            layer.attn.matrices(visit);
            layer.ffn.matrices(be, visit);
        }
        self.ends.matrices(visit);
    }
}
