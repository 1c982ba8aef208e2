//! Where the parts of a weight lie inside one GGUF block, for every quant type.
//!
//! ggml's blocks are all linear in the bits of the element's number: see [`Field`]. `k_bits[i]` is
//! the number of bits by which bit i of the element moves the cell.

use super::{Encoding, Field, FieldName};
use crate::quant::QuantType;

/// A field of one block.
#[derive(Debug)]
pub(crate) struct BlockField {
    name: FieldName,
    encoding: Encoding,
    bits: u8,
    /// First byte in the block, bytes in which the cells lie, lowest bit in the first.
    place: (u32, u32, u8),
    bias: i32,
    k_bits: [u32; 8],
}

impl BlockField {
    const fn unsigned(name: FieldName, bits: u8, place: (u32, u32, u8), k_bits: [u32; 8]) -> Self {
        Self { name, encoding: Encoding::Unsigned, bits, place, bias: 0, k_bits }
    }

    const fn signed(name: FieldName, bits: u8, place: (u32, u32, u8), k_bits: [u32; 8]) -> Self {
        Self { name, encoding: Encoding::Signed, bits, place, bias: 0, k_bits }
    }

    const fn half(name: FieldName, byte: u32) -> Self {
        Self {
            name,
            encoding: Encoding::F16,
            bits: 16,
            place: (byte, 2, 0),
            bias: 0,
            k_bits: [0; 8],
        }
    }

    const fn float(encoding: Encoding, bits: u8) -> Self {
        Self {
            name: FieldName::Value,
            encoding,
            bits,
            place: (0, bits as u32 / 8, 0),
            bias: 0,
            k_bits: [0; 8],
        }
    }

    const fn biased(self, bias: i32) -> Self {
        Self { bias, ..self }
    }

    /// The field of an object in which such blocks lie at these strides.
    pub(crate) fn in_blocks(&self, block_elems: u32, block_stride: u64, row_stride: u64) -> Field {
        let (byte, bytes, shift) = self.place;
        Field {
            name: self.name,
            encoding: self.encoding,
            bits: self.bits,
            shift,
            bias: self.bias,
            base: u64::from(byte),
            rows_per_group: 1,
            k_per_group: block_elems,
            row_group_stride: row_stride,
            k_group_stride: block_stride,
            bytes,
            row_bits: [0; 8],
            k_bits: self.k_bits,
        }
    }
}

use FieldName::{D, Dmin, High, Min, MinHigh, Quant, Scale, ScaleHigh};

/// 16 bytes, element 16 + i in the high nibble of byte i.
const NIBBLES_32: [u32; 8] = [8, 16, 32, 64, 4, 0, 0, 0];
/// One bit an element, in order.
const BITS_32: [u32; 8] = [1, 2, 4, 8, 16, 0, 0, 0];
/// One byte an element, in order.
const BYTES_32: [u32; 8] = [8, 16, 32, 64, 128, 0, 0, 0];
/// Stretches of 32 bytes: 32 elements in the low nibbles, the next 32 in the high ones.
const NIBBLES_256: [u32; 8] = [8, 16, 32, 64, 128, 4, 256, 512];
/// Stretches of 32 bytes: four times 32 elements, two bits each.
const CRUMBS_256: [u32; 8] = [8, 16, 32, 64, 128, 2, 4, 256];
/// 32 bytes: eight times 32 elements, one bit each.
const BITS_256: [u32; 8] = [8, 16, 32, 64, 128, 1, 2, 4];

static F32: [BlockField; 1] = [BlockField::float(Encoding::F32, 32)];
static F16: [BlockField; 1] = [BlockField::float(Encoding::F16, 16)];
static BF16: [BlockField; 1] = [BlockField::float(Encoding::Bf16, 16)];

static Q4_0: [BlockField; 2] =
    [BlockField::unsigned(Quant, 4, (2, 16, 0), NIBBLES_32).biased(-8), BlockField::half(D, 0)];

static Q4_1: [BlockField; 3] = [
    BlockField::unsigned(Quant, 4, (4, 16, 0), NIBBLES_32),
    BlockField::half(Min, 2),
    BlockField::half(D, 0),
];

static Q5_0: [BlockField; 3] = [
    BlockField::unsigned(Quant, 4, (6, 16, 0), NIBBLES_32).biased(-16),
    BlockField::unsigned(High, 1, (2, 4, 0), BITS_32),
    BlockField::half(D, 0),
];

