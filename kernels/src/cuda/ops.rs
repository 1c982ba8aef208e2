//! Launches, one function a kernel: shapes are checked here, and the kernels trust them.

use std::ffi::c_void;
use std::sync::Arc;

use super::driver::{Buffer, Gpu, Shape, Span};
use super::error::CudaResult;
use super::mmq::{MmqArgs, MmqKernel};
use super::weight::DeviceWeight;

/// Most tokens of one GEMV launch.
pub const MAX_GEMV_TOKENS: usize = 4;
/// Warps of a GEMV block, a row each.
const GEMV_WARPS: u32 = 4;

/// Pointers to parameters, for a launch.
macro_rules! params {
    ($($param:expr),* $(,)?) => {
        &mut [$((&raw const $param).cast_mut().cast::<c_void>()),*]
    };
}

pub(super) use params;

/// How a gated feed-forward network bends its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
}

/// Where a producer of activations writes; as `Operand` in `common.cuh`. Each is
/// `[n_tokens, width]`, `ds` `[n_tokens, width / 32]` pairs (scale, scale * sum).
#[derive(Debug, Clone, Copy, Default)]
pub struct OperandRef<'b> {
    /// The values.
    pub f32: Option<Span<'b, f32>>,
    /// The values, rounded.
    pub bf16: Option<Span<'b, half::bf16>>,
    /// The values as 8-bit integers, with their scales.
    pub int8: Option<(Span<'b, i8>, Span<'b, [f32; 2]>)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawOperand {
    pub(super) f32: u64,
    pub(super) bf16: u64,
    pub(super) q: u64,
    pub(super) ds: u64,
}

fn address<T>(span: Option<Span<'_, T>>) -> u64 {
    span.map_or(0, |span| span.address())
}

impl OperandRef<'_> {
    pub(super) fn raw(&self, n: usize) -> RawOperand {
        assert!(n.is_multiple_of(32), "{n} elements");
        assert!(self.f32.is_none_or(|span| span.len() >= n), "f32 operand");
        assert!(self.bf16.is_none_or(|span| span.len() >= n), "bf16 operand");
        assert!(self.int8.is_none_or(|(q, ds)| q.len() >= n && ds.len() >= n / 32), "int8 operand");
        RawOperand {
            f32: address(self.f32),
            bf16: address(self.bf16),
            q: address(self.int8.map(|int8| int8.0)),
            ds: address(self.int8.map(|int8| int8.1)),
        }
    }
}

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
struct RawGemv {
    m: [RawMatrix; 3],
    q: u64,
    ds: u64,
    f32: u64,
    row_len: u32,
    n_tokens: u32,
}

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

#[repr(C)]
#[derive(Clone, Copy)]
struct RawGemm {
    w: u64,
    x: u64,
    y: u64,
    bias: u64,
    n_rows: u32,
    n_tokens: u32,
    row_len: u32,
    w_stride: u32,
    add: u32,
}

