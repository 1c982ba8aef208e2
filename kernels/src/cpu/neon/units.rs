//! Products from `tile` units: a quarter of a vector is a word of four elements of each of four rows.

use std::arch::aarch64::*;
use std::mem::offset_of;

use format_spec::QuantType;

use super::dot::Dot;
use super::float::{brain_halves, halves};
use super::interleave::{put, sign};
use crate::cpu::activations::{DotGroup, DotRow};
use crate::cpu::form::{CHUNK, Chains, N_CHAINS};
use crate::cpu::mem::{Src, prefetch, write};
use crate::cpu::panel::{PANEL_ROWS, PARAM_BYTES, QUANT_BYTES, record_bytes};
use crate::cpu::scalar::FLOAT_LANES;
use crate::cpu::units::{self, Kind, UnitKernels, VECTOR_BYTES, asked_with};

/// Rows of a quarter of a unit.
const ROWS: usize = 4;
const QUARTERS: usize = PANEL_ROWS / ROWS;

/// The kernels of a quant type.
pub(super) fn kernels<D: Dot>(quant: QuantType) -> Option<UnitKernels> {
    Some(match quant {
        QuantType::F32 => return None,
        QuantType::F16 | QuantType::BF16 => {
            UnitKernels::Float { quant, dot: dot_float, name: "float_tile_neon" }
        }
        QuantType::Q4_0 => quantized::<units::Q4_0, D>(),
        QuantType::Q4_1 => quantized::<units::Q4_1, D>(),
        QuantType::Q5_0 => quantized::<units::Q5_0, D>(),
        QuantType::Q5_1 => quantized::<units::Q5_1, D>(),
        QuantType::Q8_0 => quantized::<units::Q8_0, D>(),
        QuantType::Q2_K => quantized::<units::Q2_K, D>(),
        QuantType::Q3_K => quantized::<units::Q3_K, D>(),
        QuantType::Q4_K => quantized::<units::Q4_K, D>(),
        QuantType::Q5_K => quantized::<units::Q5_K, D>(),
        QuantType::Q6_K => quantized::<units::Q6_K, D>(),
    })
}

fn quantized<K: Kind, D: Dot>() -> UnitKernels {
    UnitKernels::Quant {
        form: K::FORM,
        gemv: gemv::<K, D>,
        fill: fill::<K, D>,
        tile: super::tile::tile::<D>,
        gemv_name: D::NAMES[0],
        gemm_name: D::NAMES[1],
    }
}

/// Some bits of every byte, moved left (or right, if negative).
#[inline]
#[target_feature(enable = "neon")]
fn bits(v: uint8x16_t, left: i32, mask: u8) -> uint8x16_t {
    vandq_u8(vshlq_u8(v, vdupq_n_s8(left as i8)), vdupq_n_u8(mask))
}

/// Stored values of chunk `c` of a block, of the rows of one quarter: vector `j` holds elements
/// `4 * j..` of each. Those of eight bits are signed.
#[inline]
#[target_feature(enable = "neon")]
fn quants<K: Kind>(record: Src<'_>, c: usize, quarter: usize) -> [uint8x16_t; 8] {
    let at = |part: usize, i: usize| -> uint8x16_t {
        record.load(part + i * VECTOR_BYTES + quarter * VECTOR_BYTES / QUARTERS)
    };
    let mut q = [vdupq_n_u8(0); 8];
    if K::LOW_BITS == 8 {
        for (j, q) in q.iter_mut().enumerate() {
            *q = veorq_u8(at(K::RECORD.quants, 8 * c + j), sign(K::FORM));
        }
    } else if K::LOW_BITS == 4 {
        for j in 0..4 {
            let v = at(K::RECORD.quants, 4 * c + j);
            q[j] = vandq_u8(v, vdupq_n_u8(15));
            q[j + 4] = vshrq_n_u8::<4>(v);
        }
    } else {
        for (j, q) in q.iter_mut().enumerate() {
            *q = bits(at(K::RECORD.quants, 2 * c + j / 4), -2 * (j as i32 % 4), 3);
        }
    }
    for (j, q) in q.iter_mut().enumerate() {
        let (low, j32) = (K::LOW_BITS as i32, j as i32);
        if K::HIGH_BITS == 2 {
            let v = at(K::RECORD.high, 2 * c + j / 4);
            *q = vorrq_u8(*q, bits(v, low - 2 * (j32 % 4), 3 << low));
        } else if K::HIGH_BITS == 1 {
            *q = vorrq_u8(*q, bits(at(K::RECORD.high, c), low - j32, 1 << low));
        }
    }
    q
}

