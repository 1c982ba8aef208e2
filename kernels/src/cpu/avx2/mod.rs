//! The AVX2 tier, with FMA and F16C; and the AVX-VNNI tier, which is the same kernels with one
//! instruction for the dot product of four bytes (`VNNI` is true in theirs).
//!
//! Without VNNI a dot product of bytes is `maddubs` (u8 times i8, pairs added in i16) and `madd`
//! with ones. Pairs of stored values below 7 bits cannot overflow i16; q8_0 moves the sign of the
//! weight to the activation, whose magnitude is at most 127.
#![allow(unsafe_code)] // constructing `Src`s, masked loads

mod float;
mod gemv;
mod interleave;
mod load;
mod quantize;
mod tile;
mod units;
mod vnni;

use format_spec::QuantType;

use super::kernels::Kernels;
use super::scalar::unpack::UnpackFn;
use super::tables::Tables;

/// The functions of the AVX2 tier.
pub(super) static TABLES: Tables = Tables {
    available: has_avx2,
    kernels: Some(kernels::<false>),
    unit_kernels: units::kernels::<false>,
    float_rows: float::dot_rows,
    float_name: "float_avx2",
    quantize_row: quantize::quantize_row,
};

/// The functions of the AVX-VNNI tier.
pub(super) static VNNI_TABLES: Tables = Tables {
    available: || has_avx2() && std::arch::is_x86_feature_detected!("avxvnni"),
    kernels: Some(kernels::<true>),
    unit_kernels: units::kernels::<true>,
    float_rows: float::dot_rows,
    float_name: "float_avx2",
    quantize_row: quantize::quantize_row,
};

pub(super) use vnni::dpbusd;

/// Whether this machine has what every function of this folder enables.
pub(super) fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
}

/// The kernels of one quant type.
fn kernels<const VNNI: bool>(quant: QuantType, scalar_unpack: UnpackFn) -> Kernels {
    let (gemv, gemv_name) = gemv::gemv::<VNNI>(quant);
    Kernels {
        gemv,
        gemv_name,
        unpack: load::unpacker(quant).unwrap_or(scalar_unpack),
        interleave: interleave::interleave,
        tile: tile::tile::<VNNI>,
        gemm_name: if VNNI { "gemm_avxvnni" } else { "gemm_avx2" },
    }
}
