//! The scalar tier: plain Rust that defines the results of all tiers.

pub(crate) mod units;
pub(crate) mod unpack;

use format_spec::QuantType;
use half::{bf16, f16};

use super::activations::{DotGroup, DotRow, MIN_AMAX};
use super::form::{CHUNK, Form, Group, N_CHAINS};
use super::tables::Tables;

/// The functions of this tier.
pub(crate) static TABLES: Tables = Tables {
    available: || true,
    kernels: None,
    unit_kernels: units::kernels,
    float_rows,
    float_name: "float_scalar",
    quantize_row,
};

/// Lanes of a dot product with float weights.
pub(crate) const FLOAT_LANES: usize = 16;

/// Quantizes one row of activations, 32 elements a scale.
///
/// `x`: `[row_len]`; `q`: `[row_len]`; `d`: `[row_len / 32]`; `s16`: `[row_len / 16]` sums of `q`.
pub(crate) fn quantize_row(x: &[f32], q: &mut [i8], d: &mut [f32], s16: &mut [i32]) {
    let (x, _) = x.as_chunks::<CHUNK>();
    let (q, _) = q.as_chunks_mut::<CHUNK>();
    let (s16, _) = s16.as_chunks_mut::<2>();
    for (((x, q), d), s16) in x.iter().zip(q).zip(d).zip(s16) {
        (*d, *s16) = quantize_chunk(x, q);
    }
}

fn quantize_chunk(x: &[f32; CHUNK], q: &mut [i8; CHUNK]) -> (f32, [i32; 2]) {
    // The order of absolute values is that of their bits, and non-finite ones come out on top.
    let amax = f32::from_bits(x.iter().fold(0, |m, x| m.max(x.to_bits() & 0x7fff_ffff)));
    *q = [0; CHUNK];
    if !amax.is_finite() {
        return (f32::NAN, [0; 2]);
    }
    if amax < MIN_AMAX {
        return (0.0, [0; 2]);
    }
    let inv = 127.0 / amax;
    let mut s16 = [0; 2];
    for (i, (x, q)) in x.iter().zip(q).enumerate() {
        *q = (x * inv).round_ties_even() as i8;
        s16[i / 16] += i32::from(*q);
    }
    (amax / 127.0, s16)
}

/// Dot product of one weight row with one token.
///
/// `groups`: the row, unpacked; `x`: the token's quantized activations.
pub(crate) fn dot(form: Form, groups: &[Group], x: &DotRow<'_>) -> f32 {
    let mut chains = [0.0f32; N_CHAINS];
    for b in 0..x.n_chunks {
        let (w, x, j) = (&groups[b / N_CHAINS], &x.groups[b / N_CHAINS], b % N_CHAINS);
        let chunk = if form.per16 { chunk_per16 } else { chunk_per32 };
        chains[j] = chunk(form, w, x, j, chains[j]);
    }
    let [first, rest @ ..] = chains;
    rest.iter().fold(first, |sum, chain| sum + chain)
}

/// Factors are of 16 bits and the length is known, so that even the compiler's baseline multiplies
/// pairs: with 32 bits and slices this took seven times as long. `offset` is 128 at most.
fn idot<const N: usize>(w: &[u8; N], q: &[i8; N], offset: i32) -> i32 {
    let offset = offset as i16;
    let product = |(&w, &q)| i32::from(i16::from(w) - offset) * i32::from(i16::from(q));
    w.iter().zip(q).map(product).sum()
}

fn chunk_per32(form: Form, w: &Group, x: &DotGroup, j: usize, acc: f32) -> f32 {
    let ((w_q, _), (x_q, _)) = (w.q.as_chunks::<CHUNK>(), x.q.as_chunks::<CHUNK>());
    let dot = idot(&w_q[j], &x_q[j], form.offset());
    let acc = (dot as f32 * w.scale[j]).mul_add(x.d[j], acc);
    if !form.has_min {
        return acc;
    }
    let sum = x.s16[2 * j] + x.s16[2 * j + 1];
    w.min[j].mul_add(x.d[j] * sum as f32, acc)
}

fn chunk_per16(form: Form, w: &Group, x: &DotGroup, j: usize, acc: f32) -> f32 {
    let ((w_q, _), (x_q, _)) = (w.q.as_chunks::<16>(), x.q.as_chunks::<16>());
    let half = |h: usize| idot(&w_q[2 * j + h], &x_q[2 * j + h], form.offset()) as f32;
    let t = half(0) * w.scale[2 * j];
    let t = half(1).mul_add(w.scale[2 * j + 1], t);
    let acc = t.mul_add(x.d[j], acc);
    if !form.has_min {
        return acc;
    }
    let acc = w.min[2 * j].mul_add(x.d[j] * x.s16[2 * j] as f32, acc);
    w.min[2 * j + 1].mul_add(x.d[j] * x.s16[2 * j + 1] as f32, acc)
}

/// One row of float weights times several tokens: `y`: `[n_tokens]`, `x`: `[n_tokens, row_len]`.
pub(crate) fn float_rows(y: &mut [f32], quant: QuantType, w: &[u8], x: &[f32]) {
    let row_len = x.len() / y.len().max(1);
    for (y, x) in y.iter_mut().zip(x.chunks_exact(row_len)) {
        let halves = || w.as_chunks::<2>().0.iter();
        *y = match quant {
            QuantType::F16 => dot_float(halves().map(|w| f16::from_le_bytes(*w).to_f32()), x),
            QuantType::BF16 => dot_float(halves().map(|w| bf16::from_le_bytes(*w).to_f32()), x),
            _ => dot_float(w.as_chunks::<4>().0.iter().map(|w| f32::from_le_bytes(*w)), x),
        };
    }
}

pub(super) fn dot_float(w: impl Iterator<Item = f32>, x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; FLOAT_LANES];
    for (k, (w, &x)) in w.zip(x).enumerate() {
        lanes[k % FLOAT_LANES] = w.mul_add(x, lanes[k % FLOAT_LANES]);
    }
    let mut n = FLOAT_LANES;
    while n > 1 {
        n /= 2;
        for l in 0..n {
            lanes[l] += lanes[l + n];
        }
    }
    lanes[0]
}
