//! Products of weight rows with one token, from `padded` blocks: two rows at a time, so that the
//! sixteen lanes hold the eight chains of both.

mod blocks;
mod k4;
mod q6_k;
mod unpacked;

use std::arch::x86_64::*;

use format_spec::QuantType;

use super::lanes::{load_first, split_lanes, spread, spread_i32, sum_quads};
use crate::cpu::activations::{DotGroup, DotRow};
use crate::cpu::form::{GROUP, N_CHAINS};
use crate::cpu::kernels::GemvFn;
use crate::cpu::mem::{PREFETCH_BYTES, Src, prefetch, read, write};
use crate::view::Weight;

pub(super) use k4::k4_scales;
pub(super) use q6_k::{q6_k_scales, q6_k_values};

/// The kernel of a quant type and its name.
pub(super) fn gemv(quant: QuantType) -> (GemvFn, &'static str) {
    match quant {
        QuantType::Q4_0 => (blocks::q4_0, "gemv_avx512_q4_0"),
        QuantType::Q4_1 => (blocks::q4_1, "gemv_avx512_q4_1"),
        QuantType::Q5_0 => (blocks::q5_0, "gemv_avx512_q5_0"),
        QuantType::Q5_1 => (blocks::q5_1, "gemv_avx512_q5_1"),
        QuantType::Q8_0 => (blocks::q8_0, "gemv_avx512_q8_0"),
        QuantType::Q4_K => (k4::q4_k, "gemv_avx512_q4_K"),
        QuantType::Q5_K => (k4::q5_k, "gemv_avx512_q5_K"),
        QuantType::Q6_K => (q6_k::q6_k, "gemv_avx512_q6_K"),
        _ => (unpacked::unpacked, "gemv_avx512_unpacked"),
    }
}

/// Which accumulator lane belongs to row `r` (0 or 1), chain `c`.
trait LaneOrder {
    const LANES: [[usize; N_CHAINS]; 2];
}

