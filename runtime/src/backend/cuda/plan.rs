//! What a model will take of the device's memory, before anything is taken.

use super::cache::first_positions;
use super::copies::copies_bytes;
use super::scratch::scratch_bytes;
use super::weights::{Kinds, Used, bytes_on_device};
use super::{Cuda, Family};
use crate::open::{CudaOptions, GpuLayers};
use crate::report::{GpuPlan, KindBytes};
use format_spec::container::Container;
use format_spec::model::{Blueprint, ExpectedTensor};
use kernels::cuda::Gpu;

/// The model, and how it is to run.
pub(super) struct Wish<'w> {
    pub(super) blueprint: &'w Blueprint,
    pub(super) container: &'w Container<'w>,
    pub(super) options: &'w CudaOptions,
    pub(super) family: Family,
    pub(super) kinds: Kinds,
}

impl Wish<'_> {
    /// The objects that layers from `first` on read, and what stands behind them.
    pub(super) fn used_from(&self, first: usize) -> Used<'_> {
        let is_tied = self.container.tensor("output.weight").is_none();
        let is_before = |tensor: &&ExpectedTensor| match tensor.layer {
            Some(layer) => layer < first,
            // Where the output is the embedding, both sides have it.
            None => first > 0 && !is_tied && tensor.name.starts_with("token_embd."),
        };
        let before = self.blueprint.tensors.iter().filter(is_before);
        Used { kinds: self.kinds, elsewhere: before.map(|tensor| tensor.name.as_str()).collect() }
    }
}

impl Cuda {
    /// The memory that `wish` takes of the device, with what is free on it now. With
    /// [`GpuLayers::Auto`] the most layers that fit, one at least.
    pub(super) fn plan(gpu: &Gpu, wish: &Wish<'_>) -> crate::Result<GpuPlan> {
        let (free, total_bytes) = gpu.memory()?;
        let free_bytes = match wish.options.max_bytes {
            0 => free,
            most => free.min(most),
        };
        let n_layer = wish.blueprint.config.n_layer;
        let from = |first_layer: usize| {
            let n_ctx = n_ctx(wish);
            GpuPlan {
                first_layer,
                n_layer,
                weights: weights(wish, first_layer),
                upload_bytes: wish.used_from(first_layer).of(wish.container).map(|o| o.len).sum(),
                kv_bytes: kv_bytes_per_token(wish, first_layer) * n_ctx as u64,
                n_ctx,
                scratch_bytes: scratch_bytes(gpu, wish, n_ctx),
                copies_bytes: 0,
                n_batch: wish.options.n_batch,
                free_bytes,
                total_bytes,
            }
        };
        let mut plan = match wish.options.layers {
            GpuLayers::All => from(0),
            GpuLayers::Last(n) => from(n_layer.saturating_sub(n.max(1))),
            GpuLayers::Auto => {
                let mut plans = (0..n_layer).map(from);
                let fits = |plan: &GpuPlan| plan.need_bytes() <= plan.free_bytes;
                plans.find(fits).unwrap_or_else(|| from(n_layer.saturating_sub(1)))
            }
        };
        plan.copies_bytes = copies_bytes(wish, &plan);
        Ok(plan)
    }
}

fn n_ctx(wish: &Wish<'_>) -> usize {
    match wish.options.n_ctx {
        0 => first_positions(wish.blueprint.config.n_ctx_train),
        asked => asked,
    }
}

fn kv_bytes_per_token(wish: &Wish<'_>, first_layer: usize) -> u64 {
    let c = &wish.blueprint.config;
    let n_elems = 2 * (c.n_layer - first_layer) * c.n_head_kv * c.head_dim;
    (n_elems * size_of::<half::f16>()) as u64
}

fn weights(wish: &Wish<'_>, first_layer: usize) -> Vec<KindBytes> {
    let mut kinds: Vec<KindBytes> = Vec::new();
    for object in wish.used_from(first_layer).of(wish.container) {
        let (kind, n_bytes) = (object.kind.name(), bytes_on_device(object));
        match kinds.iter_mut().find(|row| row.kind == kind) {
            Some(row) => {
                row.n_objects += 1;
                row.n_bytes += n_bytes;
            }
            None => kinds.push(KindBytes { kind, n_objects: 1, n_bytes }),
        }
    }
    kinds
}
