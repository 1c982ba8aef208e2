//! Products of weight rows with one token; the eight lanes are the chains.

use std::arch::x86_64::*;

use format_spec::QuantType;

use super::load::{self, Loaded};
use super::vnni::dpbusd;
use crate::cpu::activations::{DotGroup, DotRow};
use crate::cpu::form::{CHUNK, Form, Group, N_CHAINS};
use crate::cpu::kernels::GemvFn;
use crate::cpu::mem::{PREFETCH_BYTES, Src, prefetch, read, write};
use crate::cpu::scalar::unpack::unpacker;
use crate::cpu::stride::group_bytes;
use crate::view::Weight;

/// The kernel of a quant type and its name.
pub(super) fn gemv<const VNNI: bool>(quant: QuantType) -> (GemvFn, &'static str) {
    let (gemv, names): (GemvFn, _) = match quant {
        QuantType::Q4_0 => (q4_0::<VNNI>, ["gemv_avx2_q4_0", "gemv_avxvnni_q4_0"]),
        QuantType::Q4_1 => (q4_1::<VNNI>, ["gemv_avx2_q4_1", "gemv_avxvnni_q4_1"]),
        QuantType::Q5_0 => (q5_0::<VNNI>, ["gemv_avx2_q5_0", "gemv_avxvnni_q5_0"]),
        QuantType::Q5_1 => (q5_1::<VNNI>, ["gemv_avx2_q5_1", "gemv_avxvnni_q5_1"]),
        QuantType::Q8_0 => (q8_0::<VNNI>, ["gemv_avx2_q8_0", "gemv_avxvnni_q8_0"]),
        QuantType::Q4_K => (q4_k::<VNNI>, ["gemv_avx2_q4_K", "gemv_avxvnni_q4_K"]),
        QuantType::Q5_K => (q5_k::<VNNI>, ["gemv_avx2_q5_K", "gemv_avxvnni_q5_K"]),
        QuantType::Q6_K => (q6_k::<VNNI>, ["gemv_avx2_q6_K", "gemv_avxvnni_q6_K"]),
        _ => (unpacked::<VNNI>, ["gemv_avx2_unpacked", "gemv_avxvnni_unpacked"]),
    };
    (gemv, names[usize::from(VNNI)])
}

macro_rules! gemv {
    ($name:ident, $load:path, $quant:expr) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn $name<const VNNI: bool>(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
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
                let mut acc = _mm256_setzero_ps();
                for (g, x) in x.groups[..n_full].iter().enumerate() {
                    let at = blocks.ptr(g * GROUP_BYTES).wrapping_add(ahead);
                    prefetch(at, GROUP_BYTES);
                    acc = add::<VNNI>(acc, FORM, $load(blocks.skip(g * GROUP_BYTES), N_CHAINS), x);
                }
                if n_tail > 0 {
                    let at = n_full * GROUP_BYTES;
                    prefetch(blocks.ptr(at).wrapping_add(ahead), w.row(row).len() - at);
                    let loaded = $load(blocks.skip(n_full * GROUP_BYTES), n_tail);
                    acc = keep(acc, add::<VNNI>(acc, FORM, loaded, &x.groups[n_full]), n_tail);
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
#[target_feature(enable = "avx2,fma,f16c")]
fn unpacked<const VNNI: bool>(y: &mut [f32], w: &Weight<'_>, row: usize, x: &DotRow<'_>) {
    let (Some(form), Some(unpack)) = (Form::of(w.quant()), unpacker(w.quant())) else {
        unreachable!("plain floats have a path of their own")
    };
    let mut group = Group::ZERO;
    for (i, y) in y.iter_mut().enumerate() {
        let mut acc = _mm256_setzero_ps();
        for (g, x_group) in x.groups.iter().enumerate() {
            let n = (x.n_chunks - g * N_CHAINS).min(N_CHAINS);
            // SAFETY: unpackers of the scalar tier need no instructions beyond the target's.
            unsafe { unpack(w.row(row + i), g, n, &mut group) };
            acc = keep(acc, add_group::<VNNI>(acc, form, &group, x_group), n);
        }
        *y = finish(acc);
    }
}

/// `new` in the first `n` lanes, `old` in the others.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn keep(old: __m256, new: __m256, n: usize) -> __m256 {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lanes);
    _mm256_blendv_ps(old, new, _mm256_castsi256_ps(mask))
}

/// The chains added in order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish(acc: __m256) -> f32 {
    let mut chains = [0.0f32; N_CHAINS];
    write(&mut chains, 0, acc);
    let [first, rest @ ..] = chains;
    rest.iter().fold(first, |sum, chain| sum + chain)
}

/// Dot products of each chunk's first and second halves, lane = chunk.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dots<const VNNI: bool>(form: Form, q: [__m256i; N_CHAINS], x: &DotGroup) -> [__m256i; 2] {
    let ones = _mm256_set1_epi16(1);
    let mut v = [_mm256_setzero_si256(); N_CHAINS];
    for (c, v) in v.iter_mut().enumerate() {
        let xv: __m256i = read(&x.q, c * CHUNK);
        if VNNI {
            let centred = form.bits == 8; // then stored plus 128, to be unsigned
            let w = _mm256_xor_si256(q[c], _mm256_set1_epi8(if centred { i8::MIN } else { 0 }));
            // SAFETY: the constant is true in the AVX-VNNI tier's kernels alone.
            *v = unsafe { dpbusd(*v, w, xv) };
            continue;
        }
        let pairs = if form.bits == 8 {
            _mm256_maddubs_epi16(_mm256_abs_epi8(q[c]), _mm256_sign_epi8(xv, q[c]))
        } else {
            _mm256_maddubs_epi16(q[c], xv)
        };
        *v = _mm256_madd_epi16(pairs, ones);
    }
    // The 128-bit lanes stay halves of chunks until the last step.
    let quads = |v: &[__m256i]| {
        _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]))
    };
    let (lo, hi) = (quads(&v[..4]), quads(&v[4..]));
    [_mm256_permute2x128_si256::<0x20>(lo, hi), _mm256_permute2x128_si256::<0x31>(lo, hi)]
}

