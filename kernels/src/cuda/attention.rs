//! Launches of attention: many queries on tensor cores, few queries over parts of the positions.

use std::ffi::c_void;

use super::driver::Gpu;
use super::error::{CudaError, CudaResult};
use super::launch::Shape;
use super::memory::Span;
use super::ops::{OperandRef, params, u32_of};
use super::rope::RopeTable;

/// Elements that a block of `attention_combine` makes.
const COMBINE_ELEMS: u32 = 64;
/// Positions that a group of lanes takes at once.
const AT_ONCE: u32 = 2;
/// Threads of a block of decode attention.
const DECODE_THREADS: u32 = 128;
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
    k_new: u64,
    v_new: u64,
    k_cache: u64,
    v_cache: u64,
    table: u64,
    q_gain: u64,
    k_gain: u64,
    eps: f32,
    n_steps: u32,
    neox: u32,
}

/// What decode attention of one token can make by itself: its queries are then as a product left
/// them.
#[derive(Debug, Clone, Copy)]
pub struct FreshRows<'b> {
    /// The token's key, `[n_head_kv * head_dim]`.
    pub k: Span<'b, f32>,
    /// The token's value.
    pub v: Span<'b, f32>,
    /// Angles of queries and key.
    pub table: &'b RopeTable,
    /// Gains of norms over the heads of queries and key, and their epsilon.
    pub norms: Option<(Span<'b, f32>, Span<'b, f32>, f32)>,
}

impl FreshRows<'_> {
    /// Asserts that lengths agree. Returns the pairs of a head that are rotated.
    pub(super) fn check(&self, args: &AttentionArgs<'_>) -> u32 {
        let kv_width = args.n_head_kv * args.head_dim;
        assert!(args.n_tokens == 1 && args.shift == 0, "one token");
        assert!(self.k.len() >= kv_width && self.v.len() >= kv_width, "keys and values");
        let (_, n_steps, _) = self.table.raw();
        assert!((2..=args.head_dim).contains(&(2 * n_steps as usize)), "rotated elements");
        if let Some((q_gain, k_gain, _)) = self.norms {
            assert!(q_gain.len() >= args.head_dim && k_gain.len() >= args.head_dim, "gains");
        }
        n_steps
    }
}

impl AttentionArgs<'_> {
    pub(super) fn check(&self) {
        let width = self.n_head * self.head_dim;
        assert!(self.q.len() >= self.n_tokens * width, "queries");
        assert!(self.n_head.is_multiple_of(self.n_head_kv), "heads");
        assert!(self.k.len() == self.v.len(), "keys and values");
    }

    /// Lanes of a position in decode attention, eight elements each.
    fn lanes(&self) -> u32 {
        match self.head_dim {
            ..=64 => 8,
            65..=128 => 16,
            _ => 32,
        }
    }

    /// Heads that a block of decode attention takes at once.
    fn heads_at_once(&self) -> usize {
        // Eight at once would take 198 registers a thread: fewer blocks, and those slower.
        if self.n_head == self.n_head_kv { 1 } else { 4 }
    }

    fn kernel_names(head_dim: usize) -> Option<(&'static str, [[&'static str; 2]; 2])> {
        macro_rules! names {
            ($($dim:literal)*) => {
                match head_dim {
                    $($dim => Some((
                        concat!("attention_prefill_", $dim),
                        [
                            [
                                concat!("attention_decode_", $dim, "_1"),
                                concat!("attention_decode_", $dim, "_4"),
                            ],
                            [
                                concat!("attention_fresh_", $dim, "_1"),
                                concat!("attention_fresh_", $dim, "_4"),
                            ],
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
        let rounds = (n_head / n_head_kv.max(1)).div_ceil(4).max(1);
        let wanted = 3 * self.info().n_multiprocessors as usize;
        wanted.div_ceil((n_head_kv * rounds).max(1)).clamp(1, 64)
    }

    /// Attention of few queries over `n_parts` parts of the positions. `part_out`:
    /// `[n_tokens, n_head, n_parts, head_dim]`, `part_ml`: `[n_tokens, n_head, n_parts]`. With `fresh`
    /// rows the queries are normalized and rotated on the way, and the cache gets the new position.
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
        fresh: Option<&FreshRows<'_>>,
    ) -> CudaResult<()> {
        args.check();
        let width = args.n_head * args.head_dim;
        let raw = out.raw(args.n_tokens * width);
        let slots = args.n_tokens * args.n_head * n_parts;
        assert!(part_ml.len() >= slots && part_out.len() >= slots * args.head_dim, "parts");
        let (_, names) = names_of(args)?;
        let at_once = args.heads_at_once();
        let rounds = (args.n_head / args.n_head_kv).div_ceil(at_once);
        let mut job = RawDecode {
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
            k_new: 0,
            v_new: 0,
            k_cache: args.k.ptr,
            v_cache: args.v.ptr,
            table: 0,
            q_gain: 0,
            k_gain: 0,
            eps: 0.0,
            n_steps: 0,
            neox: 0,
        };
        if let Some(fresh) = fresh {
            fresh.check(args);
            (job.k_new, job.v_new) = (fresh.k.ptr, fresh.v.ptr);
            (job.table, job.n_steps, job.neox) = fresh.table.raw();
            if let Some((q_gain, k_gain, eps)) = fresh.norms {
                (job.q_gain, job.k_gain, job.eps) = (q_gain.ptr, k_gain.ptr, eps);
            }
        }
        let grid = (u32_of(args.n_head_kv * rounds), job.n_parts, job.n_tokens);
        let names = names[usize::from(fresh.is_some())];
        let name = match at_once {
            1 => names[0],
            _ => names[1],
        };
        let shape = Shape { grid, block: DECODE_THREADS, shared: 0, waits: true };
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
        let (shift, window) = (job.shift, job.window);
        let (at, n_groups) = (args.first_pos.ptr, AT_ONCE * DECODE_THREADS / args.lanes());
        let params = params![
            raw,
            part_out.ptr,
            part_ml.ptr,
            n_parts,
            head_dim,
            width,
            at,
            shift,
            window,
            n_groups
        ];
        // SAFETY: the parameters of `attention_combine`; lengths are checked above.
        unsafe { self.launch(self.known("attention_combine")?, shape, params) }
    }
}

fn names_of(args: &AttentionArgs<'_>) -> CudaResult<(&'static str, [[&'static str; 2]; 2])> {
    AttentionArgs::kernel_names(args.head_dim).ok_or_else(|| {
        let found = args.head_dim;
        let expected = "64, 80, 96, 128 or 256";
        CudaError::Weight(format!(
            "elements of an attention head: expected {expected}, found {found}"
        ))
    })
}
