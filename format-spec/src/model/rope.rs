//! Rotary position embedding: bases, frequencies and the ways to stretch them over longer contexts.

use super::config::{Keys, MAX_COUNT, MAX_CTX};
use crate::error::Result;

/// Which elements of a head form a rotated pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours: `(0, 1)`, `(2, 3)`, ...
    Norm,
    /// Halves: `(0, n_rot / 2)`, `(1, n_rot / 2 + 1)`, ...
    Neox,
}

/// Rotary position embedding of one kind of layer.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Which elements form a pair.
    pub style: RopeStyle,
    /// Elements of a head.
    pub head_dim: usize,
    /// Leading elements of a head that are rotated.
    pub n_rot: usize,
    /// Base of the frequencies: pair `i` turns by `freq_scale * freq_base^(-2i / n_rot)` radians a
    /// position, divided by its factor.
    pub freq_base: f64,
    /// 1, or `1 / factor` for a context stretched linearly.
    pub freq_scale: f64,
    /// Factor on sines and cosines.
    pub attn_factor: f64,
    /// A divisor for each of the `n_rot / 2` frequencies, or empty.
    pub freq_factors: Vec<f32>,
}

/// How a model stretches its rotation over more positions than it first learned.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scaling {
    None,
    /// Every frequency is divided by the factor.
    Linear(f64),
    /// Fast pairs keep their frequency, slow ones are divided by the factor, those between are
    /// mixed, and sines and cosines grow a little.
    Yarn(Yarn),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Yarn {
    factor: f64,
    /// Positions before stretching.
    n_ctx_orig: usize,
    /// Pairs that turn at least this often over `n_ctx_orig` keep their frequency.
    beta_fast: f64,
    /// Pairs that turn at most this often are stretched fully.
    beta_slow: f64,
}

impl Yarn {
    /// Pair (not rounded) that turns `n_turns` times over the original context.
    fn pair_of(&self, n_turns: f64, rope: &RopeConfig) -> f64 {
        let wavelength = self.n_ctx_orig as f64 / (n_turns * std::f64::consts::TAU);
        rope.n_rot as f64 * wavelength.ln() / (2.0 * rope.freq_base.ln())
    }

    fn apply(&self, rope: &mut RopeConfig) {
        let first = self.pair_of(self.beta_fast, rope).floor().max(0.0);
        let last = self.pair_of(self.beta_slow, rope).ceil().min(rope.n_rot as f64 - 1.0);
        let factor = |i: usize| {
            let stretched = ((i as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
            (1.0 / (stretched / self.factor + 1.0 - stretched)) as f32
        };
        rope.freq_factors = (0..rope.n_rot / 2).map(factor).collect();
        rope.attn_factor *= 1.0 + 0.1 * self.factor.ln();
    }
}

impl RopeConfig {
    /// Divides the frequencies pair by pair, on top of what divides them already.
    pub fn divide(&mut self, factors: Vec<f32>) {
        if self.freq_factors.is_empty() {
            self.freq_factors = factors;
        } else {
            self.freq_factors.iter_mut().zip(factors).for_each(|(all, factor)| *all *= factor);
        }
    }
}

impl Keys<'_, '_> {
    /// How the file says that rotation is stretched.
    pub(super) fn rope_scaling(&self, n_ctx_train: usize) -> Result<Scaling> {
        let factor = match self.positive_or_off("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            // The key's name in files of 2023.
            None => self.positive_or_off("rope.scale_linear")?,
        };
        let factor = f64::from(factor.unwrap_or(1.0));
        match self.str("rope.scaling.type")?.unwrap_or("linear") {
            "none" => Ok(Scaling::None),
            "linear" => Ok(Scaling::Linear(factor)),
            "yarn" => {
                let n_ctx_orig = self
                    .count_up_to("rope.scaling.original_context_length", MAX_CTX)?
                    .unwrap_or(n_ctx_train);
                let beta = |key, default| -> Result<f64> {
                    Ok(self.positive(key)?.map_or(default, f64::from))
                };
                Ok(Scaling::Yarn(Yarn {
                    factor,
                    n_ctx_orig,
                    beta_fast: beta("rope.scaling.yarn_beta_fast", 32.0)?,
                    beta_slow: beta("rope.scaling.yarn_beta_slow", 1.0)?,
                }))
            }
            _ => self.refuse("rope.scaling.type", "none, linear or yarn"),
        }
    }

    /// Rotation at this base, stretched.
    pub(super) fn rope(
        &self,
        style: RopeStyle,
        head_dim: usize,
        freq_base: f32,
        scaling: &Scaling,
    ) -> Result<RopeConfig> {
        let n_rot = self.count_up_to("rope.dimension_count", MAX_COUNT)?.unwrap_or(head_dim);
        if n_rot > head_dim || !n_rot.is_multiple_of(2) {
            return self.refuse("rope.dimension_count", format!("an even number up to {head_dim}"));
        }
        let attn_factor = self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let mut rope = RopeConfig {
            style,
            head_dim,
            n_rot,
            freq_base: f64::from(freq_base),
            freq_scale: 1.0,
            attn_factor: f64::from(attn_factor),
            freq_factors: Vec::new(),
        };
        match scaling {
            Scaling::None => (),
            Scaling::Linear(factor) => rope.freq_scale = 1.0 / factor,
            Scaling::Yarn(yarn) => yarn.apply(&mut rope),
        }
        Ok(rope)
    }
}
