//! Products of weight rows with one token; the eight lanes of two vectors are the chains.

use std::arch::aarch64::*;

use format_spec::QuantType;

use super::dot::Dot;
use super::load::{self, Loaded};
use crate::cpu::activations::{DotGroup, DotRow};
use crate::cpu::form::{CHUNK, Form, Group, N_CHAINS};
use crate::cpu::kernels::GemvFn;
use crate::cpu::mem::{PREFETCH_BYTES, Src, prefetch, read, write};
use crate::cpu::scalar::unpack::unpacker;
use crate::cpu::stride::group_bytes;
use crate::view::Weight;

/// The kernel of a quant type and its name.
pub(super) fn gemv<D: Dot>(quant: QuantType) -> (GemvFn, &'static str) {
    let (gemv, name): (GemvFn, usize) = match quant {
        QuantType::Q4_0 => (q4_0::<D>, 0),
        QuantType::Q4_1 => (q4_1::<D>, 1),
        QuantType::Q5_0 => (q5_0::<D>, 2),
        QuantType::Q5_1 => (q5_1::<D>, 3),
        QuantType::Q8_0 => (q8_0::<D>, 4),
        QuantType::Q4_K => (q4_k::<D>, 5),
        QuantType::Q5_K => (q5_k::<D>, 6),
        QuantType::Q6_K => (q6_k::<D>, 7),
        _ => (unpacked::<D>, 8),
    };
    (gemv, D::GEMV_NAMES[name])
}

/// Eight lanes, the first four first.
type Lanes = [float32x4_t; 2];

macro_rules! gemv {
    ($name:ident, $load:path, $quant:expr) => {
        #[target_feature(enable = "neon")]
        fn $name<D: Dot>(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
            const GROUP_BYTES: usize = group_bytes($quant);
            const FORM: Form = match Form::of($quant) {
                Some(form) => form,
                None => panic!("a quantized type"),
            };
            let n_full = x.n_chunks / N_CHAINS;
            let n_tail = x.n_chunks % N_CHAINS;
            // The same place of a later row.
            let ahead = PREFETCH_BYTES.next_multiple_of(w.row(row).len());
            for (i, y) in y.iter_mut().enumerate() {
                // SAFETY: a row has n_full whole groups and n_tail chunks behind them.
                let blocks = unsafe { Src::new(w.row(row + i)) };
                let mut acc = [vdupq_n_f32(0.0); 2];
                for (g, x) in x.groups[..n_full].iter().enumerate() {
                    let at = blocks.ptr(g * GROUP_BYTES).wrapping_add(ahead);
                    prefetch(at, GROUP_BYTES);
                    acc = add::<D>(acc, FORM, &$load(blocks.skip(g * GROUP_BYTES), N_CHAINS), x);
                }
                if n_tail > 0 {
                    let at = n_full * GROUP_BYTES;
                    prefetch(blocks.ptr(at).wrapping_add(ahead), w.row(row).len() - at);
                    let loaded = $load(blocks.skip(at), n_tail);
                    acc = keep(acc, add::<D>(acc, FORM, &loaded, &x.groups[n_full]), n_tail);
                }
                *y = finish(acc);
            }
        }
    };
}

gemv!(q4_0, load::q4_0, QuantType::Q4_0);
gemv!(q4_1, load::q4_1, QuantType::Q4_1);
gemv!(q5_0, load::q5_0, QuantType::Q5_0);
gemv!(q5_1, load::q5_1, QuantType::Q5_1);
gemv!(q8_0, load::q8_0, QuantType::Q8_0);
gemv!(q4_k, load::q4_k, QuantType::Q4_K);
gemv!(q5_k, load::q5_k, QuantType::Q5_K);
gemv!(q6_k, load::q6_k, QuantType::Q6_K);

/// Any type: unpacked by the scalar code, multiplied by this tier.
#[target_feature(enable = "neon")]
fn unpacked<D: Dot>(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    let (Some(form), Some(unpack)) = (Form::of(w.quant()), unpacker(w.quant())) else {
        unreachable!("plain floats have a path of their own")
    };
    let mut group = Group::ZERO;
    for (i, y) in y.iter_mut().enumerate() {
        let mut acc = [vdupq_n_f32(0.0); 2];
        for (g, x_group) in x.groups.iter().enumerate() {
            let n = (x.n_chunks - g * N_CHAINS).min(N_CHAINS);
            // SAFETY: unpackers of the scalar tier need no instructions beyond the target's.
            unsafe { unpack(w.row(row + i), g, n, &mut group) };
            acc = keep(acc, add_group::<D>(acc, form, &group, x_group), n);
        }
        *y = finish(acc);
    }
}

/// `new` in the first `n` lanes, `old` in the others.
#[inline]
#[target_feature(enable = "neon")]
fn keep(old: Lanes, new: Lanes, n: usize) -> Lanes {
    let (mut lanes, mut kept) = ([0.0f32; N_CHAINS], [0.0f32; N_CHAINS]);
    for half in 0..2 {
        write(&mut lanes, half * 16, new[half]);
        write(&mut kept, half * 16, old[half]);
    }
    lanes[n..].copy_from_slice(&kept[n..]);
    [read(&lanes, 0), read(&lanes, 16)]
}

