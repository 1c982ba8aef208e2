//! `q5_0`: 32 elements of 5 bits with one scale: `d * (q - 16)`.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{F16, QuantSpec, typed};
use crate::plane::BlockField;
use crate::plane::FieldName::{D, High, Quant};
use crate::plane::k_bits::{BITS_32, NIBBLES_32};

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q5_0",
    block_elems: ELEMS,
    block_bytes: size_of::<Block>(),
    padded_block_stride: 22,
    scale_offsets: &[offset_of!(Block, d)],
    fields: &[
        BlockField::unsigned(Quant, 4, (offset_of!(Block, qs), 16), NIBBLES_32).biased(-16),
        BlockField::unsigned(High, 1, (offset_of!(Block, qh), 4), BITS_32),
        BlockField::half(D, offset_of!(Block, d)),
    ],
    dequantize,
};

const ELEMS: usize = 32;

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Block {
    d: F16,
    /// Fifth bits, one an element, in order.
    qh: [u8; 4],
    qs: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 22);

fn dequantize(block: &[u8], out: &mut [f32]) {
    let b: &Block = typed(block);
    let d = b.d.to_f32();
    for (k, out) in out.iter_mut().enumerate() {
        // The first 16 elements lie in the low nibbles, the others in the high ones.
        let q = b.qs[k % 16] >> (k / 16 * 4) & 0xf;
        let high = b.qh[k / 8] >> (k % 8) & 1;
        *out = d * (f32::from(q | high << 4) - 16.0);
    }
}
