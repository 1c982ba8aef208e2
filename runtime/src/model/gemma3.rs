//! `gemma3`: Gemma 3. Most layers see a sliding window and rotate with their own base; queries
//! and keys are normalized, and so is what each half of a layer adds.

use super::config::{Config, Keys};
use super::layer::{Attention, Ends, FeedForward};
use super::rope::{RopeStyle, Scaling};
use super::{Network, Scratch, Step};
use crate::backend::{Activation, AttentionStep, Backend, Bind};
use crate::error::Result;
use crate::loader::Loader;
use std::ops::Range;

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
    layers: Vec<Layer<B>>,
}

impl<B: Backend> Net<B> {
    pub(super) fn load<'a>(config: &mut Config, loader: &mut Loader<'_, 'a, B>) -> Result<Self>
    where
        B: Bind<'a>,
    {
        let (n_embd, head_dim) = (config.n_embd, config.head_dim);
        let layers = (0..config.n_layer)
            .map(|i| {
                let name = |part: &str| format!("blk.{i}.{part}.weight");
                Ok(Layer {
                    attn: Attention::load(config, i, loader)?,
                    q_norm: loader.vector(&name("attn_q_norm"), head_dim)?,
                    k_norm: loader.vector(&name("attn_k_norm"), head_dim)?,
                    attn_post_norm: loader.vector(&name("post_attention_norm"), n_embd)?,
                    ffn: FeedForward::load(config, i, loader)?,
                    ffn_post_norm: loader.vector(&name("post_ffw_norm"), n_embd)?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { ends: Ends::load(config, loader)?, layers, config: config.clone() })
    }
}

impl<B: Backend> Network<B> for Net<B> {
    fn forward(&self, be: &B, cache: &mut B::Cache, s: &mut Scratch<B>, step: &Step<'_>) {
        let c = &self.config;
        let eps = c.norm_eps;
        be.rotate_to(&mut s.rotation, step.first_pos + step.tokens.len());
        if let Some(local) = &mut s.rotation_local {
            be.rotate_to(local, step.first_pos + step.tokens.len());
        }
        be.embed(&mut s.x, &self.ends.embedding, step.tokens, c.embedding_scale);
        for (i, layer) in self.layers.iter().enumerate() {
            let (attn, ffn, window) = (&layer.attn, &layer.ffn, c.windows[i]);
            be.norm(&mut s.normed, &s.x, &attn.norm, eps);
            let qkv = [(&mut s.q, &attn.q), (&mut s.k, &attn.k), (&mut s.v, &attn.v)];
            be.linear(qkv, &s.normed);
            be.norm_heads(&mut s.q, &layer.q_norm, eps);
            be.norm_heads(&mut s.k, &layer.k_norm, eps);
            let local = window.and(s.rotation_local.as_ref());
            let rotation = local.unwrap_or(&s.rotation);
            let qkv = (&mut s.q, &mut s.k, &s.v);
            be.rotate_and_store(cache, i, step.first_pos, qkv, rotation);
            let mut first_pos = step.first_pos;
            if i + 1 == c.n_layer {
                // The keys and values are stored; from here on only wanted rows matter.
                be.keep(&mut s.q, step.wanted.clone());
                be.keep(&mut s.x, step.wanted.clone());
                first_pos += step.wanted.start;
                if step.wanted.is_empty() {
                    return;
                }
            }
            let attention = AttentionStep { layer: i, first_pos, scale: c.attention_scale, window };
            be.attention(&mut s.attended, &s.q, cache, attention);
            be.linear([(&mut s.delta, &attn.out)], &s.attended);
            be.add_normed(&mut s.x, &mut s.delta, &layer.attn_post_norm, eps);

            be.norm(&mut s.normed, &s.x, &ffn.norm, eps);
            be.linear([(&mut s.gate, &ffn.gate), (&mut s.up, &ffn.up)], &s.normed);
            be.gate(&mut s.gated, &s.gate, &s.up, Activation::GeluTanh);
            be.linear([(&mut s.delta, &ffn.down)], &s.gated);
            be.add_normed(&mut s.x, &mut s.delta, &layer.ffn_post_norm, eps);
        }
    }

    fn logits(&self, be: &B, s: &mut Scratch<B>, rows: Range<usize>) {
        be.select(&mut s.last, &s.x, rows);
        be.norm(&mut s.normed, &s.last, &self.ends.norm, self.config.norm_eps);
        be.linear([(&mut s.logits, self.ends.output())], &s.normed);
        if let Some(cap) = self.config.logit_soft_cap {
            be.soft_cap(&mut s.logits, cap);
        }
    }

    fn matrices(&self, visit: &mut dyn FnMut(&B::Matrix)) {
        for layer in &self.layers {
            layer.attn.matrices(visit);
            layer.ffn.matrices(visit);
        }
        visit(self.ends.output());
    }
}
