//! `planar`: quants, high bits, scales and block factors in planes of their own, 4 rows
//! interleaved, so that a GPU thread loads 16 bytes of quants of one sub-block. A lossless base.
//!
//! Four rows are one unit; in it, one plane after the other:
//!
//! ```text
//! quants  [k/32][4][16]  low bits: byte i holds element i in its low and 16 + i in its high nibble
//!                        (q8_0: [k/32][4][32], one int8 an element)
//! high    [k/32][4][4 or 8]  byte i % 4 of a word holds the high bits of elements 4 * j + i: see
//!                        `HIGH_1` and `HIGH_2`; one shift and one mask fit a whole word of quants
//! scales  [k/32][4][2]   q4_K, q5_K: 6-bit scale and minimum as u8; q6_K: two int8 scales
//! factors [k/256][4]     d and dmin, or d, as f16 (q8_0: [k/32][4])
//! ```
//!
//! The unit ends at a multiple of 16 bytes. Rows beyond the last are zero.

mod chunk;

use std::ops::Range;

use super::{Encoding, Field, FieldName, Gap, Geometry, Layout, Padding, Parts, PlaneSpec};
use crate::plane::k_bits::{BYTES_32, NIBBLES_32};
use crate::quant::QuantType;
use chunk::{CHUNK, Chunk};

/// Rows that are interleaved.
const ROWS: usize = 4;
/// Units end at multiples of this many bytes.
const UNIT_ALIGN: u64 = 16;

/// One high bit an element: element `16 * h + 4 * j + i` is bit `4 * h + j` of byte i.
const HIGH_1: [u32; 8] = [8, 16, 1, 2, 4, 0, 0, 0];
/// Two high bits an element: element `16 * h + 4 * j + i` is bit pair j of byte `4 * h + i`.
const HIGH_2: [u32; 8] = [8, 16, 2, 4, 32, 0, 0, 0];

pub(super) static SPEC: PlaneSpec = PlaneSpec {
    name: "planar",
    is_base: true,
    applies_to: |quant| Widths::of(quant).is_some(),
    lay_out,
    write_units,
    restore_units: Some(restore_units),
};

/// Bytes of each plane.
#[derive(Clone, Copy)]
struct Widths {
    /// A row and 32 elements.
    quants: usize,
    /// A row and 32 elements.
    high: usize,
    /// A row and 32 elements.
    scales: usize,
    /// A row and block.
    factors: usize,
    /// Elements a block.
    block_elems: usize,
}

impl Widths {
    fn of(quant: QuantType) -> Option<Self> {
        let (quants, high, scales, factors) = match quant {
            QuantType::Q4_K => (16, 0, 2, 4),
            QuantType::Q5_K => (16, 4, 2, 4),
            QuantType::Q6_K => (16, 8, 2, 2),
            QuantType::Q8_0 => (32, 0, 0, 2),
            _ => return None,
        };
        Some(Self { quants, high, scales, factors, block_elems: quant.block_elems() })
    }

    /// First byte of quants, high bits, scales, factors and of what follows them in a unit.
    fn starts(&self, row_len: u64) -> Option<[u64; 5]> {
        let n_chunks = row_len / CHUNK as u64;
        let n_blocks = row_len / self.block_elems as u64;
        let planes = [
            (self.quants, n_chunks),
            (self.high, n_chunks),
            (self.scales, n_chunks),
            (self.factors, n_blocks),
        ];
        let mut starts = [0; 5];
        for (i, (width, n)) in planes.into_iter().enumerate() {
            let bytes = n.checked_mul((ROWS * width) as u64)?;
            starts[i + 1] = u64::checked_add(starts[i], bytes)?;
        }
        Some(starts)
    }
}

