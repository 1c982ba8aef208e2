//! `q4_K`: super-block of 256 elements of 4 bits; every 32 share a 6-bit scale and a 6-bit minimum:
//! `d * sc * q - dmin * m`.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::k_scales::{self, scale_min};
use super::{F16, QuantSpec, typed};
use crate::plane::BlockField;
use crate::plane::FieldName::{D, Dmin, Quant};
use crate::plane::k_bits::NIBBLES_256;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q4_K",
    block_elems: ELEMS,
    block_bytes: size_of::<Block>(),
    padded_block_stride: 144,
    scale_offsets: &[offset_of!(Block, d), offset_of!(Block, dmin)],
    fields: &[
        BlockField::unsigned(Quant, 4, (offset_of!(Block, qs), 128), NIBBLES_256),
        k_scales::SCALE,
        k_scales::SCALE_HIGH,
        k_scales::MIN,
        k_scales::MIN_HIGH,
        BlockField::half(D, offset_of!(Block, d)),
        BlockField::half(Dmin, offset_of!(Block, dmin)),
    ],
    dequantize,
};

const ELEMS: usize = 256;

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Block {
    d: F16,
    dmin: F16,
    scales: [u8; 12],
    qs: [u8; 128],
}

const _: () = assert!(size_of::<Block>() == 144);

fn dequantize(block: &[u8], out: &mut [f32]) {
    let b: &Block = typed(block);
    let (d, dmin) = (b.d.to_f32(), b.dmin.to_f32());
    for (k, out) in out.iter_mut().enumerate() {
        // 32 bytes hold 32 elements in their low nibbles and the next 32 in the high ones.
        let q = b.qs[k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 0xf;
        let (scale, min) = scale_min(&b.scales, k / 32);
        *out = d * f32::from(scale) * f32::from(q) - dmin * f32::from(min);
    }
}
