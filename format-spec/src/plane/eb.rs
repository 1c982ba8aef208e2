//! `eb`: q4_K's integers expanded, `[k/256][od][256]`: one byte (0..=15) an element, a column of
//! super-blocks after the other. So the 256 bytes of neighbouring rows are contiguous: a tile of
//! 128 rows is one span of 32 KiB.
//!
//! A unit is a column of super-blocks.

use std::ops::Range;

use super::{Encoding, Field, FieldName, Geometry, Layout, Padding, Parts, PlaneSpec};
use crate::quant::QuantType;

const SUPER_BLOCK: usize = 256;
/// Where the nibbles start: behind `d`, `dmin` and 12 bytes of scales.
const NIBBLES_AT: usize = 16;

pub(super) static SPEC: PlaneSpec = PlaneSpec {
    name: "eb",
    is_base: false,
    applies_to: |quant| quant == QuantType::Q4_K,
    lay_out,
    write_units,
    restore_units: None,
};

fn lay_out(_quant: QuantType, geometry: Geometry) -> Option<Parts> {
    let column_bytes = geometry.n_rows.checked_mul(SUPER_BLOCK as u64)?;
    let mut k_bits = [0; 8];
    for (i, stride) in k_bits.iter_mut().enumerate() {
        *stride = 8 << i;
    }
    let quant = Field {
        name: FieldName::Quant,
        encoding: Encoding::Unsigned,
        bits: 8,
        shift: 0,
        bias: 0,
        base: 0,
        rows_per_group: 1,
        k_per_group: SUPER_BLOCK as u32,
        row_group_stride: SUPER_BLOCK as u64,
        k_group_stride: column_bytes,
        bytes: SUPER_BLOCK as u32,
        row_bits: [0; 8],
        k_bits,
    };
    Some(Parts {
        fields: vec![quant],
        len_bytes: geometry.row_len.checked_mul(geometry.n_rows)?,
        row_stride: None,
        block_stride: None,
        unit_bytes: column_bytes,
        rows_per_unit: None,
        padding: Padding::NONE,
    })
}

fn write_units(layout: &Layout, gguf: &[u8], units: Range<usize>, out: &mut [u8]) {
    let block_bytes = layout.quant().block_bytes();
    let column_bytes = layout.unit_bytes() as usize;
    let gguf_rows = gguf.chunks_exact(layout.gguf_row_bytes() as usize);
    // Rows outermost: the source is read in order, each column is written in order.
    for (row, gguf_row) in gguf_rows.enumerate() {
        for (column, unit) in units.clone().enumerate() {
            let nibbles = &gguf_row[unit * block_bytes..][NIBBLES_AT..block_bytes];
            let out = &mut out[column * column_bytes + row * SUPER_BLOCK..][..SUPER_BLOCK];
            // 32 bytes hold 32 elements in their low nibbles and the next 32 in the high ones.
            for (nibbles, out) in nibbles.chunks_exact(32).zip(out.chunks_exact_mut(64)) {
                let (low, high) = out.split_at_mut(32);
                for ((&pair, low), high) in nibbles.iter().zip(low).zip(high) {
                    *low = pair & 0xf;
                    *high = pair >> 4;
                }
            }
        }
    }
}
