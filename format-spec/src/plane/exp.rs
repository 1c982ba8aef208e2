//! `exp`: q6_K's integers expanded, dense: byte `row * row_len + k` is one centred int8 (-32..31).
//!
//! The row stride is the row length and the super-block stride 256; reading it at the strides of
//! `padded` finds plausible weights of other positions.

use std::ops::Range;

use super::{Encoding, Field, FieldName, Geometry, Layout, Padding, Parts, PlaneSpec};
use crate::quant::QuantType;

const SUPER_BLOCK: usize = 256;

pub(super) static SPEC: PlaneSpec = PlaneSpec {
    name: "exp",
    is_base: false,
    applies_to: |quant| quant == QuantType::Q6_K,
    lay_out,
    write_units,
    restore_units: None,
};

fn lay_out(_quant: QuantType, geometry: Geometry) -> Option<Parts> {
    let row_stride = geometry.row_len;
    let mut k_bits = [0; 8];
    for (i, stride) in k_bits.iter_mut().enumerate() {
        *stride = 8 << i;
    }
    let quant = Field {
        name: FieldName::Quant,
        encoding: Encoding::Signed,
        bits: 8,
        shift: 0,
        bias: 0,
        base: 0,
        rows_per_group: 1,
        k_per_group: SUPER_BLOCK as u32,
        row_group_stride: row_stride,
        k_group_stride: SUPER_BLOCK as u64,
        bytes: SUPER_BLOCK as u32,
        row_bits: [0; 8],
        k_bits,
    };
    Some(Parts {
        fields: vec![quant],
        len_bytes: geometry.n_rows.checked_mul(row_stride)?,
        row_stride: Some(row_stride),
        block_stride: Some(SUPER_BLOCK as u64),
        unit_bytes: row_stride,
        rows_per_unit: Some(1),
        padding: Padding::NONE,
    })
}

fn write_units(layout: &Layout, gguf: &[u8], units: Range<usize>, out: &mut [u8]) {
    let block_bytes = layout.quant().block_bytes();
    let blocks_per_row = layout.gguf_row_bytes() as usize / block_bytes;
    let blocks = gguf
        .chunks_exact(block_bytes)
        .skip(units.start * blocks_per_row)
        .take(units.len() * blocks_per_row);
    for (block, out) in blocks.zip(out.chunks_exact_mut(SUPER_BLOCK)) {
        expand_block(block, out);
    }
}

/// Expands one q6_K super-block: `ql[128]`, `qh[64]`, then 16 scales and d, which stay behind.
///
/// Elements `r` and `r + 64` of a half share one byte of `ql` and, with `r + 32` and `r + 96`, one
/// byte of `qh`.
fn expand_block(block: &[u8], out: &mut [u8]) {
    let (low, rest) = block.split_at(128);
    let (high, _scales_and_d) = rest.split_at(64);
    let (low, high) = (low.as_chunks::<64>().0, high.as_chunks::<32>().0);
    for ((low, high), out) in low.iter().zip(high).zip(out.as_chunks_mut::<128>().0) {
        let centred = |low: u8, high: u8| (low | high << 4).wrapping_sub(32);
        for m in 0..32 {
            out[m] = centred(low[m] & 15, high[m] & 3);
            out[m + 32] = centred(low[m + 32] & 15, high[m] >> 2 & 3);
            out[m + 64] = centred(low[m] >> 4, high[m] >> 4 & 3);
            out[m + 96] = centred(low[m + 32] >> 4, high[m] >> 6);
        }
    }
}
