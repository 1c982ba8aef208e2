//! The scales that `q4_K` and `q5_K` share: eight 6-bit scales and eight 6-bit minimums in 12 bytes.

/// Scale and minimum of sub-block `i` of 0..8.
///
/// Sub-blocks 0..4 have theirs in the low six bits of bytes 0..4 and 4..8. Of sub-blocks 4..8 the
/// low nibbles share bytes 8..12; the high bits fill the two bits that the first eight bytes leave.
pub(super) fn scale_min(scales: &[u8; 12], i: usize) -> (u8, u8) {
    if i < 4 {
        return (scales[i] & 0x3f, scales[i + 4] & 0x3f);
    }
    let low = scales[i + 4];
    (low & 0xf | scales[i - 4] >> 6 << 4, low >> 4 | scales[i] >> 6 << 4)
}
