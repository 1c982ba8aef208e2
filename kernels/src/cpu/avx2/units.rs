//! Products from `tile` units: half of a vector is a word of four elements of each of eight rows.

use std::arch::x86_64::*;
use std::mem::offset_of;

use format_spec::QuantType;

use super::vnni::dpbusd;
use crate::cpu::activations::{DotGroup, DotRow};
use crate::cpu::form::{CHUNK, Chains, N_CHAINS};
use crate::cpu::mem::{Src, prefetch, write};
use crate::cpu::panel::{PANEL_ROWS, PARAM_BYTES, QUANT_BYTES, record_bytes};
use crate::cpu::scalar::FLOAT_LANES;
use crate::cpu::units::{self, Kind, UnitKernels, VECTOR_BYTES, asked_with};

/// Rows of half a unit.
const HALF: usize = PANEL_ROWS / 2;

/// The kernels of a quant type.
pub(super) fn kernels<const VNNI: bool>(quant: QuantType) -> Option<UnitKernels> {
    Some(match quant {
        QuantType::F32 => return None,
        QuantType::F16 | QuantType::BF16 => {
            UnitKernels::Float { quant, dot: dot_float, name: "float_tile_avx2" }
        }
        QuantType::Q4_0 => quantized::<units::Q4_0, VNNI>(),
        QuantType::Q4_1 => quantized::<units::Q4_1, VNNI>(),
        QuantType::Q5_0 => quantized::<units::Q5_0, VNNI>(),
        QuantType::Q5_1 => quantized::<units::Q5_1, VNNI>(),
        QuantType::Q8_0 => quantized::<units::Q8_0, VNNI>(),
        QuantType::Q2_K => quantized::<units::Q2_K, VNNI>(),
        QuantType::Q3_K => quantized::<units::Q3_K, VNNI>(),
        QuantType::Q4_K => quantized::<units::Q4_K, VNNI>(),
        QuantType::Q5_K => quantized::<units::Q5_K, VNNI>(),
        QuantType::Q6_K => quantized::<units::Q6_K, VNNI>(),
    })
}

fn quantized<K: Kind, const VNNI: bool>() -> UnitKernels {
    UnitKernels::Quant {
        form: K::FORM,
        gemv: gemv::<K, VNNI>,
        fill: fill::<K>,
        tile: super::tile::tile::<VNNI>,
        gemv_name: if VNNI { "gemv_tile_avxvnni" } else { "gemv_tile_avx2" },
        gemm_name: if VNNI { "gemm_tile_avxvnni" } else { "gemm_tile_avx2" },
    }
}

