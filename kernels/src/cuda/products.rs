//! Launches that read weights: products with few and many tokens, rows in bf16, embeddings.

use std::ffi::c_void;

use super::driver::Gpu;
use super::error::CudaResult;
use super::launch::Shape;
use super::memory::Span;
use super::mmq::{MmqArgs, MmqKernel};
use super::ops::{OperandRef, address, params, u32_of};
use super::weight::DeviceWeight;

/// Most tokens of one GEMV launch.
pub const MAX_GEMV_TOKENS: usize = 4;
/// Warps of a GEMV block, a row each.
const GEMV_WARPS: u32 = 4;

/// One matrix of a GEMV launch.
#[derive(Debug, Clone, Copy)]
pub struct GemvOut<'b> {
    /// The weight.
    pub weight: &'b DeviceWeight,
    /// `[n_tokens, n_rows]`.
    pub y: Span<'b, f32>,
    /// `[n_rows]`.
    pub bias: Option<Span<'b, f32>>,
    /// Whether the product is added to `y`.
    pub add: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawMatrix {
    w: u64,
    row_stride: u64,
    y: u64,
    bias: u64,
    n_rows: u32,
    add: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawGemv {
    m: [RawMatrix; 3],
    q: u64,
    ds: u64,
    f32: u64,
    row_len: u32,
    n_tokens: u32,
}

/// As `GemmJob` in `gemm/tile.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawGemm {
    pub(super) w: u64,
    pub(super) x: u64,
    pub(super) y: u64,
    pub(super) bias: u64,
    pub(super) n_rows: u32,
    pub(super) n_tokens: u32,
    pub(super) row_len: u32,
    pub(super) w_stride: u32,
    pub(super) add: u32,
}

impl RawGemm {
    /// Three buffers of two tiles of 128 rows of 32 elements, 8 apart.
    pub(super) const SHARED_BYTES: u32 = 2 * 3 * 128 * (32 + 8) * 2;
}

impl Gpu {
    /// `out[t] = scale * table[tokens[t]]`.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree. Tokens must be rows of the table: the caller has checked them.
    pub fn embed(
        &self,
        out: Span<'_, f32>,
        table: &DeviceWeight,
        tokens: Span<'_, u32>,
        n_tokens: usize,
        scale: f32,
    ) -> CudaResult<()> {
        assert!(tokens.len() >= n_tokens && out.len() >= n_tokens * table.row_len());
        if table.base().any {
            return self.embed_any(out, table, tokens, n_tokens, scale);
        }
        // A step begins when all of the one before it has ended: later launches rely on that for what
        // they read before they wait.
        let shape = Shape { grid: (u32_of(n_tokens), 1, 1), block: 128, shared: 0, waits: false };
        let (w, stride, row_len) = (table.address(), table.row_stride(), u32_of(table.row_len()));
        let params = params![w, stride, out.ptr, tokens.ptr, row_len, scale];
        // SAFETY: the parameters of `embed_*`; lengths are checked above.
        unsafe { self.launch(table.embed, shape, params) }
    }

    /// Rows of a weight as bf16, `[n_rows, row_len]`.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If `out` is too small.
    pub fn dequantize(&self, out: Span<'_, half::bf16>, weight: &DeviceWeight) -> CudaResult<()> {
        let n = weight.n_rows() * weight.row_len();
        assert!(out.len() >= n, "{} of {n}", out.len());
        if weight.base().any {
            return self.dequantize_any(out, weight);
        }
        let blocks =
            (n as u64 / 8).div_ceil(256).min(u64::from(self.info().n_multiprocessors) * 32);
        let shape = Shape { grid: (blocks as u32, 1, 1), block: 256, shared: 0, waits: true };
        let (w, stride) = (weight.address(), weight.row_stride());
        let (n_rows, row_len) = (u32_of(weight.n_rows()), u32_of(weight.row_len()));
        // SAFETY: the parameters of `dequant_*`; the length is checked above.
        unsafe { self.launch(weight.dequant, shape, params![w, stride, out.ptr, n_rows, row_len]) }
    }

