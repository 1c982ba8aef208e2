//! [`Lanes`] in AVX2 (two registers) and AVX-512 (one).
//!
//! The methods are `inline(always)` and end up in functions that enable the tier's features, where
//! the intrinsics become single instructions.
// Every intrinsic call needs its feature, which the token proves; loads and stores go through
// references to whole arrays.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use half::f16;

use super::lanes::{LANES, Lanes};

/// Calls one intrinsic. The tokens of this file exist only where their tier does.
macro_rules! intrinsic {
    ($call:expr) => {{
        // SAFETY: the caller holds the tier's token, so the CPU has the instruction; pointers
        // come from references to arrays of the width read or written.
        unsafe { $call }
    }};
}

/// Proof that AVX2, FMA and F16C exist.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The token of this tier.
    ///
    /// # Safety
    /// The CPU has AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) const unsafe fn new_unchecked() -> Self {
        Self(())
    }
}

/// Sixteen lanes, low half first.
type Pair = [__m256; 2];

#[inline(always)]
fn pair_ptr(x: &[f32; LANES], half: usize) -> *const f32 {
    x[half * 8..].as_ptr()
}

// One half of the operations that take several instructions. Functions and no closures over the
// two halves: a closure cannot be told to inline (see `elementwise`).

#[inline(always)]
fn copysign_half(magnitude: __m256, sign: __m256) -> __m256 {
    let bit = intrinsic!(_mm256_set1_ps(-0.0));
    let rest = intrinsic!(_mm256_andnot_ps(bit, magnitude));
    let sign = intrinsic!(_mm256_and_ps(bit, sign));
    intrinsic!(_mm256_or_ps(rest, sign))
}

#[inline(always)]
fn if_less_half(a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
    let less = intrinsic!(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
    intrinsic!(_mm256_blendv_ps(y, x, less))
}

#[inline(always)]
fn select_half(mask: u8, x: __m256, y: __m256) -> __m256 {
    let bits = intrinsic!(_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128));
    let all = intrinsic!(_mm256_set1_epi32(i32::from(mask)));
    let hit = intrinsic!(_mm256_and_si256(all, bits));
    let set = intrinsic!(_mm256_cmpeq_epi32(hit, bits));
    let set = intrinsic!(_mm256_castsi256_ps(set));
    intrinsic!(_mm256_blendv_ps(y, x, set))
}

#[inline(always)]
fn exp2_half(t: __m256) -> __m256 {
    let bits = intrinsic!(_mm256_castps_si256(t));
    let exponent = intrinsic!(_mm256_slli_epi32::<23>(bits));
    let one = intrinsic!(_mm256_set1_epi32(0x3F80_0000));
    let bits = intrinsic!(_mm256_add_epi32(exponent, one));
    intrinsic!(_mm256_castsi256_ps(bits))
}

