//! Eight chunks of a row in registers, for the types that models use most.

use std::arch::x86_64::*;

use format_spec::QuantType;

use crate::cpu::form::{CHUNK, Group, N_CHAINS};
use crate::cpu::mem::{Src, read, write};
use crate::cpu::scalar::unpack::UnpackFn;
use crate::cpu::stride::{Block, blocks, group_bytes};

/// A group: stored values in element order and parameters, lane = chunk.
pub(super) struct Loaded {
    /// Unsigned stored values of each chunk; of q8_0 the signed ones.
    pub(super) q: [__m256i; N_CHAINS],
    /// Scales of the chunks; or of their first, and of their second halves.
    pub(super) scale: [__m256; 2],
    /// What is added per element.
    pub(super) min: __m256,
}

impl Loaded {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new() -> Self {
        let zero = _mm256_setzero_ps();
        Self { q: [_mm256_setzero_si256(); N_CHAINS], scale: [zero; 2], min: zero }
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
    ($name:ident, $load:ident, $quant:expr) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn $name(row: &[u8], group_idx: usize, n_chunks: usize, out: &mut Group) {
            // SAFETY: the row has `n_chunks` chunks in this group, and the loader reads no more.
            let at = unsafe { Src::new(&row[group_idx * group_bytes($quant)..]) };
            let loaded = $load(at, n_chunks);
            for (c, q) in loaded.q.into_iter().enumerate() {
                write(&mut out.q, c * CHUNK, q);
            }
            write(&mut out.scale, 0, loaded.scale[0]);
            write(&mut out.min, 0, loaded.min);
        }
    };
}

unpack!(unpack_q4_0, q4_0, QuantType::Q4_0);
unpack!(unpack_q4_1, q4_1, QuantType::Q4_1);
unpack!(unpack_q5_0, q5_0, QuantType::Q5_0);
unpack!(unpack_q5_1, q5_1, QuantType::Q5_1);
unpack!(unpack_q4_k, q4_k, QuantType::Q4_K);
unpack!(unpack_q5_k, q5_k, QuantType::Q5_K);

#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_q8_0(row: &[u8], group_idx: usize, n_chunks: usize, out: &mut Group) {
    // SAFETY: the row has `n_chunks` blocks in this group, and the loader reads no more.
    let at = unsafe { Src::new(&row[group_idx * group_bytes(QuantType::Q8_0)..]) };
    let loaded = q8_0(at, n_chunks);
    for (c, q) in loaded.q.into_iter().enumerate() {
        write(&mut out.q, c * CHUNK, _mm256_xor_si256(q, _mm256_set1_epi8(i8::MIN)));
    }
    write(&mut out.scale, 0, loaded.scale[0]);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_q6_k(row: &[u8], group_idx: usize, n_chunks: usize, out: &mut Group) {
    // SAFETY: the row has this super-block.
    let at = unsafe { Src::new(&row[group_idx * blocks::Q6_K.stride..]) };
    let loaded = q6_k(at, n_chunks);
    for (c, q) in loaded.q.into_iter().enumerate() {
        write(&mut out.q, c * CHUNK, q);
    }
    let [first, second] = loaded.scale;
    // Back to halves in order: interleave, then put the 128-bit lanes right.
    let (lo, hi) = (_mm256_unpacklo_ps(first, second), _mm256_unpackhi_ps(first, second));
    write(&mut out.scale, 0, _mm256_permute2f128_ps::<0x20>(lo, hi));
    write(&mut out.scale, 32, _mm256_permute2f128_ps::<0x31>(lo, hi));
}

/// The f16 at `offset` of each of up to eight blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn block_f16(blocks: Src<'_>, stride: usize, offset: usize, n: usize) -> __m256 {
    let mut bits = [0u16; N_CHAINS];
    for (j, bits) in bits.iter_mut().enumerate().take(n) {
        *bits = blocks.load(j * stride + offset);
    }
    _mm256_cvtph_ps(read(&bits, 0))
}

