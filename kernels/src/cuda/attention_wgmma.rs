//! Launches of attention by Hopper's own instructions. [`Gpu::attention_prefill`] is its twin.

use std::ffi::c_void;

use super::attention::AttentionArgs;
use super::driver::Gpu;
use super::error::CudaResult;
use super::launch::Shape;
use super::ops::{OperandRef, params, u32_of};
use super::tensor_map::{TensorMap, rows_f16};

/// Queries of an item of work.
const ITEM_QUERIES: u32 = 128;

/// As `AttentionWgmmaJob` in `attention/wgmma.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawWgmma {
    k: TensorMap,
    v: TensorMap,
    q: u64,
    first_pos: u64,
    out: u64,
    out_bf16: u64,
    shift: u32,
    n_tokens: u32,
    n_head: u32,
    n_head_kv: u32,
    window: u32,
    scale: f32,
    soft_cap: f32,
}

/// A kernel, the keys of its tiles, and its shared memory as `Plan` in `attention/wgmma.cu` has it:
/// buffers of 128 queries, two stages of keys and two of values, twelve barriers. The source asserts the
/// same numbers, and a test here compares them with these.
fn kernel_of(head_dim: usize) -> Option<(&'static str, u32, u32)> {
    let (name, n_keys, n_query_buffers) = match head_dim {
        64 => ("attention_wgmma_64", 128, 2),
        128 => ("attention_wgmma_128", 128, 2),
        256 => ("attention_wgmma_256", 64, 1),
        _ => return None,
    };
    let row = 2 * u32_of(head_dim);
    Some((name, n_keys, row * (n_query_buffers * ITEM_QUERIES + 4 * n_keys) + 12 * 8))
}

impl Gpu {
    /// Whether [`attention_wgmma`](Self::attention_wgmma) runs here, with heads of this size.
    pub fn attends_by_wgmma(&self, head_dim: usize) -> bool {
        self.info().compute == (9, 0) && kernel_of(head_dim).is_some()
    }

    /// Attention of many queries. `out` has f32 and bf16 forms, no int8.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree or it does not run here.
    pub fn attention_wgmma(
        &self,
        out: &OperandRef<'_>,
        args: &AttentionArgs<'_>,
    ) -> CudaResult<()> {
        args.check();
        let raw = out.raw(args.n_tokens * args.n_head * args.head_dim);
        assert!(raw.q == 0, "prefill attention writes no int8");
        let kernel = kernel_of(args.head_dim).filter(|_| self.attends_by_wgmma(args.head_dim));
        let Some((name, n_keys, shared)) = kernel else {
            panic!("no such kernel for heads of {} on this device", args.head_dim)
        };
        let width = args.n_head_kv * args.head_dim;
        let job = RawWgmma {
            k: rows_f16(args.k, width, n_keys)?,
            v: rows_f16(args.v, width, n_keys)?,
            q: args.q.ptr,
            first_pos: args.first_pos.ptr,
            out: raw.f32,
            out_bf16: raw.bf16,
            shift: u32_of(args.shift),
            n_tokens: u32_of(args.n_tokens),
            n_head: u32_of(args.n_head),
            n_head_kv: u32_of(args.n_head_kv),
            window: u32_of(args.window.unwrap_or(0)),
            scale: args.scale,
            soft_cap: args.soft_cap.unwrap_or(0.0),
        };
        let n_items = job.n_tokens.div_ceil(ITEM_QUERIES) * job.n_head;
        let grid = (n_items.clamp(1, self.info().n_multiprocessors), 1, 1);
        let kernel = self.known_with(name, shared)?;
        let shape = Shape { grid, block: 384, shared, waits: true };
        // SAFETY: the parameter of `attention_wgmma_*`; lengths are checked above.
        unsafe { self.launch(kernel, shape, params![job]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the compiler has asserted of `Plan` is what launches ask for.
    #[test]
    fn plans_are_those_of_the_source() {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/attention/wgmma.cu");
        let source = std::fs::read_to_string(source).expect("the source");
        let asserted: Vec<&str> =
            source.lines().filter(|line| line.starts_with("static_assert(BM == ")).collect();
        let expected = [64, 128, 256].map(|head_dim| {
            let (_, n_keys, shared) = kernel_of(head_dim).expect("a kernel");
            format!(
                "static_assert(BM == {ITEM_QUERIES} && Plan<{head_dim}>::BN == {n_keys} && \
                 Plan<{head_dim}>::BYTES == {shared}, \"\");"
            )
        });
        assert_eq!(asserted, expected);
    }
}
