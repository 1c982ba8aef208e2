//! `q6_K`: 6-bit super-block.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q6_K",
    block_elems: 256,
    block_bytes: 210,
    padded_block_stride: 224,
    dequantize: |_block, _out| {},
};