/// The chains added in order.
#[inline]
#[target_feature(enable = "neon")]
fn finish(acc: Lanes) -> f32 {
    let mut chains = [0.0f32; N_CHAINS];
    for (half, acc) in acc.into_iter().enumerate() {
        write(&mut chains, half * 16, acc);
    }
    let [first, rest @ ..] = chains;
    rest.iter().fold(first, |sum, chain| sum + chain)
}

/// Sums of four vectors, each in its lane.
#[inline]
#[target_feature(enable = "neon")]
fn sums(v: [int32x4_t; 4]) -> int32x4_t {
    vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]))
}

/// Dot products of chunks, lane = chunk: of halves `from..to` of each.
#[inline]
#[target_feature(enable = "neon")]
fn dots<D: Dot>(w: &Loaded, x: &DotGroup, from: usize, to: usize) -> [int32x4_t; 2] {
    let mut v = [vdupq_n_s32(0); N_CHAINS];
    for (c, v) in v.iter_mut().enumerate() {
        for half in from..to {
            let w = vreinterpretq_s8_u8(w.q[c][half]);
            let x = read(&x.q, c * CHUNK + half * CHUNK / 2);
            // SAFETY: `D` is the tier of the table that this kernel stands in.
            *v = unsafe { D::all(*v, w, x) };
        }
    }
    [sums([v[0], v[1], v[2], v[3]]), sums([v[4], v[5], v[6], v[7]])]
}

/// Adds a group to the chains.
#[inline]
#[target_feature(enable = "neon")]
fn add<D: Dot>(acc: Lanes, form: Form, w: &Loaded, x: &DotGroup) -> Lanes {
    let shift = vdupq_n_s32(form.offset_log2 as i32);
    let centred = !form.has_min && form.bits != 8;
    if form.per16 {
        let dots = [dots::<D>(w, x, 0, 1), dots::<D>(w, x, 1, 2)];
        return [0, 1].map(|four| {
            let centre = |half: usize| {
                let dots = dots[half][four];
                let offset = vshlq_s32(half_sums(x, four, half), shift);
                vcvtq_f32_s32(if centred { vsubq_s32(dots, offset) } else { dots })
            };
            let t = vmulq_f32(centre(0), w.scale[0][four]);
            let t = vfmaq_f32(t, centre(1), w.scale[1][four]);
            vfmaq_f32(acc[four], t, read(&x.d, four * 16))
        });
    }
    let dots = dots::<D>(w, x, 0, 2);
    [0, 1].map(|four| {
        let mut dots = dots[four];
        if centred {
            dots = vsubq_s32(dots, vshlq_s32(read(&x.s32, four * 16), shift));
        }
        let t = vmulq_f32(vcvtq_f32_s32(dots), w.scale[0][four]);
        let acc = vfmaq_f32(acc[four], t, read(&x.d, four * 16));
        if form.has_min { vfmaq_f32(acc, w.min[four], read(&x.ds, four * 16)) } else { acc }
    })
}

/// Sums of the first or second halves of chunks `4 * four..`.
#[inline]
#[target_feature(enable = "neon")]
fn half_sums(x: &DotGroup, four: usize, half: usize) -> int32x4_t {
    let (a, b): (int32x4_t, _) = (read(&x.s16, four * 32), read(&x.s16, four * 32 + 16));
    if half == 0 { vuzp1q_s32(a, b) } else { vuzp2q_s32(a, b) }
}

/// Adds an unpacked group to the chains; for the types without a loader.
#[inline]
#[target_feature(enable = "neon")]
fn add_group<D: Dot>(acc: Lanes, form: Form, group: &Group, x: &DotGroup) -> Lanes {
    let apart = |v: &[f32; 2 * N_CHAINS], half: usize| -> Lanes {
        let mut out = [0.0; N_CHAINS];
        for (c, out) in out.iter_mut().enumerate() {
            *out = v[if form.per16 { 2 * c + half } else { c }];
        }
        [read(&out, 0), read(&out, 16)]
    };
    // As loaders do, of eight bits the signed value.
    let sign = super::interleave::sign(form);
    let mut q = [[vdupq_n_u8(0); 2]; N_CHAINS];
    for (i, q) in q.as_flattened_mut().iter_mut().enumerate() {
        *q = veorq_u8(read(&group.q, i * CHUNK / 2), sign);
    }
    let scale = [apart(&group.scale, 0), apart(&group.scale, 1)];
    let mut acc = add::<D>(acc, form, &Loaded { q, scale, min: apart(&group.min, 0) }, x);
    if form.per16 && form.has_min {
        for half in 0..2 {
            let min = apart(&group.min, half);
            for four in 0..2 {
                let sums = vcvtq_f32_s32(half_sums(x, four, half));
                let ds = vmulq_f32(read(&x.d, four * 16), sums);
                acc[four] = vfmaq_f32(acc[four], min[four], ds);
            }
        }
    }
    acc
}