fn lay_out(quant: QuantType, geometry: Geometry) -> Option<Parts> {
    let widths = Widths::of(quant)?;
    let starts = widths.starts(geometry.row_len)?;
    let unit_bytes = starts[4].checked_next_multiple_of(UNIT_ALIGN)?;
    let n_units = geometry.n_rows.div_ceil(ROWS as u64);
    let len_bytes = n_units.checked_mul(unit_bytes)?;
    Some(Parts {
        fields: fields(quant, widths, starts, unit_bytes),
        len_bytes,
        row_stride: None,
        block_stride: None,
        unit_bytes,
        rows_per_unit: Some(ROWS as u64),
        padding: padding(geometry, widths, starts, unit_bytes),
    })
}

fn fields(quant: QuantType, widths: Widths, starts: [u64; 5], unit_bytes: u64) -> Vec<Field> {
    // A field whose rows lie `width` bytes apart in each group of elements.
    let field = |name, plane: usize, width: usize, bits: u8, elems: usize| Field {
        name,
        encoding: Encoding::Unsigned,
        bits,
        shift: 0,
        bias: 0,
        base: starts[plane],
        rows_per_group: ROWS as u32,
        k_per_group: elems as u32,
        row_group_stride: unit_bytes,
        k_group_stride: (ROWS * width) as u64,
        bytes: (ROWS * width) as u32,
        row_bits: [8 * width as u32, 16 * width as u32, 0, 0, 0, 0, 0, 0],
        k_bits: [0; 8],
    };
    let quants = Field { k_bits: NIBBLES_32, ..field(FieldName::Quant, 0, 16, 4, CHUNK) };
    let pair = |name, at: u64| {
        let field = field(name, 2, widths.scales, 8, CHUNK);
        Field { base: field.base + at, bytes: field.bytes - 1, ..field }
    };
    let factor = |name, at: u64| {
        let field = field(name, 3, widths.factors, 16, widths.block_elems);
        let bytes = field.bytes - (widths.factors as u32 - 2);
        Field { encoding: Encoding::F16, base: field.base + at, bytes, ..field }
    };
    let with_minimums = || {
        [
            pair(FieldName::Scale, 0),
            pair(FieldName::Min, 1),
            factor(FieldName::D, 0),
            factor(FieldName::Dmin, 2),
        ]
    };
    match quant {
        QuantType::Q5_K => {
            let high = Field { k_bits: HIGH_1, ..field(FieldName::High, 1, 4, 1, CHUNK) };
            [quants, high].into_iter().chain(with_minimums()).collect()
        }
        QuantType::Q6_K => {
            let quants = Field { bias: -32, ..quants };
            let high = Field { k_bits: HIGH_2, ..field(FieldName::High, 1, 8, 2, CHUNK) };
            let scales = Field {
                encoding: Encoding::Signed,
                k_bits: [0, 0, 0, 0, 8, 0, 0, 0],
                ..field(FieldName::Scale, 2, 2, 8, CHUNK)
            };
            vec![quants, high, scales, factor(FieldName::D, 0)]
        }
        QuantType::Q8_0 => {
            let quants = field(FieldName::Quant, 0, 32, 8, CHUNK);
            let quants = Field { encoding: Encoding::Signed, k_bits: BYTES_32, ..quants };
            vec![quants, factor(FieldName::D, 0)]
        }
        _ => std::iter::once(quants).chain(with_minimums()).collect(),
    }
}

/// Ends of units, and the rows that the last unit has too many.
fn padding(geometry: Geometry, widths: Widths, starts: [u64; 5], unit_bytes: u64) -> Padding {
    let n_units = geometry.n_rows.div_ceil(ROWS as u64);
    let mut gaps = Vec::new();
    let end = unit_bytes - starts[4];
    if end > 0 {
        gaps.push(Gap { first: starts[4], stride: unit_bytes, count: n_units, bytes: end });
    }
    let used_rows = geometry.n_rows - (n_units - 1) * ROWS as u64;
    if used_rows < ROWS as u64 {
        let last_unit = (n_units - 1) * unit_bytes;
        let planes = [widths.quants, widths.high, widths.scales, widths.factors];
        for (i, width) in planes.into_iter().enumerate().filter(|&(_, width)| width > 0) {
            let stride = (ROWS * width) as u64;
            gaps.push(Gap {
                first: last_unit + starts[i] + used_rows * width as u64,
                stride,
                count: (starts[i + 1] - starts[i]) / stride,
                bytes: (ROWS as u64 - used_rows) * width as u64,
            });
        }
    }
    if gaps.is_empty() { Padding::NONE } else { Padding { period: n_units * unit_bytes, gaps } }
}

