//! Quant types: one file each, registered in the table below.
//!
//! To add one, write `quant/<name>.rs` with a `SPEC` and add its `mod` line and its table line
//! here. A `SPEC` without a table line does not compile (it is never used), a duplicate id neither.
//! Its golden vectors come from one line in `tests/golden/make_quant_vectors.py`.

mod bf16;
mod f16;
mod f32;
pub(crate) mod k_scales;
mod other;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

use crate::plane::{BlockField, FieldName};
pub use other::{describe_ggml_type, supported_names};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Rows of a `padded` object start at multiples of this many bytes.
pub const PADDED_ROW_ALIGN: usize = 16;

/// What one quant type is: its numbers and its scalar dequantization.
#[derive(Debug)]
pub(crate) struct QuantSpec {
    /// Name as llama.cpp prints it, e.g. `q4_K`.
    pub(crate) name: &'static str,
    /// Elements a block.
    pub(crate) block_elems: usize,
    /// Bytes a block in GGUF.
    pub(crate) block_bytes: usize,
    /// Bytes from one block to the next in a `padded` object; the bytes between are zero.
    pub(crate) padded_block_stride: usize,
    /// Byte offsets, in a block, of its f16 factors (`d`, `dmin`, `m`); none for plain floats.
    pub(crate) scale_offsets: &'static [usize],
    /// Where the parts of an element lie in a block.
    pub(crate) fields: &'static [BlockField],
    /// Dequantizes one block: `block` has `block_bytes` bytes, `out` `block_elems` elements.
    pub(crate) dequantize: fn(block: &[u8], out: &mut [f32]),
}

/// An f16 in a block: little-endian, at any address.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
struct F16([u8; 2]);

impl F16 {
    fn to_f32(self) -> f32 {
        half::f16::from_le_bytes(self.0).to_f32()
    }
}

/// The bytes of a block as its struct.
///
/// # Panics
/// If the length is another one; [`QuantType::dequantize_block`] has checked it.
fn typed<T: FromBytes + KnownLayout + Immutable + Unaligned>(block: &[u8]) -> &T {
    T::ref_from_bytes(block).unwrap_or_else(|_| panic!("a block of {} bytes", block.len()))
}

macro_rules! quant_types {
    ($($id:literal => $variant:ident : $module:ident,)*) => {
        /// A GGUF tensor type that minfer can hold. Discriminants are ggml's ids.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        #[repr(u32)]
        pub enum QuantType {
            $(
                #[allow(missing_docs)]
                $variant = $id,
            )*
        }

        impl QuantType {
            /// Every type, in order of ggml id.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The type with this ggml id.
            pub fn from_ggml_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$variant),)*
                    _ => None,
                }
            }

            pub(crate) const fn spec(self) -> &'static QuantSpec {
                match self {
                    $(Self::$variant => &$module::SPEC,)*
                }
            }
        }
    };
}

quant_types! {
    0 => F32 : f32,
    1 => F16 : f16,
    2 => Q4_0 : q4_0,
    3 => Q4_1 : q4_1,
    6 => Q5_0 : q5_0,
    7 => Q5_1 : q5_1,
    8 => Q8_0 : q8_0,
    10 => Q2_K : q2_k,
    11 => Q3_K : q3_k,
    12 => Q4_K : q4_k,
    13 => Q5_K : q5_k,
    14 => Q6_K : q6_k,
    30 => BF16 : bf16,
}

impl QuantType {
    /// ggml's id of this type.
    pub fn ggml_id(self) -> u32 {
        self as u32
    }

    /// Name as llama.cpp prints it, e.g. `q4_K`.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Elements a block.
    pub const fn block_elems(self) -> usize {
        self.spec().block_elems
    }

    /// Bytes a block in GGUF.
    pub const fn block_bytes(self) -> usize {
        self.spec().block_bytes
    }

    /// First byte, in a block, of the cells of a field; `None` if the type does not have it.
    pub const fn field_offset(self, name: FieldName) -> Option<usize> {
        let fields = self.spec().fields;
        let mut i = 0;
        while i < fields.len() {
            if fields[i].name() as u32 == name as u32 {
                return Some(fields[i].first_byte());
            }
            i += 1;
        }
        None
    }

    /// Bytes from one block to the next in a `padded` object.
    pub const fn padded_block_stride(self) -> usize {
        self.spec().padded_block_stride
    }

    /// Bytes of a row of `row_len` elements in GGUF; `None` if it is not made of whole blocks or
    /// does not fit.
    pub fn checked_row_bytes(self, row_len: u64) -> Option<u64> {
        let n_blocks = self.n_blocks(row_len)?;
        n_blocks.checked_mul(u64::try_from(self.block_bytes()).ok()?)
    }

