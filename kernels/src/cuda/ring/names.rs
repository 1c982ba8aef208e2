//! Which of the ring's kernels multiplies which types.

use format_spec::QuantType;

use super::super::error::{CudaError, CudaResult};
use super::super::products::GemvOut;

/// The number that kernels know a type by, if they read it in this form.
pub(super) fn quant_of(quant: QuantType, planar: bool) -> Option<u32> {
    match quant {
        QuantType::Q4_K => Some(0),
        QuantType::Q5_K => Some(1),
        QuantType::Q6_K => Some(2),
        QuantType::Q8_0 if planar => Some(3),
        _ => None,
    }
}

/// What matrices of these types are called in a kernel's name: their one type, the two of q, k and v in
/// Q4_K_M files, or "mixed". Code for fewer types is smaller, and comes from memory when it first runs.
pub(super) fn types_of(outs: &[GemvOut<'_>]) -> &'static str {
    let quants = || outs.iter().map(|out| out.weight.quant());
    let first = quants().next();
    match first {
        Some(first) if quants().all(|quant| quant == first) => first.name(),
        _ if quants().all(|quant| matches!(quant, QuantType::Q4_K | QuantType::Q6_K)) => {
            "q4_K_q6_K"
        }
        _ => "mixed",
    }
}

/// The kernel for matrices of these types.
pub(super) fn kernel_name(planar: bool, is_pair: bool, types: &str) -> CudaResult<&'static str> {
    let name = match (planar, is_pair, types) {
        (true, false, "q4_K") => "gemv_ring_planar_q4_K",
        (true, false, "q5_K") => "gemv_ring_planar_q5_K",
        (true, false, "q6_K") => "gemv_ring_planar_q6_K",
        (true, false, "q8_0") => "gemv_ring_planar_q8_0",
        (true, false, "q4_K_q6_K") => "gemv_ring_planar_q4_K_q6_K",
        (true, false, _) => "gemv_ring_planar_mixed",
        (true, true, "q4_K") => "gemv_ring_planar_gated_q4_K",
        (true, true, "q5_K") => "gemv_ring_planar_gated_q5_K",
        (true, true, "q6_K") => "gemv_ring_planar_gated_q6_K",
        (true, true, "q8_0") => "gemv_ring_planar_gated_q8_0",
        (false, false, "q4_K") => "gemv_ring_padded_q4_K",
        (false, false, "q5_K") => "gemv_ring_padded_q5_K",
        (false, false, "q6_K") => "gemv_ring_padded_q6_K",
        (false, false, "q4_K_q6_K") => "gemv_ring_padded_q4_K_q6_K",
        (false, false, _) => "gemv_ring_padded_mixed",
        (false, true, "q4_K") => "gemv_ring_padded_gated_q4_K",
        (false, true, "q5_K") => "gemv_ring_padded_gated_q5_K",
        (false, true, "q6_K") => "gemv_ring_padded_gated_q6_K",
        _ => return Err(CudaError::Weight(format!("no ring for {types}"))),
    };
    Ok(name)
}
