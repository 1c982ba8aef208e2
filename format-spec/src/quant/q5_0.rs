//! `q5_0`: d, 32 high bits, 32 nibbles.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q5_0",
    block_elems: 32,
    block_bytes: 22,
    padded_block_stride: 22,
    dequantize: |_block, _out| {},
};
