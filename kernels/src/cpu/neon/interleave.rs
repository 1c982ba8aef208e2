//! Sixteen rows of a group into the records of a panel.
//!
//! Panels are for SDOT's operands or, in pairs of rows, for SMMLA's: then the quants are
//! `[k / 8][row / 2][row % 2][k % 8]`. Values of eight bits become signed on the way.

use std::arch::aarch64::*;
use std::mem::offset_of;

use super::dot::Dot;
use crate::cpu::form::{CHUNK, Form, Group, N_CHAINS};
use crate::cpu::mem::{Src, write};
use crate::cpu::panel::{PANEL_ROWS, PARAM_BYTES, QUANT_BYTES};

/// Rows of a vector.
const ROWS: usize = 4;

/// See [`InterleaveFn`](crate::cpu::panel::InterleaveFn).
#[target_feature(enable = "neon")]
pub(super) fn interleave<D: Dot>(
    form: Form,
    rows: &[Group; PANEL_ROWS],
    offsets: &[usize],
    panel: &mut [u8],
) {
    let sign = sign(form);
    // SAFETY: every load is inside the array of groups.
    let all = unsafe { Src::of_records(rows) };
    for quarter in 0..PANEL_ROWS / ROWS {
        let row = |r: usize| all.skip((ROWS * quarter + r) * size_of::<Group>());
        let load = |at: usize| [0, 1, 2, 3].map(|r| row(r).load::<uint32x4_t>(at));
        for (chunk, &offset) in offsets.iter().enumerate() {
            for half in 0..2 {
                let v = transpose(load(chunk * CHUNK + half * 16));
                let v = v.map(|v| veorq_u8(vreinterpretq_u8_u32(v), sign));
                put::<D>(panel, offset, quarter, half, v);
            }
        }
        // Dword `i` of a field of floats is the scale of chunk `i`, or of half `i % 2` of `i / 2`.
        let mut params = |field: usize, at: usize| {
            let n = if form.per16 { 2 } else { 1 };
            for four in 0..n * N_CHAINS / 4 {
                for (i, v) in transpose(load(field + four * 16)).into_iter().enumerate() {
                    let i = 4 * four + i;
                    if let Some(offset) = offsets.get(i / n) {
                        write(panel, offset + at + i % n * PARAM_BYTES + quarter * 16, v);
                    }
                }
            }
        };
        params(offset_of!(Group, scale), QUANT_BYTES);
        if form.has_min {
            let at = QUANT_BYTES + PARAM_BYTES * (1 + usize::from(form.per16));
            params(offset_of!(Group, min), at);
        }
    }
}

/// What turns a stored value into the signed byte that is multiplied.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn sign(form: Form) -> uint8x16_t {
    vdupq_n_u8(if form.bits == 8 { 0x80 } else { 0 })
}

/// Puts half a chunk of four rows, word by word, into the record at `offset`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn put<D: Dot>(
    panel: &mut [u8],
    offset: usize,
    quarter: usize,
    half: usize,
    words: [uint8x16_t; 4],
) {
    if !D::PAIRS {
        for (j, v) in words.into_iter().enumerate() {
            write(panel, offset + (4 * half + j) * PARAM_BYTES + quarter * 16, v);
        }
        return;
    }
    let words = words.map(|v| vreinterpretq_u32_u8(v));
    for eight in 0..2 {
        let (a, b) = (words[2 * eight], words[2 * eight + 1]);
        let at = offset + ((2 * half + eight) * PANEL_ROWS / 2 + 2 * quarter) * 16;
        write(panel, at, vzip1q_u32(a, b));
        write(panel, at + 16, vzip2q_u32(a, b));
    }
}

/// Transposes 4x4 dwords.
#[inline]
#[target_feature(enable = "neon")]
fn transpose(v: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    let wide = |v: uint32x4_t| vreinterpretq_u64_u32(v);
    let (ab, cd) = (vzip1q_u32(v[0], v[1]), vzip1q_u32(v[2], v[3]));
    let (ab_high, cd_high) = (vzip2q_u32(v[0], v[1]), vzip2q_u32(v[2], v[3]));
    [
        vreinterpretq_u32_u64(vzip1q_u64(wide(ab), wide(cd))),
        vreinterpretq_u32_u64(vzip2q_u64(wide(ab), wide(cd))),
        vreinterpretq_u32_u64(vzip1q_u64(wide(ab_high), wide(cd_high))),
        vreinterpretq_u32_u64(vzip2q_u64(wide(ab_high), wide(cd_high))),
    ]
}
