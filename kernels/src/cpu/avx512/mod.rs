//! The AVX-512 tier: F, BW, VL and VNNI.
//!
//! Bodies are safe functions over [`Src`](super::mem::Src); a function that is stored as a pointer
//! is `unsafe` because its caller must have found the instructions on this machine.
#![allow(unsafe_code)] // constructing `Src`s, masked loads

mod float;
mod gemv;
mod interleave;
mod lanes;
mod quantize;
mod tile;
mod units;
mod unpack;

use format_spec::QuantType;

use super::avx2::has_avx2;
use super::kernels::Kernels;
use super::scalar::unpack::UnpackFn;
use super::tables::Tables;

/// The functions of this tier.
pub(super) static TABLES: Tables = Tables {
    available: has_avx512,
    kernels: Some(kernels),
    unit_kernels: units::kernels,
    float_rows: float::dot_rows,
    float_name: "float_avx512",
    quantize_row: quantize::quantize_row,
};

fn has_avx512() -> bool {
    has_avx2()
        && std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512vnni")
}

/// The kernels of this tier for one quant type; `None` for plain floats.
fn kernels(quant: QuantType, scalar_unpack: UnpackFn) -> Kernels {
    let unpack = unpack::unpacker(quant).unwrap_or(scalar_unpack);
    let (gemv, gemv_name) = gemv::gemv(quant);
    Kernels {
        gemv,
        gemv_name,
        unpack,
        interleave: interleave::interleave,
        tile: tile::tile,
        gemm_name: "gemm_avx512_vnni",
    }
}