/// Stored values of chunk `c` of a block, of the rows of one half: vector `j` holds elements
/// `4 * j..` of each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quants<K: Kind>(record: Src<'_>, c: usize, half: usize) -> [__m256i; 8] {
    let at = |part: usize, i: usize| -> __m256i {
        record.load(part + i * VECTOR_BYTES + half * VECTOR_BYTES / 2)
    };
    let and = |v: __m256i, mask: i8| _mm256_and_si256(v, _mm256_set1_epi8(mask));
    let mut q = [_mm256_setzero_si256(); 8];
    if K::LOW_BITS == 8 {
        for (j, q) in q.iter_mut().enumerate() {
            *q = at(K::RECORD.quants, 8 * c + j);
        }
    } else if K::LOW_BITS == 4 {
        for j in 0..4 {
            let v = at(K::RECORD.quants, 4 * c + j);
            q[j] = and(v, 15);
            q[j + 4] = and(_mm256_srli_epi16::<4>(v), 15);
        }
    } else {
        for h in 0..2 {
            let v = at(K::RECORD.quants, 2 * c + h);
            q[4 * h] = and(v, 3);
            q[4 * h + 1] = and(_mm256_srli_epi16::<2>(v), 3);
            q[4 * h + 2] = and(_mm256_srli_epi16::<4>(v), 3);
            q[4 * h + 3] = and(_mm256_srli_epi16::<6>(v), 3);
        }
    }
    let add = |q: &mut [__m256i], bits: &[__m256i], mask: i8| {
        for (q, bits) in q.iter_mut().zip(bits) {
            *q = _mm256_or_si256(*q, and(*bits, mask));
        }
    };
    if K::HIGH_BITS == 2 {
        for h in 0..2 {
            let v = at(K::RECORD.high, 2 * c + h);
            let (first, second) = (_mm256_slli_epi16::<4>(v), _mm256_slli_epi16::<2>(v));
            add(&mut q[4 * h..], &[first, second, v, _mm256_srli_epi16::<2>(v)], 0x30);
        }
    } else if K::HIGH_BITS == 1 && K::LOW_BITS == 4 {
        let v = at(K::RECORD.high, c);
        let (a, b) = (_mm256_slli_epi16::<4>(v), _mm256_slli_epi16::<3>(v));
        add(&mut q, &[a, b, _mm256_slli_epi16::<2>(v), _mm256_slli_epi16::<1>(v)], 0x10);
        let (a, b) = (_mm256_srli_epi16::<1>(v), _mm256_srli_epi16::<2>(v));
        add(&mut q[4..], &[v, a, b, _mm256_srli_epi16::<3>(v)], 0x10);
    } else if K::HIGH_BITS == 1 {
        let v = at(K::RECORD.high, c);
        let (a, b) = (_mm256_slli_epi16::<2>(v), _mm256_slli_epi16::<1>(v));
        add(&mut q, &[a, b, v, _mm256_srli_epi16::<1>(v)], 4);
        let (a, b) = (_mm256_srli_epi16::<2>(v), _mm256_srli_epi16::<3>(v));
        add(&mut q[4..], &[a, b, _mm256_srli_epi16::<4>(v), _mm256_srli_epi16::<5>(v)], 4);
    }
    q
}

/// Scales and minimums of chunk `c` of a block, of the rows of one half: of the whole chunk, or of
/// its halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn params<K: Kind>(record: Src<'_>, c: usize, half: usize) -> ([__m256; 2], [__m256; 2]) {
    let halves = |at: usize| _mm256_cvtph_ps(record.load(at + half * 2 * HALF));
    let bytes = |at: usize, i: usize| {
        _mm_cvtsi64_si128(record.load::<u64>(at + i * PANEL_ROWS + half * HALF) as i64)
    };
    let d = halves(K::RECORD.d);
    let none = _mm256_setzero_ps();
    let negated = |v: __m256| _mm256_xor_ps(v, _mm256_set1_ps(-0.0));
    if K::CHUNKS == 1 {
        let min = if K::FORM.has_min { halves(K::RECORD.second) } else { none };
        return ([d; 2], [min; 2]);
    }
    if !K::FORM.per16 {
        let dmin = halves(K::RECORD.second);
        let scale = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes(K::RECORD.scales, c)));
        let min = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes(K::RECORD.mins, c)));
        return ([_mm256_mul_ps(d, scale); 2], [negated(_mm256_mul_ps(dmin, min)); 2]);
    }
    let (mut scales, mut mins) = ([none; 2], [none; 2]);
    for h in 0..2 {
        let v = bytes(K::RECORD.scales, 2 * c + h);
        let scale = match K::FORM.bits {
            6 => _mm256_cvtepi8_epi32(v),
            3 => _mm256_sub_epi32(_mm256_cvtepu8_epi32(v), _mm256_set1_epi32(32)),
            _ => {
                let both = _mm256_cvtepu8_epi32(v);
                let min = _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(both));
                mins[h] = negated(_mm256_mul_ps(halves(K::RECORD.second), min));
                _mm256_and_si256(both, _mm256_set1_epi32(15))
            }
        };
        scales[h] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(scale));
    }
    (scales, mins)
}

