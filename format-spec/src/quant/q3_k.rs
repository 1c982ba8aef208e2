//! `q3_K`: 3-bit super-block.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q3_K",
    block_elems: 256,
    block_bytes: 110,
    padded_block_stride: 112,
    dequantize: |_block, _out| {},
};
