//! Attention of many queries in the forms that the next product reads.

use super::tensor::{Forms, Operand, Tensor, absent};
use super::{Cache, Cuda};
use crate::backend::{AttentionStep, CacheShape};
use crate::report::{AttentionReport, WideReport};
use kernels::cuda::{AttentionArgs, CudaResult, OperandRef, Span};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Launches of attention of many queries, and of few.
#[derive(Debug, Default)]
pub(super) struct Counts {
    wgmma: AtomicU64,
    plain: AtomicU64,
    pub(super) cluster: Arc<AtomicU64>,
    pub(super) fresh: Arc<AtomicU64>,
    pub(super) few: Arc<AtomicU64>,
}

impl Cuda {
    /// What attention kernels are told of a step.
    pub(super) fn attention_args<'b>(
        &self,
        q: &'b Tensor,
        cache: &'b Cache,
        step: AttentionStep,
        first_pos: Span<'b, u32>,
    ) -> AttentionArgs<'b> {
        let CacheShape { n_head_kv, head_dim, .. } = cache.shape();
        let (k, v) = cache.layer(step.layer);
        AttentionArgs {
            q: q.rows(),
            k,
            v,
            first_pos,
            shift: step.first_pos - self.first_pos.load(Ordering::Relaxed),
            n_tokens: q.n_tokens,
            n_head: q.width / head_dim,
            n_head_kv,
            head_dim,
            window: step.window,
            scale: step.scale,
            soft_cap: None,
        }
    }

    /// Attention of many queries. Its kernels write f32 and bf16; int8 is made from f32.
    pub(super) fn attend_many(
        &self,
        out: &mut Operand,
        args: &AttentionArgs<'_>,
    ) -> CudaResult<()> {
        let forms = self.forms(args.n_tokens);
        if !forms.int8 {
            return self.attend(&out.get(), args);
        }
        let with_f32 = Forms { f32: true, ..forms };
        out.resize(&self.gpu, &self.epoch, args.n_tokens, with_f32)?;
        let all = out.get();
        let first = OperandRef { int8: None, ..all };
        self.attend(&first, args)?;
        let second = OperandRef { int8: all.int8, ..OperandRef::default() };
        let n = args.n_tokens * out.row_len;
        match all.f32 {
            Some(values) => self.gpu.convert(&second, values.span(0..n)),
            None => Err(absent("attention output in f32")),
        }
    }

    fn attend(&self, out: &OperandRef<'_>, args: &AttentionArgs<'_>) -> CudaResult<()> {
        if self.options.wgmma_attention && self.gpu.attends_by_wgmma(args.head_dim) {
            self.n_attended.wgmma.fetch_add(1, Ordering::Relaxed);
            return self.gpu.attention_wgmma(out, args);
        }
        self.n_attended.plain.fetch_add(1, Ordering::Relaxed);
        self.gpu.attention_prefill(out, args)
    }

    /// Which kernels attended to many queries.
    pub(crate) fn attention_report(&self) -> AttentionReport {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AttentionReport {
            on: self.options.wgmma_attention,
            n_wgmma: count(&self.n_attended.wgmma),
            n_plain: count(&self.n_attended.plain),
            fused: self.options.fused,
            cluster: self.options.cluster_attention,
            n_cluster: count(&self.n_attended.cluster),
            n_fresh: count(&self.n_attended.fresh),
            n_few: count(&self.n_attended.few),
        }
    }

    /// How many elements a thread norms, gates, conversions and rotation took.
    pub(crate) fn wide_report(&self) -> WideReport {
        let (n_wide, n_narrow) = self.gpu.n_wide();
        WideReport { on: self.options.wide, n_wide, n_narrow }
    }
}
