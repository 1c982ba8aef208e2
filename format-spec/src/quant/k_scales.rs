//! The scales that `q4_K` and `q5_K` share: eight 6-bit scales and eight 6-bit minimums in 12 bytes.

use crate::plane::BlockField;
use crate::plane::FieldName::{Min, MinHigh, Scale, ScaleHigh};

/// Where both types have the 12 bytes: behind `d` and `dmin`.
const AT: usize = 4;

/// Low four bits of a scale: bytes 0..4, then the low nibbles of bytes 8..12.
pub(super) const SCALE: BlockField =
    BlockField::unsigned(Scale, 4, (AT, 12), [0, 0, 0, 0, 0, 8, 16, 64]);

/// High two bits of a scale: bits 4 and 5 of bytes 0..4, then bits 6 and 7.
pub(super) const SCALE_HIGH: BlockField =
    BlockField::unsigned(ScaleHigh, 2, (AT, 4), [0, 0, 0, 0, 0, 8, 16, 2]).at_bit(4);

/// Low four bits of a minimum: bytes 4..8, then the high nibbles of bytes 8..12.
pub(super) const MIN: BlockField =
    BlockField::unsigned(Min, 4, (AT + 4, 8), [0, 0, 0, 0, 0, 8, 16, 36]);

/// High two bits of a minimum: bits 4 and 5 of bytes 4..8, then bits 6 and 7.
pub(super) const MIN_HIGH: BlockField =
    BlockField::unsigned(MinHigh, 2, (AT + 4, 4), [0, 0, 0, 0, 0, 8, 16, 2]).at_bit(4);

/// Scale and minimum of sub-block `i` of 0..8.
///
/// Sub-blocks 0..4 have theirs in the low six bits of bytes 0..4 and 4..8. Of sub-blocks 4..8 the
/// low nibbles share bytes 8..12; the high bits fill the two bits that the first eight bytes leave.
pub(crate) fn scale_min(scales: &[u8; 12], i: usize) -> (u8, u8) {
    if i < 4 {
        return (scales[i] & 0x3f, scales[i + 4] & 0x3f);
    }
    let low = scales[i + 4];
    (low & 0xf | scales[i - 4] >> 6 << 4, low >> 4 | scales[i] >> 6 << 4)
}

/// The way back of [`scale_min`], into bytes that were zero.
pub(crate) fn put_scale_min(scales: &mut [u8; 12], i: usize, (scale, min): (u8, u8)) {
    if i < 4 {
        scales[i] |= scale;
        scales[i + 4] |= min;
    } else {
        scales[i + 4] |= scale & 0xf | min << 4;
        scales[i - 4] |= scale >> 4 << 6;
        scales[i] |= min >> 4 << 6;
    }
}
