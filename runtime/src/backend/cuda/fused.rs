//! Steps of one token: attention that makes its queries and key itself, in one launch where the GPU has
//! clusters of blocks, else in two. The slow twins are the launches that it replaces, which run where this is
//! switched off and where there are more tokens.

use super::tensor::{Operand, Tensor, absent, grow};
use super::{Cache, Cuda, Rotation};
use crate::backend::{AttentionStep, CacheShape};
use kernels::cuda::{AttentionArgs, CudaResult, FreshRows, MAX_GEMV_TOKENS, Span};

impl Cuda {
    /// Attention of a step's one token, from what the product left of queries, key and value.
    pub(super) fn attend_fresh(
        &self,
        out: &mut Operand,
        cache: &Cache,
        (q, k, v): (&Tensor, &Tensor, &Tensor),
        rotation: &Rotation,
        norms: Option<(Span<'_, f32>, Span<'_, f32>, f32)>,
        step: AttentionStep,
    ) -> CudaResult<()> {
        let table = rotation.table.as_ref().ok_or_else(|| absent("angles"))?;
        let fresh = FreshRows { k: k.rows(), v: v.rows(), table, norms };
        match self.attention_cluster(q, cache)? {
            Some(n_blocks) => self.attend_in_cluster(out, q, cache, step, &fresh, n_blocks),
            None => self.attend_few(out, q, cache, step, Some(&fresh)),
        }
    }

    /// Blocks of a cluster that attends to one token, if one may.
    fn attention_cluster(&self, q: &Tensor, cache: &Cache) -> CudaResult<Option<u32>> {
        if !self.options.cluster_attention {
            return Ok(None);
        }
        let CacheShape { n_head_kv, head_dim, .. } = cache.shape();
        self.gpu.attention_cluster_blocks(q.width / head_dim, n_head_kv, head_dim)
    }

    fn attend_in_cluster(
        &self,
        out: &mut Operand,
        q: &Tensor,
        cache: &Cache,
        step: AttentionStep,
        fresh: &FreshRows<'_>,
        n_blocks: u32,
    ) -> CudaResult<()> {
        self.prepare(out, 1)?;
        let shared = self.shared();
        let at = shared.step.as_ref().ok_or_else(|| absent("step"))?;
        let args = self.attention_args(q, cache, step, at.span(0..1));
        self.count(&self.n_attended.cluster);
        self.gpu.attention_cluster(&out.get(), &args, fresh, (n_blocks, true))
    }

    /// Attention of a step's few queries.
    pub(super) fn attend_few(
        &self,
        out: &mut Operand,
        q: &Tensor,
        cache: &Cache,
        step: AttentionStep,
        fresh: Option<&FreshRows<'_>>,
    ) -> CudaResult<()> {
        self.prepare(out, q.n_tokens)?;
        let mut shared = self.shared();
        let shared = &mut *shared;
        let at = shared.step.as_ref().ok_or_else(|| absent("step"))?;
        let args = self.attention_args(q, cache, step, at.span(0..1));
        let AttentionArgs { n_head, n_head_kv, head_dim, .. } = args;
        let n_parts = self.gpu.attention_parts(n_head, n_head_kv);
        let slots = MAX_GEMV_TOKENS * n_head * n_parts;
        let part_ml = grow(&self.gpu, &self.epoch, &mut shared.part_ml, slots)?;
        let part_out = grow(&self.gpu, &self.epoch, &mut shared.part_out, slots * head_dim)?;
        let parts = (part_out.all(), part_ml.all());
        let counts = &self.n_attended;
        self.count(if fresh.is_some() { &counts.fresh } else { &counts.few });
        self.gpu.attention_decode(&out.get(), &args, parts, n_parts, fresh)
    }
}
