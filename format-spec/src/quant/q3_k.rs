//! `q3_K`: super-block of 256 elements of 3 bits; every 16 share a 6-bit scale:
//! `d * (sc - 32) * (q - 4)`.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{F16, QuantSpec, typed};
use crate::plane::BlockField;
use crate::plane::FieldName::{D, High, Quant, Scale, ScaleHigh};
use crate::plane::k_bits::{BITS_256, CRUMBS_256};

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q3_K",
    block_elems: ELEMS,
    block_bytes: size_of::<Block>(),
    padded_block_stride: 112,
    scale_offsets: &[offset_of!(Block, d)],
    fields: &[
        BlockField::unsigned(Quant, 2, (offset_of!(Block, qs), 64), CRUMBS_256).biased(-4),
        BlockField::unsigned(High, 1, (offset_of!(Block, hmask), 32), BITS_256),
        BlockField::unsigned(Scale, 4, (offset_of!(Block, scales), 8), [0, 0, 0, 0, 8, 16, 32, 4])
            .biased(-32),
        BlockField::unsigned(
            ScaleHigh,
            2,
            (offset_of!(Block, scales) + 8, 4),
            [0, 0, 0, 0, 8, 16, 2, 4],
        ),
        BlockField::half(D, offset_of!(Block, d)),
    ],
    dequantize,
};

const ELEMS: usize = 256;

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Block {
    /// Third bits: 32 bytes hold eight runs of 32 elements.
    hmask: [u8; 32],
    qs: [u8; 64],
    /// 16 low nibbles in 8 bytes, then 16 pairs of high bits in 4.
    scales: [u8; 12],
    d: F16,
}

const _: () = assert!(size_of::<Block>() == 110);

fn dequantize(block: &[u8], out: &mut [f32]) {
    let b: &Block = typed(block);
    let d = b.d.to_f32();
    for (k, out) in out.iter_mut().enumerate() {
        // 32 bytes hold four runs of 32 elements, two bits each.
        let q = b.qs[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
        let high = b.hmask[k % 32] >> (k / 32) & 1;
        let scale = f32::from(scale(&b.scales, k / 16)) - 32.0;
        *out = d * scale * (f32::from(q | high << 2) - 4.0);
    }
}

/// The 6-bit scale of sub-block `i`.
fn scale(scales: &[u8; 12], i: usize) -> u8 {
    let low = scales[i % 8] >> (i / 8 * 4) & 0xf;
    let high = scales[8 + i % 4] >> (i / 4 * 2) & 3;
    low | high << 4
}