/// Dot products of some vectors of stored values with words of a token.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn idot<K: Kind, const VNNI: bool>(q: &[__m256i], words: Src<'_>) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    let word = |j: usize| _mm256_set1_epi32(words.load(j * size_of::<i32>()));
    let mut dots = _mm256_setzero_si256();
    if VNNI {
        for (j, q) in q.iter().enumerate() {
            // SAFETY: the constant is true in the AVX-VNNI tier's kernels alone.
            dots = unsafe { dpbusd(dots, *q, word(j)) };
        }
        return dots;
    }
    if K::LOW_BITS == 8 {
        for (j, q) in q.iter().enumerate() {
            let w = _mm256_xor_si256(*q, _mm256_set1_epi8(i8::MIN));
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(word(j), w));
            dots = _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, ones));
        }
        return dots;
    }
    // How many quads of elements fit an i16: 2 * 127 * (2^bits - 1) each.
    let fit = match K::FORM.bits {
        6 => 2,
        5 => 4,
        _ => 8,
    };
    for (i, quads) in q.chunks(fit).enumerate() {
        let mut pairs = _mm256_setzero_si256();
        for (j, q) in quads.iter().enumerate() {
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(*q, word(i * fit + j)));
        }
        dots = _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, ones));
    }
    dots
}

/// Adds chunk `c` of a block to its chain; `chunk` is its place in the token's [`DotGroup`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_chunk<K: Kind, const VNNI: bool>(
    acc: __m256,
    (record, c, half): (Src<'_>, usize, usize),
    x: Src<'_>,
    chunk: usize,
) -> __m256 {
    let q = quants::<K>(record, c, half);
    let (scale, min) = params::<K>(record, c, half);
    let words = x.skip(offset_of!(DotGroup, q) + chunk * CHUNK);
    let number = |field: usize, i: usize| _mm256_set1_ps(x.load(field + i * size_of::<f32>()));
    let sum = |field: usize, i: usize| _mm256_set1_epi32(x.load(field + i * size_of::<i32>()));
    let dot = |q: &[__m256i], words: Src<'_>, sums: __m256i| {
        let mut dots = idot::<K, VNNI>(q, words);
        if !K::FORM.has_min && (VNNI || K::LOW_BITS != 8) {
            let offset = _mm256_sll_epi32(sums, _mm_cvtsi32_si128(K::FORM.offset_log2 as i32));
            dots = _mm256_sub_epi32(dots, offset);
        }
        _mm256_cvtepi32_ps(dots)
    };
    let d = number(offset_of!(DotGroup, d), chunk);
    let s16 = offset_of!(DotGroup, s16);
    if K::FORM.per16 {
        let t = _mm256_mul_ps(dot(&q[..4], words, sum(s16, 2 * chunk)), scale[0]);
        let second = dot(&q[4..], words.skip(CHUNK / 2), sum(s16, 2 * chunk + 1));
        let t = _mm256_fmadd_ps(second, scale[1], t);
        let mut acc = _mm256_fmadd_ps(t, d, acc);
        if K::FORM.has_min {
            for (h, min) in min.into_iter().enumerate() {
                let ds = _mm256_mul_ps(d, _mm256_cvtepi32_ps(sum(s16, 2 * chunk + h)));
                acc = _mm256_fmadd_ps(min, ds, acc);
            }
        }
        return acc;
    }
    let dots = dot(&q, words, sum(offset_of!(DotGroup, s32), chunk));
    let acc = _mm256_fmadd_ps(_mm256_mul_ps(dots, scale[0]), d, acc);
    if K::FORM.has_min {
        return _mm256_fmadd_ps(min[0], number(offset_of!(DotGroup, ds), chunk), acc);
    }
    acc
}

