//! What a matrix product on the CPU reports about itself.

use crate::report::{KernelReport, MatmulReport};
use kernels::cpu::{Explain, Label, Matmul};
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) fn matmul(name: &str, matmul: &Matmul<'_>) -> MatmulReport {
    let launches = matmul.launches();
    let (prefill, decode) = (matmul.explain_prefill(), matmul.explain_decode());
    // Only the path that the row names counts, so that one that never ran shows a zero.
    let n_prefill = match prefill.label {
        Label::Exp => &launches.gemm_exp,
        Label::Tile => &launches.gemm_tile,
        _ => &launches.gemm_padded,
    };
    let n_decode = match decode.label {
        Label::Tile => &launches.gemv_tile,
        _ => &launches.gemv_padded,
    };
    let weight = matmul.weight();
    MatmulReport {
        name: name.to_owned(),
        quant: weight.quant().name(),
        n_rows: weight.n_rows() as u64,
        row_len: weight.row_len() as u64,
        prefill: kernel(prefill, n_prefill),
        decode: kernel(decode, n_decode),
    }
}

fn kernel(explain: Explain, n_launches: &AtomicU64) -> KernelReport {
    KernelReport {
        reads: explain.object.to_owned(),
        kernel: explain.kernel.to_owned(),
        label: explain.label.name().to_owned(),
        reason: explain.reason.to_owned(),
        is_slow: explain.is_rebuilt,
        n_launches: n_launches.load(Ordering::Relaxed),
    }
}
