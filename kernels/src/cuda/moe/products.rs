//! Products of rows with the matrices of their experts.

use std::ffi::c_void;

use super::table::ExpertTable;
use super::{GEMM_TILE, MMQ_TILE, SortedRows};
use crate::cuda::driver::Gpu;
use crate::cuda::error::{CudaError, CudaResult};
use crate::cuda::launch::Shape;
use crate::cuda::memory::Span;
use crate::cuda::mmq::{MmqArgs, MmqKernel};
use crate::cuda::ops::{OperandRef, address, params, u32_of};
use crate::cuda::products::RawGemm;

/// Warps of a GEMV block.
const GEMV_WARPS: u32 = 4;
/// Rows that a lane has, one after the other (`padded`).
const GEMV_ROWS: u32 = 2;
/// Elements of a row that a lane takes at a time: what most types are read by.
const LANE_ELEMS: u32 = 64;

/// What a product with experts' matrices reads and writes.
#[derive(Debug, Clone, Copy)]
pub struct ExpertOut<'b> {
    /// The matrices.
    pub table: &'b ExpertTable,
    /// `[n_pairs, n_rows]`.
    pub y: Span<'b, f32>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawRows {
    table: u64,
    base: u64,
    step: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawExpertMatrix {
    rows: u64,
    y: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawExpertGemv {
    m: [RawExpertMatrix; 2],
    choices: u64,
    q: u64,
    ds: u64,
    f32: u64,
    row_stride: u64,
    n_rows: u32,
    row_len: u32,
    repeat: u32,
    lanes: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawExpertMmq {
    a: MmqArgs,
    rows: RawRows,
    tiles: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawExpertGemm {
    job: RawGemm,
    rows: RawRows,
    tiles: u64,
}

impl Gpu {
    /// Products of few tokens with their experts' matrices, up to two tables that go together.
    /// `x` has a row a pair, or one for `repeat` consecutive pairs.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If shapes disagree or the operand lacks the form that the weights need.
    pub fn gemv_experts(
        &self,
        outs: &[ExpertOut<'_>],
        x: &OperandRef<'_>,
        choices: Span<'_, [u32; 2]>,
        (n_pairs, repeat): (usize, usize),
    ) -> CudaResult<()> {
        let Some(first) = outs.first().map(|out| out.table) else { return Ok(()) };
        assert!(outs.len() <= 2 && repeat > 0 && n_pairs.is_multiple_of(repeat), "pairs");
        assert!(choices.len() >= n_pairs, "choices");
        x.raw(n_pairs / repeat * first.row_len);
        let (any, float) = (first.any.is_some(), first.quant.is_float());
        assert!(x.f32.is_some() || !(any || float), "form of the operand");
        assert!(x.int8.is_some() || (float && !any), "form of the operand");
        let mut m = [RawExpertMatrix { rows: 0, y: 0 }; 2];
        for (raw, out) in m.iter_mut().zip(outs) {
            assert!(outs.len() == 1 || first.goes_with(out.table), "one type and shape");
            assert!(out.y.len() >= n_pairs * first.n_rows, "outputs");
            *raw = RawExpertMatrix { rows: out.table.few.all().ptr, y: out.y.ptr };
        }
        let job = RawExpertGemv {
            m,
            choices: choices.ptr,
            q: address(x.int8.map(|int8| int8.0)),
            ds: address(x.int8.map(|int8| int8.1)),
            f32: address(x.f32),
            row_stride: first.few_stride,
            n_rows: u32_of(first.n_rows),
            row_len: u32_of(first.row_len),
            repeat: u32_of(repeat),
            lanes: (u32_of(first.row_len) / LANE_ELEMS).next_power_of_two().clamp(4, 32),
        };
        if let Some(layouts) = &first.any {
            let grid = (job.n_rows.div_ceil(GEMV_WARPS), 1, u32_of(n_pairs));
            let shape = Shape { grid, block: 128, shared: 0, waits: true };
            let (is_stack, layouts) = (u32::from(layouts.len() == 1), layouts.all().ptr);
            // SAFETY: the parameters of `gemv_experts_any`; lengths are checked above, and there is
            // a layout an expert, or one for the stack of them all.
            return unsafe { self.launch(first.gemv, shape, params![layouts, is_stack, job]) };
        }
        let rows_of_warp = if first.few_planar { 4 } else { GEMV_ROWS * (32 / job.lanes) };
        let blocks = job.n_rows.div_ceil(GEMV_WARPS * rows_of_warp);
        let grid = (blocks, u32_of(outs.len()), u32_of(n_pairs));
        let shape = Shape { grid, block: 128, shared: 0, waits: true };
        // SAFETY: the parameter of `gemv_experts_*`; lengths are checked above, and the router's
        // numbers are below the length of the table.
        unsafe { self.launch(first.gemv, shape, params![job]) }
    }

    /// Product of sorted rows with their experts' matrices in int8.
    ///
    /// # Errors
    /// If there is no such product, or the driver fails.
    ///
    /// # Panics
    /// If shapes disagree or the operand has no int8 form.
    pub fn mmq_experts(
        &self,
        out: &ExpertOut<'_>,
        x: &OperandRef<'_>,
        sorted: &SortedRows<'_>,
    ) -> CudaResult<()> {
        let Some((kernel, args, rows)) = &out.table.mmq else {
            let what = format!("no int8 product reads {} here", out.table.quant.name());
            return Err(CudaError::Weight(what));
        };
        check_sorted(out, x, sorted);
        assert!(x.int8.is_some(), "form of the operand");
        let a = MmqArgs {
            y: out.y.ptr,
            xq: address(x.int8.map(|int8| int8.0)),
            xds: address(x.int8.map(|int8| int8.1)),
            n_tokens: u32_of(sorted.n_pairs),
            ..*args
        };
        let tiles = sorted.tiles(MMQ_TILE);
        let rows = RawRows { table: rows.all().ptr, base: 0, step: 0 };
        let job = RawExpertMmq { a, rows, tiles: tiles.ptr };
        let grid = (u32_of(tiles.len() / 4), a.n_rows.div_ceil(64), 1);
        let shape = Shape { grid, block: MmqKernel::THREADS, shared: 0, waits: false };
        // SAFETY: the parameter of `experts_mmq_*`; lengths are checked above, strides come from
        // the layouts, tiles from `moe_tiles`.
        unsafe { self.launch(*kernel, shape, params![job]) }
    }

    /// Product of sorted rows with their experts' matrices in bf16: those of `dense`, all experts'
    /// rows one below the other, or the `bf16` planes.
    ///
    /// # Errors
    /// If there is neither, or the driver fails.
    ///
    /// # Panics
    /// If shapes disagree or the operand has no bf16 form.
    pub fn gemm_experts(
        &self,
        out: &ExpertOut<'_>,
        dense: Option<Span<'_, half::bf16>>,
        x: &OperandRef<'_>,
        sorted: &SortedRows<'_>,
    ) -> CudaResult<()> {
        let table = out.table;
        let (n_rows, row_len) = (table.n_rows, table.row_len);
        check_sorted(out, x, sorted);
        assert!(x.bf16.is_some(), "form of the operand");
        let (rows, w_stride) = match (dense, &table.bf16) {
            (Some(dense), _) => {
                assert!(dense.len() >= table.n_expert * n_rows * row_len, "weights");
                let step = 2 * (n_rows * row_len) as u64;
                (RawRows { table: 0, base: dense.ptr, step }, row_len)
            }
            (None, Some((rows, stride))) => {
                (RawRows { table: rows.all().ptr, base: 0, step: 0 }, *stride)
            }
            (None, None) => {
                return Err(CudaError::Weight("no weights in bf16".to_owned()));
            }
        };
        assert!(row_len.is_multiple_of(32) && w_stride.is_multiple_of(8), "{row_len} {w_stride}");
        let job = RawGemm {
            w: 0,
            x: address(x.bf16),
            y: out.y.ptr,
            bias: 0,
            n_rows: u32_of(n_rows),
            n_tokens: u32_of(sorted.n_pairs),
            row_len: u32_of(row_len),
            w_stride: u32_of(w_stride),
            add: 0,
        };
        let tiles = sorted.tiles(GEMM_TILE);
        let grid = (u32_of(tiles.len() / 4), job.n_rows.div_ceil(128), 1);
        let shared = RawGemm::SHARED_BYTES;
        let kernel = self.known_with("experts_gemm_bf16", shared)?;
        let job = RawExpertGemm { job, rows, tiles: tiles.ptr };
        // SAFETY: the parameter of `experts_gemm_bf16`; lengths are checked above, tiles come from
        // `moe_tiles`.
        unsafe {
            self.launch(kernel, Shape { grid, block: 256, shared, waits: true }, params![job])
        }
    }
}

fn check_sorted(out: &ExpertOut<'_>, x: &OperandRef<'_>, sorted: &SortedRows<'_>) {
    let table = out.table;
    assert_eq!(sorted.shape.n_expert, table.n_expert, "experts");
    assert!(out.y.len() >= sorted.n_pairs * table.n_rows, "outputs");
    x.raw(sorted.n_pairs * table.row_len);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_as_the_c_structs_have_them() {
        assert_eq!(size_of::<RawExpertGemv>(), 4 * 8 + 5 * 8 + 4 * 4);
        assert_eq!(std::mem::offset_of!(RawExpertMmq, rows), size_of::<MmqArgs>());
        assert_eq!(std::mem::offset_of!(RawExpertGemm, rows), 56);
    }
}
