//! Eight chunks of a row in registers, for the types that models use most.

use std::arch::aarch64::*;

use format_spec::QuantType;

use super::float::halves;
use crate::cpu::form::{CHUNK, Group, N_CHAINS};
use crate::cpu::mem::{Src, read, write};
use crate::cpu::scalar::unpack::UnpackFn;
use crate::cpu::stride::{Block, blocks, group_bytes};

/// A group: stored values in element order, and parameters, lane = chunk.
pub(super) struct Loaded {
    /// Stored values of each chunk, in halves; of q8_0 the signed ones.
    pub(super) q: [[uint8x16_t; 2]; N_CHAINS],
    /// Scales of the chunks; or of their first, and of their second halves.
    pub(super) scale: [[float32x4_t; 2]; 2],
    /// What is added per element.
    pub(super) min: [float32x4_t; 2],
}

impl Loaded {
    #[inline]
    #[target_feature(enable = "neon")]
    fn new() -> Self {
        let zero = [vdupq_n_f32(0.0); 2];
        Self { q: [[vdupq_n_u8(0); 2]; N_CHAINS], scale: [zero; 2], min: zero }
    }
}

/// The fast unpacker of a quant type, if there is one.
pub(super) fn unpacker(quant: QuantType) -> Option<UnpackFn> {
    Some(match quant {
        QuantType::Q4_0 => unpack_q4_0,
        QuantType::Q4_1 => unpack_q4_1,
        QuantType::Q5_0 => unpack_q5_0,
        QuantType::Q5_1 => unpack_q5_1,
        QuantType::Q8_0 => unpack_q8_0,
        QuantType::Q4_K => unpack_q4_k,
        QuantType::Q5_K => unpack_q5_k,
        QuantType::Q6_K => unpack_q6_k,
        _ => return None,
    })
}

macro_rules! unpack {
    ($name:ident, $load:ident, $quant:expr, $flip:literal) => {
        #[target_feature(enable = "neon")]
        fn $name(row: &[u8], group_idx: usize, n_chunks: usize, out: &mut Group) {
            // SAFETY: the row has `n_chunks` chunks in this group, and the loader reads no more.
            let at = unsafe { Src::new(&row[group_idx * group_bytes($quant)..]) };
            let loaded = $load(at, n_chunks);
            for (i, q) in loaded.q.as_flattened().iter().enumerate() {
                write(&mut out.q, i * CHUNK / 2, veorq_u8(*q, vdupq_n_u8($flip)));
            }
            for half in 0..2 {
                write(&mut out.scale, half * 16, loaded.scale[0][half]);
                write(&mut out.min, half * 16, loaded.min[half]);
            }
        }
    };
}

unpack!(unpack_q4_0, q4_0, QuantType::Q4_0, 0);
unpack!(unpack_q4_1, q4_1, QuantType::Q4_1, 0);
unpack!(unpack_q5_0, q5_0, QuantType::Q5_0, 0);
unpack!(unpack_q5_1, q5_1, QuantType::Q5_1, 0);
unpack!(unpack_q8_0, q8_0, QuantType::Q8_0, 0x80);
unpack!(unpack_q4_k, q4_k, QuantType::Q4_K, 0);
unpack!(unpack_q5_k, q5_k, QuantType::Q5_K, 0);

#[target_feature(enable = "neon")]
fn unpack_q6_k(row: &[u8], group_idx: usize, n_chunks: usize, out: &mut Group) {
    // SAFETY: the row has this super-block.
    let at = unsafe { Src::new(&row[group_idx * blocks::Q6_K.stride..]) };
    let loaded = q6_k(at, n_chunks);
    for (i, q) in loaded.q.as_flattened().iter().enumerate() {
        write(&mut out.q, i * CHUNK / 2, *q);
    }
    let [first, second] = loaded.scale;
    for i in 0..2 {
        write(&mut out.scale, i * 32, vzip1q_f32(first[i], second[i]));
        write(&mut out.scale, i * 32 + 16, vzip2q_f32(first[i], second[i]));
    }
}

/// The f16 at `offset` of each of up to eight blocks.
#[inline]
#[target_feature(enable = "neon")]
fn block_f16(at: Src<'_>, stride: usize, offset: usize, n: usize) -> [float32x4_t; 2] {
    let mut bits = [0u16; N_CHAINS];
    for (j, bits) in bits.iter_mut().enumerate().take(n) {
        *bits = at.load(j * stride + offset);
    }
    [halves(read(&bits, 0)), halves(read(&bits, 8))]
}

/// Sixteen bytes of nibbles as 32 values: low ones first.
#[inline]
#[target_feature(enable = "neon")]
fn nibbles(v: uint8x16_t) -> [uint8x16_t; 2] {
    [vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8::<4>(v)]
}

/// Bit `i` of a mask as 16 or 0 in byte `i`.
#[inline]
#[target_feature(enable = "neon")]
fn fifth_bits(mask: u32) -> [uint8x16_t; 2] {
    let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
    let [a, b, c, d] = mask.to_le_bytes();
    [(a, b), (c, d)].map(|(low, high)| {
        let bytes = vcombine_u8(vdup_n_u8(low), vdup_n_u8(high));
        vandq_u8(vtstq_u8(bytes, bit), vdupq_n_u8(16))
    })
}

