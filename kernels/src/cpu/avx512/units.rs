//! Products from `tile` units: a vector is a word of four elements of each of sixteen rows.

use std::arch::x86_64::*;
use std::mem::offset_of;

use format_spec::QuantType;

use crate::cpu::activations::{DotGroup, DotRow};
use crate::cpu::form::{CHUNK, Chains, N_CHAINS};
use crate::cpu::mem::{Src, prefetch, write};
use crate::cpu::panel::{PANEL_ROWS, PARAM_BYTES, QUANT_BYTES, record_bytes};
use crate::cpu::scalar::FLOAT_LANES;
use crate::cpu::units::{self, Kind, UnitKernels, VECTOR_BYTES, asked_with};

/// How far ahead of its use a GEMV asks for floats.
const FLOAT_PREFETCH_BYTES: usize = 16384;

/// The kernels of a quant type.
pub(crate) fn kernels(quant: QuantType) -> Option<UnitKernels> {
    Some(match quant {
        QuantType::F32 => return None,
        QuantType::F16 | QuantType::BF16 => {
            UnitKernels::Float { quant, dot: dot_float, name: "float_tile_avx512" }
        }
        QuantType::Q4_0 => quantized::<units::Q4_0>(),
        QuantType::Q4_1 => quantized::<units::Q4_1>(),
        QuantType::Q5_0 => quantized::<units::Q5_0>(),
        QuantType::Q5_1 => quantized::<units::Q5_1>(),
        QuantType::Q8_0 => quantized::<units::Q8_0>(),
        QuantType::Q2_K => quantized::<units::Q2_K>(),
        QuantType::Q3_K => quantized::<units::Q3_K>(),
        QuantType::Q4_K => quantized::<units::Q4_K>(),
        QuantType::Q5_K => quantized::<units::Q5_K>(),
        QuantType::Q6_K => quantized::<units::Q6_K>(),
    })
}

fn quantized<K: Kind>() -> UnitKernels {
    UnitKernels::Quant {
        form: K::FORM,
        gemv: gemv::<K>,
        fill: fill::<K>,
        tile: super::tile::tile,
        gemv_name: "gemv_tile_avx512",
        gemm_name: "gemm_tile_avx512_vnni",
    }
}

/// Stored values of chunk `c` of a block: vector `j` holds elements `4 * j..` of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn quants<K: Kind>(record: Src<'_>, c: usize) -> [__m512i; 8] {
    let low = |i: usize| -> __m512i { record.load(K::RECORD.quants + i * VECTOR_BYTES) };
    let high = |i: usize| -> __m512i { record.load(K::RECORD.high + i * VECTOR_BYTES) };
    let and = |v: __m512i, mask: i8| _mm512_and_si512(v, _mm512_set1_epi8(mask));
    let mut q = [_mm512_setzero_si512(); 8];
    if K::LOW_BITS == 8 {
        for (j, q) in q.iter_mut().enumerate() {
            *q = low(8 * c + j);
        }
    } else if K::LOW_BITS == 4 {
        for j in 0..4 {
            let v = low(4 * c + j);
            q[j] = and(v, 15);
            q[j + 4] = and(_mm512_srli_epi16::<4>(v), 15);
        }
    } else {
        for h in 0..2 {
            let v = low(2 * c + h);
            q[4 * h] = and(v, 3);
            q[4 * h + 1] = and(_mm512_srli_epi16::<2>(v), 3);
            q[4 * h + 2] = and(_mm512_srli_epi16::<4>(v), 3);
            q[4 * h + 3] = and(_mm512_srli_epi16::<6>(v), 3);
        }
    }
    // 0xf8: a | (b & c)
    let add = |q: &mut [__m512i], bits: &[__m512i], mask: i8| {
        for (q, bits) in q.iter_mut().zip(bits) {
            *q = _mm512_ternarylogic_epi32::<0xf8>(*q, *bits, _mm512_set1_epi8(mask));
        }
    };
    if K::HIGH_BITS == 2 {
        for h in 0..2 {
            let v = high(2 * c + h);
            let (first, second) = (_mm512_slli_epi16::<4>(v), _mm512_slli_epi16::<2>(v));
            add(&mut q[4 * h..], &[first, second, v, _mm512_srli_epi16::<2>(v)], 0x30);
        }
    } else if K::HIGH_BITS == 1 && K::LOW_BITS == 4 {
        let v = high(c);
        let (a, b) = (_mm512_slli_epi16::<4>(v), _mm512_slli_epi16::<3>(v));
        add(&mut q, &[a, b, _mm512_slli_epi16::<2>(v), _mm512_slli_epi16::<1>(v)], 0x10);
        let (a, b) = (_mm512_srli_epi16::<1>(v), _mm512_srli_epi16::<2>(v));
        add(&mut q[4..], &[v, a, b, _mm512_srli_epi16::<3>(v)], 0x10);
    } else if K::HIGH_BITS == 1 {
        let v = high(c);
        let (a, b) = (_mm512_slli_epi16::<2>(v), _mm512_slli_epi16::<1>(v));
        add(&mut q, &[a, b, v, _mm512_srli_epi16::<1>(v)], 4);
        let (a, b) = (_mm512_srli_epi16::<2>(v), _mm512_srli_epi16::<3>(v));
        add(&mut q[4..], &[a, b, _mm512_srli_epi16::<4>(v), _mm512_srli_epi16::<5>(v)], 4);
    }
    q
}

