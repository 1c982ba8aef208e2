//! Sixteen rows of a group into the records of a panel.

use std::arch::x86_64::*;

use super::lanes::{load_halves, transpose_quads};
use crate::cpu::form::{CHUNK, Form, Group, N_CHAINS};
use crate::cpu::mem::{Src, write};
use crate::cpu::panel::{PANEL_ROWS, PARAM_BYTES, QUANT_BYTES};

/// See [`InterleaveFn`](crate::cpu::panel::InterleaveFn).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn interleave(
    form: Form,
    rows: &[Group; PANEL_ROWS],
    offsets: &[usize],
    panel: &mut [u8],
) {
    let min = std::mem::offset_of!(Group, min);
    for (chunk, &offset) in offsets.iter().enumerate() {
        for (k4, v) in transposed(rows, chunk * CHUNK).into_iter().enumerate() {
            write(panel, offset + k4 * PARAM_BYTES, v);
        }
    }
    let scale = std::mem::offset_of!(Group, scale);
    let put = |panel: &mut [u8], field: usize, at: usize| {
        if form.per16 {
            for pass in 0..2 {
                for (i, v) in transposed(rows, field + pass * CHUNK).into_iter().enumerate() {
                    let half = pass * N_CHAINS + i;
                    if let Some(offset) = offsets.get(half / 2) {
                        write(panel, offset + at + half % 2 * PARAM_BYTES, v);
                    }
                }
            }
        } else {
            for (v, offset) in transposed(rows, field).into_iter().zip(offsets) {
                write(panel, offset + at, v);
            }
        }
    };
    put(panel, scale, QUANT_BYTES);
    if form.has_min {
        put(panel, min, QUANT_BYTES + PARAM_BYTES * (1 + usize::from(form.per16)));
    }
}

/// Eight dwords, `offset` bytes into each row's group: result `i` holds dword `i` of all rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn transposed(rows: &[Group; PANEL_ROWS], offset: usize) -> [__m512i; 8] {
    // SAFETY: every load is inside the array of groups: offset + 32 bytes into each of the rows.
    let all = unsafe { Src::of_records(rows) };
    let pair = |row: usize| {
        let at = row * size_of::<Group>() + offset;
        load_halves(all.skip(at), all.skip(at + 4 * size_of::<Group>()))
    };
    let a = transpose_quads([pair(0), pair(1), pair(2), pair(3)]);
    let b = transpose_quads([pair(8), pair(9), pair(10), pair(11)]);
    let lo = |i: usize| _mm512_shuffle_i64x2::<0x88>(a[i], b[i]);
    let hi = |i: usize| _mm512_shuffle_i64x2::<0xdd>(a[i], b[i]);
    [lo(0), lo(1), lo(2), lo(3), hi(0), hi(1), hi(2), hi(3)]
}