/// Blocks of 32 elements of four or five bits, with or without a minimum.
#[inline]
#[target_feature(enable = "neon")]
fn blocks_32(at: Src<'_>, n: usize, block: Block, high: bool, min: bool) -> Loaded {
    let mut out = Loaded::new();
    for (j, q) in out.q.iter_mut().enumerate().take(n) {
        let at = at.skip(j * block.stride);
        *q = nibbles(at.load(block.quants));
        if high {
            let bits = fifth_bits(at.load(block.high));
            *q = [vorrq_u8(q[0], bits[0]), vorrq_u8(q[1], bits[1])];
        }
    }
    out.scale[0] = block_f16(at, block.stride, block.d, n);
    if min {
        out.min = block_f16(at, block.stride, block.second, n);
    }
    out
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_0(at: Src<'_>, n: usize) -> Loaded {
    blocks_32(at, n, blocks::Q4_0, false, false)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_1(at: Src<'_>, n: usize) -> Loaded {
    blocks_32(at, n, blocks::Q4_1, false, true)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q5_0(at: Src<'_>, n: usize) -> Loaded {
    blocks_32(at, n, blocks::Q5_0, true, false)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q5_1(at: Src<'_>, n: usize) -> Loaded {
    blocks_32(at, n, blocks::Q5_1, true, true)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q8_0(at: Src<'_>, n: usize) -> Loaded {
    const BLOCK: Block = blocks::Q8_0;
    let mut out = Loaded::new();
    for (j, q) in out.q.iter_mut().enumerate().take(n) {
        let at = at.skip(j * BLOCK.stride + BLOCK.quants);
        *q = [at.load(0), at.load(16)];
    }
    out.scale[0] = block_f16(at, BLOCK.stride, BLOCK.d, n);
    out
}

/// Eight unsigned bytes as floats.
#[inline]
#[target_feature(enable = "neon")]
fn bytes_f32(bytes: u64) -> [float32x4_t; 2] {
    let v = vmovl_u8(vcreate_u8(bytes));
    [vcvtq_f32_u32(vmovl_u16(vget_low_u16(v))), vcvtq_f32_u32(vmovl_high_u16(v))]
}

/// Scales and minimums (negated) of a super-block of q4_K or q5_K.
#[inline]
#[target_feature(enable = "neon")]
fn k4_scales(at: Src<'_>, block: Block) -> [[float32x4_t; 2]; 2] {
    // Packed 6-bit numbers: scales 0..4, minimums 0..4 and, in nibbles, the low bits of both for
    // 4..8, whose high bits are on top of the first two.
    let word = |i: usize| at.load::<u32>(block.scales + 4 * i);
    let (scales, mins, low) = (word(0), word(1), word(2));
    let six = |first: u32, low: u32| {
        let second = low & 0x0f0f_0f0f | first >> 2 & 0x3030_3030;
        u64::from(first & 0x3f3f_3f3f) | u64::from(second) << 32
    };
    let d = block_f16(at, 0, block.d, N_CHAINS)[0];
    let dmin = block_f16(at, 0, block.second, N_CHAINS)[0];
    [
        bytes_f32(six(scales, low)).map(|scale| vmulq_f32(scale, d)),
        bytes_f32(six(mins, low >> 4)).map(|min| vnegq_f32(vmulq_f32(min, dmin))),
    ]
}

/// Values of q4_K, and the low bits of q5_K: stretches of 32 bytes hold two chunks.
#[inline]
#[target_feature(enable = "neon")]
fn k4(at: Src<'_>, block: Block) -> Loaded {
    let mut out = Loaded::new();
    for pair in 0..4 {
        for half in 0..2 {
            let v = at.load(block.quants + pair * CHUNK + half * CHUNK / 2);
            [out.q[2 * pair][half], out.q[2 * pair + 1][half]] = nibbles(v);
        }
    }
    [out.scale[0], out.min] = k4_scales(at, block);
    out
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_k(at: Src<'_>, _: usize) -> Loaded {
    k4(at, blocks::Q4_K)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q5_k(at: Src<'_>, _: usize) -> Loaded {
    let mut out = k4(at, blocks::Q5_K);
    for half in 0..2 {
        let bits: uint8x16_t = at.load(blocks::Q5_K.high + half * CHUNK / 2);
        for (c, q) in out.q.iter_mut().enumerate() {
            // Bit c of a byte belongs to chunk c: bring it to bit 4.
            let bit = vshlq_u8(bits, vdupq_n_s8(4 - c as i8));
            q[half] = vorrq_u8(q[half], vandq_u8(bit, vdupq_n_u8(16)));
        }
    }
    out
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q6_k(at: Src<'_>, _: usize) -> Loaded {
    const BLOCK: Block = blocks::Q6_K;
    let mut out = Loaded::new();
    for it in 0..2 {
        for half in 0..2 {
            let high: uint8x16_t = at.load(BLOCK.high + it * CHUNK + half * CHUNK / 2);
            for c in 0..4 {
                // 64 bytes: low nibbles are two chunks, high ones the next two.
                let v = at.load(BLOCK.quants + it * 2 * CHUNK + c % 2 * CHUNK + half * CHUNK / 2);
                let low = nibbles(v)[c / 2];
                let high = vshlq_u8(high, vdupq_n_s8(4 - 2 * c as i8));
                out.q[4 * it + c][half] = vorrq_u8(low, vandq_u8(high, vdupq_n_u8(0x30)));
            }
        }
    }
    let d = block_f16(at, 0, BLOCK.d, N_CHAINS)[0];
    let scales: int8x16_t = at.load(BLOCK.scales);
    // First halves' scales, then second halves'.
    for (half, scale) in out.scale.iter_mut().enumerate() {
        let apart = if half == 0 { vuzp1q_s8(scales, scales) } else { vuzp2q_s8(scales, scales) };
        let v = vmovl_s8(vget_low_s8(apart));
        let wide = [vmovl_s16(vget_low_s16(v)), vmovl_high_s16(v)];
        *scale = wide.map(|v| vmulq_f32(vcvtq_f32_s32(v), d));
    }
    out
}
