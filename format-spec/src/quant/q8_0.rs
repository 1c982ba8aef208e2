//! `q8_0`: 32 signed bytes with one scale: `d * q`.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{F16, QuantSpec, typed};
use crate::plane::BlockField;
use crate::plane::FieldName::{D, Quant};
use crate::plane::k_bits::BYTES_32;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q8_0",
    block_elems: ELEMS,
    block_bytes: size_of::<Block>(),
    padded_block_stride: 34,
    scale_offsets: &[offset_of!(Block, d)],
    fields: &[
        BlockField::signed(Quant, 8, (offset_of!(Block, qs), 32), BYTES_32),
        BlockField::half(D, offset_of!(Block, d)),
    ],
    dequantize,
};

const ELEMS: usize = 32;

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Block {
    d: F16,
    qs: [i8; 32],
}

const _: () = assert!(size_of::<Block>() == 34);

fn dequantize(block: &[u8], out: &mut [f32]) {
    let b: &Block = typed(block);
    let d = b.d.to_f32();
    for (out, &q) in out.iter_mut().zip(&b.qs) {
        *out = d * f32::from(q);
    }
}
