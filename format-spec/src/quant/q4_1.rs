//! `q4_1`: d, m, 32 nibbles.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q4_1",
    block_elems: 32,
    block_bytes: 20,
    padded_block_stride: 20,
    dequantize: |_block, _out| {},
};
