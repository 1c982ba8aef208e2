//! How each NEON tier multiplies bytes.
//!
//! SDOT and SMMLA are written out: their intrinsics are unstable (Rust 1.95), and as text they can be
//! inlined into kernels that are compiled for NEON alone, so that one source serves three tiers.

use std::arch::aarch64::*;
use std::arch::asm;

/// Dot products of signed bytes, summed in 32 bits.
///
/// Stored values that are multiplied have at most `BITS` bits; with 8 they are signed, and
/// activations lie in -127..=127. That bounds what the plain tier may add up in 16 bits.
///
/// # Safety
/// The methods of an implementation are called where its tier's instructions exist.
pub(super) unsafe trait Dot: Copy + 'static {
    /// Names of the kernels for the `tile` object: few tokens, many tokens; and for many from blocks.
    const NAMES: [&'static str; 3];
    /// Prefix of the names of the kernels for few tokens from blocks, in order of [`super::gemv`].
    const GEMV_NAMES: [&'static str; 9];
    /// Whether panels hold pairs of rows, eight bytes of each, for [`mmla`].
    const PAIRS: bool;

    /// Adds sixteen products, in any of the four lanes.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn all(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t;

    /// Lane `i` of `w[j]`, four bytes, times word `j` of `x`, for every `j`; added to lane `i`.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn along<const BITS: u32>(acc: int32x4_t, w: [int8x16_t; 4], x: int8x16_t) -> int32x4_t;

    /// Lane `i` of `w[j]`, four bytes, times word `WORD` of `x[j]`, for every `j`; added to lane `i`.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn across<const BITS: u32, const WORD: i32>(
        acc: int32x4_t,
        w: [int8x16_t; 4],
        x: [int8x16_t; 4],
    ) -> int32x4_t;
}

/// Products in 16 bits, which every 64-bit ARM has.
#[derive(Clone, Copy)]
pub(super) struct Plain;

