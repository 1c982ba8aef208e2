//! `q4_K`: 4-bit super-block.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q4_K",
    block_elems: 256,
    block_bytes: 144,
    padded_block_stride: 144,
    dequantize: |_block, _out| {},
};