static Q5_1: [BlockField; 4] = [
    BlockField::unsigned(Quant, 4, (8, 16, 0), NIBBLES_32),
    BlockField::unsigned(High, 1, (4, 4, 0), BITS_32),
    BlockField::half(Min, 2),
    BlockField::half(D, 0),
];

static Q8_0: [BlockField; 2] =
    [BlockField::signed(Quant, 8, (2, 32, 0), BYTES_32), BlockField::half(D, 0)];

/// `scales[16]` (low nibble scale, high nibble minimum), `qs[64]`, d, dmin.
static Q2_K: [BlockField; 5] = [
    BlockField::unsigned(Quant, 2, (16, 64, 0), CRUMBS_256),
    BlockField::unsigned(Scale, 4, (0, 16, 0), [0, 0, 0, 0, 8, 16, 32, 64]),
    BlockField::unsigned(Min, 4, (0, 16, 4), [0, 0, 0, 0, 8, 16, 32, 64]),
    BlockField::half(D, 80),
    BlockField::half(Dmin, 82),
];

/// `hmask[32]`, `qs[64]`, 16 scales of 6 bits in 12 bytes (8 of low nibbles, 4 of high bits), d.
static Q3_K: [BlockField; 5] = [
    BlockField::unsigned(Quant, 2, (32, 64, 0), CRUMBS_256).biased(-4),
    BlockField::unsigned(High, 1, (0, 32, 0), BITS_256),
    BlockField::unsigned(Scale, 4, (96, 8, 0), [0, 0, 0, 0, 8, 16, 32, 4]).biased(-32),
    BlockField::unsigned(ScaleHigh, 2, (104, 4, 0), [0, 0, 0, 0, 8, 16, 2, 4]),
    BlockField::half(D, 108),
];

/// Scales and minimums of 6 bits in 12 bytes. Sub-blocks 0..4 have theirs in the low six bits of
/// bytes 0..4 and 4..8; of sub-blocks 4..8 the low nibbles lie in bytes 8..12 and the high bits in
/// the two that the first left free.
macro_rules! k_scales {
    ($quant:expr, $($more:expr),*) => {
        [
            $quant,
            $($more,)*
            BlockField::unsigned(Scale, 4, (4, 12, 0), [0, 0, 0, 0, 0, 8, 16, 64]),
            BlockField::unsigned(ScaleHigh, 2, (4, 4, 4), [0, 0, 0, 0, 0, 8, 16, 2]),
            BlockField::unsigned(Min, 4, (8, 8, 0), [0, 0, 0, 0, 0, 8, 16, 36]),
            BlockField::unsigned(MinHigh, 2, (8, 4, 4), [0, 0, 0, 0, 0, 8, 16, 2]),
            BlockField::half(D, 0),
            BlockField::half(Dmin, 2),
        ]
    };
}

static Q4_K: [BlockField; 7] =
    k_scales!(BlockField::unsigned(Quant, 4, (16, 128, 0), NIBBLES_256),);

static Q5_K: [BlockField; 8] = k_scales!(
    BlockField::unsigned(Quant, 4, (48, 128, 0), NIBBLES_256),
    BlockField::unsigned(High, 1, (16, 32, 0), BITS_256)
);

/// `ql[128]`, `qh[64]`, `scales[16]` (int8), d.
static Q6_K: [BlockField; 4] = [
    BlockField::unsigned(Quant, 4, (0, 128, 0), [8, 16, 32, 64, 128, 256, 4, 512]).biased(-32),
    BlockField::unsigned(High, 2, (128, 64, 0), CRUMBS_256),
    BlockField::signed(Scale, 8, (192, 16, 0), [0, 0, 0, 0, 8, 16, 32, 64]),
    BlockField::half(D, 208),
];

/// The fields of one block of `quant`.
pub(crate) fn block_fields(quant: QuantType) -> &'static [BlockField] {
    match quant {
        QuantType::F32 => &F32,
        QuantType::F16 => &F16,
        QuantType::BF16 => &BF16,
        QuantType::Q4_0 => &Q4_0,
        QuantType::Q4_1 => &Q4_1,
        QuantType::Q5_0 => &Q5_0,
        QuantType::Q5_1 => &Q5_1,
        QuantType::Q8_0 => &Q8_0,
        QuantType::Q2_K => &Q2_K,
        QuantType::Q3_K => &Q3_K,
        QuantType::Q4_K => &Q4_K,
        QuantType::Q5_K => &Q5_K,
        QuantType::Q6_K => &Q6_K,
    }
}
