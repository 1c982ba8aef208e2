//! Copies in bf16 of quantized matrices, kept where the device has memory to spare.
//!
//! Products of many tokens in bf16 need them, and to make one anew for every product costs 6 % of a
//! long prompt and 30 % of one of 512 tokens. The first prompt makes them as it goes.

use super::bind::MAX_WARM_UP_ROWS;
use super::plan::Wish;
use super::scratch::{has, is_dense, is_multiplied};
use super::{Cuda, Family, Matrix};
use crate::report::{CopiesReport, GpuPlan};
use format_spec::PlaneKind;
use half::bf16;
use kernels::cuda::{Buffer, CudaError, CudaResult, DEVICE_ALIGN, Gpu, Span};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Elements between the starts of copies are a multiple of this.
const ALIGN_ELEMS: usize = DEVICE_ALIGN / size_of::<bf16>();

/// One block of memory that copies take from, one after the other.
#[derive(Default)]
pub(super) struct Copies {
    memory: Option<Buffer<bf16>>,
    n_taken: Mutex<usize>,
    /// Matrices that were copied.
    n_made: AtomicU64,
    /// Products that read a copy which was there.
    n_read: AtomicU64,
}

impl Copies {
    /// Takes the memory that the plan has for them; without it there are none.
    pub(super) fn reserve(gpu: &Arc<Gpu>, n_bytes: u64) -> CudaResult<Self> {
        let n = usize::try_from(n_bytes).unwrap_or(usize::MAX) / size_of::<bf16>();
        if n == 0 {
            return Ok(Self::default());
        }
        match gpu.alloc(n) {
            Ok(memory) => Ok(Self { memory: Some(memory), ..Self::default() }),
            Err(CudaError::Memory { .. }) => Ok(Self::default()),
            Err(e) => Err(e),
        }
    }

    /// How often copies were made and read.
    pub(super) fn report(&self) -> CopiesReport {
        CopiesReport {
            n_bytes: self
                .memory
                .as_ref()
                .map_or(0, |memory| (memory.len() * size_of::<bf16>()) as u64),
            n_made: self.n_made.load(Ordering::Relaxed),
            n_read: self.n_read.load(Ordering::Relaxed),
        }
    }

    /// Whether there is room for any.
    pub(super) fn are_kept(&self) -> bool {
        self.memory.is_some()
    }

    /// The place of `n` elements, unless all is taken.
    fn take(&self, n: usize) -> Option<usize> {
        let n_all = self.memory.as_ref().map_or(0, Buffer::len);
        let mut n_taken = self.n_taken.lock().unwrap_or_else(PoisonError::into_inner);
        let at = *n_taken;
        if n > n_all.saturating_sub(at) {
            return None;
        }
        *n_taken = at + n.next_multiple_of(ALIGN_ELEMS);
        Some(at)
    }
}

/// Bytes of copies of all matrices that are multiplied in bf16 from layer `first` on, if the device
/// keeps an eighth of its memory free beside them and everything else. Where no context was asked for
/// that is the longest that the model was trained on: copies must not make it shorter.
pub(super) fn copies_bytes(wish: &Wish<'_>, plan: &GpuPlan) -> u64 {
    // Experts' products have copies of their own, a layer's at a time.
    let experts = wish.blueprint.config.experts.is_some();
    if !wish.options.keep_bf16 || wish.family != Family::Bf16 || experts {
        return 0;
    }
    let used = wish.used_from(plan.first_layer);
    let matrices = wish.container.tensors().filter(|t| {
        t.geometry.n_rows <= MAX_WARM_UP_ROWS
            && is_multiplied(wish, t)
            && is_dense(wish, t)
            && !(wish.kinds.bf16 && has(t, PlaneKind::Bf16))
            && !used.elsewhere.contains(t.name)
    });
    let align = DEVICE_ALIGN as u64;
    let bytes =
        matrices.map(|t| (2 * t.geometry.n_rows * t.geometry.row_len).next_multiple_of(align));
    let bytes: u64 = bytes.sum();
    let n_longer = match wish.options.n_ctx {
        0 => wish.blueprint.config.n_ctx_train.saturating_sub(plan.n_ctx) as u64,
        _ => 0,
    };
    let kv_bytes = (plan.kv_bytes / plan.n_ctx.max(1) as u64).saturating_mul(n_longer);
    let parts = [bytes, kv_bytes, plan.total_bytes / 8];
    let all = parts.iter().fold(plan.need_bytes(), |sum, &n| sum.saturating_add(n));
    if all <= plan.free_bytes { bytes } else { 0 }
}

impl Cuda {
    /// The kept copy of a matrix, made now if it is not there yet.
    pub(super) fn kept_copy(&self, m: &Matrix) -> CudaResult<Option<Span<'_, bf16>>> {
        let Some(memory) = &self.copies.memory else { return Ok(None) };
        let n = m.weight.n_rows() * m.weight.row_len();
        if let Some(&at) = m.copy.get() {
            self.copies.n_read.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(memory.span(at..at + n)));
        }
        if m.weight.n_rows() as u64 > MAX_WARM_UP_ROWS {
            return Ok(None);
        }
        let Some(at) = self.copies.take(n) else { return Ok(None) };
        let copy = memory.span(at..at + n);
        self.gpu.dequantize(copy, &m.weight)?;
        self.copies.n_made.fetch_add(1, Ordering::Relaxed);
        // Steps take turns: nobody else has made one meanwhile.
        let _ = m.copy.set(at);
        Ok(Some(copy))
    }
}
