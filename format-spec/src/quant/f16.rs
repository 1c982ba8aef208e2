//! `f16`: IEEE half-precision floats.

use super::{F16, QuantSpec, typed};
use crate::plane::{BlockField, Encoding};

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "f16",
    block_elems: 1,
    block_bytes: 2,
    padded_block_stride: 2,
    scale_offsets: &[],
    fields: &[BlockField::float(Encoding::F16, 16)],
    dequantize,
};

fn dequantize(block: &[u8], out: &mut [f32]) {
    out[0] = typed::<F16>(block).to_f32();
}