// SAFETY: NEON is part of the architecture's baseline.
unsafe impl Dot for Plain {
    const NAMES: [&'static str; 3] = ["gemv_tile_neon", "gemm_tile_neon", "gemm_neon"];
    const GEMV_NAMES: [&'static str; 9] = [
        "gemv_neon_q4_0",
        "gemv_neon_q4_1",
        "gemv_neon_q5_0",
        "gemv_neon_q5_1",
        "gemv_neon_q8_0",
        "gemv_neon_q4_K",
        "gemv_neon_q5_K",
        "gemv_neon_q6_K",
        "gemv_neon_unpacked",
    ];
    const PAIRS: bool = false;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn all(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // Two products: 2 * 128 * 127 fits.
        let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
        vpadalq_s16(acc, vmlal_high_s8(low, w, x))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn along<const BITS: u32>(acc: int32x4_t, w: [int8x16_t; 4], x: int8x16_t) -> int32x4_t {
        let x = vreinterpretq_s32_s8(x);
        let words = [
            vdupq_laneq_s32::<0>(x),
            vdupq_laneq_s32::<1>(x),
            vdupq_laneq_s32::<2>(x),
            vdupq_laneq_s32::<3>(x),
        ];
        quads::<BITS>(acc, w, words)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn across<const BITS: u32, const WORD: i32>(
        acc: int32x4_t,
        w: [int8x16_t; 4],
        x: [int8x16_t; 4],
    ) -> int32x4_t {
        let word = |x: int8x16_t| vdupq_laneq_s32::<WORD>(vreinterpretq_s32_s8(x));
        quads::<BITS>(acc, w, [word(x[0]), word(x[1]), word(x[2]), word(x[3])])
    }
}

/// Four words of four rows times one word each, which all lanes of `x[j]` hold.
#[inline]
#[target_feature(enable = "neon")]
fn quads<const BITS: u32>(acc: int32x4_t, w: [int8x16_t; 4], x: [int32x4_t; 4]) -> int32x4_t {
    let x = [0, 1, 2, 3].map(|j| vreinterpretq_s8_s32(x[j]));
    // Rows 0 and 1, rows 2 and 3: products of words `from..to`.
    let products = |from: usize, to: usize| {
        let mut low = vmull_s8(vget_low_s8(w[from]), vget_low_s8(x[from]));
        let mut high = vmull_high_s8(w[from], x[from]);
        for j in from + 1..to {
            low = vmlal_s8(low, vget_low_s8(w[j]), vget_low_s8(x[j]));
            high = vmlal_high_s8(high, w[j], x[j]);
        }
        (low, high)
    };
    if BITS <= 5 {
        // Eight products of 31 * 127 fit.
        let (low, high) = products(0, 4);
        return vpadalq_s16(acc, vpaddq_s16(low, high));
    }
    if BITS <= 6 {
        // Four of 63 * 127 do.
        let (low, high) = products(0, 4);
        return vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
    }
    // And two of 128 * 127.
    let (mut low, mut high) = products(0, 2);
    let mut sums = vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
    (low, high) = products(2, 4);
    sums = vaddq_s32(sums, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
    vaddq_s32(acc, sums)
}

/// SDOT.
#[derive(Clone, Copy)]
pub(super) struct DotProd;

/// SMMLA for many tokens, SDOT for few.
#[derive(Clone, Copy)]
pub(super) struct I8mm;

macro_rules! dot_by_sdot {
    ($name:ident, $tier:literal, $pairs:literal) => {
        // SAFETY: the tables that name this type ask for SDOT.
        unsafe impl Dot for $name {
            const NAMES: [&'static str; 3] = [
                concat!("gemv_tile_", $tier),
                concat!("gemm_tile_", $tier),
                concat!("gemm_", $tier),
            ];
            const GEMV_NAMES: [&'static str; 9] = [
                concat!("gemv_", $tier, "_q4_0"),
                concat!("gemv_", $tier, "_q4_1"),
                concat!("gemv_", $tier, "_q5_0"),
                concat!("gemv_", $tier, "_q5_1"),
                concat!("gemv_", $tier, "_q8_0"),
                concat!("gemv_", $tier, "_q4_K"),
                concat!("gemv_", $tier, "_q5_K"),
                concat!("gemv_", $tier, "_q6_K"),
                concat!("gemv_", $tier, "_unpacked"),
            ];
            const PAIRS: bool = $pairs;

            #[inline]
            #[target_feature(enable = "neon")]
            unsafe fn all(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
                // SAFETY: the caller's contract.
                unsafe { sdot(acc, w, x) }
            }

            #[inline]
            #[target_feature(enable = "neon")]
            unsafe fn along<const BITS: u32>(
                acc: int32x4_t,
                w: [int8x16_t; 4],
                x: int8x16_t,
            ) -> int32x4_t {
                // SAFETY: the caller's contract.
                let acc = unsafe { sdot_word::<0>(acc, w[0], x) };
                // SAFETY: as above.
                let acc = unsafe { sdot_word::<1>(acc, w[1], x) };
                // SAFETY: as above.
                let acc = unsafe { sdot_word::<2>(acc, w[2], x) };
                // SAFETY: as above.
                unsafe { sdot_word::<3>(acc, w[3], x) }
            }

            #[inline]
            #[target_feature(enable = "neon")]
            unsafe fn across<const BITS: u32, const WORD: i32>(
                mut acc: int32x4_t,
                w: [int8x16_t; 4],
                x: [int8x16_t; 4],
            ) -> int32x4_t {
                for j in 0..4 {
                    // SAFETY: the caller's contract.
                    acc = unsafe { sdot_word::<WORD>(acc, w[j], x[j]) };
                }
                acc
            }
        }
    };
}

dot_by_sdot!(DotProd, "dotprod", false);
dot_by_sdot!(I8mm, "i8mm", true);

/// Adds to lane `i` the products of bytes `4 i..4 i + 4`.
///
/// # Safety
/// The CPU has SDOT.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn sdot(mut acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction exists by the contract, and it touches its three registers alone.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) acc, in(vreg) w, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// Adds to lane `i` the products of bytes `4 i..4 i + 4` of `w` with those of word `WORD` of `x`.
///
/// # Safety
/// The CPU has SDOT.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn sdot_word<const WORD: i32>(mut acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction exists by the contract, and it touches its three registers alone.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]",
            inout(vreg) acc, in(vreg) w, in(vreg) x, const WORD,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// Adds a product of 2x8 and 8x2 bytes: lane `2 r + t` gets half `r` of `w` times half `t` of `x`.
///
/// # Safety
/// The CPU has SMMLA.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn mmla(mut acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction exists by the contract, and it touches its three registers alone.
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) acc, in(vreg) w, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}
