//! bf16 products: whose kernels make them, and the weights in bf16 that they read.

use super::tensor::{Forms, Operand, Tensor, grow};
use super::{Cuda, Matrix};
use crate::open::Gemm;
use crate::report::GemmReport;
use kernels::cuda::{
    Blas, Buffer, CudaError, CudaResult, DenseMatrix, Gate, Gpu, Sm90Kernel, Span,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Matrices of one launch.
const MAX_SHARED: usize = 3;
/// A matrix in scratch starts at a multiple of so many elements.
const SCRATCH_ALIGN: usize = 128;

/// Whose kernels make bf16 products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dense {
    /// Our own for Hopper.
    Sm90,
    /// cuBLASLt's.
    Blas,
    /// Our own for every GPU.
    Mma,
}

impl Dense {
    /// The way of a device.
    pub(super) fn of(gpu: &Gpu, gemm: Gemm) -> Self {
        let own = if gpu.has_sm90() { Self::Sm90 } else { Self::Mma };
        match gemm {
            Gemm::Auto if own == Self::Sm90 => own,
            Gemm::Auto | Gemm::Cublas if Blas::is_here() => Self::Blas,
            Gemm::Auto | Gemm::Cublas | Gemm::Own => own,
        }
    }

    /// Whether it makes the most of a device's bf16 tensor cores.
    pub(super) fn is_fast(self) -> bool {
        self != Self::Mma
    }

    /// Matrices with the same tokens that share a launch, at most.
    pub(super) fn n_shared(self) -> usize {
        if self == Self::Sm90 { MAX_SHARED } else { 1 }
    }

    /// As reports name it.
    pub(super) fn kernel(self) -> &'static str {
        match self {
            Self::Sm90 => "gemm_sm90",
            Self::Blas => "cublaslt_bf16",
            Self::Mma => "gemm_bf16",
        }
    }
}

/// Launches of bf16 products.
#[derive(Debug, Default)]
pub(super) struct Counts {
    sm90: AtomicU64,
    blas: AtomicU64,
    mma: AtomicU64,
}

impl Cuda {
    /// Which kernels made bf16 products.
    pub(crate) fn gemm_report(&self) -> GemmReport {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GemmReport {
            kernel: self.dense.kernel(),
            n_sm90: count(&self.n_dense.sm90),
            n_cublas: count(&self.n_dense.blas),
            n_mma: count(&self.n_dense.mma),
        }
    }

    /// `outs = matrices * x` in bf16, or added to them.
    pub(super) fn multiply_dense(
        &self,
        outs: &[(&Tensor, &Matrix)],
        x: &Operand,
        add: bool,
    ) -> CudaResult<()> {
        let matrices: Vec<&Matrix> = outs.iter().map(|(_, matrix)| *matrix).collect();
        self.with_dense(&matrices, |dense| {
            let outs: Vec<_> =
                dense.iter().zip(outs).map(|(&m, (out, _))| (m, out.rows())).collect();
            let row_len = matrices.first().map_or(0, |m| m.weight.row_len());
            let name = matrices.first().map_or("", |m| &m.name);
            self.launch_dense(&outs, bf16_of(x, name)?, (x.n_tokens, row_len), add)
        })
    }

    fn launch_dense(
        &self,
        outs: &[(DenseMatrix<'_>, Span<'_, f32>)],
        x: Span<'_, half::bf16>,
        (n_tokens, row_len): (usize, usize),
        add: bool,
    ) -> CudaResult<()> {
        let fits = outs.iter().all(|(m, _)| Gpu::fits_sm90(row_len, m.stride));
        if self.dense == Dense::Sm90 && fits {
            self.n_dense.sm90.fetch_add(1, Ordering::Relaxed);
            let rows: Vec<usize> = outs.iter().map(|(m, _)| m.n_rows).collect();
            let kernel = Sm90Kernel::for_products(&self.gpu, n_tokens, &rows);
            return self.gpu.gemm_sm90(kernel, outs, x, (n_tokens, row_len), add);
        }
        outs.iter().try_for_each(|(m, y)| {
            let (w, shape) = ((m.w, m.stride), (n_tokens, m.n_rows, row_len));
            let counter = if self.blas.is_some() { &self.n_dense.blas } else { &self.n_dense.mma };
            counter.fetch_add(1, Ordering::Relaxed);
            match &self.blas {
                Some(blas) => blas.gemm(*y, w, x, m.bias, shape, add),
                None => self.gpu.gemm_bf16(*y, w, x, m.bias, shape, add),
            }
        })
    }

