//! Groups of eight chunks unpacked for panels, for the types that models use most.

use std::arch::x86_64::*;

use format_spec::QuantType;

use super::gemv::k4_scales;
use crate::cpu::form::{CHUNK, Group, N_CHAINS};
use crate::cpu::mem::{Src, read, write};
use crate::cpu::scalar::unpack::UnpackFn;
use crate::cpu::stride::{blocks, group_bytes};

/// The fast unpacker of a quant type, if there is one.
pub(super) fn unpacker(quant: QuantType) -> Option<UnpackFn> {
    Some(match quant {
        QuantType::Q4_0 => q4_0,
        QuantType::Q4_1 => q4_1,
        QuantType::Q5_0 => q5_0,
        QuantType::Q8_0 => q8_0,
        QuantType::Q4_K => q4_k,
        QuantType::Q6_K => q6_k,
        _ => return None,
    })
}

/// Scales of up to eight blocks: the f16 at `offset` of each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn block_scales(at: Src<'_>, stride: usize, offset: usize, n: usize) -> [f32; N_CHAINS] {
    let mut bits = [0u16; N_CHAINS];
    for (j, bits) in bits.iter_mut().enumerate().take(n) {
        *bits = at.load(j * stride + offset);
    }
    let mut scales = [0.0; N_CHAINS];
    write(&mut scales, 0, _mm256_cvtph_ps(read(&bits, 0)));
    scales
}

/// Sixteen bytes of nibbles as 32 values: low ones first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn nibbles_32(v: __m128i) -> __m256i {
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(v), _mm_srli_epi16::<4>(v));
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn q4_0(row: &[u8], group_idx: usize, n_chunks: usize, out: &mut Group) {
    // SAFETY: the row has `n_chunks` q4_0 blocks in this group.
    let at = unsafe { Src::new(&row[group_idx * group_bytes(QuantType::Q4_0)..]) };
    for j in 0..n_chunks {
        write(
            &mut out.q,
            j * CHUNK,
            nibbles_32(at.load(j * blocks::Q4_0.stride + blocks::Q4_0.quants)),
        );
    }
    out.scale[..N_CHAINS].copy_from_slice(&block_scales(
        at,
        blocks::Q4_0.stride,
        blocks::Q4_0.d,
        n_chunks,
    ));
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn q4_1(row: &[u8], group_idx: usize, n_chunks: usize, out: &mut Group) {
    // SAFETY: the row has `n_chunks` q4_1 blocks in this group.
    let at = unsafe { Src::new(&row[group_idx * group_bytes(QuantType::Q4_1)..]) };
    for j in 0..n_chunks {
        write(
            &mut out.q,
            j * CHUNK,
            nibbles_32(at.load(j * blocks::Q4_1.stride + blocks::Q4_1.quants)),
        );
    }
    out.scale[..N_CHAINS].copy_from_slice(&block_scales(
        at,
        blocks::Q4_1.stride,
        blocks::Q4_1.d,
        n_chunks,
    ));
    out.min[..N_CHAINS].copy_from_slice(&block_scales(
        at,
        blocks::Q4_1.stride,
        blocks::Q4_1.second,
        n_chunks,
    ));
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn q5_0(row: &[u8], group_idx: usize, n_chunks: usize, out: &mut Group) {
    // SAFETY: the row has `n_chunks` q5_0 blocks in this group.
    let at = unsafe { Src::new(&row[group_idx * group_bytes(QuantType::Q5_0)..]) };
    for j in 0..n_chunks {
        let low = nibbles_32(at.load(j * blocks::Q5_0.stride + blocks::Q5_0.quants));
        let high: u32 = at.load(j * blocks::Q5_0.stride + blocks::Q5_0.high);
        let q = _mm256_mask_add_epi8(low, high, low, _mm256_set1_epi8(16));
        write(&mut out.q, j * CHUNK, q);
    }
    out.scale[..N_CHAINS].copy_from_slice(&block_scales(
        at,
        blocks::Q5_0.stride,
        blocks::Q5_0.d,
        n_chunks,
    ));
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn q8_0(row: &[u8], group_idx: usize, n_chunks: usize, out: &mut Group) {
    // SAFETY: the row has `n_chunks` q8_0 blocks in this group.
    let at = unsafe { Src::new(&row[group_idx * group_bytes(QuantType::Q8_0)..]) };
    for j in 0..n_chunks {
        let q = _mm256_xor_si256(
            at.load(j * blocks::Q8_0.stride + blocks::Q8_0.quants),
            _mm256_set1_epi8(i8::MIN),
        );
        write(&mut out.q, j * CHUNK, q);
    }
    out.scale[..N_CHAINS].copy_from_slice(&block_scales(
        at,
        blocks::Q8_0.stride,
        blocks::Q8_0.d,
        n_chunks,
    ));
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn q4_k(row: &[u8], group_idx: usize, _: usize, out: &mut Group) {
    // SAFETY: the row has this super-block.
    let block = unsafe { Src::new(&row[group_idx * blocks::Q4_K.stride..]) };
    for pair in 0..4 {
        let v: __m256i = block.load(blocks::Q4_K.quants + pair * CHUNK);
        let mask = _mm256_set1_epi8(15);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask);
        write(&mut out.q, pair * 2 * CHUNK, _mm256_and_si256(v, mask));
        write(&mut out.q, (pair * 2 + 1) * CHUNK, high);
    }
    // With the block as both rows, lanes 4i, 4i + 1 are chunks 2i, 2i + 1: pack them.
    let (scale, min) = k4_scales(block, block);
    let first = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    let scale = _mm512_castps512_ps256(_mm512_permutexvar_ps(first, scale));
    let min = _mm512_castps512_ps256(_mm512_permutexvar_ps(first, min));
    write(&mut out.scale, 0, scale);
    write(&mut out.min, 0, _mm256_xor_ps(min, _mm256_set1_ps(-0.0)));
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn q6_k(row: &[u8], group_idx: usize, _: usize, out: &mut Group) {
    // SAFETY: the row has this super-block.
    let block = unsafe { Src::new(&row[group_idx * blocks::Q6_K.stride..]) };
    for (i, v) in super::gemv::q6_k_values(block).into_iter().enumerate() {
        write(&mut out.q, i * 64, v);
    }
    write(&mut out.scale, 0, super::gemv::q6_k_scales(block));
}
