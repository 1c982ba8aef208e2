//! `tile`: sixteen rows interleaved, for CPUs: the rows are the lanes of a vector. A lossless base.
//!
//! Sixteen rows are one unit. In it lies one record a block (32, 256 or, for floats, 1 elements),
//! so that a unit is one stream; a record holds one part after the other, each for all its rows:
//!
//! ```text
//! d       [16]           f16
//! second  [16]           f16: dmin, or the minimum of q4_1 and q5_1
//! scales  [n][16]        u8 or int8, 6-bit ones unpacked; q2_K: scale and minimum are nibbles
//! mins    [n][16]        u8 (q4_K, q5_K)
//! high    [k/32][16][4]  one bit an element: byte i of a row's word holds elements 4 * j + i at bit j
//!         [k/16][16][4]  two bits an element: at bit pair j % 4
//! quants  [k/32][4][16][4]  nibbles: vector j holds elements 4 * j + i low, 16 + 4 * j + i high
//!         [k/16][16][4]  two bits an element, as the high bits
//!         [k/4][16][4]   bytes: q8_0 plus 128, so that they are unsigned
//! value   [k][16]        f16 and bf16
//! ```
//!
//! A word of four elements of one row is what a dot-product instruction takes; 64 bytes are such
//! words of sixteen rows. Machines with narrower vectors read them in halves or quarters: the order
//! is the same for all. Rows beyond the last are zero.

mod moves;

use std::ops::Range;

use super::{Encoding, Field, FieldName, Gap, Geometry, Layout, Padding, Parts, PlaneSpec};
use crate::quant::QuantType;
use moves::{Moves, for_each_block};

/// Rows that are interleaved.
pub(super) const ROWS: usize = 16;

/// Bits by which the bits of a row move a cell: rows `width` bytes apart.
const fn row_bits(width: usize) -> [u32; 8] {
    let w = 8 * width as u32;
    [w, 2 * w, 4 * w, 8 * w, 0, 0, 0, 0]
}

/// Bytes of one row's word of a vector.
const WORD: usize = 4;
/// Bits of sixteen words.
const VECTOR_BITS: u32 = (8 * WORD * ROWS) as u32;

const NIBBLES: [u32; 8] = {
    let v = VECTOR_BITS;
    [8, 16, v, 2 * v, 4, 4 * v, 8 * v, 16 * v]
};
const BYTES: [u32; 8] = {
    let v = VECTOR_BITS;
    [8, 16, v, 2 * v, 4 * v, 0, 0, 0]
};
const CRUMBS: [u32; 8] = {
    let v = VECTOR_BITS;
    [8, 16, 2, 4, v, 2 * v, 4 * v, 8 * v]
};
const BITS: [u32; 8] = {
    let v = VECTOR_BITS;
    [8, 16, 1, 2, 4, v, 2 * v, 4 * v]
};
/// A byte a row for each 16, and for each 32 elements.
const BYTE_EACH_16: [u32; 8] = [0, 0, 0, 0, 128, 256, 512, 1024];
const BYTE_EACH_32: [u32; 8] = [0, 0, 0, 0, 0, 128, 256, 512];

pub(super) static SPEC: PlaneSpec = PlaneSpec {
    name: "tile",
    is_base: true,
    applies_to: |quant| TileRecord::of(quant).is_some(),
    lay_out,
    write_units,
    restore_units: Some(restore_units),
};

/// Where the parts of one block of sixteen rows lie: byte offsets in its record. A part that the
/// type does not have is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileRecord {
    /// `d`, f16.
    pub d: usize,
    /// `dmin`, or the minimum of a type without scales of sub-blocks; f16.
    pub second: usize,
    /// Scales of sub-blocks.
    pub scales: usize,
    /// Minimums of sub-blocks.
    pub mins: usize,
    /// High bits.
    pub high: usize,
    /// Low bits, or the floats themselves.
    pub quants: usize,
    /// Bytes of the record.
    pub bytes: usize,
}

impl TileRecord {
    /// Rows of a unit.
    pub const ROWS: usize = ROWS;

