//! Keys and values of a session, in f16, growing with the positions in use.
//!
//! A head's positions lie together, so a larger cache is laid out anew: capacity doubles, and a
//! layer is moved at a time. A session of a huge `n_ctx` therefore commits no memory until it
//! uses it, and a session of many tokens copies each of them about once.

use crate::backend::CacheShape;
use crate::error::{Error, Result};
use half::f16;
use kernels::cpu::ops::{KvShape, KvView};

/// Positions of the smallest cache.
const MIN_POSITIONS: usize = 256;

/// One layer: K `[head][pos / 16][head_dim][16]`, V `[head][pos][head_dim]`.
#[derive(Debug)]
struct Layer {
    shape: KvShape,
    k: Vec<f16>,
    v: Vec<f16>,
}

/// Keys and values of all layers.
#[derive(Debug)]
pub(crate) struct Cache {
    limits: CacheShape,
    layers: Vec<Layer>,
}

impl Cache {
    pub(super) fn new(limits: CacheShape) -> Self {
        let shape = KvShape::new(limits.n_head_kv, limits.head_dim, 0);
        let layer = |_| Layer { shape, k: Vec::new(), v: Vec::new() };
        Self { limits, layers: (0..limits.n_layer).map(layer).collect() }
    }

    /// Makes room for positions `0..n_positions`; the caller keeps to `n_ctx`. On failure what is
    /// stored stays.
    pub(super) fn reserve(&mut self, n_positions: usize) -> Result<()> {
        let CacheShape { n_head_kv, head_dim, n_ctx, .. } = self.limits;
        for layer in &mut self.layers {
            let n_now = layer.shape.n_ctx;
            if n_positions <= n_now {
                continue;
            }
            let wanted = n_positions.max(MIN_POSITIONS).max(n_now.saturating_mul(2));
            let new = KvShape::new(n_head_kv, head_dim, wanted.min(n_ctx));
            let k = moved(&layer.k, &layer.shape, &new)?;
            let v = moved(&layer.v, &layer.shape, &new)?;
            *layer = Layer { shape: new, k, v };
        }
        Ok(())
    }

    pub(super) fn head_dim(&self) -> usize {
        self.limits.head_dim
    }

    pub(super) fn n_bytes(&self) -> u64 {
        let n_elems: usize = self.layers.iter().map(|layer| layer.k.len() + layer.v.len()).sum();
        (n_elems * size_of::<f16>()) as u64
    }

    pub(super) fn layer(&self, layer: usize) -> KvView<'_> {
        let Layer { shape, k, v } = &self.layers[layer];
        KvView { shape: *shape, k, v }
    }

    pub(super) fn layer_mut(&mut self, layer: usize) -> (KvShape, &mut [f16], &mut [f16]) {
        let Layer { shape, k, v } = &mut self.layers[layer];
        (*shape, k, v)
    }
}

/// A copy of one layer's K or V in a larger layout. Positions that were not there are zero.
fn moved(from: &[f16], old: &KvShape, new: &KvShape) -> Result<Vec<f16>> {
    let memory = |n_elems: usize| Error::Memory {
        what: "the KV cache of a layer",
        n_bytes: (n_elems as u64).saturating_mul(size_of::<f16>() as u64),
    };
    let head_elems = new.n_ctx.checked_mul(new.head_dim);
    let n_elems = head_elems.and_then(|n| n.checked_mul(new.n_head_kv));
    let n_elems = n_elems.ok_or_else(|| memory(usize::MAX))?;
    let mut to = Vec::new();
    to.try_reserve_exact(n_elems).map_err(|_| memory(n_elems))?;
    if old.n_elems() == 0 {
        to.resize(n_elems, f16::ZERO);
        return Ok(to);
    }
    for head in from.chunks_exact(old.head_elems()) {
        to.extend_from_slice(head);
        to.resize(to.len() + new.head_elems() - head.len(), f16::ZERO);
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_what_is_stored_and_commits_nothing_before() {
        let limits = CacheShape { n_layer: 2, n_head_kv: 3, head_dim: 16, n_ctx: 1 << 40 };
        let mut cache = Cache::new(limits);
        assert_eq!(cache.n_bytes(), 0);
        cache.reserve(1).unwrap();
        assert_eq!(cache.n_bytes(), 2 * 2 * 3 * 256 * 16 * 2);
        let value = |layer: usize, head: usize, i: usize| {
            f16::from_f32((layer * 1000 + head * 100 + i % 100) as f32)
        };
        for layer in 0..2 {
            let (shape, k, v) = cache.layer_mut(layer);
            for cache in [k, v] {
                for (head, part) in cache.chunks_exact_mut(shape.head_elems()).enumerate() {
                    part.iter_mut().enumerate().for_each(|(i, x)| *x = value(layer, head, i));
                }
            }
        }
        cache.reserve(257).unwrap();
        for layer in 0..2 {
            let view = cache.layer(layer);
            assert_eq!(view.shape.n_ctx, 512);
            for cache in [view.k, view.v] {
                for (head, part) in cache.chunks_exact(view.shape.head_elems()).enumerate() {
                    let (old, new) = part.split_at(256 * 16);
                    assert!(old.iter().enumerate().all(|(i, &x)| x == value(layer, head, i)));
                    assert!(new.iter().all(|&x| x == f16::ZERO));
                }
            }
        }
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        let limits = CacheShape { n_layer: 1, n_head_kv: 1, head_dim: 16, n_ctx: 1 << 50 };
        let mut cache = Cache::new(limits);
        assert!(matches!(cache.reserve(1 << 50), Err(Error::Memory { .. })));
    }
}
