//! Launches, one function a kernel: shapes are checked here, and the kernels trust them.

use std::ffi::c_void;

use super::driver::Gpu;
use super::error::CudaResult;
use super::launch::Shape;
use super::memory::Span;

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

pub(super) fn address<T>(span: Option<Span<'_, T>>) -> u64 {
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

/// Lengths inside a launch fit 32 bits; buffers that large exist before anything is launched.
pub(super) fn u32_of(n: usize) -> u32 {
    assert!(u32::try_from(n).is_ok(), "{n} is too large for a launch");
    n as u32
}

impl Gpu {
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
        let may = takes_eights(&raw, n, &[x.ptr, gain.ptr]) && width <= 8 * 1024;
        let params = params![raw, x.ptr, gain.ptr, width, eps];
        let (name, shape) = match self.takes_wide(may) {
            true => (
                "rmsnorm8",
                Shape { block: (width / 8).next_multiple_of(32), ..row_shape(n_tokens, width) },
            ),
            false => ("rmsnorm", row_shape(n_tokens, width)),
        };
        // SAFETY: the parameters of `rmsnorm` and `rmsnorm8`; lengths are checked above.
        unsafe { self.launch(self.known(name)?, shape, params) }
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
        let (name, shape) =
            match self.takes_wide(takes_eights(&raw, gate.len(), &[gate.ptr, up.ptr])) {
                true => ("gated8", Shape::over(n / 8)),
                false => ("gated", Shape::over(n)),
            };
        // SAFETY: the parameters of `gated` and `gated8`; lengths are checked above.
        unsafe { self.launch(self.known(name)?, shape, params) }
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
        let (name, shape) = match self.takes_wide(takes_eights(&raw, x.len(), &[x.ptr])) {
            true => ("convert8", Shape::over(n / 8)),
            false => ("convert", Shape::over(n)),
        };
        // SAFETY: the parameters of `convert` and `convert8`; lengths are checked above.
        unsafe { self.launch(self.known(name)?, shape, params![raw, x.ptr, n]) }
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

/// Elements up to which an operand with an int8 form is one token's or a few: more threads with less
/// work each are done sooner.
const FEW_ELEMS: usize = 1 << 16;

/// Whether kernels that take eight elements a thread may run: their accesses are of 16 bytes.
fn takes_eights(out: &RawOperand, n: usize, inputs: &[u64]) -> bool {
    let many = out.q == 0 || n > FEW_ELEMS;
    many && [out.f32, out.bf16, out.q].iter().chain(inputs).all(|ptr| ptr.is_multiple_of(16))
}

/// A block a row, of as many threads as the width has work for.
fn row_shape(n_tokens: usize, width: u32) -> Shape {
    let block = width.div_ceil(4).next_multiple_of(32).clamp(32, 1024);
    Shape { grid: (u32_of(n_tokens), 1, 1), block, shared: 0, waits: true }
}
