//! `qwen3moe`: Qwen 3 with experts in every layer.

use super::config::{Config, ExpertWidth, Keys};
use super::rope::RopeStyle;
use crate::error::Result;

pub(super) use super::qwen3::tensors;

pub(super) fn configure(keys: &Keys<'_, '_>, n_tensors: usize) -> Result<Config> {
    let mut config = keys.shared(RopeStyle::Neox, n_tensors)?;
    config.experts = keys.experts(&config, ExpertWidth::OwnOrShare)?;
    if config.experts.is_none() {
        return keys.refuse("expert_count", "1 to 512");
    }
    Ok(config)
}
