//! Hyper-parameters: read from GGUF keys, checked before anything is computed from them.
//!
//! Every number here ends up as a shape, a divisor or an allocation, so a value that no model can
//! have is an error that names its key. What a whole family shares is read here; what one
//! architecture adds stands in its own file.

use super::rope::{RopeConfig, RopeStyle};
use crate::error::{Error, Result};
use crate::gguf::Metadata;

/// More than any of these can be is a damaged file, and smaller than what could overflow.
pub(super) const MAX_COUNT: u64 = 1 << 24;
/// The cache stores heads in vectors of this many elements.
const HEAD_GRANULE: usize = 16;
/// Positions fit an i32 in every kernel.
pub(super) const MAX_CTX: u64 = 1 << 30;

/// More experts than any model has, and as many as a GPU routes among.
const MAX_EXPERTS: u64 = 512;

/// Experts in place of a feed-forward network: a token goes to a few of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub n_expert: usize,
    /// Experts of a token.
    pub n_used: usize,
    /// Inner width of an expert.
    pub n_ff: usize,
    /// Whether a layer's experts are one tensor, one expert below the other; in files of 2023 each
    /// has tensors of its own.
    pub are_stacked: bool,
}

/// The numbers that describe a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `general.architecture`.
    pub architecture: String,
    /// Transformer layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads; divides `n_head`.
    pub n_head_kv: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Inner width of the feed-forward network.
    pub n_ff: usize,
    /// The experts, where there are any.
    pub experts: Option<Experts>,
    /// Positions the model was trained on.
    pub n_ctx_train: usize,
    /// Rows of the embedding; logits have this many.
    pub n_vocab: usize,
    /// Tokens of the tokenizer: ids from here to `n_vocab` are padding and never sampled.
    pub n_tokens: usize,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Rotation of layers that see everything.
    pub rope: RopeConfig,
    /// Rotation of sliding-window layers, where it differs.
    pub rope_local: Option<RopeConfig>,
    /// Factor on query-key products.
    pub attention_scale: f32,
    /// Sliding window of each layer, `None` where a layer sees everything.
    pub windows: Vec<Option<usize>>,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// `cap * tanh(logit / cap)`, where the model asks for it.
    pub logit_soft_cap: Option<f32>,
}

/// How wide an expert is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpertWidth {
    /// As the feed-forward network that it stands for.
    Dense,
    /// As `expert_feed_forward_length` says, else a share of the feed-forward network.
    OwnOrShare,
}

/// Look-up of one architecture's keys.
pub(super) struct Keys<'m, 'a> {
    metadata: &'m Metadata<'a>,
    architecture: &'m str,
}

impl<'m, 'a> Keys<'m, 'a> {
    pub(super) fn new(metadata: &'m Metadata<'a>, architecture: &'m str) -> Self {
        Self { metadata, architecture }
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(super) fn refuse<T>(&self, key: &str, expected: impl Into<String>) -> Result<T> {
        let key = self.full(key);
        let found = self.metadata.get(&key).map_or("nothing".to_owned(), ToString::to_string);
        Err(Error::Hyperparameter { key, expected: expected.into(), found })
    }

    pub(super) fn str(&self, key: &str) -> Result<Option<&'a str>> {
        self.metadata.str(&self.full(key))
    }

    /// An optional count of `1..=max`.
    pub(super) fn count_up_to(&self, key: &str, max: u64) -> Result<Option<usize>> {
        let Some(value) = self.metadata.u64(&self.full(key))? else { return Ok(None) };
        if value == 0 || value > max {
            return self.refuse(key, format!("1 to {max}"));
        }
        Ok(usize::try_from(value).ok())
    }

    /// A required count.
    pub(super) fn count(&self, key: &str) -> Result<usize> {
        match self.count_up_to(key, MAX_COUNT)? {
            Some(value) => Ok(value),
            None => self.refuse(key, format!("1 to {MAX_COUNT}")),
        }
    }

