//! Small vector steps that several kernels share.

use std::arch::x86_64::*;

use crate::cpu::mem::Src;

/// Two halves side by side: the 32 bytes at `lo` and those at `hi`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn load_halves(lo: Src<'_>, hi: Src<'_>) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(lo.load(0)), hi.load(0))
}

/// The first `n_bytes` of 64, zeros behind them; nothing beyond is touched.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn load_first(at: Src<'_>, offset: usize, n_bytes: usize) -> __m512i {
    let n_bytes = n_bytes.saturating_sub(offset).min(64);
    let mask = u64::MAX.checked_shr(64 - n_bytes as u32).unwrap_or(0);
    // SAFETY: the mask keeps the load inside the bytes that the caller still has.
    unsafe { _mm512_maskz_loadu_epi8(mask, at.ptr(offset).cast()) }
}

/// Sums of quadruples: lane `L`, dword `j` of the result is the sum of 128-bit lane `L` of `v[j]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn sum_quads(v: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// Lanes 0 and 2 of `a`, then of `b`; and lanes 1 and 3.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn split_lanes(a: __m512i, b: __m512i) -> (__m512i, __m512i) {
    (_mm512_shuffle_i64x2::<0x88>(a, b), _mm512_shuffle_i64x2::<0xdd>(a, b))
}

/// Low and high nibbles.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn nibbles(v: __m512i) -> (__m512i, __m512i) {
    let mask = _mm512_set1_epi8(15);
    (_mm512_and_si512(v, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask))
}

/// Transposes 4x4 dwords inside each 128-bit lane: result `k`, dword `i` is `v[i]`, dword `k`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn transpose_quads(v: [__m512i; 4]) -> [__m512i; 4] {
    let (ab_lo, ab_hi) = (_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    let (cd_lo, cd_hi) = (_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    [
        _mm512_unpacklo_epi64(ab_lo, cd_lo),
        _mm512_unpackhi_epi64(ab_lo, cd_lo),
        _mm512_unpacklo_epi64(ab_hi, cd_hi),
        _mm512_unpackhi_epi64(ab_hi, cd_hi),
    ]
}

/// Eight f32 of a token spread over the accumulator lanes that `order` names.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn spread(x: __m256, order: __m512i) -> __m512 {
    _mm512_permutexvar_ps(order, _mm512_castps256_ps512(x))
}

/// Eight i32 of a token, as [`spread`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn spread_i32(x: __m256i, order: __m512i) -> __m512i {
    _mm512_permutexvar_epi32(order, _mm512_castsi256_si512(x))
}
