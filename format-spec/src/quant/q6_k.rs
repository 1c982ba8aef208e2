//! `q6_K`: super-block of 256 elements of 6 bits; every 16 share a signed 8-bit scale:
//! `d * sc * (q - 32)`.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{F16, QuantSpec, typed};
use crate::plane::BlockField;
use crate::plane::FieldName::{D, High, Quant, Scale};
use crate::plane::k_bits::{BYTE_EACH_16, CRUMBS_256};

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q6_K",
    block_elems: ELEMS,
    block_bytes: size_of::<Block>(),
    padded_block_stride: 224,
    scale_offsets: &[offset_of!(Block, d)],
    fields: &[
        BlockField::unsigned(
            Quant,
            4,
            (offset_of!(Block, ql), 128),
            [8, 16, 32, 64, 128, 256, 4, 512],
        )
        .biased(-32),
        BlockField::unsigned(High, 2, (offset_of!(Block, qh), 64), CRUMBS_256),
        BlockField::signed(Scale, 8, (offset_of!(Block, scales), 16), BYTE_EACH_16),
        BlockField::half(D, offset_of!(Block, d)),
    ],
    dequantize,
};

const ELEMS: usize = 256;

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Block {
    /// Low nibbles: 64 bytes hold 64 elements in their low halves and the next 64 in the high ones.
    ql: [u8; 128],
    /// High bits: 32 bytes hold four runs of 32 elements, two bits each.
    qh: [u8; 64],
    scales: [i8; 16],
    d: F16,
}

const _: () = assert!(size_of::<Block>() == 210);

fn dequantize(block: &[u8], out: &mut [f32]) {
    let b: &Block = typed(block);
    let d = b.d.to_f32();
    for (k, out) in out.iter_mut().enumerate() {
        let low = b.ql[k / 128 * 64 + k % 64] >> (k / 64 % 2 * 4) & 0xf;
        let high = b.qh[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
        let scale = f32::from(b.scales[k / 16]);
        *out = d * scale * (f32::from(low | high << 4) - 32.0);
    }
}
