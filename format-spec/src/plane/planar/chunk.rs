//! 32 elements of a row: between a GGUF block and the planes.

use crate::quant::QuantType;
use crate::quant::k_scales::{put_scale_min, scale_min};

/// Elements of a chunk.
pub(super) const CHUNK: usize = 32;

/// Where the planes hold one chunk of one row.
pub(super) struct Chunk<'a> {
    pub(super) quants: &'a mut [u8],
    pub(super) high: &'a mut [u8],
    pub(super) scales: &'a mut [u8],
}

/// Where a block has its f16 factors.
pub(super) fn factors_at(quant: QuantType) -> usize {
    if quant == QuantType::Q6_K { 208 } else { 0 }
}

/// Where a block of q4_K or q5_K has its nibbles.
fn nibbles_at(quant: QuantType) -> usize {
    if quant == QuantType::Q5_K { 48 } else { 16 }
}

/// Index of the byte of `ql` with the low bits of the first element of chunk `c` of q6_K, and the
/// shift of its nibbles; the same for `qh` and its bit pairs.
fn q6_k_places(c: usize) -> [(usize, usize); 2] {
    let (half, quarter) = (c / 4, c % 4);
    [(half * 64 + quarter % 2 * 32, quarter / 2 * 4), (128 + half * 32, quarter * 2)]
}

impl Chunk<'_> {
    /// Takes chunk `c` of a GGUF block.
    pub(super) fn take(self, quant: QuantType, block: &[u8], c: usize) {
        match quant {
            QuantType::Q8_0 => self.quants.copy_from_slice(&block[2..]),
            QuantType::Q6_K => {
                let [(low, low_shift), (high, high_shift)] = q6_k_places(c);
                let values = std::array::from_fn(|m| {
                    (block[low + m] >> low_shift & 15) | (block[high + m] >> high_shift & 3) << 4
                });
                self.scales.copy_from_slice(&block[192 + 2 * c..][..2]);
                self.set_values(&values);
            }
            _ => {
                let nibbles = &block[nibbles_at(quant) + c / 2 * 32..][..CHUNK];
                let mut values: [u8; CHUNK] =
                    std::array::from_fn(|m| nibbles[m] >> (c % 2 * 4) & 15);
                if quant == QuantType::Q5_K {
                    for (value, high) in values.iter_mut().zip(&block[16..48]) {
                        *value |= (high >> c & 1) << 4;
                    }
                }
                let packed = block[4..].first_chunk().unwrap_or(&[0; 12]);
                let (scale, min) = scale_min(packed, c);
                self.scales.copy_from_slice(&[scale, min]);
                self.set_values(&values);
            }
        }
    }

    /// Puts the chunk into a GGUF block that was zero.
    pub(super) fn put(self, quant: QuantType, block: &mut [u8], c: usize) {
        match quant {
            QuantType::Q8_0 => block[2..].copy_from_slice(self.quants),
            QuantType::Q6_K => {
                let [(low, low_shift), (high, high_shift)] = q6_k_places(c);
                for (m, value) in self.values().into_iter().enumerate() {
                    block[low + m] |= (value & 15) << low_shift;
                    block[high + m] |= value >> 4 << high_shift;
                }
                block[192 + 2 * c..][..2].copy_from_slice(self.scales);
            }
            _ => {
                let values = self.values();
                let nibbles = &mut block[nibbles_at(quant) + c / 2 * 32..][..CHUNK];
                for (nibble, value) in nibbles.iter_mut().zip(values) {
                    *nibble |= (value & 15) << (c % 2 * 4);
                }
                if quant == QuantType::Q5_K {
                    for (high, value) in block[16..48].iter_mut().zip(values) {
                        *high |= value >> 4 << c;
                    }
                }
                if let ([scale, min], Some(packed)) =
                    (&*self.scales, block[4..].first_chunk_mut::<12>())
                {
                    put_scale_min(packed, c, (*scale, *min));
                }
            }
        }
    }

    /// Writes elements of up to 6 bits into zeroed planes.
    fn set_values(self, values: &[u8; CHUNK]) {
        for (k, &value) in values.iter().enumerate() {
            self.quants[k % 16] |= (value & 15) << (k / 16 * 4);
            let (half, word, byte) = (k / 16, k % 16 / 4, k % 4);
            match self.high.len() {
                4 => self.high[byte] |= value >> 4 << (4 * half + word),
                8 => self.high[4 * half + byte] |= value >> 4 << (2 * word),
                _ => {}
            }
        }
    }

    /// Reads them back.
    fn values(&self) -> [u8; CHUNK] {
        std::array::from_fn(|k| {
            let (half, word, byte) = (k / 16, k % 16 / 4, k % 4);
            let high = match self.high.len() {
                4 => self.high[byte] >> (4 * half + word) & 1,
                8 => self.high[4 * half + byte] >> (2 * word) & 3,
                _ => 0,
            };
            self.quants[k % 16] >> (k / 16 * 4) & 15 | high << 4
        })
    }
}
