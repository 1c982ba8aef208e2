//! How much memory a run needs, and how large a context what there is allows.

use runtime::report::GpuPlan;

/// Left to the system and to what is not counted here.
const RESERVE_BYTES: u64 = 128 << 20;
/// As much on a GPU, where tables grow with the context and nothing can give way.
const GPU_RESERVE_BYTES: u64 = 512 << 20;

/// What a run needs, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// Weights.
    pub(crate) weights: u64,
    /// They are read in place, and may leave the memory when others need it.
    pub(crate) mapped: bool,
    /// Keys and values of one position.
    pub(crate) kv_per_token: u64,
    /// Activations and logits.
    pub(crate) compute: u64,
    /// Copies of weights that a GPU keeps where it has the memory.
    pub(crate) copies: u64,
}

impl Need {
    /// What a GPU's plan says.
    pub(crate) fn of(plan: &GpuPlan) -> Self {
        Self {
            weights: plan.weights_bytes(),
            mapped: false,
            kv_per_token: plan.kv_bytes / plan.n_ctx.max(1) as u64,
            compute: plan.scratch_bytes,
            copies: plan.copies_bytes,
        }
    }

    /// All of it with a context of `n_ctx`.
    pub(crate) fn total(self, n_ctx: usize) -> u64 {
        let kv = self.kv_per_token.saturating_mul(n_ctx as u64);
        [self.weights, self.compute, self.copies].iter().fold(kv, |sum, &n| sum.saturating_add(n))
    }

    /// The largest context up to `n_ctx_train` that fits in `available`, at least 1.
    pub(crate) fn largest_ctx(self, n_ctx_train: usize, available: Option<u64>) -> usize {
        let Some(available) = available else { return n_ctx_train };
        // Mapped weights can be read from disk again and again; what the cache needs cannot.
        let (reserve, least) = match self.mapped {
            true => (RESERVE_BYTES, available / 8),
            false => (GPU_RESERVE_BYTES, 0),
        };
        let fixed = self.weights.saturating_add(self.compute).saturating_add(reserve);
        let room = available.saturating_sub(fixed).max(least);
        let fits = room / self.kv_per_token.max(1);
        usize::try_from(fits).unwrap_or(usize::MAX).clamp(1, n_ctx_train.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: Need =
        Need { weights: 1 << 30, mapped: true, kv_per_token: 1 << 16, compute: 0, copies: 0 };

    #[test]
    fn the_context_shrinks_to_what_fits() {
        assert_eq!(NEED.largest_ctx(8192, None), 8192);
        assert_eq!(NEED.largest_ctx(8192, Some(64 << 30)), 8192);
        assert_eq!(NEED.largest_ctx(1 << 20, Some(2 << 30)), (896 << 20) >> 16);
        assert_eq!(NEED.largest_ctx(8192, Some(0)), 1);
        // Weights on a GPU stay where they are.
        let on_gpu = Need { mapped: false, ..NEED };
        assert_eq!(on_gpu.largest_ctx(1 << 20, Some(2 << 30)), (512 << 20) >> 16);
        assert_eq!(on_gpu.largest_ctx(8192, Some(1 << 30)), 1);
        assert!(NEED.largest_ctx(8192, Some(1 << 30)) > 1);
    }

    #[test]
    fn totals_do_not_overflow() {
        let need = Need { kv_per_token: u64::MAX, ..NEED };
        assert_eq!(need.total(usize::MAX), u64::MAX);
    }
}
