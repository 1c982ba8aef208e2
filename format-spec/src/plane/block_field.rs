//! Where one part of an element lies inside a GGUF block; quant types list theirs.

use super::{Encoding, Field, FieldName};

/// A field of one block.
#[derive(Debug)]
pub(crate) struct BlockField {
    name: FieldName,
    encoding: Encoding,
    bits: u8,
    /// First byte in the block.
    byte: usize,
    /// Bytes, from there, inside which all cells lie.
    n_bytes: usize,
    shift: u8,
    bias: i32,
    k_bits: [u32; 8],
}

impl BlockField {
    /// An unsigned integer. `place`: first byte in the block, and how many bytes the cells take;
    /// `k_bits`: bits by which each bit of the element's number moves the cell.
    pub(crate) const fn unsigned(
        name: FieldName,
        bits: u8,
        place: (usize, usize),
        k_bits: [u32; 8],
    ) -> Self {
        let (byte, n_bytes) = place;
        let encoding = Encoding::Unsigned;
        Self { name, encoding, bits, byte, n_bytes, shift: 0, bias: 0, k_bits }
    }

    /// A two's complement integer.
    pub(crate) const fn signed(
        name: FieldName,
        bits: u8,
        place: (usize, usize),
        k_bits: [u32; 8],
    ) -> Self {
        Self { encoding: Encoding::Signed, ..Self::unsigned(name, bits, place, k_bits) }
    }

    /// An f16 of the whole block.
    pub(crate) const fn half(name: FieldName, byte: usize) -> Self {
        Self { encoding: Encoding::F16, ..Self::unsigned(name, 16, (byte, 2), [0; 8]) }
    }

    /// The one field of a plain float.
    pub(crate) const fn float(encoding: Encoding, bits: u8) -> Self {
        let n_bytes = if bits == 32 { 4 } else { 2 };
        Self { encoding, ..Self::unsigned(FieldName::Value, bits, (0, n_bytes), [0; 8]) }
    }

    /// The same with a number that is added after reading.
    pub(crate) const fn biased(self, bias: i32) -> Self {
        Self { bias, ..self }
    }

    /// The same with the first cell at this bit of its byte.
    pub(crate) const fn at_bit(self, shift: u8) -> Self {
        Self { shift, ..self }
    }

    /// Which part it is.
    pub(crate) const fn name(&self) -> FieldName {
        self.name
    }

    /// First byte in the block.
    pub(crate) const fn first_byte(&self) -> usize {
        self.byte
    }

    /// The field of an object in which blocks lie at these strides.
    pub(crate) fn in_blocks(
        &self,
        block_elems: usize,
        block_stride: u64,
        row_stride: u64,
    ) -> Field {
        Field {
            name: self.name,
            encoding: self.encoding,
            bits: self.bits,
            shift: self.shift,
            bias: self.bias,
            base: self.byte as u64,
            rows_per_group: 1,
            k_per_group: block_elems as u32,
            row_group_stride: row_stride,
            k_group_stride: block_stride,
            bytes: self.n_bytes as u32,
            row_bits: [0; 8],
            k_bits: self.k_bits,
        }
    }
}

/// Patterns that several quant types share: by how many bits each bit of the element's number in
/// the block moves the cell.
pub(crate) mod k_bits {
    /// 16 bytes, element 16 + i in the high nibble of byte i.
    pub(crate) const NIBBLES_32: [u32; 8] = [8, 16, 32, 64, 4, 0, 0, 0];
    /// One bit an element, in order.
    pub(crate) const BITS_32: [u32; 8] = [1, 2, 4, 8, 16, 0, 0, 0];
    /// One byte an element, in order.
    pub(crate) const BYTES_32: [u32; 8] = [8, 16, 32, 64, 128, 0, 0, 0];
    /// Stretches of 32 bytes: 32 elements in the low nibbles, the next 32 in the high ones.
    pub(crate) const NIBBLES_256: [u32; 8] = [8, 16, 32, 64, 128, 4, 256, 512];
    /// Stretches of 32 bytes: four times 32 elements, two bits each.
    pub(crate) const CRUMBS_256: [u32; 8] = [8, 16, 32, 64, 128, 2, 4, 256];
    /// 32 bytes: eight times 32 elements, one bit each.
    pub(crate) const BITS_256: [u32; 8] = [8, 16, 32, 64, 128, 1, 2, 4];
    /// One byte for each 16 elements.
    pub(crate) const BYTE_EACH_16: [u32; 8] = [0, 0, 0, 0, 8, 16, 32, 64];
}
