//! Keys and values of a session on the device, f16, growing with the positions in use.

use super::tensor::Epoch;
use crate::backend::CacheShape;
use crate::error::Result;
use half::f16;
use kernels::cuda::{Buffer, Gpu, Span};
use std::sync::Arc;

/// Positions of the smallest cache.
const MIN_POSITIONS: usize = 4096;

/// `[layer][position][n_head_kv * head_dim]`, a buffer a layer and side.
pub(crate) struct Cache {
    limits: CacheShape,
    n_positions: usize,
    layers: Vec<(Buffer<f16>, Buffer<f16>)>,
}

/// Positions that a session begins with, of at most `n_ctx`.
pub(super) fn first_positions(n_ctx: usize) -> usize {
    n_ctx.min(MIN_POSITIONS)
}

impl Cache {
    pub(super) fn new(limits: CacheShape) -> Self {
        Self { limits, n_positions: 0, layers: Vec::new() }
    }

    fn width(&self) -> usize {
        self.limits.n_head_kv * self.limits.head_dim
    }

    /// Makes room for positions `0..n_positions`. On failure what is stored stays.
    pub(super) fn reserve(
        &mut self,
        gpu: &Arc<Gpu>,
        epoch: &Epoch,
        n_positions: usize,
    ) -> Result<()> {
        if n_positions <= self.n_positions {
            return Ok(());
        }
        let wanted = n_positions
            .max(first_positions(self.limits.n_ctx))
            .max(self.n_positions.saturating_mul(2));
        let wanted = wanted.min(self.limits.n_ctx.max(n_positions));
        let n_elems = wanted.saturating_mul(self.width());
        epoch.advance();
        // Layer by layer, so that no more than one is there twice.
        for i in 0..self.limits.n_layer {
            // Larger already, if an earlier attempt ended before the last layer.
            if self.layers.get(i).is_some_and(|(k, _)| k.len() >= n_elems) {
                continue;
            }
            let (k, v) = (gpu.alloc(n_elems)?, gpu.alloc(n_elems)?);
            match self.layers.get_mut(i) {
                Some(old) => {
                    gpu.copy(k.all(), old.0.all())?;
                    gpu.copy(v.all(), old.1.all())?;
                    gpu.synchronize()?;
                    *old = (k, v);
                }
                None => self.layers.push((k, v)),
            }
        }
        self.n_positions = wanted;
        Ok(())
    }

    pub(super) fn n_bytes(&self) -> u64 {
        let elems: usize = self.layers.iter().map(|(k, v)| k.len() + v.len()).sum();
        (elems * size_of::<f16>()) as u64
    }

    pub(super) fn shape(&self) -> CacheShape {
        self.limits
    }

    /// Keys and values of a layer.
    pub(super) fn layer(&self, layer: usize) -> (Span<'_, f16>, Span<'_, f16>) {
        match self.layers.get(layer) {
            Some((k, v)) => (k.all(), v.all()),
            None => (Span::default(), Span::default()),
        }
    }
}