/// Lengths inside a launch fit 32 bits; buffers that large exist before anything is launched.
pub(super) fn u32_of(n: usize) -> u32 {
    assert!(u32::try_from(n).is_ok(), "{n} is too large for a launch");
    n as u32
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
        let shape = Shape { grid: (u32_of(n_tokens), 1, 1), block: 128, shared: 0, waits: true };
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
        let shared = 2 * 3 * 128 * (32 + 8) * 2;
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

    /// `out = rms_norm(x) * gain` of each row.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree or the width is not a multiple of 32.
    pub fn rmsnorm(
        &self,
        out: &OperandRef<'_>,
        x: Span<'_, f32>,
        gain: Span<'_, f32>,
        n_tokens: usize,
        eps: f32,
    ) -> CudaResult<()> {
        let n = n_tokens * gain.len();
        assert!(gain.len().is_multiple_of(32) && x.len() >= n, "{} x {}", n_tokens, gain.len());
        let (raw, width) = (out.raw(n), u32_of(gain.len()));
        let shape = row_shape(n_tokens, width);
        let params = params![raw, x.ptr, gain.ptr, width, eps];
        // SAFETY: the parameters of `rmsnorm`; lengths are checked above.
        unsafe { self.launch(self.known("rmsnorm")?, shape, params) }
    }

    /// `x += rms_norm(y) * gain` of each row.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn add_rmsnorm(
        &self,
        x: Span<'_, f32>,
        y: Span<'_, f32>,
        gain: Span<'_, f32>,
        n_tokens: usize,
        eps: f32,
    ) -> CudaResult<()> {
        let n = n_tokens * gain.len();
        assert!(x.len() >= n && y.len() >= n, "{} x {}", n_tokens, gain.len());
        let width = u32_of(gain.len());
        let params = params![x.ptr, y.ptr, gain.ptr, width, eps];
        // SAFETY: the parameters of `add_rmsnorm`; lengths are checked above.
        unsafe { self.launch(self.known("add_rmsnorm")?, row_shape(n_tokens, width), params) }
    }

    /// Normalizes each head in place.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If `x` is not made of whole heads.
    pub fn rmsnorm_heads(&self, x: Span<'_, f32>, gain: Span<'_, f32>, eps: f32) -> CudaResult<()> {
        assert!(x.len().is_multiple_of(gain.len()), "{} of {}", x.len(), gain.len());
        let (n_heads, head_dim) = (u32_of(x.len() / gain.len()), u32_of(gain.len()));
        let shape = Shape { grid: (n_heads.div_ceil(8), 1, 1), block: 256, shared: 0, waits: true };
        let params = params![x.ptr, gain.ptr, n_heads, head_dim, eps];
        // SAFETY: the parameters of `rmsnorm_heads`; lengths are checked above.
        unsafe { self.launch(self.known("rmsnorm_heads")?, shape, params) }
    }

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
        let n = (u32_of(q_row) + 2 * u32_of(kv_row)) / 2;
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
        // SAFETY: the parameters of `rope_store`; lengths are checked above.
        unsafe { self.launch(self.known("rope_store")?, shape, params) }
    }

    /// `out = activation(gate) * up`.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn gate(
        &self,
        out: &OperandRef<'_>,
        gate: Span<'_, f32>,
        up: Span<'_, f32>,
        kind: Gate,
    ) -> CudaResult<()> {
        assert_eq!(gate.len(), up.len(), "gate and up");
        let (raw, n) = (out.raw(gate.len()), gate.len() as u64);
        let kind = u32::from(kind == Gate::GeluTanh);
        let params = params![raw, gate.ptr, up.ptr, kind, n];
        // SAFETY: the parameters of `gated`; lengths are checked above.
        unsafe { self.launch(self.known("gated")?, Shape::over(n), params) }
    }

    /// An operand from f32 rows.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn convert(&self, out: &OperandRef<'_>, x: Span<'_, f32>) -> CudaResult<()> {
        let (raw, n) = (out.raw(x.len()), x.len() as u64);
        // SAFETY: the parameters of `convert`; lengths are checked above.
        unsafe { self.launch(self.known("convert")?, Shape::over(n), params![raw, x.ptr, n]) }
    }

    /// `x += y`.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn add(&self, x: Span<'_, f32>, y: Span<'_, f32>) -> CudaResult<()> {
        assert_eq!(x.len(), y.len(), "terms");
        let n = x.len() as u64;
        // SAFETY: the parameters of `add`; lengths are checked above.
        unsafe { self.launch(self.known("add")?, Shape::over(n), params![x.ptr, y.ptr, n]) }
    }

    /// Adds `bias` to each row of `y`.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn add_bias(&self, y: Span<'_, f32>, bias: Span<'_, f32>) -> CudaResult<()> {
        let (n, width) = (y.len() as u64, u32_of(bias.len()));
        let params = params![y.ptr, bias.ptr, width, n];
        // SAFETY: the parameters of `add_bias`; a row's element has an element of the bias.
        unsafe { self.launch(self.known("add_bias")?, Shape::over(n), params) }
    }

    /// `x = cap * tanh(x / cap)`.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn soft_cap(&self, x: Span<'_, f32>, cap: f32) -> CudaResult<()> {
        let n = x.len() as u64;
        // SAFETY: the parameters of `soft_cap`.
        unsafe { self.launch(self.known("soft_cap")?, Shape::over(n), params![x.ptr, cap, n]) }
    }

    /// Index of the first largest element to `out[0]`. `state`: two words, zero before and after.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn argmax(
        &self,
        out: Span<'_, u32>,
        x: Span<'_, f32>,
        state: Span<'_, u64>,
    ) -> CudaResult<()> {
        assert!(!out.is_empty() && state.len() >= 2, "buffers");
        let n = u32_of(x.len());
        let n_done = state.span(1..2);
        let shape = Shape {
            grid: (n.div_ceil(1024).clamp(1, 128), 1, 1),
            block: 256,
            shared: 0,
            waits: true,
        };
        let params = params![out.ptr, x.ptr, n, state.ptr, n_done.ptr];
        // SAFETY: the parameters of `argmax`; lengths are checked above.
        unsafe { self.launch(self.known("argmax")?, shape, params) }
    }

    /// Every 32-bit word of a buffer: what tests put where kernels must write.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn fill_words<T>(&self, out: Span<'_, T>, value: u32) -> CudaResult<()> {
        let n = (out.len() * size_of::<T>() / 4) as u64;
        let shape = Shape { waits: false, ..Shape::over(n) };
        // SAFETY: the parameters of `fill`.
        unsafe { self.launch(self.known("fill")?, shape, params![out.ptr, value, n]) }
    }
}

/// A block a row, of as many threads as the width has work for.
fn row_shape(n_tokens: usize, width: u32) -> Shape {
    let block = width.div_ceil(4).next_multiple_of(32).clamp(32, 1024);
    Shape { grid: (u32_of(n_tokens), 1, 1), block, shared: 0, waits: true }
}
