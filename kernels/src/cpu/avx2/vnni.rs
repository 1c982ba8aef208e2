//! The one instruction that the AVX-VNNI tier has more than AVX2.

use std::arch::asm;
use std::arch::x86_64::*;

/// Adds to each lane of `acc` the products of its four bytes: unsigned ones of `w`, signed of `x`.
///
/// The instruction is written out since the intrinsic is inlined only into functions that enable its
/// feature; this tier's kernels are AVX2's, compiled for AVX2, with a constant that says which dot
/// product they take.
///
/// # Safety
/// The CPU has AVX-VNNI.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu) unsafe fn dpbusd(mut acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the instruction exists by the contract, and it touches its three registers alone.
    unsafe {
        asm!(
            "{{vex}} vpdpbusd {0}, {1}, {2}",
            inout(ymm_reg) acc, in(ymm_reg) w, in(ymm_reg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}
