//! `llama`: Llama 1 to 3, Mistral, Mixtral, SmolLM and what else writes itself under that name; and
//! `qwen2`, whose layers are the same: rotation style and biases are settled before.

use super::layer::{Attention, Ends, FeedForwardOrExperts};
use super::{Network, Scratch, Step};
use crate::backend::{AttentionStep, Backend, Bind};
use crate::error::Result;
use crate::loader::Loader;
use format_spec::model::Config;
use std::ops::Range;

pub(super) struct Net<B: Backend> {
    config: Config,
    ends: Ends<B>,
    /// Which layers these are of all.
    range: Range<usize>,
    layers: Vec<(Attention<B>, FeedForwardOrExperts<B>)>,
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
        divide_frequencies(config, loader)?;
        let layers = range
            .clone()
            .map(|i| {
                let attention = Attention::load(i, loader)?;
                Ok((attention, FeedForwardOrExperts::load(config, i, loader)?))
            })
            .collect::<Result<_>>()?;
        let ends = Ends::load(config, &range, loader)?;
        Ok(Self { ends, range, layers, config: config.clone() })
    }
}

/// Llama 3 stretches its low frequencies: `rope_freqs.weight` divides them pair by pair.
fn divide_frequencies<'a, B: Bind<'a>>(
    config: &mut Config,
    loader: &mut Loader<'_, 'a, B>,
) -> Result<()> {
    let name = "rope_freqs.weight";
    if !loader.lists(name) {
        return Ok(());
    }
    let Some(factors) = loader.optional_values(name)? else { return Ok(()) };
    if let Some(factor) = factors.iter().find(|factor| !factor.is_finite() || **factor <= 0.0) {
        let (expected, found) = ("finite factors above 0".to_owned(), factor.to_string());
        return Err(format_spec::Error::Tensor { tensor: name.to_owned(), expected, found }.into());
    }
    config.rope.divide(factors);
    Ok(())
}

impl<B: Backend> Network<B> for Net<B> {
    fn embed(&self, be: &B, s: &mut Scratch<B>, tokens: &[u32]) {
        self.ends.embed(be, s, tokens, self.config.embedding_scale);
    }

    fn forward(&self, be: &B, cache: &mut B::Cache, s: &mut Scratch<B>, step: &Step<'_>) {
        let c = &self.config;
        be.rotate_to(&mut s.rotation, step.first_pos + step.tokens.len());
        for (i, (attn, ffn)) in self.layers.iter().enumerate() {
            be.norm(&mut s.normed, &s.x, &attn.norm, c.norm_eps);
            let qkv = [(&mut s.q, &attn.q), (&mut s.k, &attn.k), (&mut s.v, &attn.v)];
            be.linear(qkv, &s.normed);
            let qkv = (&mut s.q, &mut s.k, &s.v);
            be.rotate_and_store(cache, i, step.first_pos, qkv, &s.rotation);
            let mut first_pos = step.first_pos;
            if self.range.start + i + 1 == c.n_layer {
                // The keys and values are stored; from here on only wanted rows matter.
                be.keep(&mut s.q, step.wanted.clone());
                be.keep(&mut s.x, step.wanted.clone());
                first_pos += step.wanted.start;
                if step.wanted.is_empty() {
                    return;
                }
            }
            let (scale, window) = (c.attention_scale, c.windows[self.range.start + i]);
            let attention = AttentionStep { layer: i, first_pos, scale, window };
            be.attention(&mut s.attended, &s.q, cache, attention);
            be.linear_add(&mut s.x, &mut s.delta, &attn.out, &s.attended);
            ffn.add(be, s, c.norm_eps);
        }
    }

    fn logits(&self, be: &B, s: &mut Scratch<B>, rows: Range<usize>) {
        self.ends.logits(be, s, rows, self.config.norm_eps);
    }

    fn matrices(&self, be: &B, visit: &mut dyn FnMut(&B::Matrix)) {
        for (attn, ffn) in &self.layers {
            attn.matrices(visit);
            ffn.matrices(be, visit);
        }
        self.ends.matrices(visit);
    }
}
