//! `sb`: q4_K's products as pairs of f32, `(d * scale, -dmin * min)`, `[k/32][od4]`: for each 32
//! elements, all rows side by side. `od4` is the number of rows rounded up to 4; the tail is zero.
//!
//! A unit is a column of super-blocks: 8 groups of all rows.

use std::ops::Range;

use half::f16;

use super::{Encoding, Field, FieldName, Gap, Geometry, Layout, Padding, Parts, PlaneSpec};
use crate::quant::QuantType;
use crate::quant::k_scales::scale_min;

const GROUP: u64 = 32;
const GROUPS_PER_BLOCK: usize = 8;
const PAIR_BYTES: u64 = 8;
/// Rows of a cache line of the plane.
const ROWS_PER_TILE: usize = 8;

pub(super) static SPEC: PlaneSpec = PlaneSpec {
    name: "sb",
    is_base: false,
    applies_to: |quant| quant == QuantType::Q4_K,
    lay_out,
    write_units,
    restore_units: None,
};

fn lay_out(_quant: QuantType, geometry: Geometry) -> Option<Parts> {
    let n_rows = geometry.n_rows;
    let rounded_rows = n_rows.checked_next_multiple_of(4)?;
    let group_bytes = rounded_rows.checked_mul(PAIR_BYTES)?;
    let scale = Field {
        name: FieldName::Scale,
        encoding: Encoding::F32,
        bits: 32,
        shift: 0,
        bias: 0,
        base: 0,
        rows_per_group: 1,
        k_per_group: GROUP as u32,
        row_group_stride: PAIR_BYTES,
        k_group_stride: group_bytes,
        bytes: 4,
        row_bits: [0; 8],
        k_bits: [0; 8],
    };
    let min = Field { name: FieldName::Min, base: 4, ..scale };
    let padding = if rounded_rows == n_rows {
        Padding::NONE
    } else {
        let bytes = (rounded_rows - n_rows) * PAIR_BYTES;
        let tail = Gap { first: n_rows * PAIR_BYTES, stride: 0, count: 1, bytes };
        Padding { period: group_bytes, gaps: vec![tail] }
    };
    Some(Parts {
        fields: vec![scale, min],
        len_bytes: (geometry.row_len / GROUP).checked_mul(group_bytes)?,
        row_stride: None,
        block_stride: None,
        unit_bytes: group_bytes.checked_mul(GROUPS_PER_BLOCK as u64)?,
        rows_per_unit: None,
        padding,
    })
}

fn write_units(layout: &Layout, gguf: &[u8], units: Range<usize>, out: &mut [u8]) {
    let block_bytes = layout.quant().block_bytes();
    let n_rows = layout.geometry().n_rows as usize;
    let rounded_rows = n_rows.next_multiple_of(4);
    let gguf_row_bytes = layout.gguf_row_bytes() as usize;
    let (pairs, _) = out.as_chunks_mut::<8>();
    // Tiles of rows: the source is read nearly in order, and the rows of a tile fill whole cache
    // lines of the plane.
    for (tile, gguf_rows) in gguf.chunks(ROWS_PER_TILE * gguf_row_bytes).enumerate() {
        for (column, unit) in units.clone().enumerate() {
            for (row, gguf_row) in gguf_rows.chunks_exact(gguf_row_bytes).enumerate() {
                let block = &gguf_row[unit * block_bytes..][..block_bytes];
                let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
                let (d, dmin) = (half(0), half(2));
                let scales = block[4..].first_chunk().unwrap_or(&[0; 12]);
                for group in 0..GROUPS_PER_BLOCK {
                    let (scale, min) = scale_min(scales, group);
                    let products = [d * f32::from(scale), -(dmin * f32::from(min))];
                    let pair = &mut pairs[(column * GROUPS_PER_BLOCK + group) * rounded_rows
                        + tile * ROWS_PER_TILE
                        + row];
                    let (cells, _) = pair.as_chunks_mut::<4>();
                    for (cell, product) in cells.iter_mut().zip(products) {
                        *cell = product.to_le_bytes();
                    }
                }
            }
        }
    }
    for group in pairs.chunks_exact_mut(rounded_rows) {
        group[n_rows..].fill([0; 8]);
    }
}