    /// Products of up to three matrices of one type and row length with up to
    /// [`MAX_GEMV_TOKENS`] tokens.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If shapes disagree or the operand lacks the form that the weights need.
    pub fn gemv(
        &self,
        outs: &[GemvOut<'_>],
        x: &OperandRef<'_>,
        n_tokens: usize,
    ) -> CudaResult<()> {
        let Some(first) = outs.first() else { return Ok(()) };
        assert!(outs.len() <= 3 && (1..=MAX_GEMV_TOKENS).contains(&n_tokens));
        let row_len = first.weight.row_len();
        x.raw(n_tokens * row_len);
        let float = first.weight.quant().is_float();
        assert!(if float { x.f32.is_some() } else { x.int8.is_some() }, "form of the operand");
        let none = RawMatrix { w: 0, row_stride: 0, y: 0, bias: 0, n_rows: 0, add: 0 };
        let mut m = [none; 3];
        let (mut n_rows, planar) = (0, first.weight.few().planar);
        for (raw, out) in m.iter_mut().zip(outs) {
            let w = out.weight;
            assert!(w.quant() == first.weight.quant() && w.row_len() == row_len, "one type");
            assert!(w.few_kind() == first.weight.few_kind(), "one form");
            assert!(out.y.len() >= n_tokens * w.n_rows(), "outputs");
            assert!(out.bias.is_none_or(|bias| bias.len() >= w.n_rows()), "bias");
            *raw = RawMatrix {
                w: w.few().address,
                row_stride: w.few().stride,
                y: out.y.ptr,
                bias: address(out.bias),
                n_rows: u32_of(w.n_rows()),
                add: u32::from(out.add),
            };
            // `planar`: four rows of one matrix a block; `padded`: any four.
            n_rows += if planar { w.n_rows().next_multiple_of(4) } else { w.n_rows() };
        }
        let job = RawGemv {
            m,
            q: address(x.int8.map(|int8| int8.0)),
            ds: address(x.int8.map(|int8| int8.1)),
            f32: address(x.f32),
            row_len: u32_of(row_len),
            n_tokens: u32_of(n_tokens),
        };
        if first.weight.few().any {
            let one = |(out, m): (&GemvOut<'_>, RawMatrix)| {
                self.gemv_any(out.weight, RawGemv { m: [m, none, none], ..job })
            };
            return outs.iter().zip(m).try_for_each(one);
        }
        let kernel = first.weight.gemv[usize::from(n_tokens > 1)];
        let blocks = u32_of(n_rows).div_ceil(GEMV_WARPS);
        let shape = Shape { grid: (blocks, 1, 1), block: 32 * GEMV_WARPS, shared: 0, waits: true };
        // SAFETY: the parameter of `gemv_*`; lengths are checked above.
        unsafe { self.launch(kernel, shape, params![job]) }
    }

    /// Product of a bf16 matrix `[n_rows, row_len]` (rows `w_stride` elements apart) with many tokens, in the project's own kernel:
    /// `y` (added to, if `add`) `= x w^T + bias`.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If shapes disagree or rows are not made of 32 elements.
    #[allow(clippy::too_many_arguments)]
    pub fn gemm_bf16(
        &self,
        y: Span<'_, f32>,
        (w, w_stride): (Span<'_, half::bf16>, usize),
        x: Span<'_, half::bf16>,
        bias: Option<Span<'_, f32>>,
        (n_tokens, n_rows, row_len): (usize, usize, usize),
        add: bool,
    ) -> CudaResult<()> {
        assert!(row_len.is_multiple_of(32) && w_stride.is_multiple_of(8), "{row_len} {w_stride}");
        assert!(w.len() >= (n_rows - 1) * w_stride + row_len, "weights");
        assert!(x.len() >= n_tokens * row_len && row_len <= w_stride, "operands");
        assert!(y.len() >= n_tokens * n_rows, "outputs");
        assert!(bias.is_none_or(|bias| bias.len() >= n_rows), "bias");
        let job = RawGemm {
            w: w.ptr,
            x: x.ptr,
            y: y.ptr,
            bias: address(bias),
            n_rows: u32_of(n_rows),
            n_tokens: u32_of(n_tokens),
            row_len: u32_of(row_len),
            w_stride: u32_of(w_stride),
            add: u32::from(add),
        };
        let shared = RawGemm::SHARED_BYTES;
        let grid = (job.n_tokens.div_ceil(128), job.n_rows.div_ceil(128), 1);
        let kernel = self.known_with("gemm_bf16", shared)?;
        // SAFETY: the parameter of `gemm_bf16`; lengths are checked above.
        unsafe {
            self.launch(kernel, Shape { grid, block: 256, shared, waits: true }, params![job])
        }
    }

    /// Product of a quantized matrix with many tokens in one of the int8 tensor-core kernels.
    ///
    /// # Errors
    /// If the kernel does not read what is there, or the driver fails.
    ///
    /// # Panics
    /// If shapes disagree or the operand has no int8 form.
    pub fn mmq(
        &self,
        kernel: &'static MmqKernel,
        out: &GemvOut<'_>,
        x: &OperandRef<'_>,
        n_tokens: usize,
    ) -> CudaResult<()> {
        let weight = out.weight;
        x.raw(n_tokens * weight.row_len());
        assert!(x.int8.is_some(), "form of the operand");
        assert!(out.y.len() >= n_tokens * weight.n_rows(), "outputs");
        assert!(out.bias.is_none_or(|bias| bias.len() >= weight.n_rows()), "bias");
        let args = MmqArgs {
            y: out.y.ptr,
            xq: address(x.int8.map(|int8| int8.0)),
            xds: address(x.int8.map(|int8| int8.1)),
            bias: address(out.bias),
            residual: if out.add { out.y.ptr } else { 0 },
            n_tokens: u32_of(n_tokens),
            ..weight.mmq_args(kernel)?
        };
        let shape = Shape {
            grid: kernel.grid(args.n_tokens, args.n_rows),
            block: MmqKernel::THREADS,
            shared: kernel.shared_bytes,
            waits: false,
        };
        let function = self.known_with(kernel.name, kernel.shared_bytes)?;
        // SAFETY: the parameter of every kernel of `mmq/`; lengths are checked above, strides come
        // from the layouts.
        unsafe { self.launch(function, shape, params![args]) }
    }
}
