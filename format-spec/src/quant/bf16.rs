//! `bf16`: the upper half of a single-precision float.

use super::{QuantSpec, typed};
use crate::plane::{BlockField, Encoding};

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "bf16",
    block_elems: 1,
    block_bytes: 2,
    padded_block_stride: 2,
    scale_offsets: &[],
    fields: &[BlockField::float(Encoding::Bf16, 16)],
    dequantize,
};

fn dequantize(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*typed(block))) << 16);
}