/// Scales and minimums of chunk `c` of a block, of the rows of one quarter: of the whole chunk, or
/// of its halves.
#[inline]
#[target_feature(enable = "neon")]
fn params<K: Kind>(
    record: Src<'_>,
    c: usize,
    quarter: usize,
) -> ([float32x4_t; 2], [float32x4_t; 2]) {
    let half = |at: usize| halves(record.load(at + quarter * 2 * ROWS));
    let bytes = |at: usize, i: usize| {
        let four: u32 = record.load(at + i * PANEL_ROWS + quarter * ROWS);
        vreinterpret_u8_u32(vdup_n_u32(four))
    };
    let wide = |v: uint8x8_t| vmovl_u16(vget_low_u16(vmovl_u8(v)));
    let d = half(K::RECORD.d);
    let none = vdupq_n_f32(0.0);
    if K::CHUNKS == 1 {
        let min = if K::FORM.has_min { half(K::RECORD.second) } else { none };
        return ([d; 2], [min; 2]);
    }
    if !K::FORM.per16 {
        let dmin = half(K::RECORD.second);
        let scale = vcvtq_f32_u32(wide(bytes(K::RECORD.scales, c)));
        let min = vcvtq_f32_u32(wide(bytes(K::RECORD.mins, c)));
        return ([vmulq_f32(d, scale); 2], [vnegq_f32(vmulq_f32(dmin, min)); 2]);
    }
    let (mut scales, mut mins) = ([none; 2], [none; 2]);
    for h in 0..2 {
        let v = bytes(K::RECORD.scales, 2 * c + h);
        let scale = match K::FORM.bits {
            6 => vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(v)))),
            3 => vsubq_s32(vreinterpretq_s32_u32(wide(v)), vdupq_n_s32(32)),
            _ => {
                let min = vcvtq_f32_u32(wide(vshr_n_u8::<4>(v)));
                mins[h] = vnegq_f32(vmulq_f32(half(K::RECORD.second), min));
                vreinterpretq_s32_u32(wide(vand_u8(v, vdup_n_u8(15))))
            }
        };
        scales[h] = vmulq_f32(d, vcvtq_f32_s32(scale));
    }
    (scales, mins)
}

/// Dot product of half a chunk of four rows with a token's sixteen elements.
#[inline]
#[target_feature(enable = "neon")]
fn half_dot<K: Kind, D: Dot>(acc: int32x4_t, q: &[uint8x16_t], x: int8x16_t) -> int32x4_t {
    let w = [q[0], q[1], q[2], q[3]].map(|q| vreinterpretq_s8_u8(q));
    match K::FORM.bits {
        // SAFETY: here and below, `D` is the tier of the table that this kernel stands in.
        8 => unsafe { D::along::<8>(acc, w, x) },
        // SAFETY: as above.
        6 => unsafe { D::along::<6>(acc, w, x) },
        // SAFETY: as above.
        _ => unsafe { D::along::<5>(acc, w, x) },
    }
}

/// A token's part of one chunk.
#[derive(Clone, Copy)]
struct Token<'a> {
    /// The [`DotGroup`].
    group: Src<'a>,
    /// The chunk's place in it.
    chunk: usize,
}

impl Token<'_> {
    #[inline]
    #[target_feature(enable = "neon")]
    fn number(self, field: usize, i: usize) -> float32x4_t {
        vdupq_n_f32(self.group.load(field + i * size_of::<f32>()))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn sum(self, field: usize, i: usize) -> int32x4_t {
        vdupq_n_s32(self.group.load(field + i * size_of::<i32>()))
    }
}

