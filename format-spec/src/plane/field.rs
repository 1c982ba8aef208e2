//! Fields: where one part of a weight lies, for every `(row, k)`.

/// Which part of a weight a field holds.
///
/// A weight is `d * scale * quant - dmin * min`, or `d * quant + min` where there is no `dmin`; a
/// factor without a field is 1, and the whole is one `Value` for plain floats. `High` parts are the
/// upper bits of the part before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FieldName {
    /// The weight itself.
    Value = 1,
    /// The quantized integer, or its low bits.
    Quant = 2,
    /// Its high bits.
    High = 3,
    /// Scale of a sub-block, or its low bits.
    Scale = 4,
    /// Its high bits.
    ScaleHigh = 5,
    /// Minimum of a sub-block or block, or its low bits.
    Min = 6,
    /// Its high bits.
    MinHigh = 7,
    /// Scale of the block.
    D = 8,
    /// Scale of the minimums.
    Dmin = 9,
}

impl FieldName {
    /// Every name, in order of id.
    pub const ALL: &'static [Self] = &[
        Self::Value,
        Self::Quant,
        Self::High,
        Self::Scale,
        Self::ScaleHigh,
        Self::Min,
        Self::MinHigh,
        Self::D,
        Self::Dmin,
    ];

    /// Id in the file.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// Name in documents and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Quant => "quant",
            Self::High => "high",
            Self::Scale => "scale",
            Self::ScaleHigh => "scale_high",
            Self::Min => "min",
            Self::MinHigh => "min_high",
            Self::D => "d",
            Self::Dmin => "dmin",
        }
    }
}

/// How a cell's bits are a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Encoding {
    /// Unsigned integer.
    Unsigned = 1,
    /// Two's complement integer.
    Signed = 2,
    /// IEEE half, little-endian.
    F16 = 3,
    /// bfloat16, little-endian.
    Bf16 = 4,
    /// IEEE single, little-endian.
    F32 = 5,
}

impl Encoding {
    /// Every encoding, in order of id.
    pub const ALL: &'static [Self] =
        &[Self::Unsigned, Self::Signed, Self::F16, Self::Bf16, Self::F32];

    /// Id in the file.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// Name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unsigned => "unsigned",
            Self::Signed => "signed",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }
}

/// Where a field's bits for one `(row, k)` lie in the object.
///
/// Cells of 16 and 32 bits are little-endian and start on a byte; smaller ones stay inside a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Byte from the start of the object.
    pub byte: u64,
    /// Lowest bit inside that byte.
    pub shift: u8,
    /// Width.
    pub bits: u8,
}

impl Cell {
    /// The cell's bits as an unsigned number; `object` is the object's bytes.
    ///
    /// # Panics
    /// If the cell lies outside `object`.
    pub fn read(self, object: &[u8]) -> u32 {
        let at = self.byte as usize;
        match self.bits {
            32 => u32::from_le_bytes([object[at], object[at + 1], object[at + 2], object[at + 3]]),
            16 => u32::from(u16::from_le_bytes([object[at], object[at + 1]])),
            bits => (u32::from(object[at]) >> self.shift) & ((1 << bits) - 1),
        }
    }
}

/// Descriptor of one field; the container stores it.
///
/// The index function is linear in the bits of the position inside a group:
///
/// ```text
/// bit(row, k) = 8 * (base + row / rows_per_group * row_group_stride + k / k_per_group * k_group_stride)
///             + shift
///             + sum of row_bits[i] over the set bits i of row % rows_per_group
///             + sum of k_bits[i]   over the set bits i of k % k_per_group
/// ```
///
/// Every block of ggml and every interleaving by powers of two has this form, so that a reader
/// needs the descriptor and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Which part of the weight.
    pub name: FieldName,
    /// How its bits are a number.
    pub encoding: Encoding,
    /// Width of a cell in bits.
    pub bits: u8,
    /// Lowest bit of the group's first cell inside its byte.
    pub shift: u8,
    /// Added to the integer (of low and high bits together) after reading; e.g. -32 for `q6_K`.
    pub bias: i32,
    /// Byte of the first group's first cell.
    pub base: u64,
    /// Rows a group; a power of two.
    pub rows_per_group: u32,
    /// Elements a group; a power of two.
    pub k_per_group: u32,
    /// Bytes from one group of rows to the next.
    pub row_group_stride: u64,
    /// Bytes from one group of elements to the next.
    pub k_group_stride: u64,
    /// Bytes, from a group's first cell, inside which all of the group's cells lie.
    pub bytes: u32,
    /// Bits by which bit i of the row inside its group moves the cell.
    pub row_bits: [u32; 8],
    /// Bits by which bit i of k inside its group moves the cell.
    pub k_bits: [u32; 8],
}

impl Field {
    /// Where the field's bits for `(row, k)` lie.
    ///
    /// `row` and `k` must be inside the layout's geometry (for `dsc` and other planes with rounded
    /// rows: inside the rounded one); [`Layout::new`](super::Layout::new) has proved that no such
    /// position overflows.
    pub fn locate(&self, row: u64, k: u64) -> Cell {
        // Group sizes are powers of two, so that no division is needed.
        let group = self.base
            + (row >> self.rows_per_group.trailing_zeros()) * self.row_group_stride
            + (k >> self.k_per_group.trailing_zeros()) * self.k_group_stride;
        let bit = u64::from(self.shift)
            + spread(row & u64::from(self.rows_per_group - 1), &self.row_bits)
            + spread(k & u64::from(self.k_per_group - 1), &self.k_bits);
        Cell { byte: group + bit / 8, shift: (bit % 8) as u8, bits: self.bits }
    }

    /// The field's raw number at `(row, k)`, without bias; float encodings give their bits.
    ///
    /// # Panics
    /// If the cell lies outside `object`.
    pub fn read(&self, object: &[u8], row: u64, k: u64) -> u32 {
        self.locate(row, k).read(object)
    }
}

/// Sum of the strides of the bits that are set in `position`.
fn spread(mut position: u64, bit_strides: &[u32; 8]) -> u64 {
    let mut bits = 0;
    while position != 0 {
        bits += u64::from(bit_strides[position.trailing_zeros() as usize % 8]);
        position &= position - 1;
    }
    bits
}
