//! The NEON tiers of 64-bit ARM: products in 16 bits, SDOT, and SMMLA for many tokens.
//!
//! They are the same kernels over a [`Dot`](dot::Dot). Vectors have 16 bytes: four rows of a `tile` unit or of a
//! panel, or half a chunk of a row. Products are of signed bytes, so that panels and loaders give
//! q8_0's values as they were and need no offset for them; narrower values are as unsigned as they
//! are stored, and stay below 64.
#![allow(unsafe_code)] // constructing `Src`s, dot products of a tier

mod dot;
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
use super::tables::Tables;
use dot::Dot;

/// The functions of the NEON tier.
pub(super) static TABLES: Tables = tables::<dot::Plain>(has_neon);

/// The functions of the tier with SDOT.
pub(super) static DOTPROD_TABLES: Tables = tables::<dot::DotProd>(has_dotprod);

/// The functions of the tier with SMMLA.
pub(super) static I8MM_TABLES: Tables =
    tables::<dot::I8mm>(|| has_dotprod() && std::arch::is_aarch64_feature_detected!("i8mm"));

/// Whether this machine has what every function of this folder enables. (Lanes of a big-endian build
/// would lie the other way round.)
fn has_neon() -> bool {
    cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon")
}

fn has_dotprod() -> bool {
    has_neon() && std::arch::is_aarch64_feature_detected!("dotprod")
}

const fn tables<D: Dot>(available: fn() -> bool) -> Tables {
    Tables {
        available,
        kernels: Some(kernels::<D>),
        unit_kernels: units::kernels::<D>,
        float_rows: float::dot_rows,
        float_name: "float_neon",
        quantize_row: quantize::quantize_row,
    }
}

/// The kernels of one quant type.
fn kernels<D: Dot>(quant: QuantType, scalar_unpack: UnpackFn) -> Kernels {
    let (gemv, gemv_name) = gemv::gemv::<D>(quant);
    Kernels {
        gemv,
        gemv_name,
        unpack: load::unpacker(quant).unwrap_or(scalar_unpack),
        interleave: interleave::interleave::<D>,
        tile: tile::tile::<D>,
        gemm_name: D::NAMES[2],
    }
}
