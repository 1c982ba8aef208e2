//! `dsc`: q6_K's products `d * scale` as f32, `[k/16][od4]`: for each 16 elements, all rows side by
//! side. `od4` is the number of rows rounded up to 4; the tail is zero.
//!
//! A unit is a column of super-blocks: 16 groups of all rows.

use std::ops::Range;

use half::f16;

use super::{Encoding, Field, FieldName, Gap, Geometry, Layout, Padding, Parts, PlaneSpec};
use crate::quant::QuantType;

const GROUP: u64 = 16;
const GROUPS_PER_BLOCK: u64 = 16;
const F32_BYTES: u64 = 4;
/// Rows of a cache line of the plane.
const ROWS_PER_TILE: usize = 16;

pub(super) static SPEC: PlaneSpec = PlaneSpec {
    name: "dsc",
    is_base: false,
    applies_to: |quant| quant == QuantType::Q6_K,
    lay_out,
    write_units,
    restore_units: None,
};

fn lay_out(_quant: QuantType, geometry: Geometry) -> Option<Parts> {
    let n_rows = geometry.n_rows;
    let rounded_rows = n_rows.checked_next_multiple_of(4)?;
    let group_bytes = rounded_rows.checked_mul(F32_BYTES)?;
    let scale = Field {
        name: FieldName::Scale,
        encoding: Encoding::F32,
        bits: 32,
        shift: 0,
        bias: 0,
        base: 0,
        rows_per_group: 1,
        k_per_group: GROUP as u32,
        row_group_stride: F32_BYTES,
        k_group_stride: group_bytes,
        bytes: F32_BYTES as u32,
        row_bits: [0; 8],
        k_bits: [0; 8],
    };
    let padding = if rounded_rows == n_rows {
        Padding::NONE
    } else {
        let bytes = (rounded_rows - n_rows) * F32_BYTES;
        let tail = Gap { first: n_rows * F32_BYTES, stride: 0, count: 1, bytes };
        Padding { period: group_bytes, gaps: vec![tail] }
    };
    Some(Parts {
        fields: vec![scale],
        len_bytes: (geometry.row_len / GROUP).checked_mul(group_bytes)?,
        row_stride: None,
        block_stride: None,
        unit_bytes: group_bytes.checked_mul(GROUPS_PER_BLOCK)?,
        rows_per_unit: None,
        padding,
    })
}

fn write_units(layout: &Layout, gguf: &[u8], units: Range<usize>, out: &mut [u8]) {
    let block_bytes = layout.quant().block_bytes();
    let n_rows = layout.geometry().n_rows as usize;
    let rounded_rows = n_rows.next_multiple_of(4);
    let (cells, _) = out.as_chunks_mut::<4>();
    let gguf_row_bytes = layout.gguf_row_bytes() as usize;
    // Tiles of rows: the source, which may be a file that is not in memory yet, is read nearly in
    // order, and the rows of a tile fill whole cache lines of the plane.
    for (tile, gguf_rows) in gguf.chunks(ROWS_PER_TILE * gguf_row_bytes).enumerate() {
        for (column, unit) in units.clone().enumerate() {
            let first_group = column * GROUPS_PER_BLOCK as usize;
            for (row, gguf_row) in gguf_rows.chunks_exact(gguf_row_bytes).enumerate() {
                let block = &gguf_row[unit * block_bytes..][..block_bytes];
                // Behind ql[128] and qh[64]: 16 int8 scales, then d.
                let d = f16::from_le_bytes([block[208], block[209]]).to_f32();
                let first_cell = first_group * rounded_rows + tile * ROWS_PER_TILE + row;
                for (group, &scale) in block[192..208].iter().enumerate() {
                    let product = d * f32::from(scale as i8);
                    cells[first_cell + group * rounded_rows] = product.to_le_bytes();
                }
            }
        }
    }
    for group in cells.chunks_exact_mut(rounded_rows) {
        group[n_rows..].fill([0; 4]);
    }
}