    /// A count that some files give once and others once a layer; the layers must agree.
    pub(super) fn layer_count(&self, key: &str, n_layer: usize) -> Result<Option<usize>> {
        let full = self.full(key);
        if self.metadata.get(&full).is_none_or(|value| value.as_array().is_none()) {
            return self.count_up_to(key, MAX_COUNT);
        }
        let Some(values) = self.metadata.ints(&full)? else { return Ok(None) };
        let mut values = values.clone();
        let n_values = values.len();
        let first = values.next().unwrap_or(0);
        if n_values != n_layer || values.any(|value| value != first) {
            return self.refuse(key, format!("one number, the same for all {n_layer} layers"));
        }
        match u64::try_from(first) {
            Ok(value) if value > 0 && value <= MAX_COUNT => Ok(usize::try_from(value).ok()),
            _ => self.refuse(key, format!("1 to {MAX_COUNT}")),
        }
    }

    /// An optional finite number above zero.
    pub(super) fn positive(&self, key: &str) -> Result<Option<f32>> {
        let Some(value) = self.metadata.f32(&self.full(key))? else { return Ok(None) };
        if !value.is_finite() || value <= 0.0 {
            return self.refuse(key, "a finite number above 0");
        }
        Ok(Some(value))
    }

    /// An optional number where zero means "not used".
    pub(super) fn positive_or_off(&self, key: &str) -> Result<Option<f32>> {
        match self.metadata.f32(&self.full(key))? {
            Some(0.0) => Ok(None),
            _ => self.positive(key),
        }
    }

    /// Sliding window in positions; zero means none.
    pub(super) fn window(&self) -> Result<Option<usize>> {
        let key = "attention.sliding_window";
        match self.metadata.u64(&self.full(key))? {
            Some(0) => Ok(None),
            _ => self.count_up_to(key, MAX_CTX),
        }
    }

    /// Which layers have a sliding window: the key's own list, or all but every n-th layer.
    pub(super) fn window_layers(&self, n_layer: usize, default_period: u64) -> Result<Vec<bool>> {
        let key = "attention.sliding_window_pattern";
        let full = self.full(key);
        if let Some(list) = self.metadata.get(&full).and_then(|value| value.as_array()) {
            let flags: Option<Vec<bool>> = list
                .iter_bool()
                .map(Iterator::collect)
                .or_else(|| Some(list.iter_int()?.map(|value| value != 0).collect()));
            return match flags {
                Some(flags) if flags.len() == n_layer => Ok(flags),
                _ => self.refuse(key, format!("{n_layer} flags")),
            };
        }
        let period = self.metadata.u64(&full)?.unwrap_or(default_period);
        let is_local =
            |layer: usize| period == 0 || (layer as u64 % period) < period.saturating_sub(1);
        Ok((0..n_layer).map(is_local).collect())
    }

    /// Reads what every supported architecture shares, of one that has no experts.
    pub(super) fn base(&self, style: RopeStyle, n_tensors: usize) -> Result<Config> {
        match self.metadata.u64(&self.full("expert_count"))? {
            None | Some(0) => self.shared(style, n_tensors),
            Some(_) => self.refuse("expert_count", "0 (the architecture has no experts)"),
        }
    }

