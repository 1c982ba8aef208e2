//! Products of matrices with few and with many tokens: which family, which kernel.

use super::tensor::{Operand, Tensor, grow};
use super::{Cuda, Family, MAX_SMALL_TOKENS, Matrix};
use crate::open::Prefill;
use kernels::cuda::{Buffer, CudaError, CudaResult, GemvOut, MAX_GEMV_TOKENS, Span};
use std::sync::atomic::Ordering;

impl Cuda {
    /// Whether steps of some tokens read blocks although bf16 products are the rule. On Hopper those
    /// win with a copy made for each of them too (10.5 ms against 19.6 at 8 tokens of a 7B model).
    pub(super) fn small_in_int8(&self) -> bool {
        let slow_copies = !self.copies.are_kept() && self.gpu.info().compute != (9, 0);
        self.options.prefill == Prefill::Auto && slow_copies
    }

    /// Whether a step of many tokens multiplies quantized matrices in int8.
    pub(super) fn is_int8(&self, n_tokens: usize) -> bool {
        self.family == Family::Mmq || (self.small_in_int8() && n_tokens <= MAX_SMALL_TOKENS)
    }

    /// `outs = matrices * x` for few tokens: matrices of one type share a launch.
    pub(super) fn multiply_few(
        &self,
        outs: &[(&Tensor, &Matrix)],
        x: &Operand,
        add: bool,
    ) -> CudaResult<()> {
        let mut rest = outs;
        while let Some(((_, first), _)) = rest.split_first() {
            let same = |(_, matrix): &&(&Tensor, &Matrix)| {
                let (a, b) = (&matrix.weight, &first.weight);
                a.quant() == b.quant() && a.few_kind() == b.few_kind()
            };
            let n = rest.iter().take(3).take_while(same).count();
            let (now, later) = rest.split_at(n);
            let launch: Vec<GemvOut<'_>> = now
                .iter()
                .map(|(out, matrix)| GemvOut {
                    weight: &matrix.weight,
                    y: out.rows(),
                    bias: matrix.bias.as_ref().map(Buffer::all),
                    add,
                })
                .collect();
            self.gpu.gemv(&launch, &x.get(), x.n_tokens)?;
            for (_, matrix) in now {
                self.count(&matrix.n_gemv);
            }
            rest = later;
        }
        Ok(())
    }

    /// `out = matrix * x` for many tokens.
    pub(super) fn multiply_many(
        &self,
        out: &Tensor,
        m: &Matrix,
        x: &Operand,
        add: bool,
    ) -> CudaResult<()> {
        let kernel = if self.is_int8(x.n_tokens) { m.weight.mmq(x.n_tokens) } else { None };
        let bias = m.bias.as_ref().map(Buffer::all);
        if let Some(kernel) = kernel {
            m.n_mmq.fetch_add(1, Ordering::Relaxed);
            let out = GemvOut { weight: &m.weight, y: out.rows(), bias, add };
            return self.gpu.mmq(kernel, &out, &x.get(), x.n_tokens);
        }
        m.n_gemm.fetch_add(1, Ordering::Relaxed);
        if let Some(plane) = m.weight.bf16() {
            return self.multiply_dense(out, plane, m, x, add);
        }
        let (n_rows, row_len) = (m.weight.n_rows(), m.weight.row_len());
        if let Some(copy) = self.kept_copy(m)? {
            return self.multiply_dense(out, (copy, row_len), m, x, add);
        }
        let mut shared = self.shared();
        let dense = grow(&self.gpu, &self.epoch, &mut shared.dense, n_rows * row_len)?;
        self.gpu.dequantize(dense.all(), &m.weight)?;
        self.multiply_dense(out, (dense.all(), row_len), m, x, add)
    }

    /// `out = w * x` with the weights of `m` in bf16, rows as many elements apart as `w` says.
    pub(super) fn multiply_dense(
        &self,
        out: &Tensor,
        w: (Span<'_, half::bf16>, usize),
        m: &Matrix,
        x: &Operand,
        add: bool,
    ) -> CudaResult<()> {
        let Some(x_bf16) = x.get().bf16 else {
            let why = format!("tensor {}: its activations are not there in bf16", m.name);
            return Err(CudaError::Weight(why));
        };
        let shape = (x.n_tokens, m.weight.n_rows(), m.weight.row_len());
        let bias = m.bias.as_ref().map(Buffer::all);
        match &self.blas {
            Some(blas) => blas.gemm(out.rows(), w, x_bf16, bias, shape, add),
            None => self.gpu.gemm_bf16(out.rows(), w, x_bf16, bias, shape, add),
        }
    }

    pub(super) fn multiply(
        &self,
        outs: &[(&Tensor, &Matrix)],
        x: &Operand,
        add: bool,
    ) -> CudaResult<()> {
        if x.n_tokens <= MAX_GEMV_TOKENS {
            return self.multiply_few(outs, x, add);
        }
        outs.iter().try_for_each(|(out, matrix)| self.multiply_many(out, matrix, x, add))
    }
}