    /// The record of a quant type; `None` if `tile` does not exist for it.
    pub const fn of(quant: QuantType) -> Option<Self> {
        // Factors of a block; scales and minimums of sub-blocks; high and low bits an element.
        let (factors, scales, mins, high_bits, bits) = match quant {
            QuantType::F32 => return None,
            QuantType::F16 | QuantType::BF16 => (0, 0, 0, 0, 16),
            QuantType::Q4_0 => (1, 0, 0, 0, 4),
            QuantType::Q4_1 => (2, 0, 0, 0, 4),
            QuantType::Q5_0 => (1, 0, 0, 1, 4),
            QuantType::Q5_1 => (2, 0, 0, 1, 4),
            QuantType::Q8_0 => (1, 0, 0, 0, 8),
            QuantType::Q2_K => (2, 16, 0, 0, 2),
            QuantType::Q3_K => (1, 16, 0, 1, 2),
            QuantType::Q4_K => (2, 8, 8, 0, 4),
            QuantType::Q5_K => (2, 8, 8, 1, 4),
            QuantType::Q6_K => (1, 16, 0, 2, 4),
        };
        let elems = quant.block_elems();
        let d = 0;
        let second = if factors > 0 { 2 * ROWS } else { 0 };
        let scales_at = 2 * ROWS * factors;
        let mins_at = scales_at + ROWS * scales;
        let high = mins_at + ROWS * mins;
        let quants = high + ROWS * elems * high_bits / 8;
        let bytes = quants + ROWS * elems * bits / 8;
        Some(Self { d, second, scales: scales_at, mins: mins_at, high, quants, bytes })
    }
}

/// Fields of one record, at offset 0, as if a unit were `unit_bytes` long.
fn fields(quant: QuantType, record: &TileRecord, unit_bytes: u64) -> Vec<Field> {
    let elems = quant.block_elems();
    // A field whose rows lie `width` bytes apart, in `n` groups of sixteen rows.
    let field = |name, at: usize, width: usize, n: usize, bits: u8, k_bits: [u32; 8]| Field {
        name,
        encoding: Encoding::Unsigned,
        bits,
        shift: 0,
        bias: 0,
        base: at as u64,
        rows_per_group: ROWS as u32,
        k_per_group: elems as u32,
        row_group_stride: unit_bytes,
        k_group_stride: record.bytes as u64,
        bytes: (ROWS * width * n) as u32,
        row_bits: row_bits(width),
        // A block of 32 has five bits.
        k_bits: std::array::from_fn(|i| if elems >> i > 1 { k_bits[i] } else { 0 }),
    };
    let half = |name, at| Field { encoding: Encoding::F16, ..field(name, at, 2, 1, 16, [0; 8]) };
    let (d, second) = (half(FieldName::D, record.d), |name| half(name, record.second));
    let nibbles = |bias| Field {
        bias,
        ..field(FieldName::Quant, record.quants, WORD, elems / 8, 4, NIBBLES)
    };
    let crumbs = |name, at| field(name, at, WORD, elems / 16, 2, CRUMBS);
    let high_bit = field(FieldName::High, record.high, WORD, elems / 32, 1, BITS);
    let scales = |bits, each: [u32; 8]| {
        let n = if each == BYTE_EACH_16 { elems / 16 } else { elems / 32 };
        field(FieldName::Scale, record.scales, 1, n, bits, each)
    };
    let mins = Field { name: FieldName::Min, base: record.mins as u64, ..scales(8, BYTE_EACH_32) };
    match quant {
        QuantType::F32 => Vec::new(),
        QuantType::F16 | QuantType::BF16 => {
            let bf16 = quant == QuantType::BF16;
            let encoding = if bf16 { Encoding::Bf16 } else { Encoding::F16 };
            vec![Field { encoding, ..half(FieldName::Value, record.quants) }]
        }
        QuantType::Q4_0 => vec![nibbles(-8), d],
        QuantType::Q4_1 => vec![nibbles(0), second(FieldName::Min), d],
        QuantType::Q5_0 => vec![nibbles(-16), high_bit, d],
        QuantType::Q5_1 => vec![nibbles(0), high_bit, second(FieldName::Min), d],
        QuantType::Q8_0 => {
            let quants = field(FieldName::Quant, record.quants, WORD, elems / 4, 8, BYTES);
            vec![Field { bias: -128, ..quants }, d]
        }
        QuantType::Q2_K => {
            let scale = scales(4, BYTE_EACH_16);
            let min = Field { name: FieldName::Min, shift: 4, ..scale };
            let quants = crumbs(FieldName::Quant, record.quants);
            vec![quants, scale, min, d, second(FieldName::Dmin)]
        }
        QuantType::Q3_K => {
            let quants = Field { bias: -4, ..crumbs(FieldName::Quant, record.quants) };
            vec![quants, high_bit, Field { bias: -32, ..scales(8, BYTE_EACH_16) }, d]
        }
        QuantType::Q4_K => {
            vec![nibbles(0), scales(8, BYTE_EACH_32), mins, d, second(FieldName::Dmin)]
        }
        QuantType::Q5_K => {
            let scales = scales(8, BYTE_EACH_32);
            vec![nibbles(0), high_bit, scales, mins, d, second(FieldName::Dmin)]
        }
        QuantType::Q6_K => {
            let scales = Field { encoding: Encoding::Signed, ..scales(8, BYTE_EACH_16) };
            vec![nibbles(-32), crumbs(FieldName::High, record.high), scales, d]
        }
    }
}

