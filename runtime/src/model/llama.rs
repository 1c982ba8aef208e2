//! `llama`: Llama 1 to 3, Mistral, Mixtral, SmolLM and what else writes itself under that name; and
//! `qwen2`, whose layers are the same: rotation style and biases are settled before.

use super::layer::{Attention, Ends, FeedForwardOrExperts, Heads};
use super::{Network, Scratch, Step};
use crate::backend::{Backend, Bind};
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
            let i_all = self.range.start + i;
            let (window, is_last) = (c.windows[i_all], i_all + 1 == c.n_layer);
            let heads = Heads { norms: None, is_local: false, window, is_last };
            if !attn.attend(be, (cache, i), s, step, c, &heads) {
                return;
            }
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
