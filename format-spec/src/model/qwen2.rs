//! `qwen2`: Qwen 1.5 to 2.5. Halves are rotated, and queries, keys and values have biases.

use super::config::{Config, Keys};
use super::rope::RopeStyle;
use super::tensors::Tensors;
use crate::error::Result;

pub(super) fn configure(keys: &Keys<'_, '_>, n_tensors: usize) -> Result<Config> {
    keys.base(RopeStyle::Neox, n_tensors)
}

pub(super) fn tensors(config: &Config, list: &mut Tensors) {
    list.ends(config);
    list.layers(config, |list, layer| {
        list.attention(config, layer);
        list.feed_forward(config, layer);
    });
}
