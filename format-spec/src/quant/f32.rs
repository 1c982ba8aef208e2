//! `f32`: plain float.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "f32",
    block_elems: 1,
    block_bytes: 4,
    padded_block_stride: 4,
    dequantize: |_block, _out| {},
};
