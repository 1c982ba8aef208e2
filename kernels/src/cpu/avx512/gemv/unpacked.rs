//! The types without a kernel of their own.

use std::arch::x86_64::*;

use super::{LaneMap, Params, Plain, activations, add_scaled, finish, plain_order, sum_halves};
use crate::cpu::activations::{DotGroup, DotRow};
use crate::cpu::form::{Form, Group, N_CHAINS};
use crate::cpu::mem::read;
use crate::cpu::scalar::unpack::unpacker;
use crate::view::Weight;

/// Any type: unpacked by the scalar code, multiplied by this tier.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn unpacked(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    let (Some(form), Some(unpack)) = (Form::of(w.quant()), unpacker(w.quant())) else {
        unreachable!("plain floats have a path of their own")
    };
    let map = LaneMap::new::<Plain>(x.n_chunks);
    let mut rows = [Group::ZERO, Group::ZERO];
    for (pair, y) in y.chunks_mut(2).enumerate() {
        let first = row + 2 * pair;
        let at = [w.row(first), w.row(first + y.len() - 1)];
        let mut acc = _mm512_setzero_ps();
        for (i, x_group) in x.groups.iter().enumerate() {
            let n = (x.n_chunks - i * N_CHAINS).min(N_CHAINS);
            for (row, group) in at.iter().zip(&mut rows) {
                // SAFETY: unpackers of the scalar tier need no instructions beyond the target's.
                unsafe { unpack(row, i, n, group) };
            }
            let lanes = if n == N_CHAINS { u16::MAX } else { map.tail };
            acc = add_group(acc, form, &rows, x_group, &Params::new(x_group, &map), lanes);
        }
        finish::<Plain>(acc, y);
    }
}

/// Adds an unpacked group of two rows, lanes in [`Plain`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_group(
    acc: __m512,
    form: Form,
    rows: &[Group; 2],
    x: &DotGroup,
    p: &Params,
    lanes: u16,
) -> __m512 {
    let xq = activations(&x.q);
    let [a, b] = [&rows[0], &rows[1]].map(|group| {
        let dot = |i: usize| read(&group.q, i * 64);
        [0, 1, 2, 3].map(|i| _mm512_dpbusd_epi32(_mm512_setzero_si512(), dot(i), xq[i]))
    });
    let (first, second) = sum_halves(a, b);
    // Parameters of chunk c (or of its half h) of both rows in lane order.
    let gather = |field: fn(&Group) -> &[f32; 16], half: Option<usize>| {
        let mut v = [0.0f32; 16];
        for (r, row) in rows.iter().enumerate() {
            for c in 0..N_CHAINS {
                v[plain_order(r, c)] = field(row)[half.map_or(c, |h| 2 * c + h)];
            }
        }
        read::<__m512>(&v, 0)
    };
    let sums = |h: usize| {
        let mut v = [0i32; 16];
        for r in 0..2 {
            for c in 0..N_CHAINS {
                v[plain_order(r, c)] = x.s16[2 * c + h];
            }
        }
        read::<__m512i>(&v, 0)
    };
    let centre = |dots: __m512i, sums: __m512i| {
        let offset = _mm512_mullo_epi32(sums, _mm512_set1_epi32(form.offset()));
        _mm512_sub_epi32(dots, offset)
    };
    if !form.per16 {
        let dots = centre(_mm512_add_epi32(first, second), p.s32);
        let acc = add_scaled(acc, dots, gather(|g| &g.scale, None), p.d, lanes);
        if !form.has_min {
            return acc;
        }
        return _mm512_mask3_fmadd_ps(gather(|g| &g.min, None), p.ds, acc, lanes);
    }
    let t =
        _mm512_mul_ps(_mm512_cvtepi32_ps(centre(first, sums(0))), gather(|g| &g.scale, Some(0)));
    let dot = _mm512_cvtepi32_ps(centre(second, sums(1)));
    let t = _mm512_fmadd_ps(dot, gather(|g| &g.scale, Some(1)), t);
    let mut acc = _mm512_mask3_fmadd_ps(t, p.d, acc, lanes);
    if form.has_min {
        for h in 0..2 {
            let ds = _mm512_mul_ps(p.d, _mm512_cvtepi32_ps(sums(h)));
            acc = _mm512_mask3_fmadd_ps(gather(|g| &g.min, Some(h)), ds, acc, lanes);
        }
    }
    acc
}