    /// Reads what every supported architecture shares. `n_tensors` bounds the layer count: each
    /// layer has tensors.
    pub(super) fn shared(&self, style: RopeStyle, n_tensors: usize) -> Result<Config> {
        let n_layer = self.count("block_count")?;
        if n_layer > n_tensors {
            return self
                .refuse("block_count", format!("at most the {n_tensors} tensors there are"));
        }
        let n_embd = self.count("embedding_length")?;
        let Some(n_head) = self.layer_count("attention.head_count", n_layer)? else {
            return self.refuse("attention.head_count", format!("1 to {MAX_COUNT}"));
        };
        let n_head_kv = self.layer_count("attention.head_count_kv", n_layer)?.unwrap_or(n_head);
        if !n_head.is_multiple_of(n_head_kv) {
            return self
                .refuse("attention.head_count_kv", format!("a divisor of {n_head} query heads"));
        }
        let head_dim = self.head_dim(n_embd, n_head)?;
        let Some(n_ff) = self.layer_count("feed_forward_length", n_layer)? else {
            return self.refuse("feed_forward_length", format!("1 to {MAX_COUNT}"));
        };
        let Some(n_ctx_train) = self.count_up_to("context_length", MAX_CTX)? else {
            return self.refuse("context_length", format!("1 to {MAX_CTX}"));
        };
        let Some(norm_eps) = self.positive("attention.layer_norm_rms_epsilon")? else {
            return self.refuse("attention.layer_norm_rms_epsilon", "a finite number above 0");
        };
        let freq_base = self.positive("rope.freq_base")?.unwrap_or(10000.0);
        let scaling = self.rope_scaling(n_ctx_train)?;
        let rope = self.rope(style, head_dim, freq_base, &scaling)?;
        Ok(Config {
            architecture: self.architecture.to_owned(),
            n_layer,
            n_embd,
            n_head,
            n_head_kv,
            head_dim,
            n_ff,
            experts: None,
            n_ctx_train,
            n_vocab: 0,
            n_tokens: 0,
            norm_eps,
            rope,
            rope_local: None,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            windows: vec![None; n_layer],
            embedding_scale: 1.0,
            logit_soft_cap: None,
        })
    }

    /// The experts of a layer: `None` where the keys count none. Each is `n_ff` wide, unless a key
    /// says otherwise.
    pub(super) fn experts(&self, config: &Config, n_ff: ExpertWidth) -> Result<Option<Experts>> {
        let key = "expert_count";
        let Some(n_expert) = self.metadata.u64(&self.full(key))?.filter(|&n| n > 0) else {
            return Ok(None);
        };
        if n_expert > MAX_EXPERTS {
            return self.refuse(key, format!("0 to {MAX_EXPERTS}"));
        }
        let Some(n_used) = self.count_up_to("expert_used_count", n_expert)? else {
            return self.refuse("expert_used_count", format!("1 to {n_expert} (of the experts)"));
        };
        if self.metadata.u64(&self.full("expert_group_count"))?.unwrap_or(0) > 1 {
            return self.refuse("expert_group_count", "0 or 1 (groups are not supported)");
        }
        let n_ff = match n_ff {
            ExpertWidth::Dense => config.n_ff,
            ExpertWidth::OwnOrShare => {
                let key = "expert_feed_forward_length";
                let share = config.n_ff / n_used;
                match self.layer_count(key, config.n_layer)? {
                    Some(n_ff) => n_ff,
                    None if share > 0 => share,
                    None => return self.refuse(key, format!("1 to {MAX_COUNT}")),
                }
            }
        };
        // Fits: it was bounded above.
        let n_expert = usize::try_from(n_expert).unwrap_or(usize::MAX);
        Ok(Some(Experts { n_expert, n_used, n_ff, are_stacked: true }))
    }

    fn head_dim(&self, n_embd: usize, n_head: usize) -> Result<usize> {
        let head_dim = match self.count_up_to("attention.key_length", MAX_COUNT)? {
            Some(head_dim) => head_dim,
            None if n_embd.is_multiple_of(n_head) => n_embd / n_head,
            None => {
                return self
                    .refuse("attention.head_count", format!("a divisor of {n_embd} (embedding)"));
            }
        };
        if !head_dim.is_multiple_of(HEAD_GRANULE) {
            return self.refuse(
                "attention.key_length",
                format!("a multiple of {HEAD_GRANULE} (a head has {head_dim} elements)"),
            );
        }
        match self.count_up_to("attention.value_length", MAX_COUNT)? {
            Some(value_length) if value_length != head_dim => {
                self.refuse("attention.value_length", format!("{head_dim}, as for keys"))
            }
            _ => Ok(head_dim),
        }
    }
}
