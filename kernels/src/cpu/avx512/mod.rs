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

use super::kernels::Kernels;
use super::scalar::unpack::UnpackFn;

/// The kernels of this tier for one quant type; `None` for plain floats.
pub(crate) fn kernels(quant: QuantType, scalar_unpack: UnpackFn) -> Kernels {
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

pub(crate) use float::dot_rows as float_rows;
pub(crate) use quantize::quantize_row;
pub(crate) use units::kernels as unit_kernels;
