//! `q8_0`: d, 32 int8.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q8_0",
    block_elems: 32,
    block_bytes: 34,
    padded_block_stride: 34,
    dequantize: |_block, _out| {},
};
