//! One row of a `tile` unit: weights that are looked up, not multiplied.

use format_spec::QuantType;
use format_spec::plane::TileRecord;
use half::{bf16, f16};

use crate::cpu::form::{CHUNK, Form};
use crate::cpu::units::{VECTOR_BYTES, low_bits};

/// Dequantizes row `row` of a unit, `[row_len]`, exactly as its blocks would be.
pub(crate) fn dequantize_row(out: &mut [f32], quant: QuantType, unit: &[u8], row: usize) {
    let Some(record) = TileRecord::of(quant) else { return };
    let Some(form) = Form::of(quant) else {
        let halves = unit.as_chunks::<2>().0.iter().skip(row).step_by(TileRecord::ROWS);
        for (out, half) in out.iter_mut().zip(halves) {
            *out = match quant {
                QuantType::F16 => f16::from_le_bytes(*half).to_f32(),
                _ => bf16::from_le_bytes(*half).to_f32(),
            };
        }
        return;
    };
    let blocks = unit.chunks_exact(record.bytes);
    for (block, out) in blocks.zip(out.chunks_mut(quant.block_elems())) {
        for (c, out) in out.chunks_mut(CHUNK).enumerate() {
            let ([first, second], [first_min, second_min]) = params(quant, &record, block, row, c);
            for (k, out) in out.iter_mut().enumerate() {
                let q = i32::from(stored(form, &record, block, row, c, k)) - form.offset();
                let (scale, min) =
                    if k < CHUNK / 2 { (first, first_min) } else { (second, second_min) };
                *out = scale * q as f32;
                if form.has_min {
                    *out += min;
                }
            }
        }
    }
}

/// The stored value of element `k` of chunk `c` of a block.
fn stored(form: Form, at: &TileRecord, block: &[u8], row: usize, c: usize, k: usize) -> u8 {
    let (word, byte) = (k / 4, row * 4 + k % 4);
    let low = |vector: usize| block[at.quants + vector * VECTOR_BYTES + byte];
    let high = |vector: usize| block[at.high + vector * VECTOR_BYTES + byte];
    let bits = low_bits(form.bits);
    let value = match bits {
        8 => low(8 * c + word),
        4 => low(4 * c + word % 4) >> (word / 4 * 4) & 15,
        _ => low(2 * c + word / 4) >> (word % 4 * 2) & 3,
    };
    value
        | match form.bits - bits {
            2 => (high(2 * c + word / 4) >> (word % 4 * 2) & 3) << bits,
            1 => (high(c) >> word & 1) << bits,
            _ => 0,
        }
}

/// Scales and minimums of the halves of chunk `c` of a block.
fn params(
    quant: QuantType,
    at: &TileRecord,
    block: &[u8],
    row: usize,
    c: usize,
) -> ([f32; 2], [f32; 2]) {
    let half = |part: usize| {
        let byte = part + 2 * row;
        f16::from_le_bytes([block[byte], block[byte + 1]]).to_f32()
    };
    let byte = |part: usize, i: usize| block[part + i * TileRecord::ROWS + row];
    let (d, second) = (half(at.d), half(at.second));
    let halves = |f: &dyn Fn(u8) -> f32| [0, 1].map(|h| f(byte(at.scales, 2 * c + h)));
    match quant {
        QuantType::Q4_K | QuantType::Q5_K => {
            let min = -(second * f32::from(byte(at.mins, c)));
            ([d * f32::from(byte(at.scales, c)); 2], [min; 2])
        }
        QuantType::Q6_K => (halves(&|scale| d * f32::from(scale as i8)), [0.0; 2]),
        QuantType::Q3_K => (halves(&|scale| d * (f32::from(scale) - 32.0)), [0.0; 2]),
        QuantType::Q2_K => (
            halves(&|both| d * f32::from(both & 15)),
            halves(&|both| -(second * f32::from(both >> 4))),
        ),
        _ => ([d; 2], [second; 2]),
    }
}
