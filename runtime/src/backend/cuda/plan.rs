//! What a model will take of the device's memory, before anything is taken.

use super::bind::MAX_WARM_UP_ROWS;
use super::cache::first_positions;
use super::weights::{Used, bytes_on_device, used};
use super::{Cuda, Family, MAX_SMALL_TOKENS, MIN_ANGLES};
use crate::open::{CudaOptions, Prefill};
use crate::report::{GpuPlan, KindBytes};
use format_spec::PlaneKind;
use format_spec::container::{Container, Object, TensorEntry};
use format_spec::model::Config;
use kernels::cuda::{Blas, Gpu, MAX_GEMV_TOKENS, RoutingShape};

/// Modules, recordings, and what the driver and cuBLASLt keep for themselves.
const DRIVER_BYTES: u64 = 160 << 20;

/// The model, and how it is to run.
pub(super) struct Wish<'w> {
    pub(super) config: &'w Config,
    pub(super) container: &'w Container<'w>,
    pub(super) options: &'w CudaOptions,
    pub(super) family: Family,
    pub(super) used: Used,
}

impl Cuda {
    /// The memory that `wish` takes of the device, with what is free on it now.
    pub(super) fn plan(gpu: &Gpu, wish: &Wish<'_>) -> crate::Result<GpuPlan> {
        let (free_bytes, total_bytes) = gpu.memory()?;
        let c = wish.config;
        let n_ctx = match wish.options.n_ctx {
            0 => first_positions(c.n_ctx_train),
            asked => asked,
        };
        let kv_elems = 2 * c.n_layer * c.n_head_kv * c.head_dim;
        Ok(GpuPlan {
            weights: weights(wish),
            kv_bytes: (kv_elems * size_of::<half::f16>()) as u64 * n_ctx as u64,
            n_ctx,
            scratch_bytes: scratch_bytes(gpu, wish, n_ctx),
            n_batch: wish.options.n_batch,
            free_bytes,
            total_bytes,
        })
    }
}

fn weights(wish: &Wish<'_>) -> Vec<KindBytes> {
    let mut kinds: Vec<KindBytes> = Vec::new();
    for object in used(wish.container, wish.used) {
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

/// Activations of a batch, tables and libraries, rounded up rather than down.
fn scratch_bytes(gpu: &Gpu, wish: &Wish<'_>, n_ctx: usize) -> u64 {
    let (c, bf16) = (wish.config, wish.family == Family::Bf16);
    let (n_q, n_kv) = (c.n_head * c.head_dim, c.n_head_kv * c.head_dim);
    let n_batch = wish.options.n_batch.max(MAX_GEMV_TOKENS);
    // Experts have rows of their own.
    let n_ff = if c.experts.is_none() { c.n_ff } else { 0 };
    let rows = 4 * (2 * c.n_embd + n_q + 2 * n_kv + 2 * n_ff);
    let operands = c.n_embd + n_q + n_ff;
    // int8 with a pair of floats per 32 elements; attention's output in f32 first.
    let int8 = operands + operands / 4 + 4 * n_q;
    let int8_tokens = if bf16 { n_batch.min(MAX_SMALL_TOKENS) } else { n_batch };
    let bf16_bytes = if bf16 { 2 * operands * n_batch } else { 0 };
    let n_parts = gpu.attention_parts(c.n_head, c.n_head_kv);
    let parts = MAX_GEMV_TOKENS * c.n_head * n_parts * (4 * c.head_dim + 8);
    let n_tables = 1 + usize::from(c.rope_local.is_some());
    let angles = n_tables * n_ctx.max(MIN_ANGLES) * c.rope.n_rot * 4;
    let logits = 4 * c.n_vocab;
    let blas = if bf16 && Blas::is_here() { Blas::WORKSPACE_BYTES } else { 0 };
    let sum = rows * n_batch + int8 * int8_tokens + bf16_bytes + parts + angles + logits + blas;
    let dense = dense_bytes(wish).max(dense_expert_bytes(wish, n_batch));
    sum as u64 + expert_bytes(c, n_batch) + dense + DRIVER_BYTES
}

/// What a mixture of experts works in: a row for each token and each of its experts, in every form.
fn expert_bytes(c: &Config, n_batch: usize) -> u64 {
    let Some(experts) = &c.experts else { return 0 };
    let (inner, outer) = (experts.n_ff, c.n_embd);
    let rows = 4 * (2 * inner + outer);
    let forms = |width: usize| 2 * width + width + width / 4;
    let shape = RoutingShape { n_expert: experts.n_expert, n_used: experts.n_used };
    let n_words = shape.n_sorted_words(n_batch) + 2 * shape.n_pairs(n_batch);
    let n_logits = experts.n_expert * n_batch;
    let n_bytes = (rows + forms(inner) + forms(outer)) * shape.n_pairs(n_batch);
    (n_bytes + 4 * (n_words + n_logits)) as u64
}

/// The copy in bf16 of all experts' matrices of a layer, where a batch may need one.
fn dense_expert_bytes(wish: &Wish<'_>, n_batch: usize) -> u64 {
    let Some(experts) = &wish.config.experts else { return 0 };
    // Without blocks that int8 products read there is no other way.
    let base = |object: &Object| object.kind == PlaneKind::Padded && !object.quant.is_float();
    let names = |t: &TensorEntry<'_>| t.name.contains("_exps.") || t.name.contains(".ffn_down.0.");
    let int8 = wish.container.tensors().filter(names).all(|t| base(t.base));
    let n_shared = n_batch * experts.n_used / experts.n_expert;
    let small = wish.options.prefill == Prefill::Auto && n_shared <= MAX_SMALL_TOKENS;
    if int8 && (wish.family == Family::Mmq || small) {
        return 0;
    }
    2 * (experts.n_expert * experts.n_ff * wish.config.n_embd) as u64
}

/// The largest matrix that products in bf16 make a copy of. Output matrices are taller than that:
/// few tokens meet them.
fn dense_bytes(wish: &Wish<'_>) -> u64 {
    if wish.family != Family::Bf16 {
        return 0;
    }
    let has_plane = |name: &str| {
        wish.container
            .tensor(name)
            .is_some_and(|t| t.planes.iter().any(|plane| plane.kind == PlaneKind::Bf16))
    };
    let copied = wish
        .container
        .tensors()
        .filter(|t| (2..=MAX_WARM_UP_ROWS).contains(&t.geometry.n_rows) && !has_plane(t.name));
    copied.map(|t| 2 * t.geometry.n_rows * t.geometry.row_len).max().unwrap_or(0)
}
