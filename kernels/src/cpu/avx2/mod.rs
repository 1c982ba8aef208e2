//! The AVX2 tier, with FMA and F16C.
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

use format_spec::QuantType;

use super::kernels::Kernels;
use super::scalar::unpack::UnpackFn;

/// The kernels of this tier for one quant type.
pub(crate) fn kernels(quant: QuantType, scalar_unpack: UnpackFn) -> Kernels {
    let (gemv, gemv_name) = gemv::gemv(quant);
    Kernels {
        gemv,
        gemv_name,
        unpack: load::unpacker(quant).unwrap_or(scalar_unpack),
        interleave: interleave::interleave,
        tile: tile::tile,
        gemm_name: "gemm_avx2",
    }
}

pub(crate) use float::dot_rows as float_rows;
pub(crate) use quantize::quantize_row;
pub(crate) use units::kernels as unit_kernels;
