//! Ops on each element: residual add, bias, scaling, gated activations, soft cap.

use super::lanes::{LANES, Lanes};
use super::math;

/// Replaces each element of `y` by `f(y, x)`.
#[inline(always)]
fn zip_in_place<L: Lanes>(l: L, y: &mut [f32], x: &[f32], f: impl Fn(L::V, L::V) -> L::V) {
    assert_eq!(y.len(), x.len(), "operand lengths");
    let (y_blocks, y_rest) = y.as_chunks_mut::<LANES>();
    let (x_blocks, x_rest) = x.as_chunks::<LANES>();
    for (y, x) in y_blocks.iter_mut().zip(x_blocks) {
        let value = f(l.load(y), l.load(x));
        l.store(value, y);
    }
    let value = f(l.load_partial(y_rest, 0.0), l.load_partial(x_rest, 0.0));
    l.store_partial(value, y_rest);
}

/// Replaces each element of `x` by `f(x)`.
#[inline(always)]
fn map_in_place<L: Lanes>(l: L, x: &mut [f32], f: impl Fn(L::V) -> L::V) {
    let (blocks, rest) = x.as_chunks_mut::<LANES>();
    for x in blocks {
        let value = f(l.load(x));
        l.store(value, x);
    }
    let value = f(l.load_partial(rest, 0.0));
    l.store_partial(value, rest);
}

#[inline(always)]
pub(super) fn add<L: Lanes>(l: L, y: &mut [f32], x: &[f32]) {
    zip_in_place(l, y, x, |y, x| l.add(y, x));
}

#[inline(always)]
pub(super) fn add_bias<L: Lanes>(l: L, y: &mut [f32], bias: &[f32]) {
    if bias.is_empty() {
        return;
    }
    for row in y.chunks_exact_mut(bias.len()) {
        add(l, row, bias);
    }
}

#[inline(always)]
pub(super) fn scale<L: Lanes>(l: L, x: &mut [f32], factor: f32) {
    map_in_place(l, x, |x| l.mul(x, l.splat(factor)));
}

#[inline(always)]
pub(super) fn soft_cap<L: Lanes>(l: L, x: &mut [f32], cap: f32) {
    let inv_cap = 1.0 / cap;
    map_in_place(l, x, |x| math::soft_cap(l, x, cap, inv_cap));
}

#[inline(always)]
pub(super) fn silu_mul<L: Lanes>(l: L, gate: &mut [f32], up: &[f32]) {
    zip_in_place(l, gate, up, |gate, up| l.mul(math::silu(l, gate), up));
}

#[inline(always)]
pub(super) fn gelu_tanh_mul<L: Lanes>(l: L, gate: &mut [f32], up: &[f32]) {
    zip_in_place(l, gate, up, |gate, up| l.mul(math::gelu_tanh(l, gate), up));
}
