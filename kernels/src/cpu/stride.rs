//! Where blocks of `padded` rows lie, and what lies in a block, as constants for kernels that unroll
//! over them. The numbers are format-spec's; none is written here.

use format_spec::QuantType;
use format_spec::plane::FieldName;

use super::form::GROUP;

macro_rules! strides {
    ($($name:ident,)*) => {
        $(pub(crate) const $name: usize = QuantType::$name.padded_block_stride();)*
    };
}

/// What lies where in a block of each type.
#[allow(dead_code)] // which types have loaders differs between tiers
pub(crate) mod blocks {
    use super::{Block, QuantType};

    macro_rules! blocks {
        ($($name:ident,)*) => {
            $(pub(crate) const $name: Block = Block::of(QuantType::$name);)*
        };
    }

    blocks! {
        Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K,
    }
}

strides! {
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K,
}

/// Bytes of the blocks that hold one group of a row.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
pub(crate) const fn group_bytes(quant: QuantType) -> usize {
    GROUP / quant.block_elems() * quant.padded_block_stride()
}

/// Where the parts of a block begin, in bytes. A part that the type does not have is beyond any block.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code)] // which parts are read differs between tiers
pub(crate) struct Block {
    /// Low bits, or all.
    pub(crate) quants: usize,
    /// High bits.
    pub(crate) high: usize,
    /// Scales of sub-blocks.
    pub(crate) scales: usize,
    /// `d`, f16.
    pub(crate) d: usize,
    /// `dmin`, or the minimum of a type without sub-blocks; f16.
    pub(crate) second: usize,
    /// Bytes from block to block.
    pub(crate) stride: usize,
}

impl Block {
    pub(crate) const fn of(quant: QuantType) -> Self {
        const fn at(quant: QuantType, name: FieldName) -> usize {
            match quant.field_offset(name) {
                Some(offset) => offset,
                None => usize::MAX / 2,
            }
        }
        let whole = quant.field_offset(FieldName::Scale).is_none();
        Self {
            quants: at(quant, FieldName::Quant),
            high: at(quant, FieldName::High),
            scales: at(quant, FieldName::Scale),
            d: at(quant, FieldName::D),
            second: at(quant, if whole { FieldName::Min } else { FieldName::Dmin }),
            stride: quant.padded_block_stride(),
        }
    }
}
