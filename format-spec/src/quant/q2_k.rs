//! `q2_K`: super-block of 256 elements of 2 bits; every 16 share a 4-bit scale and a 4-bit minimum:
//! `d * sc * q - dmin * m`.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{F16, QuantSpec, typed};
use crate::plane::BlockField;
use crate::plane::FieldName::{D, Dmin, Min, Quant, Scale};
use crate::plane::k_bits::{BYTE_EACH_16, CRUMBS_256};

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q2_K",
    block_elems: ELEMS,
    block_bytes: size_of::<Block>(),
    padded_block_stride: 84,
    scale_offsets: &[offset_of!(Block, d), offset_of!(Block, dmin)],
    fields: &[
        BlockField::unsigned(Quant, 2, (offset_of!(Block, qs), 64), CRUMBS_256),
        BlockField::unsigned(Scale, 4, (offset_of!(Block, scales), 16), BYTE_EACH_16),
        BlockField::unsigned(Min, 4, (offset_of!(Block, scales), 16), BYTE_EACH_16).at_bit(4),
        BlockField::half(D, offset_of!(Block, d)),
        BlockField::half(Dmin, offset_of!(Block, dmin)),
    ],
    dequantize,
};

const ELEMS: usize = 256;

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Block {
    /// Scale in the low nibble, minimum in the high one.
    scales: [u8; 16],
    qs: [u8; 64],
    d: F16,
    dmin: F16,
}

const _: () = assert!(size_of::<Block>() == 84);

fn dequantize(block: &[u8], out: &mut [f32]) {
    let b: &Block = typed(block);
    let (d, dmin) = (b.d.to_f32(), b.dmin.to_f32());
    for (k, out) in out.iter_mut().enumerate() {
        // 32 bytes hold four runs of 32 elements, two bits each.
        let q = b.qs[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
        let scale_min = b.scales[k / 16];
        let (scale, min) = (scale_min & 0xf, scale_min >> 4);
        *out = d * f32::from(scale) * f32::from(q) - dmin * f32::from(min);
    }
}