/// Adds a group to the chains.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add<const VNNI: bool>(acc: __m256, form: Form, w: Loaded, x: &DotGroup) -> __m256 {
    let [first, second] = dots::<VNNI>(form, w.q, x);
    let d: __m256 = read(&x.d, 0);
    if form.per16 {
        let centre = |dots: __m256i, half: usize| {
            let shift = _mm_cvtsi32_si128(form.offset_log2 as i32);
            let offset = _mm256_sll_epi32(half_sums(x, half), shift);
            _mm256_cvtepi32_ps(if form.has_min { dots } else { _mm256_sub_epi32(dots, offset) })
        };
        let t = _mm256_mul_ps(centre(first, 0), w.scale[0]);
        let t = _mm256_fmadd_ps(centre(second, 1), w.scale[1], t);
        return _mm256_fmadd_ps(t, d, acc);
    }
    let mut dots = _mm256_add_epi32(first, second);
    if !form.has_min && (VNNI || form.bits != 8) {
        let shift = _mm_cvtsi32_si128(form.offset_log2 as i32);
        dots = _mm256_sub_epi32(dots, _mm256_sll_epi32(read(&x.s32, 0), shift));
    }
    let acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dots), w.scale[0]), d, acc);
    if form.has_min { _mm256_fmadd_ps(w.min, read(&x.ds, 0), acc) } else { acc }
}

/// Sums of the first or second halves of the chunks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn half_sums(x: &DotGroup, half: usize) -> __m256i {
    let (a, b): (__m256, __m256) = (read(&x.s16, 0), read(&x.s16, 32));
    let halves =
        if half == 0 { _mm256_shuffle_ps::<0x88>(a, b) } else { _mm256_shuffle_ps::<0xdd>(a, b) };
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_castps_si256(halves))
}

/// Adds an unpacked group to the chains; for the types without a loader.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_group<const VNNI: bool>(acc: __m256, form: Form, group: &Group, x: &DotGroup) -> __m256 {
    let apart = |v: &[f32; 2 * N_CHAINS], half: usize| -> __m256 {
        let mut out = [0.0; N_CHAINS];
        for (c, out) in out.iter_mut().enumerate() {
            *out = v[if form.per16 { 2 * c + half } else { c }];
        }
        read(&out, 0)
    };
    let mut q = [_mm256_setzero_si256(); N_CHAINS];
    for (c, q) in q.iter_mut().enumerate() {
        *q = read(&group.q, c * CHUNK);
    }
    let scale = [apart(&group.scale, 0), apart(&group.scale, 1)];
    let acc = add::<VNNI>(acc, form, Loaded { q, scale, min: apart(&group.min, 0) }, x);
    if !(form.per16 && form.has_min) {
        return acc;
    }
    (0..2).fold(acc, |acc, half| {
        let ds = _mm256_mul_ps(read(&x.d, 0), _mm256_cvtepi32_ps(half_sums(x, half)));
        _mm256_fmadd_ps(apart(&group.min, half), ds, acc)
    })
}