/// See [`UnitGemvFn`](crate::cpu::units::UnitGemvFn).
#[target_feature(enable = "avx2,fma,f16c")]
fn gemv<K: Kind, const VNNI: bool>(y: &mut [f32; PANEL_ROWS], unit: &[u8], x: &DotRow<'_>) {
    // SAFETY: a unit has a record for each block of the row, and `x` its chunks.
    let unit = unsafe { Src::new(unit) };
    // SAFETY: as above.
    let groups = unsafe { Src::of_records(x.groups) };
    for half in 0..2 {
        let mut acc = [_mm256_setzero_ps(); N_CHAINS];
        for g in 0..x.groups.len() {
            let n = (x.n_chunks - g * N_CHAINS).min(N_CHAINS);
            let (group, x) =
                (unit.skip(g * K::GROUP_BYTES), groups.skip(g * size_of::<DotGroup>()));
            for (chunk, acc) in acc.iter_mut().enumerate().take(n) {
                if half == 0 {
                    let asked = asked_with::<K>(chunk);
                    prefetch(group.ptr(asked.start), asked.len());
                }
                let record = group.skip(chunk / K::CHUNKS * K::RECORD.bytes);
                *acc = add_chunk::<K, VNNI>(*acc, (record, chunk % K::CHUNKS, half), x, chunk);
            }
        }
        let [first, rest @ ..] = acc;
        let mut sum = first;
        for chain in rest {
            sum = _mm256_add_ps(sum, chain);
        }
        write(y, half * HALF * size_of::<f32>(), sum);
    }
}

/// See [`UnitFillFn`](crate::cpu::units::UnitFillFn).
#[target_feature(enable = "avx2,fma,f16c")]
fn fill<K: Kind>(unit: &[u8], row_len: usize, panel: &mut [u8]) {
    // SAFETY: a unit has a record for each block of the row.
    let unit = unsafe { Src::new(unit) };
    let starts = Chains::new(row_len).starts();
    let n_scales = 1 + usize::from(K::FORM.per16);
    for chunk in 0..row_len / CHUNK {
        let record = unit.skip(chunk / K::CHUNKS * K::RECORD.bytes);
        let at = (starts[chunk % N_CHAINS] + chunk / N_CHAINS) * record_bytes(K::FORM);
        for half in 0..2 {
            let at = at + half * PARAM_BYTES / 2;
            let q = quants::<K>(record, chunk % K::CHUNKS, half);
            for (j, q) in q.into_iter().enumerate() {
                write(panel, at + j * PARAM_BYTES, q);
            }
            let (scales, mins) = params::<K>(record, chunk % K::CHUNKS, half);
            for h in 0..n_scales {
                write(panel, at + QUANT_BYTES + h * PARAM_BYTES, scales[h]);
                if K::FORM.has_min {
                    write(panel, at + QUANT_BYTES + (n_scales + h) * PARAM_BYTES, mins[h]);
                }
            }
        }
    }
}

/// See [`UnitFloatFn`](crate::cpu::units::UnitFloatFn).
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_float(y: &mut [f32; PANEL_ROWS], quant: QuantType, unit: &[u8], x: &[f32]) {
    // SAFETY: a unit has sixteen halves for each element of the row.
    let unit = unsafe { Src::new(unit) };
    for half in 0..2 {
        let weights = |k: usize| {
            let bits: __m128i = unit.load(k * 2 * PANEL_ROWS + half * 2 * HALF);
            if quant == QuantType::F16 {
                _mm256_cvtph_ps(bits)
            } else {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
            }
        };
        let mut acc = [_mm256_setzero_ps(); FLOAT_LANES];
        for (i, x) in x.chunks(FLOAT_LANES).enumerate() {
            for (lane, (acc, x)) in acc.iter_mut().zip(x).enumerate() {
                let w = weights(i * FLOAT_LANES + lane);
                *acc = _mm256_fmadd_ps(w, _mm256_set1_ps(*x), *acc);
            }
        }
        for n in [8, 4, 2, 1] {
            for lane in 0..n {
                acc[lane] = _mm256_add_ps(acc[lane], acc[lane + n]);
            }
        }
        write(y, half * HALF * size_of::<f32>(), acc[0]);
    }
}
