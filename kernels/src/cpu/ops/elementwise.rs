//! Ops on each element: residual add, bias, scaling, gated activations, soft cap.

use super::lanes::{LANES, Lanes};
use super::math;

/// One element of the output from the two operands.
///
/// A trait and no closure: a closure cannot be told to inline, and one that is not is compiled
/// without the tier's features, every intrinsic a call.
trait Zip: Copy {
    fn at<L: Lanes>(self, l: L, y: L::V, x: L::V) -> L::V;
}

/// Replaces each element of `y` by `f(y, x)`.
#[inline(always)]
fn zip_in_place<L: Lanes>(l: L, y: &mut [f32], x: &[f32], f: impl Zip) {
    assert_eq!(y.len(), x.len(), "operand lengths");
    let (y_blocks, y_rest) = y.as_chunks_mut::<LANES>();
    let (x_blocks, x_rest) = x.as_chunks::<LANES>();
    for (y, x) in y_blocks.iter_mut().zip(x_blocks) {
        let value = f.at(l, l.load(y), l.load(x));
        l.store(value, y);
    }
    if !y_rest.is_empty() {
        let value = f.at(l, l.load_partial(y_rest, 0.0), l.load_partial(x_rest, 0.0));
        l.store_partial(value, y_rest);
    }
}

/// One element of the output from one operand.
trait Map: Copy {
    fn at<L: Lanes>(self, l: L, x: L::V) -> L::V;
}

/// Replaces each element of `x` by `f(x)`.
#[inline(always)]
fn map_in_place<L: Lanes>(l: L, x: &mut [f32], f: impl Map) {
    let (blocks, rest) = x.as_chunks_mut::<LANES>();
    for x in blocks {
        let value = f.at(l, l.load(x));
        l.store(value, x);
    }
    if !rest.is_empty() {
        let value = f.at(l, l.load_partial(rest, 0.0));
        l.store_partial(value, rest);
    }
}

#[derive(Clone, Copy)]
struct Add;

impl Zip for Add {
    #[inline(always)]
    fn at<L: Lanes>(self, l: L, y: L::V, x: L::V) -> L::V {
        l.add(y, x)
    }
}

#[inline(always)]
pub(super) fn add<L: Lanes>(l: L, y: &mut [f32], x: &[f32]) {
    zip_in_place(l, y, x, Add);
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

#[derive(Clone, Copy)]
struct Scale {
    factor: f32,
}

impl Map for Scale {
    #[inline(always)]
    fn at<L: Lanes>(self, l: L, x: L::V) -> L::V {
        l.mul(x, l.splat(self.factor))
    }
}

#[inline(always)]
pub(super) fn scale<L: Lanes>(l: L, x: &mut [f32], factor: f32) {
    map_in_place(l, x, Scale { factor });
}

#[derive(Clone, Copy)]
struct SoftCap {
    cap: f32,
    inv_cap: f32,
}

impl Map for SoftCap {
    #[inline(always)]
    fn at<L: Lanes>(self, l: L, x: L::V) -> L::V {
        math::soft_cap(l, x, self.cap, self.inv_cap)
    }
}

#[inline(always)]
pub(super) fn soft_cap<L: Lanes>(l: L, x: &mut [f32], cap: f32) {
    map_in_place(l, x, SoftCap { cap, inv_cap: 1.0 / cap });
}

#[derive(Clone, Copy)]
struct SiluMul;

impl Zip for SiluMul {
    #[inline(always)]
    fn at<L: Lanes>(self, l: L, gate: L::V, up: L::V) -> L::V {
        l.mul(math::silu(l, gate), up)
    }
}

#[inline(always)]
pub(super) fn silu_mul<L: Lanes>(l: L, gate: &mut [f32], up: &[f32]) {
    zip_in_place(l, gate, up, SiluMul);
}

#[derive(Clone, Copy)]
struct GeluTanhMul;

impl Zip for GeluTanhMul {
    #[inline(always)]
    fn at<L: Lanes>(self, l: L, gate: L::V, up: L::V) -> L::V {
        l.mul(math::gelu_tanh(l, gate), up)
    }
}

#[inline(always)]
pub(super) fn gelu_tanh_mul<L: Lanes>(l: L, gate: &mut [f32], up: &[f32]) {
    zip_in_place(l, gate, up, GeluTanhMul);
}
