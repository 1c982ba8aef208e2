//! Sixteen rows of a group into the records of a panel.

use std::arch::x86_64::*;
use std::mem::offset_of;

use crate::cpu::form::{CHUNK, Form, Group, N_CHAINS};
use crate::cpu::mem::{Src, write};
use crate::cpu::panel::{PANEL_ROWS, PARAM_BYTES, QUANT_BYTES};

/// See [`InterleaveFn`](crate::cpu::panel::InterleaveFn).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn interleave(
    form: Form,
    rows: &[Group; PANEL_ROWS],
    offsets: &[usize],
    panel: &mut [u8],
) {
    for (chunk, &offset) in offsets.iter().enumerate() {
        put(rows, chunk * CHUNK, panel, |k4| Some(offset + k4 * PARAM_BYTES));
    }
    let params = |panel: &mut [u8], field: usize, at: usize| {
        if form.per16 {
            for pass in 0..2 {
                put(rows, field + pass * CHUNK, panel, |i| {
                    let half = pass * N_CHAINS + i;
                    let offset = offsets.get(half / 2)?;
                    Some(offset + at + half % 2 * PARAM_BYTES)
                });
            }
        } else {
            put(rows, field, panel, |chunk| Some(offsets.get(chunk)? + at));
        }
    };
    params(panel, offset_of!(Group, scale), QUANT_BYTES);
    if form.has_min {
        let at = QUANT_BYTES + PARAM_BYTES * (1 + usize::from(form.per16));
        params(panel, offset_of!(Group, min), at);
    }
}

/// Eight dwords, `offset` bytes into each row's group: dword `i` of all rows goes to `to(i)`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn put(
    rows: &[Group; PANEL_ROWS],
    offset: usize,
    panel: &mut [u8],
    to: impl Fn(usize) -> Option<usize>,
) {
    // SAFETY: every load is inside the array of groups: offset + 32 bytes into each of the rows.
    let all = unsafe { Src::of_records(rows) };
    for half in 0..2 {
        let load = |row: usize| all.load((8 * half + row) * size_of::<Group>() + offset);
        let v = transpose([0, 1, 2, 3, 4, 5, 6, 7].map(load));
        for (i, v) in v.into_iter().enumerate() {
            if let Some(at) = to(i) {
                write(panel, at + half * 32, v);
            }
        }
    }
}

/// Transposes 8x8 dwords.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose(v: [__m256i; 8]) -> [__m256i; 8] {
    let quad = |a: __m256i, b: __m256i, c: __m256i, d: __m256i| {
        let (ab_lo, ab_hi) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd_lo, cd_hi) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab_lo, cd_lo),
            _mm256_unpackhi_epi64(ab_lo, cd_lo),
            _mm256_unpacklo_epi64(ab_hi, cd_hi),
            _mm256_unpackhi_epi64(ab_hi, cd_hi),
        ]
    };
    let (a, b) = (quad(v[0], v[1], v[2], v[3]), quad(v[4], v[5], v[6], v[7]));
    let lo = |i: usize| _mm256_permute2x128_si256::<0x20>(a[i], b[i]);
    let hi = |i: usize| _mm256_permute2x128_si256::<0x31>(a[i], b[i]);
    [lo(0), lo(1), lo(2), lo(3), hi(0), hi(1), hi(2), hi(3)]
}