    /// `out = activation(gate x) * (up x)` in one launch, where the kernels for that are here and bf16
    /// is the one form that is asked for; else nothing, and `false`.
    pub(super) fn gate_dense(
        &self,
        out: &mut Operand,
        [gate, up]: [&Matrix; 2],
        x: &Operand,
        activation: Gate,
    ) -> CudaResult<bool> {
        let (n_tokens, n_rows) = (x.n_tokens, gate.weight.n_rows());
        let (row_len, forms) = (gate.weight.row_len(), self.forms(n_tokens));
        let is_dense = [gate, up].iter().all(|m| self.int8_kernel(m, n_tokens).is_none());
        let stride = |m: &Matrix| m.weight.bf16().map_or(row_len, |(_, stride)| stride);
        let fits = n_rows == up.weight.n_rows()
            && n_rows.is_multiple_of(8)
            && [gate, up].iter().all(|m| Gpu::fits_sm90(row_len, stride(m)));
        if self.dense != Dense::Sm90 || !is_dense || !fits || forms != Forms::BF16 {
            return Ok(false);
        }
        self.prepare(out, n_tokens)?;
        let out = bf16_of(out, &gate.name)?;
        let x = bf16_of(x, &gate.name)?;
        self.with_dense(&[gate, up], |dense| {
            let [gate, up] = dense else { return Ok(false) };
            self.n_dense.sm90.fetch_add(1, Ordering::Relaxed);
            let kernel = Sm90Kernel::for_gated(&self.gpu, n_tokens, n_rows);
            let shape = (n_tokens, row_len);
            self.gpu.gated_sm90(kernel, out, (gate, up), activation, x, shape)?;
            Ok(true)
        })
    }

    /// Calls `then` with matrices in bf16: from their planes, from kept copies, or copied into scratch.
    fn with_dense<R>(
        &self,
        matrices: &[&Matrix],
        then: impl FnOnce(&[DenseMatrix<'_>]) -> CudaResult<R>,
    ) -> CudaResult<R> {
        let elems = |m: &Matrix| m.weight.n_rows() * m.weight.row_len();
        let mut found = Vec::with_capacity(matrices.len());
        for m in matrices {
            m.n_gemm.fetch_add(1, Ordering::Relaxed);
            let kept = || Ok(self.kept_copy(m)?.map(|copy| (copy, m.weight.row_len())));
            found.push(m.weight.bf16().map_or_else(kept, |plane| Ok(Some(plane)))?);
        }
        let copied = matrices.iter().zip(&found).filter(|(_, w)| w.is_none());
        let n_elems: usize = copied.map(|(m, _)| elems(m).next_multiple_of(SCRATCH_ALIGN)).sum();
        let mut shared = self.shared();
        let scratch = grow(&self.gpu, &self.epoch, &mut shared.dense, n_elems)?;
        let mut at = 0;
        let mut dense = Vec::with_capacity(matrices.len());
        for (m, found) in matrices.iter().zip(found) {
            let (w, stride) = match found {
                Some(found) => found,
                None => {
                    let copy = scratch.span(at..at + elems(m));
                    at += elems(m).next_multiple_of(SCRATCH_ALIGN);
                    self.gpu.dequantize(copy, &m.weight)?;
                    (copy, m.weight.row_len())
                }
            };
            let bias = m.bias.as_ref().map(Buffer::all);
            dense.push(DenseMatrix { w, stride, n_rows: m.weight.n_rows(), bias });
        }
        then(&dense)
    }
}

fn bf16_of<'x>(x: &'x Operand, name: &str) -> CudaResult<Span<'x, half::bf16>> {
    x.get().bf16.ok_or_else(|| {
        CudaError::Weight(format!("tensor {name}: its activations are not there in bf16"))
    })
}

/// Matrices of a layer that meet the same tokens, by the parts of their names.
const TOGETHER: [&[&str]; 2] =
    [&["attn_q.weight", "attn_k.weight", "attn_v.weight"], &["ffn_gate.weight", "ffn_up.weight"]];

/// Elements of scratch that matrices, (name, elements), need together, those that share a launch
/// counted in one.
pub(super) fn scratch_elems<'n>(
    dense: Dense,
    matrices: impl Iterator<Item = (&'n str, usize)> + Clone,
) -> usize {
    let padded = |n: usize| n.next_multiple_of(SCRATCH_ALIGN);
    let alone = matrices.clone().map(|(_, n)| padded(n)).max().unwrap_or(0);
    if dense.n_shared() == 1 {
        return alone;
    }
    let group = |name: &'n str| {
        let of = |(i, parts): (usize, &&[&str])| {
            let layer = parts.iter().find_map(|part| name.strip_suffix(part))?;
            Some((layer, i))
        };
        TOGETHER.iter().enumerate().find_map(of)
    };
    let mut sums = HashMap::new();
    for (name, n) in matrices {
        if let Some(group) = group(name) {
            *sums.entry(group).or_insert(0) += padded(n);
        }
    }
    sums.into_values().max().unwrap_or(0).max(alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_holds_what_shares_a_launch() {
        let all = [
            ("blk.0.attn_q.weight", 1000),
            ("blk.0.attn_k.weight", 100),
            ("blk.1.attn_k.weight", 200),
            ("blk.0.attn_v.weight", 100),
            ("blk.0.ffn_down.weight", 900),
            ("token_embd.weight", 1100),
        ];
        // 1024 + 128 + 128, each from a multiple of 128 on.
        assert_eq!(scratch_elems(Dense::Sm90, all.into_iter()), 1280);
        assert_eq!(scratch_elems(Dense::Blas, all.into_iter()), 1152);
        assert_eq!(scratch_elems(Dense::Mma, all[..0].iter().copied()), 0);
    }
}