/// The planes of one unit.
struct Planes<'a> {
    widths: Widths,
    quants: &'a mut [u8],
    high: &'a mut [u8],
    scales: &'a mut [u8],
    factors: &'a mut [u8],
}

impl<'a> Planes<'a> {
    fn new(layout: &Layout, unit: &'a mut [u8]) -> Option<Self> {
        let widths = Widths::of(layout.quant())?;
        let [_, high, scales, factors, end] =
            widths.starts(layout.geometry().row_len)?.map(|start| start as usize);
        let (unit, _) = unit.split_at_mut(end);
        let (unit, factors) = unit.split_at_mut(factors);
        let (unit, scales) = unit.split_at_mut(scales);
        let (quants, high) = unit.split_at_mut(high);
        Some(Self { widths, quants, high, scales, factors })
    }

    fn chunk(&mut self, row: usize, chunk: usize) -> Chunk<'_> {
        let at = chunk * ROWS + row;
        let Widths { quants, high, scales, .. } = self.widths;
        Chunk {
            quants: &mut self.quants[at * quants..][..quants],
            high: &mut self.high[at * high..][..high],
            scales: &mut self.scales[at * scales..][..scales],
        }
    }

    fn factors(&mut self, row: usize, block: usize) -> &mut [u8] {
        let width = self.widths.factors;
        &mut self.factors[(block * ROWS + row) * width..][..width]
    }
}

fn write_units(layout: &Layout, gguf: &[u8], units: Range<usize>, out: &mut [u8]) {
    let quant = layout.quant();
    let gguf_row_bytes = layout.gguf_row_bytes() as usize;
    let chunks_per_block = quant.block_elems() / CHUNK;
    let groups = gguf.chunks(ROWS * gguf_row_bytes).skip(units.start);
    for (group, unit) in groups.zip(out.chunks_exact_mut(layout.unit_bytes() as usize)) {
        unit.fill(0);
        let Some(mut planes) = Planes::new(layout, unit) else { return };
        for (row, gguf_row) in group.chunks_exact(gguf_row_bytes).enumerate() {
            for (i, block) in gguf_row.chunks_exact(quant.block_bytes()).enumerate() {
                let (at, width) = (chunk::factors_at(quant), planes.widths.factors);
                planes.factors(row, i).copy_from_slice(&block[at..at + width]);
                for c in 0..chunks_per_block {
                    planes.chunk(row, i * chunks_per_block + c).take(quant, block, c);
                }
            }
        }
    }
}

fn restore_units(layout: &Layout, units: &[u8], out: &mut [u8]) {
    let quant = layout.quant();
    let gguf_row_bytes = layout.gguf_row_bytes() as usize;
    let chunks_per_block = quant.block_elems() / CHUNK;
    let mut unit = vec![0; layout.unit_bytes() as usize];
    let units = units.chunks_exact(unit.len());
    for (bytes, group) in units.zip(out.chunks_mut(ROWS * gguf_row_bytes)) {
        unit.copy_from_slice(bytes);
        let Some(mut planes) = Planes::new(layout, &mut unit) else { return };
        for (row, gguf_row) in group.chunks_exact_mut(gguf_row_bytes).enumerate() {
            for (i, block) in gguf_row.chunks_exact_mut(quant.block_bytes()).enumerate() {
                block.fill(0);
                let (at, width) = (chunk::factors_at(quant), planes.widths.factors);
                block[at..at + width].copy_from_slice(planes.factors(row, i));
                for c in 0..chunks_per_block {
                    planes.chunk(row, i * chunks_per_block + c).put(quant, block, c);
                }
            }
        }
    }
}