/// Sixteen bytes of nibbles as 32 values: low ones first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles_32(v: __m128i) -> __m256i {
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(v), _mm_srli_epi16::<4>(v));
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// Bit `i` of a mask as 16 or 0 in byte `i`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fifth_bits(mask: u32) -> __m256i {
    let byte_of =
        _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(mask as i32), byte_of);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    _mm256_and_si256(set, _mm256_set1_epi8(16))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0(at: Src<'_>, n: usize) -> Loaded {
    let mut out = Loaded::new();
    for (j, q) in out.q.iter_mut().enumerate().take(n) {
        *q = nibbles_32(at.load(j * blocks::Q4_0.stride + blocks::Q4_0.quants));
    }
    out.scale[0] = block_f16(at, blocks::Q4_0.stride, blocks::Q4_0.d, n);
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_1(at: Src<'_>, n: usize) -> Loaded {
    let mut out = Loaded::new();
    for (j, q) in out.q.iter_mut().enumerate().take(n) {
        *q = nibbles_32(at.load(j * blocks::Q4_1.stride + blocks::Q4_1.quants));
    }
    out.scale[0] = block_f16(at, blocks::Q4_1.stride, blocks::Q4_1.d, n);
    out.min = block_f16(at, blocks::Q4_1.stride, blocks::Q4_1.second, n);
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_0(at: Src<'_>, n: usize) -> Loaded {
    let mut out = Loaded::new();
    for (j, q) in out.q.iter_mut().enumerate().take(n) {
        *q = _mm256_or_si256(
            nibbles_32(at.load(j * blocks::Q5_0.stride + blocks::Q5_0.quants)),
            fifth_bits(at.load(j * blocks::Q5_0.stride + blocks::Q5_0.high)),
        );
    }
    out.scale[0] = block_f16(at, blocks::Q5_0.stride, blocks::Q5_0.d, n);
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_1(at: Src<'_>, n: usize) -> Loaded {
    let mut out = Loaded::new();
    for (j, q) in out.q.iter_mut().enumerate().take(n) {
        *q = _mm256_or_si256(
            nibbles_32(at.load(j * blocks::Q5_1.stride + blocks::Q5_1.quants)),
            fifth_bits(at.load(j * blocks::Q5_1.stride + blocks::Q5_1.high)),
        );
    }
    out.scale[0] = block_f16(at, blocks::Q5_1.stride, blocks::Q5_1.d, n);
    out.min = block_f16(at, blocks::Q5_1.stride, blocks::Q5_1.second, n);
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_0(at: Src<'_>, n: usize) -> Loaded {
    let mut out = Loaded::new();
    for (j, q) in out.q.iter_mut().enumerate().take(n) {
        *q = at.load(j * blocks::Q8_0.stride + blocks::Q8_0.quants);
    }
    out.scale[0] = block_f16(at, blocks::Q8_0.stride, blocks::Q8_0.d, n);
    out
}

/// Scales and minimums (negated) of a super-block of q4_K or q5_K.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn k4_scales(block: Src<'_>) -> (__m256, __m256) {
    let head: __m128i = block.load(0);
    let d = _mm_cvtph_ps(head);
    // Dwords 1, 2, 3 hold the packed 6-bit numbers: scales 0..4, minimums 0..4 and, in nibbles,
    // the low bits of both for 4..8, whose high bits are on top of the first two.
    let low = _mm_srlv_epi32(_mm_shuffle_epi32::<0b11_10_11_01>(head), _mm_setr_epi32(0, 0, 0, 4));
    let high = _mm_and_si128(
        _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(head)),
        _mm_set1_epi64x(0x3030_3030_0000_0000),
    );
    let packed = _mm_or_si128(_mm_and_si128(low, _mm_set1_epi64x(0x0f0f_0f0f_3f3f_3f3f)), high);
    let scale = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(packed));
    let min = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(packed, packed)));
    let scale = _mm256_mul_ps(scale, _mm256_broadcastss_ps(d));
    let dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(d));
    (scale, _mm256_xor_ps(_mm256_mul_ps(min, dmin), _mm256_set1_ps(-0.0)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_k(block: Src<'_>, _: usize) -> Loaded {
    k4(block, blocks::Q4_K)
}

/// Values of q4_K, and the low bits of q5_K.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn k4(block: Src<'_>, at: Block) -> Loaded {
    let mut out = Loaded::new();
    let mask = _mm256_set1_epi8(15);
    for pair in 0..4 {
        let v: __m256i = block.load(at.quants + pair * CHUNK);
        out.q[2 * pair] = _mm256_and_si256(v, mask);
        out.q[2 * pair + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask);
    }
    (out.scale[0], out.min) = k4_scales(block);
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_k(block: Src<'_>, _: usize) -> Loaded {
    let mut out = k4(block, blocks::Q5_K);
    let bits: __m256i = block.load(blocks::Q5_K.high);
    for (c, q) in out.q.iter_mut().enumerate() {
        // Bit c of a byte belongs to chunk c: bring it to bit 4.
        let bit = _mm256_slli_epi16::<4>(_mm256_srl_epi16(bits, _mm_cvtsi32_si128(c as i32)));
        *q = _mm256_or_si256(*q, _mm256_and_si256(bit, _mm256_set1_epi8(16)));
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q6_k(block: Src<'_>, _: usize) -> Loaded {
    const BLOCK: Block = blocks::Q6_K;
    let mut out = Loaded::new();
    let (mask, bits) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
    for it in 0..2 {
        let high: __m256i = block.load(BLOCK.high + it * 32);
        let high = [
            _mm256_slli_epi16::<4>(high),
            _mm256_slli_epi16::<2>(high),
            high,
            _mm256_srli_epi16::<2>(high),
        ];
        for (c, high) in high.into_iter().enumerate() {
            let v: __m256i = block.load(BLOCK.quants + it * 64 + c % 2 * 32);
            let v = if c < 2 { v } else { _mm256_srli_epi16::<4>(v) };
            out.q[4 * it + c] =
                _mm256_or_si256(_mm256_and_si256(v, mask), _mm256_and_si256(high, bits));
        }
    }
    let d = _mm256_cvtph_ps(_mm_set1_epi16(block.load::<u16>(BLOCK.d) as i16));
    let scales: __m128i = block.load(BLOCK.scales);
    // First halves' scales, then second halves'.
    let apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    let scales = _mm_shuffle_epi8(scales, apart);
    for (half, scale) in out.scale.iter_mut().enumerate() {
        let bytes = if half == 0 { scales } else { _mm_unpackhi_epi64(scales, scales) };
        *scale = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), d);
    }
    out
}
