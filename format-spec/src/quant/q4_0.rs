//! `q4_0`: d, 32 nibbles.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q4_0",
    block_elems: 32,
    block_bytes: 18,
    padded_block_stride: 18,
    dequantize: |_block, _out| {},
};
