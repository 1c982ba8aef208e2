//! Launches that know positions: angles, rotation, and the cache of keys and values.

use std::ffi::c_void;
use std::sync::Arc;

use super::driver::Gpu;
use super::error::CudaResult;
use super::launch::Shape;
use super::memory::{Buffer, Span};
use super::ops::{params, u32_of};

/// Sines and cosines on the device.
#[derive(Debug)]
pub struct RopeTable {
    /// Angle of each pair at position 1.
    steps: Buffer<f64>,
    /// `[n_positions][n_steps]`.
    table: Buffer<[f32; 2]>,
    n_positions: usize,
    neox: bool,
}

impl RopeTable {
    /// Address, pairs a position, whether pairs are halves.
    pub(super) fn raw(&self) -> (u64, u32, u32) {
        (self.table.all().ptr, u32_of(self.steps.len()), u32::from(self.neox))
    }

    /// Positions that the table holds.
    pub fn n_positions(&self) -> usize {
        self.n_positions
    }
}

/// Rows to rotate and where they stand.
#[derive(Debug, Clone, Copy)]
pub struct RotaryArgs<'b> {
    /// Angles.
    pub table: &'b RopeTable,
    /// Position of the step's first row, in device memory.
    pub first_pos: Span<'b, u32>,
    /// Elements of a head.
    pub head_dim: usize,
    /// Rows.
    pub n_tokens: usize,
}

impl Gpu {
    /// Angles of positions `0..n_positions`: `position * steps[i]`, sines and cosines times
    /// `factor`. `neox`: pairs are halves of a head, not neighbours.
    ///
    /// # Errors
    /// If memory is short or the driver fails.
    pub fn rope_table(
        self: &Arc<Self>,
        steps: &[f64],
        n_positions: usize,
        factor: f64,
        neox: bool,
    ) -> CudaResult<RopeTable> {
        let steps = self.upload(steps)?;
        let table = self.alloc(steps.len().saturating_mul(n_positions))?;
        let (first, n, n_steps) = (0u32, u32_of(n_positions), u32_of(steps.len()));
        let shape = Shape { waits: false, ..Shape::over(table.len() as u64) };
        let (to, from) = (table.all(), steps.all());
        let params = params![to.ptr, from.ptr, n_steps, first, n, factor];
        // SAFETY: the parameters of `rope_table`; the table has n x n_steps pairs.
        unsafe { self.launch(self.known("rope_table")?, shape, params) }?;
        Ok(RopeTable { steps, table, n_positions, neox })
    }

    /// Rotates every head of `x` in place; row `t` stands `shift + t` after the step's position.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree. The table must hold the positions: the caller has seen to it.
    pub fn rope(&self, x: Span<'_, f32>, args: &RotaryArgs<'_>) -> CudaResult<()> {
        let row = x.len() / args.n_tokens.max(1);
        assert!(row.is_multiple_of(args.head_dim), "{row} of {}", args.head_dim);
        let (n_head, head_dim) = (u32_of(row / args.head_dim), u32_of(args.head_dim));
        let n_steps = u32_of(args.table.steps.len());
        let (shift, neox) = (0u32, u32::from(args.table.neox));
        let grid = ((n_head * n_steps).div_ceil(256), u32_of(args.n_tokens), 1);
        let table = args.table.table.all();
        let params =
            params![x.ptr, table.ptr, args.first_pos.ptr, shift, n_head, head_dim, n_steps, neox];
        let shape = Shape { grid, block: 256, shared: 0, waits: true };
        // SAFETY: the parameters of `rope`; lengths are checked above.
        unsafe { self.launch(self.known("rope")?, shape, params) }
    }

    /// Puts rows of keys and values into the cache, from the step's position on.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree. The cache must reach to the last position: the caller has seen to it.
    pub fn store(
        &self,
        (k_cache, v_cache): (Span<'_, half::f16>, Span<'_, half::f16>),
        (k, v): (Span<'_, f32>, Span<'_, f32>),
        first_pos: Span<'_, u32>,
        n_tokens: usize,
    ) -> CudaResult<()> {
        let width = u32_of(k.len() / n_tokens.max(1));
        assert!(k.len() == v.len() && k_cache.len() == v_cache.len(), "keys and values");
        assert!(k_cache.len() >= k.len(), "cache");
        let shape = Shape {
            grid: (width.div_ceil(256), u32_of(n_tokens), 1),
            block: 256,
            shared: 0,
            waits: true,
        };
        let params = params![k_cache.ptr, v_cache.ptr, k.ptr, v.ptr, first_pos.ptr, width];
        // SAFETY: the parameters of `store_kv`; lengths are checked above.
        unsafe { self.launch(self.known("store_kv")?, shape, params) }
    }

    /// [`rope`](Self::rope) of queries and keys and [`store`](Self::store), in one launch. `k`
    /// itself stays as it is.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// As those.
    pub fn rope_store(
        &self,
        q: Span<'_, f32>,
        (k_cache, v_cache): (Span<'_, half::f16>, Span<'_, half::f16>),
        (k, v): (Span<'_, f32>, Span<'_, f32>),
        args: &RotaryArgs<'_>,
    ) -> CudaResult<()> {
        let n_tokens = args.n_tokens.max(1);
        let (q_row, kv_row) = (q.len() / n_tokens, k.len() / n_tokens);
        assert!(k.len() == v.len() && k_cache.len() == v_cache.len(), "keys and values");
        assert!(k_cache.len() >= k.len(), "cache");
        assert!(args.head_dim.is_multiple_of(2), "{} elements a head", args.head_dim);
        assert!(q_row.is_multiple_of(args.head_dim) && kv_row.is_multiple_of(args.head_dim));
        let head_dim = u32_of(args.head_dim);
        let (n_head, n_head_kv) = (u32_of(q_row) / head_dim, u32_of(kv_row) / head_dim);
        let (n_steps, neox) = (u32_of(args.table.steps.len()), u32::from(args.table.neox));
        // Four pairs a thread where accesses of 16 bytes can be had.
        let aligned = |ptr: u64| ptr.is_multiple_of(16);
        let fours = head_dim.is_multiple_of(8)
            && n_steps.is_multiple_of(4)
            && [q.ptr, k.ptr, v.ptr, k_cache.ptr, v_cache.ptr].into_iter().all(aligned);
        let (name, at_once) =
            if self.takes_wide(fours) { ("rope_store4", 8) } else { ("rope_store", 2) };
        let n = (u32_of(q_row) + 2 * u32_of(kv_row)) / at_once;
        let shape = Shape {
            grid: (n.div_ceil(256), u32_of(args.n_tokens), 1),
            block: 256,
            shared: 0,
            waits: true,
        };
        let table = args.table.table.all();
        let params = params![
            q.ptr,
            k.ptr,
            v.ptr,
            k_cache.ptr,
            v_cache.ptr,
            table.ptr,
            args.first_pos.ptr,
            n_head,
            n_head_kv,
            head_dim,
            n_steps,
            neox
        ];
        // SAFETY: the parameters of `rope_store` and `rope_store4`; lengths are checked above.
        unsafe { self.launch(self.known(name)?, shape, params) }
    }
}
