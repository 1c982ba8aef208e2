//! `q5_K`: super-block of 256 elements of 5 bits; every 32 share a 6-bit scale and a 6-bit minimum:
//! `d * sc * q - dmin * m`.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::k_scales::{self, scale_min};
use super::{F16, QuantSpec, typed};
use crate::plane::BlockField;
use crate::plane::FieldName::{D, Dmin, High, Quant};
use crate::plane::k_bits::{BITS_256, NIBBLES_256};

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q5_K",
    block_elems: ELEMS,
    block_bytes: size_of::<Block>(),
    padded_block_stride: 176,
    scale_offsets: &[offset_of!(Block, d), offset_of!(Block, dmin)],
    fields: &[
        BlockField::unsigned(Quant, 4, (offset_of!(Block, qs), 128), NIBBLES_256),
        BlockField::unsigned(High, 1, (offset_of!(Block, qh), 32), BITS_256),
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
    /// Fifth bits: 32 bytes hold eight runs of 32 elements.
    qh: [u8; 32],
    qs: [u8; 128],
}

const _: () = assert!(size_of::<Block>() == 176);

fn dequantize(block: &[u8], out: &mut [f32]) {
    let b: &Block = typed(block);
    let (d, dmin) = (b.d.to_f32(), b.dmin.to_f32());
    for (k, out) in out.iter_mut().enumerate() {
        // 32 bytes hold 32 elements in their low nibbles and the next 32 in the high ones.
        let q = b.qs[k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 0xf;
        let high = b.qh[k % 32] >> (k / 32) & 1;
        let (scale, min) = scale_min(&b.scales, k / 32);
        *out = d * f32::from(scale) * f32::from(q | high << 4) - dmin * f32::from(min);
    }
}
