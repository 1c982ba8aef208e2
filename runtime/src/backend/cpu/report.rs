//! What a matrix product on the CPU reports about itself.

use crate::report::{KernelReport, MatmulReport};
use kernels::cpu::{Explain, Matmul};
use std::sync::atomic::Ordering;

pub(super) fn matmul(name: &str, matmul: &Matmul<'_>) -> MatmulReport {
    let launches = matmul.launches();
    let decode = launches.gemv_padded.load(Ordering::Relaxed);
    let prefill = [&launches.gemm_padded, &launches.gemm_exp];
    let prefill = prefill.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
    let weight = matmul.weight();
    MatmulReport {
        name: name.to_owned(),
        quant: weight.quant().name(),
        n_rows: weight.n_rows() as u64,
        row_len: weight.row_len() as u64,
        prefill: kernel(matmul.explain_prefill(), prefill),
        decode: kernel(matmul.explain_decode(), decode),
    }
}

fn kernel(explain: Explain, n_launches: u64) -> KernelReport {
    KernelReport {
        reads: explain.object.to_owned(),
        kernel: explain.kernel.to_owned(),
        label: explain.label.name().to_owned(),
        reason: explain.reason.to_owned(),
        n_launches,
    }
}
