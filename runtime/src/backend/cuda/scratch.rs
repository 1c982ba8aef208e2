//! The memory that a run works in, beside weights and keys and values.

use super::dense::{Dense, scratch_elems};
use super::plan::Wish;
use super::{Family, MAX_SMALL_TOKENS, MIN_ANGLES};
use crate::open::Prefill;
use format_spec::PlaneKind;
use format_spec::container::TensorEntry;
use format_spec::model::Config;
use kernels::cuda::{Blas, Gpu, MAX_GEMV_TOKENS, RoutingShape};

/// Modules, recordings, and what the driver and cuBLASLt keep for themselves.
const DRIVER_BYTES: u64 = 160 << 20;

/// Activations of a batch, tables and libraries, rounded up rather than down.
pub(super) fn scratch_bytes(gpu: &Gpu, wish: &Wish<'_>, n_ctx: usize) -> u64 {
    let (c, bf16) = (&wish.blueprint.config, wish.family == Family::Bf16);
    let (n_q, n_kv) = (c.n_head * c.head_dim, c.n_head_kv * c.head_dim);
    let n_batch = wish.options.n_batch.max(MAX_GEMV_TOKENS);
    // Experts have rows of their own.
    let n_ff = if c.experts.is_none() { c.n_ff } else { 0 };
    let rows = 4 * (2 * c.n_embd + n_q + 2 * n_kv + 2 * n_ff);
    let operands = c.n_embd + n_q + n_ff;
    // int8 with a pair of floats per 32 elements; attention's output in f32 first.
    let int8 = operands + operands / 4 + 4 * n_q;
    let int8_tokens = if bf16 { n_batch.min(MAX_SMALL_TOKENS) } else { n_batch };
    let some_bf16 = wish.container.tensors().any(|t| t.geometry.n_rows > 1 && is_dense(wish, &t));
    let bf16_bytes = if some_bf16 { 2 * operands * n_batch } else { 0 };
    let n_parts = gpu.attention_parts(c.n_head, c.n_head_kv);
    let parts = MAX_GEMV_TOKENS * c.n_head * n_parts * (4 * c.head_dim + 8);
    let n_tables = 1 + usize::from(c.rope_local.is_some());
    let angles = n_tables * n_ctx.max(MIN_ANGLES) * c.rope.n_rot * 4;
    let logits = 4 * c.n_vocab;
    let way = Dense::of(gpu, wish.options.gemm);
    let blas = if bf16 && way == Dense::Blas { Blas::WORKSPACE_BYTES } else { 0 };
    let sum = rows * n_batch + int8 * int8_tokens + bf16_bytes + parts + angles + logits + blas;
    let dense = dense_bytes(wish, way).max(dense_expert_bytes(wish, n_batch));
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
    let Some(experts) = &wish.blueprint.config.experts else { return 0 };
    let int8 = have_int8(wish);
    let n_shared = n_batch * experts.n_used / experts.n_expert;
    let small = wish.options.prefill == Prefill::Auto && n_shared <= MAX_SMALL_TOKENS;
    if int8 && (wish.family == Family::Mmq || small) {
        return 0;
    }
    2 * (experts.n_expert * experts.n_ff * wish.blueprint.config.n_embd) as u64
}

/// Whether int8 products of many tokens read all experts' matrices: blocks as GGUF has them, and those
/// of experts in tensors of their own all alike (`kernels::cuda::ExpertTable`).
fn have_int8(wish: &Wish<'_>) -> bool {
    let form = |t: &TensorEntry<'_>| (t.quant, t.base.kind, has(t, PlaneKind::Planar));
    wish.container.tensors().all(|t| {
        let (is_stack, first) = (t.name.contains("_exps."), first_expert(t.name));
        let first = first.and_then(|name| wish.container.tensor(&name));
        let is_blocks = t.base.kind == PlaneKind::Padded && !t.quant.is_float();
        match (is_stack, first) {
            (false, None) => true,
            (true, _) => is_blocks,
            (_, Some(first)) => is_blocks && form(&t) == form(&first),
        }
    })
}

/// The first expert's tensor beside `blk.L.ffn_X.N.weight`; `None` for what is no expert's.
fn first_expert(name: &str) -> Option<String> {
    let (layer, rest) = name.split_once(".ffn_")?;
    let (part, rest) = rest.split_once('.')?;
    let (number, _) = rest.split_once('.')?;
    number.parse::<u32>().ok()?;
    Some(format!("{layer}.ffn_{part}.0.weight"))
}

/// The largest matrices that a product in bf16 makes a copy of. The output is one of them: logits of many
/// positions may be asked for.
fn dense_bytes(wish: &Wish<'_>, way: Dense) -> u64 {
    let matrices = wish.container.tensors().filter(|t| is_multiplied(wish, t) && is_dense(wish, t));
    let copied = matrices.filter(|t| !(wish.kinds.bf16 && has(t, PlaneKind::Bf16)));
    let elems = |t: TensorEntry<'_>| (t.geometry.n_rows * t.geometry.row_len) as usize;
    let copied: Vec<_> = copied.map(|t| (t.name, elems(t))).collect();
    2 * scratch_elems(way, copied.iter().copied()) as u64
}

pub(super) fn has(t: &TensorEntry<'_>, kind: PlaneKind) -> bool {
    t.base.kind == kind || t.planes.iter().any(|plane| plane.kind == kind)
}

/// Whether it is a matrix that something is multiplied with: an embedding only if it is the output, too.
pub(super) fn is_multiplied(wish: &Wish<'_>, t: &TensorEntry<'_>) -> bool {
    let is_looked_up =
        t.name.starts_with("token_embd.") && wish.container.tensor("output.weight").is_some();
    t.geometry.n_rows > 1 && !is_looked_up
}

/// Whether a matrix is multiplied in bf16 where there are many tokens.
pub(super) fn is_dense(wish: &Wish<'_>, t: &TensorEntry<'_>) -> bool {
    wish.family == Family::Bf16 || t.quant.is_float() || !has(t, PlaneKind::Padded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_in_tensors_of_their_own_are_told_by_name() {
        let first = Some("blk.3.ffn_down.0.weight".to_owned());
        assert_eq!(first_expert("blk.3.ffn_down.7.weight"), first);
        assert_eq!(first_expert("blk.3.ffn_down.0.weight"), first);
        for other in ["blk.3.ffn_down.weight", "blk.3.ffn_down_exps.weight", "blk.3.attn_q.weight"]
        {
            assert_eq!(first_expert(other), None, "{other}");
        }
    }
}
