//! `llama`: Llama 1 to 3, Mistral, Mixtral, SmolLM and what else writes itself under that name.

use super::config::{Config, ExpertWidth, Keys};
use super::rope::RopeStyle;
use super::tensors::Tensors;
use crate::error::Result;

pub(super) fn configure(keys: &Keys<'_, '_>, n_tensors: usize) -> Result<Config> {
    let mut config = keys.shared(RopeStyle::Norm, n_tensors)?;
    config.experts = keys.experts(&config, ExpertWidth::Dense)?;
    // Mistral's first release: every layer sees a window.
    config.windows.fill(keys.window()?);
    Ok(config)
}

pub(super) fn tensors(config: &Config, list: &mut Tensors) {
    list.ends(config);
    // Llama 3 divides its frequencies, pair by pair.
    list.optional_vector("rope_freqs.weight", config.rope.n_rot / 2);
    list.layers(config, |list, layer| {
        list.attention(config, layer);
        list.feed_forward_or_experts(config, layer);
    });
}
