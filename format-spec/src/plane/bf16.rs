//! `bf16`: the weights themselves, dequantized and rounded to the nearest bf16 (ties to even),
//! row-major. Rows start at multiples of 256 bytes; the bytes between are zero.

use std::ops::Range;

use half::bf16;

use super::{Encoding, Field, FieldName, Gap, Geometry, Layout, Padding, Parts, PlaneSpec};
use crate::quant::QuantType;

const BF16_BYTES: u64 = 2;
const ROW_ALIGN: u64 = 256;

pub(super) static SPEC: PlaneSpec = PlaneSpec {
    name: "bf16",
    is_base: false,
    applies_to: |_quant| true,
    lay_out,
    write_units,
    restore_units: None,
};

fn lay_out(_quant: QuantType, geometry: Geometry) -> Option<Parts> {
    let row_bytes = geometry.row_len.checked_mul(BF16_BYTES)?;
    let row_stride = row_bytes.checked_next_multiple_of(ROW_ALIGN)?;
    let value = Field {
        name: FieldName::Value,
        encoding: Encoding::Bf16,
        bits: 16,
        shift: 0,
        bias: 0,
        base: 0,
        rows_per_group: 1,
        k_per_group: 1,
        row_group_stride: row_stride,
        k_group_stride: BF16_BYTES,
        bytes: BF16_BYTES as u32,
        row_bits: [0; 8],
        k_bits: [0; 8],
    };
    let padding = if row_stride == row_bytes {
        Padding::NONE
    } else {
        let tail = Gap { first: row_bytes, stride: 0, count: 1, bytes: row_stride - row_bytes };
        Padding { period: row_stride, gaps: vec![tail] }
    };
    Some(Parts {
        fields: vec![value],
        len_bytes: geometry.n_rows.checked_mul(row_stride)?,
        row_stride: Some(row_stride),
        block_stride: None,
        unit_bytes: row_stride,
        rows_per_unit: Some(1),
        padding,
    })
}

fn write_units(layout: &Layout, gguf: &[u8], units: Range<usize>, out: &mut [u8]) {
    let quant = layout.quant();
    let gguf_row_bytes = layout.gguf_row_bytes() as usize;
    let mut weights = vec![0.0; layout.geometry().row_len as usize];
    let rows = gguf.chunks_exact(gguf_row_bytes).skip(units.start).take(units.len());
    for (row, out) in rows.zip(out.chunks_exact_mut(layout.unit_bytes() as usize)) {
        quant.dequantize(row, &mut weights);
        let (cells, tail) = out.split_at_mut(weights.len() * BF16_BYTES as usize);
        for (cell, &weight) in cells.as_chunks_mut::<2>().0.iter_mut().zip(&weights) {
            *cell = bf16::from_f32(weight).to_le_bytes();
        }
        tail.fill(0);
    }
}
