//! Bytes from block to block of `padded` rows, as constants for kernels that unroll over them. The
//! numbers are format-spec's; none is written here.

use format_spec::QuantType;

use super::form::GROUP;

macro_rules! strides {
    ($($name:ident,)*) => {
        $(pub(crate) const $name: usize = QuantType::$name.padded_block_stride();)*
    };
}

strides! {
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K,
}

/// Bytes of the blocks that hold one group of a row.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // no tier of another machine needs it yet
pub(crate) const fn group_bytes(quant: QuantType) -> usize {
    GROUP / quant.block_elems() * quant.padded_block_stride()
}
