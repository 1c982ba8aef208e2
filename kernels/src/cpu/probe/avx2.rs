//! AVX2 and AVX-VNNI: 32 bytes an instruction.
#![allow(unsafe_code)] // the dot product of a tier

use std::arch::x86_64::*;

use super::{LINE, N_WAYS, Operands, Products, ReadFn, SIDE, each_way, scalar, streams};
use crate::cpu::avx2::dpbusd;
use crate::cpu::mem::{prefetch, read as load, write as store};

/// Bytes of a vector.
const VECTOR: usize = 32;

pub(super) const READ: [ReadFn; N_WAYS] = each_way!(self::read);

#[target_feature(enable = "avx2")]
fn read<const STREAMS: usize, const AHEAD: usize>(lines: &[[u8; LINE]]) -> u64 {
    let (streams, rest) = streams::<STREAMS>(lines);
    let n = streams[0].len();
    let streams = streams.map(|stream| &stream[..n]);
    let mut sums = [_mm256_setzero_si256(); STREAMS];
    for i in 0..n {
        for (sum, stream) in sums.iter_mut().zip(streams) {
            let line = &stream[i];
            if AHEAD > 0 {
                prefetch(line.as_ptr().wrapping_add(AHEAD), 1);
            }
            *sum = _mm256_add_epi64(*sum, load(line, 0));
            *sum = _mm256_add_epi64(*sum, load(line, VECTOR));
        }
    }
    let mut total = scalar::sum(rest.as_flattened());
    for sum in sums {
        let mut lanes = [0u64; 4];
        store(&mut lanes, 0, sum);
        total = lanes.iter().fold(total, |total, &lane| total.wrapping_add(lane));
    }
    total
}

/// Two weight vectors at a time: their eight sums, the activations and the ones fill the registers.
const W_AT_A_TIME: usize = 2;

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot<const VNNI: bool>(operands: &Operands, n_rounds: usize) -> Products {
    let mut out = [[0; SIDE]; SIDE];
    for first in (0..SIDE).step_by(W_AT_A_TIME) {
        let sums = dot_rows::<VNNI>(operands, n_rounds, first);
        for (out, sums) in out[first..].iter_mut().zip(sums) {
            for (out, sum) in out.iter_mut().zip(sums) {
                let mut lanes = [0i32; 8];
                store(&mut lanes, 0, sum);
                *out = lanes.iter().fold(0, |total: i32, &lane| total.wrapping_add(lane));
            }
        }
    }
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
fn dot_rows<const VNNI: bool>(
    operands: &Operands,
    n_rounds: usize,
    first: usize,
) -> [[__m256i; SIDE]; W_AT_A_TIME] {
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_si256(); SIDE]; W_AT_A_TIME];
    for _ in 0..n_rounds {
        let operands = std::hint::black_box(operands);
        for (w, x) in operands.w.iter().zip(&operands.x) {
            for at in [0, VECTOR] {
                let w: [__m256i; W_AT_A_TIME] = [load(&w[first], at), load(&w[first + 1], at)];
                for (j, x) in x.iter().enumerate() {
                    let x: __m256i = load(x, at);
                    for (sums, &w) in sums.iter_mut().zip(&w) {
                        if VNNI {
                            // SAFETY: the constant is true in the AVX-VNNI tier's kernels alone.
                            sums[j] = unsafe { dpbusd(sums[j], w, x) };
                            continue;
                        }
                        let pairs = _mm256_maddubs_epi16(w, x);
                        sums[j] = _mm256_add_epi32(sums[j], _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
        }
    }
    sums
}
