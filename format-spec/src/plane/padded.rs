//! `padded`: GGUF's own blocks at strides that keep loads aligned. The lossless base.
//!
//! Block stride: natural, except where the quant type says otherwise (q6_K 224, q3_K 112); row
//! stride: whole blocks rounded up to 16 bytes. All bytes between are zero.

use std::ops::Range;

use super::{Gap, Geometry, Layout, Padding, Parts, PlaneSpec};
use crate::quant::QuantType;

pub(super) static SPEC: PlaneSpec = PlaneSpec {
    name: "padded",
    is_base: true,
    applies_to: |_quant| true,
    lay_out,
    write_units,
    restore_units: Some(restore_units),
};

fn lay_out(quant: QuantType, geometry: Geometry) -> Option<Parts> {
    let block_bytes = quant.block_bytes() as u64;
    let block_stride = quant.padded_block_stride() as u64;
    let n_blocks = geometry.row_len / quant.block_elems() as u64;
    let row_bytes = n_blocks.checked_mul(block_stride)?;
    let row_stride = quant.checked_padded_row_stride(geometry.row_len)?;
    let len_bytes = geometry.n_rows.checked_mul(row_stride)?;
    let fields = quant
        .spec()
        .fields
        .iter()
        .map(|field| field.in_blocks(quant.block_elems(), block_stride, row_stride))
        .collect();
    let mut gaps = Vec::new();
    if block_stride > block_bytes {
        gaps.push(Gap {
            first: block_bytes,
            stride: block_stride,
            count: n_blocks,
            bytes: block_stride - block_bytes,
        });
    }
    if row_stride > row_bytes {
        gaps.push(Gap { first: row_bytes, stride: 0, count: 1, bytes: row_stride - row_bytes });
    }
    let padding =
        if gaps.is_empty() { Padding::NONE } else { Padding { period: row_stride, gaps } };
    Some(Parts {
        fields,
        len_bytes,
        row_stride: Some(row_stride),
        block_stride: Some(block_stride),
        unit_bytes: row_stride,
        rows_per_unit: Some(1),
        padding,
    })
}

fn write_units(layout: &Layout, gguf: &[u8], units: Range<usize>, out: &mut [u8]) {
    let gguf_row_bytes = layout.gguf_row_bytes() as usize;
    let rows = gguf.chunks_exact(gguf_row_bytes).skip(units.start).take(units.len());
    for (row, out) in rows.zip(out.chunks_exact_mut(layout.unit_bytes() as usize)) {
        let out_blocks = out.chunks_exact_mut(layout.quant().padded_block_stride());
        if layout.padding().period == 0 {
            out.copy_from_slice(row);
            continue;
        }
        let mut written = 0;
        for (block, out) in row.chunks_exact(layout.quant().block_bytes()).zip(out_blocks) {
            let (content, pad) = out.split_at_mut(block.len());
            content.copy_from_slice(block);
            pad.fill(0);
            written += content.len() + pad.len();
        }
        out[written..].fill(0);
    }
}

fn restore_units(layout: &Layout, units: &[u8], out: &mut [u8]) {
    let rows = units.chunks_exact(layout.unit_bytes() as usize);
    for (row, out) in rows.zip(out.chunks_exact_mut(layout.gguf_row_bytes() as usize)) {
        let block_bytes = layout.quant().block_bytes();
        let blocks = row.chunks_exact(layout.quant().padded_block_stride());
        for (block, out) in blocks.zip(out.chunks_exact_mut(block_bytes)) {
            out.copy_from_slice(&block[..block_bytes]);
        }
    }
}
