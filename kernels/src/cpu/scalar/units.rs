//! Rows of `tile` units, one at a time: to be multiplied by the scalar tier, or looked up.

use format_spec::QuantType;
use format_spec::plane::TileRecord;
use half::{bf16, f16};

use super::dot_float;
use crate::cpu::form::{CHUNK, Form, Group, N_CHAINS};
use crate::cpu::panel::PANEL_ROWS;
use crate::cpu::units::{self, Kind, UnitKernels, VECTOR_BYTES, low_bits};

/// The kernels of a quant type.
pub(super) fn kernels(quant: QuantType) -> Option<UnitKernels> {
    Some(match quant {
        QuantType::F32 => return None,
        QuantType::F16 | QuantType::BF16 => {
            UnitKernels::Float { quant, dot: dot_floats, name: "float_tile_scalar" }
        }
        QuantType::Q4_0 => plain::<units::Q4_0>(),
        QuantType::Q4_1 => plain::<units::Q4_1>(),
        QuantType::Q5_0 => plain::<units::Q5_0>(),
        QuantType::Q5_1 => plain::<units::Q5_1>(),
        QuantType::Q8_0 => plain::<units::Q8_0>(),
        QuantType::Q2_K => plain::<units::Q2_K>(),
        QuantType::Q3_K => plain::<units::Q3_K>(),
        QuantType::Q4_K => plain::<units::Q4_K>(),
        QuantType::Q5_K => plain::<units::Q5_K>(),
        QuantType::Q6_K => plain::<units::Q6_K>(),
    })
}

fn plain<K: Kind>() -> UnitKernels {
    UnitKernels::Plain { form: K::FORM, unpack: unpack_row::<K>, name: "scalar_tile" }
}

/// See [`UnitRowFn`](units::UnitRowFn).
fn unpack_row<K: Kind>(unit: &[u8], row: usize, groups: &mut [Group]) {
    for (b, block) in unit.chunks_exact(K::RECORD.bytes).enumerate() {
        for c in 0..K::CHUNKS {
            let i = b * K::CHUNKS + c;
            let (group, j) = (&mut groups[i / N_CHAINS], i % N_CHAINS);
            let (q, _) = group.q.as_chunks_mut::<CHUNK>();
            let (q, _) = q[j].as_chunks_mut::<4>();
            for (q, word) in q.iter_mut().zip(words::<K>(block, row, c)) {
                *q = word.to_le_bytes();
            }
            let (scales, mins) = params(K::QUANT, &K::RECORD, block, row, c);
            if K::FORM.per16 {
                group.scale[2 * j..][..2].copy_from_slice(&scales);
                group.min[2 * j..][..2].copy_from_slice(&mins);
            } else {
                (group.scale[j], group.min[j]) = (scales[0], mins[0]);
            }
        }
    }
}

/// The stored values of chunk `c` of a block, four to a word; [`stored`] has them one at a time.
fn words<K: Kind>(block: &[u8], row: usize, c: usize) -> [u32; CHUNK / 4] {
    let word = |part: usize, vector: usize| {
        // As a slice, four bytes are one check of bounds.
        let [a, b, c, d] = block[part + vector * VECTOR_BYTES + 4 * row..][..4] else { return 0 };
        u32::from_le_bytes([a, b, c, d])
    };
    let low = |vector: usize| word(K::RECORD.quants, vector);
    let high = |vector: usize| word(K::RECORD.high, vector);
    std::array::from_fn(|w| {
        let value = match K::LOW_BITS {
            8 => low(8 * c + w),
            4 => low(4 * c + w % 4) >> (w / 4 * 4) & 0x0f0f_0f0f,
            _ => low(2 * c + w / 4) >> (w % 4 * 2) & 0x0303_0303,
        };
        value
            | match K::HIGH_BITS {
                2 => (high(2 * c + w / 4) >> (w % 4 * 2) & 0x0303_0303) << K::LOW_BITS,
                1 => (high(c) >> w & 0x0101_0101) << K::LOW_BITS,
                _ => 0,
            }
    })
}

/// See [`UnitFloatFn`](units::UnitFloatFn).
fn dot_floats(y: &mut [f32; PANEL_ROWS], quant: QuantType, unit: &[u8], x: &[f32]) {
    for (row, y) in y.iter_mut().enumerate() {
        let halves = unit.as_chunks::<2>().0.iter().skip(row).step_by(PANEL_ROWS);
        *y = match quant {
            QuantType::F16 => dot_float(halves.map(|w| f16::from_le_bytes(*w).to_f32()), x),
            _ => dot_float(halves.map(|w| bf16::from_le_bytes(*w).to_f32()), x),
        };
    }
}

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
