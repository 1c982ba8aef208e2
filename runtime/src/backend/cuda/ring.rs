//! Products of one token with weights that come through a ring in shared memory, and what goes into one
//! launch with them: the norm before, the gate behind. The slow twin are the launches of `gemv` and of
//! what is fused here, which run where the ring is switched off or does not read a matrix.

use super::tensor::{Operand, Tensor, grow};
use super::{Cuda, Matrix};
use crate::report::RingReport;
use kernels::cuda::{Buffer, CudaResult, Gate, GemvOut, RingGate, RingSource};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Matrices of a launch.
pub(super) const MAX_MATRICES: usize = 3;

/// Launches of products with few tokens.
#[derive(Debug, Default)]
pub(super) struct Counts {
    ring: Arc<AtomicU64>,
    /// Those of `ring` that make a norm on the way.
    fused: Arc<AtomicU64>,
    pub(super) plain: Arc<AtomicU64>,
}

impl Cuda {
    /// Whether these matrices, which have one row length, go through the ring (what they give is added to
    /// their outputs, if `add`).
    pub(super) fn rings(&self, matrices: &[&Matrix], n_tokens: usize, add: bool) -> bool {
        let Some(first) = matrices.first() else { return false };
        let reads = |m: &&Matrix| {
            self.gpu.ring_reads(&m.weight) && m.weight.few_kind() == first.weight.few_kind()
        };
        let n_rows = matrices.iter().map(|m| m.weight.n_rows()).sum();
        let adds = add || matrices.iter().any(|m| m.bias.is_some());
        self.options.ring
            && n_tokens == 1
            && matrices.iter().all(reads)
            && (!adds || self.gpu.ring_has_room(n_rows))
    }

    /// `outs = matrices * source` of one token, whatever types the matrices have, or added to them.
    pub(super) fn ring(
        &self,
        outs: &[(&Tensor, &Matrix)],
        source: &RingSource<'_>,
        add: bool,
    ) -> CudaResult<()> {
        for outs in outs.chunks(MAX_MATRICES) {
            self.gpu.ring(&launch_of(outs, add), source, None)?;
            self.count_ring(outs);
        }
        Ok(())
    }

    /// `outs = matrices * (rms_norm(x) * gain)` of one token, if there is a launch for that.
    pub(super) fn norm_and_multiply(
        &self,
        outs: &[(&Tensor, &Matrix)],
        (x, gain, eps): (&Tensor, &Buffer<f32>, f32),
    ) -> CudaResult<bool> {
        if !self.fuses(outs, x.n_tokens) {
            return Ok(false);
        }
        self.ring(outs, &RingSource::Norm { x: x.rows(), gain: gain.all(), eps }, false)?;
        self.count(&self.n_products.fused);
        Ok(true)
    }

    /// `out = activation(gate) * up` of matrices that multiply `rms_norm(x) * gain`, if there is a launch for
    /// that.
    pub(super) fn norm_and_gate(
        &self,
        out: &mut Operand,
        pair: &[(&Tensor, &Matrix); 2],
        (x, gain, eps): (&Tensor, &Buffer<f32>, f32),
        kind: Gate,
    ) -> CudaResult<bool> {
        let [gate, up] = pair.map(|(_, m)| m);
        let n = out.row_len;
        let is_pair = gate.weight.quant() == up.weight.quant()
            && gate.weight.n_rows() == up.weight.n_rows()
            && n.is_multiple_of(32)
            && gate.bias.is_none()
            && up.bias.is_none();
        if !is_pair || !self.fuses(pair, x.n_tokens) {
            return Ok(false);
        }
        self.prepare(out, 1)?;
        let mut shared = self.shared();
        let had = shared.n_done.as_ref().map_or(0, Buffer::len);
        let n_done = grow(&self.gpu, &self.epoch, &mut shared.n_done, n / 32)?;
        if n_done.len() > had {
            self.gpu.fill_words(n_done.all(), 0)?;
        }
        let source = RingSource::Norm { x: x.rows(), gain: gain.all(), eps };
        let gate = RingGate { out: out.get(), n_done: n_done.all(), kind };
        self.gpu.ring(&launch_of(pair, false), &source, Some(&gate))?;
        self.count_ring(pair);
        self.count(&self.n_products.fused);
        Ok(true)
    }

    fn fuses(&self, outs: &[(&Tensor, &Matrix)], n_tokens: usize) -> bool {
        self.options.fused && self.rings(&matrices_of(outs), n_tokens, false)
    }

    fn count_ring(&self, outs: &[(&Tensor, &Matrix)]) {
        self.count(&self.n_products.ring);
        outs.iter().for_each(|(_, matrix)| self.count(&matrix.n_gemv));
    }

    /// Which kernels made products of few tokens.
    pub(crate) fn ring_report(&self) -> RingReport {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RingReport {
            on: self.options.ring,
            n_ring: count(&self.n_products.ring),
            n_fused: count(&self.n_products.fused),
            n_plain: count(&self.n_products.plain),
        }
    }
}

pub(super) fn matrices_of<'m>(outs: &[(&Tensor, &'m Matrix)]) -> Vec<&'m Matrix> {
    outs.iter().map(|(_, matrix)| *matrix).collect()
}

/// Matrices of a launch of few tokens.
pub(super) fn launch_of<'b>(outs: &[(&'b Tensor, &'b Matrix)], add: bool) -> Vec<GemvOut<'b>> {
    let one = |(out, matrix): &(&'b Tensor, &'b Matrix)| GemvOut {
        weight: &matrix.weight,
        y: out.rows(),
        bias: matrix.bias.as_ref().map(Buffer::all),
        add,
    };
    outs.iter().map(one).collect()
}