fn lay_out(quant: QuantType, geometry: Geometry) -> Option<Parts> {
    let record = TileRecord::of(quant)?;
    let n_blocks = geometry.row_len / quant.block_elems() as u64;
    let unit_bytes = n_blocks.checked_mul(record.bytes as u64)?;
    let n_units = geometry.n_rows.div_ceil(ROWS as u64);
    let len_bytes = n_units.checked_mul(unit_bytes)?;
    let fields = fields(quant, &record, unit_bytes);
    let padding = padding(geometry, &fields, n_blocks, len_bytes, unit_bytes);
    Some(Parts {
        fields,
        len_bytes,
        row_stride: None,
        block_stride: None,
        unit_bytes,
        rows_per_unit: Some(ROWS as u64),
        padding,
    })
}

/// The rows that the last unit has too many.
fn padding(
    geometry: Geometry,
    fields: &[Field],
    n_blocks: u64,
    len_bytes: u64,
    unit_bytes: u64,
) -> Padding {
    let used_rows = (geometry.n_rows - 1) % ROWS as u64 + 1;
    if used_rows == ROWS as u64 {
        return Padding::NONE;
    }
    let mut gaps = Vec::new();
    for field in fields {
        // Two fields that share bytes (q2_K) are one gap.
        if field.shift > 0 {
            continue;
        }
        let width = u64::from(field.row_bits[0] / 8);
        let group_bytes = ROWS as u64 * width;
        for group in 0..u64::from(field.bytes) / group_bytes {
            gaps.push(Gap {
                first: len_bytes - unit_bytes
                    + field.base
                    + group * group_bytes
                    + used_rows * width,
                stride: field.k_group_stride,
                count: n_blocks,
                bytes: (ROWS as u64 - used_rows) * width,
            });
        }
    }
    Padding { period: len_bytes, gaps }
}

fn write_units(layout: &Layout, gguf: &[u8], units: Range<usize>, out: &mut [u8]) {
    let moves = Moves::new(layout);
    let gguf_row_bytes = layout.gguf_row_bytes() as usize;
    let groups = gguf.chunks(ROWS * gguf_row_bytes).skip(units.start);
    out.fill(0);
    for (rows, unit) in groups.zip(out.chunks_exact_mut(layout.unit_bytes() as usize)) {
        for (row, gguf_row) in rows.chunks_exact(gguf_row_bytes).enumerate() {
            for_each_block(layout, gguf_row, unit, |block, record| moves.put(block, record, row));
        }
    }
}

fn restore_units(layout: &Layout, units: &[u8], out: &mut [u8]) {
    let moves = Moves::new(layout);
    let gguf_row_bytes = layout.gguf_row_bytes() as usize;
    out.fill(0);
    let units = units.chunks_exact(layout.unit_bytes() as usize);
    for (unit, rows) in units.zip(out.chunks_mut(ROWS * gguf_row_bytes)) {
        for (row, gguf_row) in rows.chunks_exact_mut(gguf_row_bytes).enumerate() {
            let blocks = gguf_row.chunks_exact_mut(layout.quant().block_bytes());
            for (block, record) in blocks.zip(unit.chunks_exact(moves.record_bytes())) {
                moves.take(block, record, row);
            }
        }
    }
}