    /// Bytes of a row of `row_len` elements in GGUF.
    ///
    /// # Panics
    /// If the row is not made of whole blocks. For numbers from a file see
    /// [`checked_row_bytes`](Self::checked_row_bytes).
    pub fn row_bytes(self, row_len: usize) -> usize {
        assert!(row_len.is_multiple_of(self.block_elems()), "{} row of {row_len}", self.name());
        row_len / self.block_elems() * self.block_bytes()
    }

    /// Bytes from one row to the next in a `padded` object: padded blocks, rounded up to
    /// [`PADDED_ROW_ALIGN`]; `None` if the row is not made of whole blocks or does not fit.
    pub fn checked_padded_row_stride(self, row_len: u64) -> Option<u64> {
        let n_blocks = self.n_blocks(row_len)?;
        let n_bytes = n_blocks.checked_mul(u64::try_from(self.padded_block_stride()).ok()?)?;
        n_bytes.checked_next_multiple_of(u64::try_from(PADDED_ROW_ALIGN).ok()?)
    }

    /// Bytes from one row to the next in a `padded` object.
    ///
    /// # Panics
    /// If the row is not made of whole blocks.
    pub fn padded_row_stride(self, row_len: usize) -> usize {
        assert!(row_len.is_multiple_of(self.block_elems()), "{} row of {row_len}", self.name());
        let n_bytes = row_len / self.block_elems() * self.padded_block_stride();
        n_bytes.next_multiple_of(PADDED_ROW_ALIGN)
    }

    /// Blocks of a row; `None` if a block would be left partly empty.
    pub(crate) fn n_blocks(self, row_len: u64) -> Option<u64> {
        let block_elems = u64::try_from(self.block_elems()).ok()?;
        row_len.is_multiple_of(block_elems).then(|| row_len / block_elems)
    }

    /// Whether weights are plain floats (f32, f16, bf16).
    pub fn is_float(self) -> bool {
        self.block_elems() == 1
    }

    /// Dequantizes one block exactly (f32 arithmetic, no approximation).
    ///
    /// `block` has [`block_bytes`](Self::block_bytes) bytes, `out` has
    /// [`block_elems`](Self::block_elems) elements.
    ///
    /// # Panics
    /// If either slice has another length.
    pub fn dequantize_block(self, block: &[u8], out: &mut [f32]) {
        assert_eq!(block.len(), self.block_bytes(), "{} block bytes", self.name());
        assert_eq!(out.len(), self.block_elems(), "{} block elements", self.name());
        (self.spec().dequantize)(block, out);
    }
    /// Dequantizes whole blocks, e.g. a row.
    ///
    /// `blocks`: n blocks as they lie in GGUF; `out`: their n * `block_elems` elements.
    ///
    /// # Panics
    /// If `blocks` is not made of whole blocks or `out` has another length.
    pub fn dequantize(self, blocks: &[u8], out: &mut [f32]) {
        let spec = self.spec();
        assert!(blocks.len().is_multiple_of(spec.block_bytes), "{} bytes", self.name());
        let n_blocks = blocks.len() / spec.block_bytes;
        assert_eq!(out.len(), n_blocks * spec.block_elems, "{} elements", self.name());
        let blocks = blocks.chunks_exact(spec.block_bytes);
        for (block, out) in blocks.zip(out.chunks_exact_mut(spec.block_elems)) {
            (spec.dequantize)(block, out);
        }
    }

    /// Index of the first block with a NaN or infinite factor (`d`, `dmin`, `m`), or of the first
    /// NaN or infinite weight of a float type. One such block turns every result that it takes
    /// part in into NaN, so the packer refuses it.
    ///
    /// `blocks`: whole blocks as they lie in GGUF; a part of a block at the end is not looked at.
    pub fn find_non_finite_scale(self, blocks: &[u8]) -> Option<usize> {
        // Not finite: all bits of the exponent are set.
        let half = |bytes: &[u8], exponent: u16| match bytes {
            [low, high, ..] => u16::from_le_bytes([*low, *high]) & exponent == exponent,
            _ => false,
        };
        let spec = self.spec();
        blocks.chunks_exact(spec.block_bytes).position(|block| match self {
            Self::F32 => half(&block[2..], 0x7f80),
            Self::BF16 => half(block, 0x7f80),
            Self::F16 => half(block, 0x7c00),
            _ => spec.scale_offsets.iter().any(|&at| half(&block[at..], 0x7c00)),
        })
    }
}