/// Scales and minimums of chunk `c` of a block: of the whole, or of its halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn params<K: Kind>(record: Src<'_>, c: usize) -> ([__m512; 2], [__m512; 2]) {
    let halves = |at: usize| _mm512_cvtph_ps(record.load(at));
    let byte = |at: usize, i: usize| -> __m128i { record.load(at + i * PANEL_ROWS) };
    let unsigned = |v: __m512i| _mm512_cvtepi32_ps(v);
    let d = halves(K::RECORD.d);
    let none = _mm512_setzero_ps();
    let negated =
        |v: __m512| _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v), sign_bits()));
    if K::CHUNKS == 1 {
        let min = if K::FORM.has_min { halves(K::RECORD.second) } else { none };
        return ([d; 2], [min; 2]);
    }
    if !K::FORM.per16 {
        let dmin = halves(K::RECORD.second);
        let scale = unsigned(_mm512_cvtepu8_epi32(byte(K::RECORD.scales, c)));
        let min = unsigned(_mm512_cvtepu8_epi32(byte(K::RECORD.mins, c)));
        let min = negated(_mm512_mul_ps(dmin, min));
        return ([_mm512_mul_ps(d, scale); 2], [min; 2]);
    }
    let (mut scales, mut mins) = ([none; 2], [none; 2]);
    for h in 0..2 {
        let v = byte(K::RECORD.scales, 2 * c + h);
        scales[h] = match K::FORM.bits {
            6 => unsigned(_mm512_cvtepi8_epi32(v)),
            3 => unsigned(_mm512_sub_epi32(_mm512_cvtepu8_epi32(v), _mm512_set1_epi32(32))),
            _ => {
                let both = _mm512_cvtepu8_epi32(v);
                let min = unsigned(_mm512_srli_epi32::<4>(both));
                mins[h] = negated(_mm512_mul_ps(halves(K::RECORD.second), min));
                unsigned(_mm512_and_si512(both, _mm512_set1_epi32(15)))
            }
        };
        scales[h] = _mm512_mul_ps(d, scales[h]);
    }
    (scales, mins)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn sign_bits() -> __m512i {
    _mm512_set1_epi32(i32::MIN)
}

/// Adds chunk `C` of a group to its chain; `group`: the records, `x`: the token's [`DotGroup`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_chunk<K: Kind, const C: usize>(acc: __m512, group: Src<'_>, x: Src<'_>) -> __m512 {
    let asked = asked_with::<K>(C);
    prefetch(group.ptr(asked.start), asked.len());
    let (record, c) = (group.skip(C / K::CHUNKS * K::RECORD.bytes), C % K::CHUNKS);
    let q = quants::<K>(record, c);
    let (scale, min) = params::<K>(record, c);
    let word = |j: usize| {
        _mm512_set1_epi32(x.load(offset_of!(DotGroup, q) + C * CHUNK + j * size_of::<i32>()))
    };
    let number = |field: usize, i: usize| _mm512_set1_ps(x.load(field + i * size_of::<f32>()));
    let sum = |field: usize, i: usize| _mm512_set1_epi32(x.load(field + i * size_of::<i32>()));
    let dot = |q: &[__m512i], from: usize, sums: __m512i| {
        let mut dots = _mm512_setzero_si512();
        for (j, q) in q.iter().enumerate() {
            dots = _mm512_dpbusd_epi32(dots, *q, word(from + j));
        }
        if !K::FORM.has_min {
            let offset = _mm512_sll_epi32(sums, _mm_cvtsi32_si128(K::FORM.offset_log2 as i32));
            dots = _mm512_sub_epi32(dots, offset);
        }
        _mm512_cvtepi32_ps(dots)
    };
    let d = number(offset_of!(DotGroup, d), C);
    let s16 = offset_of!(DotGroup, s16);
    if K::FORM.per16 {
        let t = _mm512_mul_ps(dot(&q[..4], 0, sum(s16, 2 * C)), scale[0]);
        let t = _mm512_fmadd_ps(dot(&q[4..], 4, sum(s16, 2 * C + 1)), scale[1], t);
        let mut acc = _mm512_fmadd_ps(t, d, acc);
        if K::FORM.has_min {
            for (h, min) in min.into_iter().enumerate() {
                let ds = _mm512_mul_ps(d, _mm512_cvtepi32_ps(sum(s16, 2 * C + h)));
                acc = _mm512_fmadd_ps(min, ds, acc);
            }
        }
        return acc;
    }
    let dots = dot(&q, 0, sum(offset_of!(DotGroup, s32), C));
    let acc = _mm512_fmadd_ps(_mm512_mul_ps(dots, scale[0]), d, acc);
    if K::FORM.has_min {
        return _mm512_fmadd_ps(min[0], number(offset_of!(DotGroup, ds), C), acc);
    }
    acc
}

