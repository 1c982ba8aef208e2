//! Launches of attention: many queries on tensor cores, few queries over parts of the positions.

use std::ffi::c_void;

use super::driver::{Gpu, Shape};
use super::error::{CudaError, CudaResult};
use super::memory::Span;
use super::ops::{OperandRef, params, u32_of};

/// Elements that a block of `attention_combine` makes.
const COMBINE_ELEMS: u32 = 64;
/// Queries of one block of prefill attention.
const QUERY_TILE: u32 = 64;

/// One attention step.
#[derive(Debug, Clone, Copy)]
pub struct AttentionArgs<'b> {
    /// `[n_tokens, n_head * head_dim]`.
    pub q: Span<'b, f32>,
    /// `[position][n_head_kv * head_dim]`.
    pub k: Span<'b, half::f16>,
    /// `[position][n_head_kv * head_dim]`.
    pub v: Span<'b, half::f16>,
    /// Position of the step's first row, in device memory.
    pub first_pos: Span<'b, u32>,
    /// Rows that the step dropped before the first query.
    pub shift: usize,
    /// Queries.
    pub n_tokens: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads.
    pub n_head_kv: usize,
    /// Elements of a head: 64, 80, 96, 128 or 256.
    pub head_dim: usize,
    /// Only this many positions are seen, the query's own among them.
    pub window: Option<usize>,
    /// Factor on scores.
    pub scale: f32,
    /// `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawPrefill {
    q: u64,
    k: u64,
    v: u64,
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

#[repr(C)]
#[derive(Clone, Copy)]
struct RawDecode {
    q: u64,
    k: u64,
    v: u64,
    first_pos: u64,
    part_out: u64,
    part_ml: u64,
    shift: u32,
    n_tokens: u32,
    n_head: u32,
    n_head_kv: u32,
    n_parts: u32,
    window: u32,
    scale: f32,
    soft_cap: f32,
}

impl AttentionArgs<'_> {
    pub(super) fn check(&self) {
        let width = self.n_head * self.head_dim;
        assert!(self.q.len() >= self.n_tokens * width, "queries");
        assert!(self.n_head.is_multiple_of(self.n_head_kv), "heads");
        assert!(self.k.len() == self.v.len(), "keys and values");
    }

    /// Heads that a block of decode attention takes at once.
    fn heads_at_once(&self) -> usize {
        match self.n_head / self.n_head_kv {
            1 => 1,
            2..=4 => 4,
            _ => 8,
        }
    }

    fn kernel_names(head_dim: usize) -> Option<(&'static str, [&'static str; 3])> {
        macro_rules! names {
            ($($dim:literal)*) => {
                match head_dim {
                    $($dim => Some((
                        concat!("attention_prefill_", $dim),
                        [
                            concat!("attention_decode_", $dim, "_1"),
                            concat!("attention_decode_", $dim, "_4"),
                            concat!("attention_decode_", $dim, "_8"),
                        ],
                    )),)*
                    _ => None,
                }
            };
        }
        names!(64 80 96 128 256)
    }
}

impl Gpu {
    /// Whether attention kernels exist for heads of this size.
    pub fn attends(head_dim: usize) -> bool {
        AttentionArgs::kernel_names(head_dim).is_some()
    }

