//! `q2_K`: 2-bit super-block.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q2_K",
    block_elems: 256,
    block_bytes: 84,
    padded_block_stride: 84,
    dequantize: |_block, _out| {},
};
