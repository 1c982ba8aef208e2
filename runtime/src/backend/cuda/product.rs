//! Products of matrices with few and with many tokens: which family, which kernel.

use super::ring::{MAX_MATRICES, launch_of, matrices_of};
use super::tensor::{Operand, Tensor};
use super::{Cuda, Family, MAX_SMALL_TOKENS, Matrix};
use crate::open::Prefill;
use kernels::cuda::mmq::MmqKernel;
use kernels::cuda::{Buffer, CudaResult, GemvOut, MAX_GEMV_TOKENS, RingSource};
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

    /// `outs = matrices * x` for few tokens: matrices that the ring reads share a launch, and else those of
    /// one type.
    pub(super) fn multiply_few(
        &self,
        outs: &[(&Tensor, &Matrix)],
        x: &Operand,
        add: bool,
    ) -> CudaResult<()> {
        let mut rest = outs;
        while let Some(((_, first), _)) = rest.split_first() {
            let rings = |&n: &usize| self.rings(&matrices_of(&rest[..n]), x.n_tokens, add);
            if let Some(n) = (1..=rest.len().min(MAX_MATRICES)).rev().find(rings) {
                let (now, later) = rest.split_at(n);
                self.ring(now, &RingSource::Operand(x.get()), add)?;
                rest = later;
                continue;
            }
            let same = |(_, matrix): &&(&Tensor, &Matrix)| {
                let (a, b) = (&matrix.weight, &first.weight);
                a.quant() == b.quant() && a.few_kind() == b.few_kind()
            };
            let n = rest.iter().take(MAX_MATRICES).take_while(same).count();
            let (now, later) = rest.split_at(n);
            self.gpu.gemv(&launch_of(now, add), &x.get(), x.n_tokens)?;
            self.count(&self.n_products.plain);
            for (_, matrix) in now {
                self.count(&matrix.n_gemv);
            }
            rest = later;
        }
        Ok(())
    }

    /// The int8 kernel for a matrix in a step of many tokens, if it is to be multiplied that way.
    pub(super) fn int8_kernel(&self, m: &Matrix, n_tokens: usize) -> Option<&'static MmqKernel> {
        if self.is_int8(n_tokens) { m.weight.mmq(n_tokens) } else { None }
    }

    /// `outs = matrices * x` for many tokens: bf16 products share launches where that is possible.
    fn multiply_many(&self, outs: &[(&Tensor, &Matrix)], x: &Operand, add: bool) -> CudaResult<()> {
        let mut rest = outs;
        while let Some(((out, m), later)) = rest.split_first() {
            if let Some(kernel) = self.int8_kernel(m, x.n_tokens) {
                m.n_mmq.fetch_add(1, Ordering::Relaxed);
                let bias = m.bias.as_ref().map(Buffer::all);
                let out = GemvOut { weight: &m.weight, y: out.rows(), bias, add };
                self.gpu.mmq(kernel, &out, &x.get(), x.n_tokens)?;
                rest = later;
                continue;
            }
            let is_dense = |(_, m): &&(&Tensor, &Matrix)| self.int8_kernel(m, x.n_tokens).is_none();
            let n = rest.iter().take(self.dense.n_shared()).take_while(is_dense).count();
            let (now, later) = rest.split_at(n);
            self.multiply_dense(now, x, add)?;
            rest = later;
        }
        Ok(())
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
        self.multiply_many(outs, x, add)
    }
}
