//! `qwen3`: Qwen 3. Halves are rotated; queries and keys are normalized, a head at a time.

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
        list.head_norms(config, layer);
        list.feed_forward_or_experts(config, layer);
    });
}
