//! `gemma3`: Gemma 3. Most layers see a sliding window and rotate with their own base; queries
//! and keys are normalized, and so is what each half of a layer adds.

use super::layer::{Attention, Ends, FeedForward, Heads};
use super::{Network, Scratch, Step};
use crate::backend::{Activation, Backend, Bind};
use crate::error::Result;
use crate::loader::Loader;
use format_spec::model::Config;
use std::ops::Range;

struct Layer<B: Backend> {
    attn: Attention<B>,
    q_norm: B::Vector,
    k_norm: B::Vector,
    attn_post_norm: B::Vector,
    ffn: FeedForward<B>,
    ffn_post_norm: B::Vector,
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
                let name = |part: &str| format!("blk.{i}.{part}.weight");
                Ok(Layer {
                    attn: Attention::load(i, loader)?,
                    q_norm: loader.vector(&name("attn_q_norm"))?,
                    k_norm: loader.vector(&name("attn_k_norm"))?,
                    attn_post_norm: loader.vector(&name("post_attention_norm"))?,
                    ffn: FeedForward::load(i, loader)?,
                    ffn_post_norm: loader.vector(&name("post_ffw_norm"))?,
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
        let eps = c.norm_eps;
        be.rotate_to(&mut s.rotation, step.first_pos + step.tokens.len());
        if let Some(local) = &mut s.rotation_local {
            be.rotate_to(local, step.first_pos + step.tokens.len());
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let (attn, ffn, window) = (&layer.attn, &layer.ffn, c.windows[self.range.start + i]);
            let heads = Heads {
                norms: Some((&layer.q_norm, &layer.k_norm)),
                is_local: window.is_some(),
                window,
                is_last: self.range.start + i + 1 == c.n_layer,
            };
            if !attn.attend(be, (cache, i), s, step, c, &heads) {
                return;
            }
            be.linear([(&mut s.delta, &attn.out)], &s.attended);
            be.add_normed(&mut s.x, &mut s.delta, &layer.attn_post_norm, eps);

            ffn.gate(be, s, eps, Activation::GeluTanh);
            be.linear([(&mut s.delta, &ffn.down)], &s.gated);
            be.add_normed(&mut s.x, &mut s.delta, &layer.ffn_post_norm, eps);
        }
    }

    fn logits(&self, be: &B, s: &mut Scratch<B>, rows: Range<usize>) {
        self.ends.logits(be, s, rows, self.config.norm_eps);
        if let Some(cap) = self.config.logit_soft_cap {
            be.soft_cap(&mut s.logits, cap);
        }
    }

    fn matrices(&self, _be: &B, visit: &mut dyn FnMut(&B::Matrix)) {
        for layer in &self.layers {
            layer.attn.matrices(visit);
            layer.ffn.matrices(visit);
        }
        self.ends.matrices(visit);
    }
}
