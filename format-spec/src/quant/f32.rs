//! `f32`: plain single-precision floats.

use super::{QuantSpec, typed};
use crate::plane::{BlockField, Encoding};

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "f32",
    block_elems: 1,
    block_bytes: 4,
    padded_block_stride: 4,
    scale_offsets: &[],
    fields: &[BlockField::float(Encoding::F32, 32)],
    dequantize,
};

fn dequantize(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes(*typed(block));
}
