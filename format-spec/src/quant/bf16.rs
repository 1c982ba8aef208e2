//! `bf16`: bfloat16.

use super::QuantSpec;

pub(super) static SPEC: QuantSpec = QuantSpec {
    name: "bf16",
    block_elems: 1,
    block_bytes: 2,
    padded_block_stride: 2,
    dequantize: |_block, _out| {},
};