impl Lanes for Avx2 {
    type V = Pair;
    const TILE_ROWS: usize = 6;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        let v = intrinsic!(_mm256_set1_ps(x));
        [v, v]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Pair {
        [intrinsic!(_mm256_loadu_ps(pair_ptr(x, 0))), intrinsic!(_mm256_loadu_ps(pair_ptr(x, 1)))]
    }
    #[inline(always)]
    fn store(self, v: Pair, out: &mut [f32; LANES]) {
        let (low, high) = out.split_at_mut(8);
        intrinsic!(_mm256_storeu_ps(low.as_mut_ptr(), v[0]));
        intrinsic!(_mm256_storeu_ps(high.as_mut_ptr(), v[1]));
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        [intrinsic!(_mm256_add_ps(a[0], b[0])), intrinsic!(_mm256_add_ps(a[1], b[1]))]
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        [intrinsic!(_mm256_sub_ps(a[0], b[0])), intrinsic!(_mm256_sub_ps(a[1], b[1]))]
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        [intrinsic!(_mm256_mul_ps(a[0], b[0])), intrinsic!(_mm256_mul_ps(a[1], b[1]))]
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        [intrinsic!(_mm256_div_ps(a[0], b[0])), intrinsic!(_mm256_div_ps(a[1], b[1]))]
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        [
            intrinsic!(_mm256_fmadd_ps(a[0], b[0], c[0])),
            intrinsic!(_mm256_fmadd_ps(a[1], b[1], c[1])),
        ]
    }
    #[inline(always)]
    fn fnma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        [
            intrinsic!(_mm256_fnmadd_ps(a[0], b[0], c[0])),
            intrinsic!(_mm256_fnmadd_ps(a[1], b[1], c[1])),
        ]
    }
    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        [intrinsic!(_mm256_max_ps(a[0], b[0])), intrinsic!(_mm256_max_ps(a[1], b[1]))]
    }
    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        [intrinsic!(_mm256_min_ps(a[0], b[0])), intrinsic!(_mm256_min_ps(a[1], b[1]))]
    }
    #[inline(always)]
    fn copysign(self, magnitude: Pair, sign: Pair) -> Pair {
        [copysign_half(magnitude[0], sign[0]), copysign_half(magnitude[1], sign[1])]
    }
    #[inline(always)]
    fn if_less(self, a: Pair, b: Pair, x: Pair, y: Pair) -> Pair {
        [if_less_half(a[0], b[0], x[0], y[0]), if_less_half(a[1], b[1], x[1], y[1])]
    }
    #[inline(always)]
    fn select(self, mask: u16, x: Pair, y: Pair) -> Pair {
        let [low, high] = mask.to_le_bytes();
        [select_half(low, x[0], y[0]), select_half(high, x[1], y[1])]
    }
    #[inline(always)]
    fn exp2_of_magic(self, t: Pair) -> Pair {
        [exp2_half(t[0]), exp2_half(t[1])]
    }
    #[inline(always)]
    fn swap_pairs(self, v: Pair) -> Pair {
        [
            intrinsic!(_mm256_permute_ps::<0b1011_0001>(v[0])),
            intrinsic!(_mm256_permute_ps::<0b1011_0001>(v[1])),
        ]
    }
    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Pair {
        let low = intrinsic!(_mm_loadu_si128(x[..8].as_ptr().cast()));
        let high = intrinsic!(_mm_loadu_si128(x[8..].as_ptr().cast()));
        [intrinsic!(_mm256_cvtph_ps(low)), intrinsic!(_mm256_cvtph_ps(high))]
    }
    #[inline(always)]
    fn store_f16(self, v: Pair, out: &mut [f16; LANES]) {
        for (v, out) in v.into_iter().zip(out.chunks_exact_mut(8)) {
            let bits = intrinsic!(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
            intrinsic!(_mm_storeu_si128(out.as_mut_ptr().cast(), bits));
        }
    }
}

/// Proof that AVX-512 F, BW and VL exist.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The token of this tier.
    ///
    /// # Safety
    /// The CPU has AVX-512 F, BW and VL.
    #[inline(always)]
    pub(crate) const unsafe fn new_unchecked() -> Self {
        Self(())
    }
}

impl Lanes for Avx512 {
    type V = __m512;
    const TILE_ROWS: usize = 8;
    const WIDE: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        intrinsic!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        intrinsic!(_mm512_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: __m512, out: &mut [f32; LANES]) {
        intrinsic!(_mm512_storeu_ps(out.as_mut_ptr(), v));
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        intrinsic!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        intrinsic!(_mm512_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn copysign(self, magnitude: __m512, sign: __m512) -> __m512 {
        // The integer forms need no AVX-512 DQ. 0xD8 takes the second operand where the third is
        // set, else the first: one instruction.
        let bit = intrinsic!(_mm512_set1_epi32(i32::MIN));
        let magnitude = intrinsic!(_mm512_castps_si512(magnitude));
        let sign = intrinsic!(_mm512_castps_si512(sign));
        let bits = intrinsic!(_mm512_ternarylogic_epi32::<0xD8>(magnitude, sign, bit));
        intrinsic!(_mm512_castsi512_ps(bits))
    }
    #[inline(always)]
    fn if_less(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        let less = intrinsic!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b));
        intrinsic!(_mm512_mask_blend_ps(less, y, x))
    }
    #[inline(always)]
    fn select(self, mask: u16, x: __m512, y: __m512) -> __m512 {
        intrinsic!(_mm512_mask_blend_ps(mask, y, x))
    }
    #[inline(always)]
    fn exp2_of_magic(self, t: __m512) -> __m512 {
        let bits = intrinsic!(_mm512_castps_si512(t));
        let exponent = intrinsic!(_mm512_slli_epi32::<23>(bits));
        let one = intrinsic!(_mm512_set1_epi32(0x3F80_0000));
        let bits = intrinsic!(_mm512_add_epi32(exponent, one));
        intrinsic!(_mm512_castsi512_ps(bits))
    }
    #[inline(always)]
    fn swap_pairs(self, v: __m512) -> __m512 {
        intrinsic!(_mm512_permute_ps::<0b1011_0001>(v))
    }
    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> __m512 {
        let bits = intrinsic!(_mm256_loadu_si256(x.as_ptr().cast()));
        intrinsic!(_mm512_cvtph_ps(bits))
    }
    #[inline(always)]
    fn store_f16(self, v: __m512, out: &mut [f16; LANES]) {
        let bits = intrinsic!(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        intrinsic!(_mm256_storeu_si256(out.as_mut_ptr().cast(), bits));
    }
}
