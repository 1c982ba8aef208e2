//! `q5_K`: 5-bit super-block.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q5_K",
    block_elems: 256,
    block_bytes: 176,
    padded_block_stride: 176,
    dequantize: |_block, _out| {},
};