macro_rules! lane_order {
    ($(#[$doc:meta])* $name:ident, $order:ident) => {
        $(#[$doc])*
        struct $name;
        impl LaneOrder for $name {
            const LANES: [[usize; N_CHAINS]; 2] = {
                let mut lanes = [[0; N_CHAINS]; 2];
                let mut c = 0;
                while c < N_CHAINS {
                    lanes[0][c] = $order(0, c);
                    lanes[1][c] = $order(1, c);
                    c += 1;
                }
                lanes
            };
        }
    };
}

const fn pair_order(r: usize, c: usize) -> usize {
    c / 2 * 4 + r * 2 + c % 2
}

const fn quad_order(r: usize, c: usize) -> usize {
    c % 4 * 4 + r * 2 + c / 4
}

const fn plain_order(r: usize, c: usize) -> usize {
    r * 8 + c % 2 * 4 + c / 2
}

lane_order!(
    /// For kernels over pairs of chunks.
    Pairs,
    pair_order
);
lane_order!(
    /// For kernels over four blocks at a time.
    Quads,
    quad_order
);
lane_order!(
    /// For kernels over values in element order.
    Plain,
    plain_order
);

/// What a kernel needs to know about its lanes.
struct LaneMap {
    /// The chain of each lane.
    chains: __m512i,
    /// Lanes whose chain has a chunk in the last group.
    tail: u16,
}

impl LaneMap {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn new<O: LaneOrder>(n_chunks: usize) -> Self {
        let mut chains = [0i32; 16];
        let mut tail = 0;
        for lanes in O::LANES {
            for (c, lane) in lanes.into_iter().enumerate() {
                chains[lane] = c as i32;
                if c < n_chunks % N_CHAINS {
                    tail |= 1 << lane;
                }
            }
        }
        Self { chains: read(&chains, 0), tail }
    }
}

/// Writes the sums of both rows' chains.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn finish<O: LaneOrder>(acc: __m512, y: &mut [f32]) {
    let mut lanes = [0.0f32; 16];
    write(&mut lanes, 0, acc);
    for (y, order) in y.iter_mut().zip(O::LANES) {
        *y = order[1..].iter().fold(lanes[order[0]], |sum, &lane| sum + lanes[lane]);
    }
}

/// One token's parameters of a group, spread over the accumulator lanes.
struct Params {
    d: __m512,
    ds: __m512,
    s32: __m512i,
}

impl Params {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn new(x: &DotGroup, map: &LaneMap) -> Self {
        Self {
            d: spread(read(&x.d, 0), map.chains),
            ds: spread(read(&x.ds, 0), map.chains),
            s32: spread_i32(read(&x.s32, 0), map.chains),
        }
    }
}

/// Runs `step` over the groups of each pair of rows. `GROUP_BYTES`: bytes of eight chunks.
///
/// `step(acc, rows, n_bytes, x, params, lanes)` adds one group; it may load `n_bytes` from each
/// row and must leave lanes outside of `lanes` as they are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn drive<O: LaneOrder, const GROUP_BYTES: usize>(
    y: &mut [f32],
    w: &Weight<'_>,
    row: usize,
    x: &DotRow<'_>,
    step: impl Fn(__m512, [Src<'_>; 2], Option<usize>, &DotGroup, &Params, u16) -> __m512,
) {
    let map = LaneMap::new::<O>(x.n_chunks);
    let n_full = x.n_chunks / N_CHAINS;
    let n_tail = x.n_chunks % N_CHAINS;
    // The same place of a later pair of rows.
    let row_stride = w.row(row).len();
    let ahead = PREFETCH_BYTES.next_multiple_of(2 * row_stride);
    let tail_bytes = row_stride - n_full * GROUP_BYTES;
    for (pair, y) in y.chunks_mut(2).enumerate() {
        let first = row + 2 * pair;
        let second = first + y.len() - 1;
        // SAFETY: a row has n_full groups of GROUP_BYTES and n_tail blocks behind them.
        let rows = [first, second].map(|row| unsafe { Src::new(w.row(row)) });
        let mut acc = _mm512_setzero_ps();
        for (i, x) in x.groups[..n_full].iter().enumerate() {
            for row in rows {
                prefetch(row.ptr(i * GROUP_BYTES).wrapping_add(ahead), GROUP_BYTES);
            }
            let at = [rows[0].skip(i * GROUP_BYTES), rows[1].skip(i * GROUP_BYTES)];
            acc = step(acc, at, None, x, &Params::new(x, &map), u16::MAX);
        }
        if n_tail > 0 {
            let x = &x.groups[n_full];
            for row in rows {
                prefetch(row.ptr(n_full * GROUP_BYTES).wrapping_add(ahead), tail_bytes);
            }
            let at = [rows[0].skip(n_full * GROUP_BYTES), rows[1].skip(n_full * GROUP_BYTES)];
            let n_bytes = n_tail * GROUP_BYTES / N_CHAINS;
            acc = step(acc, at, Some(n_bytes), x, &Params::new(x, &map), map.tail);
        }
        finish::<O>(acc, y);
    }
}

/// 64 bytes at an offset; with a tail, only what the row still has.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn load_64(at: Src<'_>, offset: usize, tail: Option<usize>) -> __m512i {
    match tail {
        None => at.load(offset),
        Some(n_bytes) => load_first(at, offset, n_bytes),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn activations(q: &[i8; GROUP]) -> [__m512i; 4] {
    [read(q, 0), read(q, 64), read(q, 128), read(q, 192)]
}

/// acc + (f32(dots) * scale) * d, in the lanes of the mask.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_scaled(acc: __m512, dots: __m512i, scale: __m512, d: __m512, lanes: u16) -> __m512 {
    _mm512_mask3_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots), scale), d, acc, lanes)
}

/// Sums of four vectors of two rows in element order: per row, lanes of first halves of chunks and
/// of second halves apart, both in [`Plain`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn sum_halves(a: [__m512i; 4], b: [__m512i; 4]) -> (__m512i, __m512i) {
    split_lanes(sum_quads(a), sum_quads(b))
}
