//! `gemma3`: Gemma 3. Most layers see a sliding window and rotate with their own base; queries
//! and keys are normalized, and so is what each half of a layer adds.

use super::config::{Config, Keys};
use super::rope::{RopeStyle, Scaling};
use super::tensors::Tensors;
use crate::error::Result;

/// All but every sixth layer see a window, unless the file says otherwise.
const WINDOW_PERIOD: u64 = 6;
/// Rotary base of windowed layers, unless the file says otherwise.
const LOCAL_FREQ_BASE: f32 = 10000.0;
/// The 27B has this many layers, and alone scales its queries by width / heads.
const N_LAYER_27B: usize = 62;

pub(super) fn configure(keys: &Keys<'_, '_>, n_tensors: usize) -> Result<Config> {
    let mut config = keys.base(RopeStyle::Neox, n_tensors)?;
    config.embedding_scale = (config.n_embd as f32).sqrt();
    config.logit_soft_cap = keys.positive_or_off("final_logit_softcapping")?;
    if config.n_layer == N_LAYER_27B {
        config.attention_scale = 1.0 / ((config.n_embd / config.n_head) as f32).sqrt();
    }
    if let Some(window) = keys.window()? {
        let local = keys.window_layers(config.n_layer, WINDOW_PERIOD)?;
        config.windows = local.iter().map(|&local| local.then_some(window)).collect();
        let freq_base = keys.positive("rope.freq_base_swa")?.unwrap_or(LOCAL_FREQ_BASE);
        // A scaling factor stretches the layers that see everything, and them alone.
        let rope = keys.rope(RopeStyle::Neox, config.head_dim, freq_base, &Scaling::None)?;
        config.rope_local = Some(rope);
    }
    Ok(config)
}

pub(super) fn tensors(config: &Config, list: &mut Tensors) {
    list.ends(config);
    list.layers(config, |list, layer| {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        list.attention(config, layer);
        list.head_norms(config, layer);
        list.vector(&name("post_attention_norm"), config.n_embd);
        list.feed_forward(config, layer);
        list.vector(&name("post_ffw_norm"), config.n_embd);
    });
}