/// Adds chunk `c` of a block to its chain.
#[inline]
#[target_feature(enable = "neon")]
fn add_chunk<K: Kind, D: Dot>(
    acc: float32x4_t,
    (record, c, quarter): (Src<'_>, usize, usize),
    x: Token<'_>,
) -> float32x4_t {
    let q = quants::<K>(record, c, quarter);
    let (scale, min) = params::<K>(record, c, quarter);
    let at = offset_of!(DotGroup, q) + x.chunk * CHUNK;
    let words: [int8x16_t; 2] = [x.group.load(at), x.group.load(at + CHUNK / 2)];
    let centred = |dots: int32x4_t, sums: int32x4_t| {
        if K::FORM.has_min || K::LOW_BITS == 8 {
            return vcvtq_f32_s32(dots);
        }
        let offset = vshlq_s32(sums, vdupq_n_s32(K::FORM.offset_log2 as i32));
        vcvtq_f32_s32(vsubq_s32(dots, offset))
    };
    let d = x.number(offset_of!(DotGroup, d), x.chunk);
    let zero = vdupq_n_s32(0);
    if K::FORM.per16 {
        let s16 = |h: usize| x.sum(offset_of!(DotGroup, s16), 2 * x.chunk + h);
        let first = centred(half_dot::<K, D>(zero, &q[..4], words[0]), s16(0));
        let second = centred(half_dot::<K, D>(zero, &q[4..], words[1]), s16(1));
        let t = vfmaq_f32(vmulq_f32(first, scale[0]), second, scale[1]);
        let mut acc = vfmaq_f32(acc, t, d);
        if K::FORM.has_min {
            for (h, min) in min.into_iter().enumerate() {
                acc = vfmaq_f32(acc, min, vmulq_f32(d, vcvtq_f32_s32(s16(h))));
            }
        }
        return acc;
    }
    let dots = half_dot::<K, D>(zero, &q[..4], words[0]);
    let dots = half_dot::<K, D>(dots, &q[4..], words[1]);
    let dots = centred(dots, x.sum(offset_of!(DotGroup, s32), x.chunk));
    let acc = vfmaq_f32(acc, vmulq_f32(dots, scale[0]), d);
    if K::FORM.has_min {
        return vfmaq_f32(acc, min[0], x.number(offset_of!(DotGroup, ds), x.chunk));
    }
    acc
}

/// See [`UnitGemvFn`](crate::cpu::units::UnitGemvFn).
#[target_feature(enable = "neon")]
fn gemv<K: Kind, D: Dot>(y: &mut [f32; PANEL_ROWS], unit: &[u8], x: &DotRow<'_>) {
    // SAFETY: a unit has a record for each block of the row, and `x` its chunks.
    let unit = unsafe { Src::new(unit) };
    // SAFETY: as above.
    let groups = unsafe { Src::of_records(x.groups) };
    // In memory, but the unit is read once.
    let mut acc = [[vdupq_n_f32(0.0); QUARTERS]; N_CHAINS];
    for g in 0..x.groups.len() {
        let n = (x.n_chunks - g * N_CHAINS).min(N_CHAINS);
        let (group, x) = (unit.skip(g * K::GROUP_BYTES), groups.skip(g * size_of::<DotGroup>()));
        for (chunk, acc) in acc.iter_mut().enumerate().take(n) {
            let asked = asked_with::<K>(chunk);
            prefetch(group.ptr(asked.start), asked.len());
            let record = group.skip(chunk / K::CHUNKS * K::RECORD.bytes);
            for (quarter, acc) in acc.iter_mut().enumerate() {
                let place = (record, chunk % K::CHUNKS, quarter);
                *acc = add_chunk::<K, D>(*acc, place, Token { group: x, chunk });
            }
        }
    }
    let [mut sums, rest @ ..] = acc;
    for chain in rest {
        for (sum, chain) in sums.iter_mut().zip(chain) {
            *sum = vaddq_f32(*sum, chain);
        }
    }
    for (quarter, sum) in sums.into_iter().enumerate() {
        write(y, quarter * ROWS * size_of::<f32>(), sum);
    }
}

/// See [`UnitFillFn`](crate::cpu::units::UnitFillFn).
#[target_feature(enable = "neon")]
fn fill<K: Kind, D: Dot>(unit: &[u8], row_len: usize, panel: &mut [u8]) {
    // SAFETY: a unit has a record for each block of the row.
    let unit = unsafe { Src::new(unit) };
    let starts = Chains::new(row_len).starts();
    let n_scales = 1 + usize::from(K::FORM.per16);
    for chunk in 0..row_len / CHUNK {
        let record = unit.skip(chunk / K::CHUNKS * K::RECORD.bytes);
        let at = (starts[chunk % N_CHAINS] + chunk / N_CHAINS) * record_bytes(K::FORM);
        for quarter in 0..QUARTERS {
            let q = quants::<K>(record, chunk % K::CHUNKS, quarter);
            put::<D>(panel, at, quarter, 0, [q[0], q[1], q[2], q[3]]);
            put::<D>(panel, at, quarter, 1, [q[4], q[5], q[6], q[7]]);
            let at = at + QUANT_BYTES + quarter * PARAM_BYTES / QUARTERS;
            let (scales, mins) = params::<K>(record, chunk % K::CHUNKS, quarter);
            for h in 0..n_scales {
                write(panel, at + h * PARAM_BYTES, scales[h]);
                if K::FORM.has_min {
                    write(panel, at + (n_scales + h) * PARAM_BYTES, mins[h]);
                }
            }
        }
    }
}

/// See [`UnitFloatFn`](crate::cpu::units::UnitFloatFn).
#[target_feature(enable = "neon")]
fn dot_float(y: &mut [f32; PANEL_ROWS], quant: QuantType, unit: &[u8], x: &[f32]) {
    // SAFETY: a unit has sixteen halves for each element of the row.
    let unit = unsafe { Src::new(unit) };
    for quarter in 0..QUARTERS {
        let weights = |k: usize| {
            let bits: uint16x4_t = unit.load(k * 2 * PANEL_ROWS + quarter * 2 * ROWS);
            if quant == QuantType::F16 { halves(bits) } else { brain_halves(bits) }
        };
        let mut acc = [vdupq_n_f32(0.0); FLOAT_LANES];
        for (i, x) in x.chunks(FLOAT_LANES).enumerate() {
            for (lane, (acc, x)) in acc.iter_mut().zip(x).enumerate() {
                *acc = vfmaq_f32(*acc, weights(i * FLOAT_LANES + lane), vdupq_n_f32(*x));
            }
        }
        for n in [8, 4, 2, 1] {
            for lane in 0..n {
                acc[lane] = vaddq_f32(acc[lane], acc[lane + n]);
            }
        }
        write(y, quarter * ROWS * size_of::<f32>(), acc[0]);
    }
}