    /// Attention of many queries. `out` has f32 and bf16 forms, no int8.
    ///
    /// # Errors
    /// If the driver fails or no kernel knows the head's size.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn attention_prefill(
        &self,
        out: &OperandRef<'_>,
        args: &AttentionArgs<'_>,
    ) -> CudaResult<()> {
        args.check();
        let raw = out.raw(args.n_tokens * args.n_head * args.head_dim);
        assert!(raw.q == 0, "prefill attention writes no int8");
        let (name, _) = names_of(args)?;
        let job = RawPrefill {
            q: args.q.ptr,
            k: args.k.ptr,
            v: args.v.ptr,
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
        let keys = if args.head_dim > 128 { 32 } else { 64 };
        let shared = 4 * keys * (u32_of(args.head_dim) + 8) * 2;
        let grid = (job.n_tokens.div_ceil(QUERY_TILE), job.n_head, 1);
        let kernel = self.known_with(name, shared)?;
        // SAFETY: the parameter of `attention_prefill_*`; lengths are checked above.
        unsafe {
            self.launch(kernel, Shape { grid, block: 128, shared, waits: true }, params![job])
        }
    }

    /// Parts that decode attention cuts positions into: enough blocks to fill the device.
    pub fn attention_parts(&self, n_head: usize, n_head_kv: usize) -> usize {
        let rounds = (n_head / n_head_kv.max(1)).div_ceil(8).max(1);
        let wanted = 3 * self.info().n_multiprocessors as usize;
        wanted.div_ceil((n_head_kv * rounds).max(1)).clamp(1, 64)
    }

    /// Attention of few queries over `n_parts` parts of the positions. `part_out`:
    /// `[n_tokens, n_head, n_parts, head_dim]`, `part_ml`: `[n_tokens, n_head, n_parts]`.
    ///
    /// # Errors
    /// If the driver fails or no kernel knows the head's size.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn attention_decode(
        &self,
        out: &OperandRef<'_>,
        args: &AttentionArgs<'_>,
        (part_out, part_ml): (Span<'_, f32>, Span<'_, [f32; 2]>),
        n_parts: usize,
    ) -> CudaResult<()> {
        args.check();
        let width = args.n_head * args.head_dim;
        let raw = out.raw(args.n_tokens * width);
        let slots = args.n_tokens * args.n_head * n_parts;
        assert!(part_ml.len() >= slots && part_out.len() >= slots * args.head_dim, "parts");
        let (_, names) = names_of(args)?;
        let at_once = args.heads_at_once();
        let rounds = (args.n_head / args.n_head_kv).div_ceil(at_once);
        let job = RawDecode {
            q: args.q.ptr,
            k: args.k.ptr,
            v: args.v.ptr,
            first_pos: args.first_pos.ptr,
            part_out: part_out.ptr,
            part_ml: part_ml.ptr,
            shift: u32_of(args.shift),
            n_tokens: u32_of(args.n_tokens),
            n_head: u32_of(args.n_head),
            n_head_kv: u32_of(args.n_head_kv),
            n_parts: u32_of(n_parts),
            window: u32_of(args.window.unwrap_or(0)),
            scale: args.scale,
            soft_cap: args.soft_cap.unwrap_or(0.0),
        };
        let grid = (u32_of(args.n_head_kv * rounds), job.n_parts, job.n_tokens);
        let name = match at_once {
            1 => names[0],
            4 => names[1],
            _ => names[2],
        };
        let shape = Shape { grid, block: 128, shared: 0, waits: true };
        // SAFETY: the parameter of `attention_decode_*`; lengths are checked above.
        unsafe { self.launch(self.known(name)?, shape, params![job]) }?;
        let (head_dim, width) = (u32_of(args.head_dim), u32_of(width));
        let n_parts = job.n_parts;
        let shape = Shape {
            grid: (width.div_ceil(COMBINE_ELEMS), job.n_tokens, 1),
            block: 256,
            shared: 0,
            waits: true,
        };
        let params = params![raw, part_out.ptr, part_ml.ptr, n_parts, head_dim, width];
        // SAFETY: the parameters of `attention_combine`; lengths are checked above.
        unsafe { self.launch(self.known("attention_combine")?, shape, params) }
    }
}

fn names_of(args: &AttentionArgs<'_>) -> CudaResult<(&'static str, [&'static str; 3])> {
    AttentionArgs::kernel_names(args.head_dim).ok_or_else(|| {
        let found = args.head_dim;
        let expected = "64, 80, 96, 128 or 256";
        CudaError::Weight(format!(
            "elements of an attention head: expected {expected}, found {found}"
        ))
    })
}
