//! Embedding lookup: one row of a `padded` object, as f32.

use format_spec::QuantType;

/// Dequantizes a row: `bytes` holds its blocks at the `padded` block stride.
///
/// # Panics
/// If `bytes` is shorter than the row, or `out.len()` is no multiple of the block.
pub fn dequantize_row(out: &mut [f32], quant: QuantType, bytes: &[u8]) {
    let (block_elems, stride) = (quant.block_elems(), quant.padded_block_stride());
    assert!(out.len().is_multiple_of(block_elems), "{} elements of {}", out.len(), quant.name());
    for (block_idx, out) in out.chunks_exact_mut(block_elems).enumerate() {
        let block = &bytes[block_idx * stride..][..quant.block_bytes()];
        quant.dequantize_block(block, out);
    }
}