/// See [`UnitGemvFn`](crate::cpu::units::UnitGemvFn).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn gemv<K: Kind>(y: &mut [f32; PANEL_ROWS], unit: &[u8], x: &DotRow<'_>) {
    // SAFETY: a unit has a record for each block of the row, and `x` its chunks.
    let unit = unsafe { Src::new(unit) };
    // SAFETY: as above.
    let groups = unsafe { Src::of_records(x.groups) };
    let mut acc = [_mm512_setzero_ps(); N_CHAINS];
    for g in 0..x.groups.len() {
        let n = x.n_chunks - g * N_CHAINS;
        let (group, x) = (unit.skip(g * K::GROUP_BYTES), groups.skip(g * size_of::<DotGroup>()));
        // By name and not in a loop, so that the chains stay in registers.
        macro_rules! add {
            ($($c:literal)*) => {
                $(if $c < n { acc[$c] = add_chunk::<K, $c>(acc[$c], group, x); })*
            };
        }
        if n >= N_CHAINS {
            acc[0] = add_chunk::<K, 0>(acc[0], group, x);
            acc[1] = add_chunk::<K, 1>(acc[1], group, x);
            acc[2] = add_chunk::<K, 2>(acc[2], group, x);
            acc[3] = add_chunk::<K, 3>(acc[3], group, x);
            acc[4] = add_chunk::<K, 4>(acc[4], group, x);
            acc[5] = add_chunk::<K, 5>(acc[5], group, x);
            acc[6] = add_chunk::<K, 6>(acc[6], group, x);
            acc[7] = add_chunk::<K, 7>(acc[7], group, x);
        } else {
            add!(0 1 2 3 4 5 6);
        }
    }
    let [first, rest @ ..] = acc;
    let mut sum = first;
    for chain in rest {
        sum = _mm512_add_ps(sum, chain);
    }
    write(y, 0, sum);
}

/// See [`UnitFillFn`](crate::cpu::units::UnitFillFn).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn fill<K: Kind>(unit: &[u8], row_len: usize, panel: &mut [u8]) {
    // SAFETY: a unit has a record for each block of the row.
    let unit = unsafe { Src::new(unit) };
    let starts = Chains::new(row_len).starts();
    let n_scales = 1 + usize::from(K::FORM.per16);
    for chunk in 0..row_len / CHUNK {
        let (record, c) = (unit.skip(chunk / K::CHUNKS * K::RECORD.bytes), chunk % K::CHUNKS);
        let at = (starts[chunk % N_CHAINS] + chunk / N_CHAINS) * record_bytes(K::FORM);
        for (j, q) in quants::<K>(record, c).into_iter().enumerate() {
            write(panel, at + j * PARAM_BYTES, q);
        }
        let (scales, mins) = params::<K>(record, c);
        for h in 0..n_scales {
            write(panel, at + QUANT_BYTES + h * PARAM_BYTES, scales[h]);
            if K::FORM.has_min {
                write(panel, at + QUANT_BYTES + (n_scales + h) * PARAM_BYTES, mins[h]);
            }
        }
    }
}

/// See [`UnitFloatFn`](crate::cpu::units::UnitFloatFn).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn dot_float(y: &mut [f32; PANEL_ROWS], quant: QuantType, unit: &[u8], x: &[f32]) {
    // SAFETY: a unit has sixteen halves for each element of the row.
    let unit = unsafe { Src::new(unit) };
    let weights = |k: usize| {
        let bits: __m256i = unit.load(k * 2 * PANEL_ROWS);
        if quant == QuantType::F16 {
            _mm512_cvtph_ps(bits)
        } else {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
        }
    };
    let mut acc = [_mm512_setzero_ps(); FLOAT_LANES];
    for (i, x) in x.chunks(FLOAT_LANES).enumerate() {
        let first = i * FLOAT_LANES;
        prefetch(unit.ptr(2 * PANEL_ROWS * first + FLOAT_PREFETCH_BYTES), 2 * PANEL_ROWS * x.len());
        for (lane, (acc, x)) in acc.iter_mut().zip(x).enumerate() {
            *acc = _mm512_fmadd_ps(weights(first + lane), _mm512_set1_ps(*x), *acc);
        }
    }
    for n in [8, 4, 2, 1] {
        for lane in 0..n {
            acc[lane] = _mm512_add_ps(acc[lane], acc[lane + n]);
        }
    }
    write(y, 0, acc[0]);
}
