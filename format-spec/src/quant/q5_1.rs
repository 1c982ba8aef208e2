//! `q5_1`: d, m, 32 high bits, 32 nibbles.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "q5_1",
    block_elems: 32,
    block_bytes: 24,
    padded_block_stride: 24,
    dequantize: |_block, _out| {},
};
