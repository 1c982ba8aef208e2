//! AVX-512: 64 bytes an instruction.

use std::arch::x86_64::*;

use super::{LINE, N_WAYS, Operands, Products, ReadFn, SIDE, each_way, scalar, streams};
use crate::cpu::mem::{prefetch, read as load};

pub(super) const READ: [ReadFn; N_WAYS] = each_way!(self::read);

#[target_feature(enable = "avx512f,avx512bw")]
fn read<const STREAMS: usize, const AHEAD: usize>(lines: &[[u8; LINE]]) -> u64 {
    let (streams, rest) = streams::<STREAMS>(lines);
    let n = streams[0].len();
    let streams = streams.map(|stream| &stream[..n]);
    let mut sums = [_mm512_setzero_si512(); STREAMS];
    for i in 0..n {
        for (sum, stream) in sums.iter_mut().zip(streams) {
            let line = &stream[i];
            if AHEAD > 0 {
                prefetch(line.as_ptr().wrapping_add(AHEAD), 1);
            }
            *sum = _mm512_add_epi64(*sum, load(line, 0));
        }
    }
    let others = scalar::sum(rest.as_flattened());
    sums.iter()
        .fold(others, |total: u64, &sum| total.wrapping_add(_mm512_reduce_add_epi64(sum) as u64))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn dot(operands: &Operands, n_rounds: usize) -> Products {
    let mut sums = [[_mm512_setzero_si512(); SIDE]; SIDE];
    for _ in 0..n_rounds {
        let operands = std::hint::black_box(operands);
        for (w, x) in operands.w.iter().zip(&operands.x) {
            let x: [__m512i; SIDE] =
                [load(&x[0], 0), load(&x[1], 0), load(&x[2], 0), load(&x[3], 0)];
            for (sums, w) in sums.iter_mut().zip(w) {
                let w: __m512i = load(w, 0);
                for (sum, &x) in sums.iter_mut().zip(&x) {
                    *sum = _mm512_dpbusd_epi32(*sum, w, x);
                }
            }
        }
    }
    let mut out = [[0; SIDE]; SIDE];
    for (out, sums) in out.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
        *out = _mm512_reduce_add_epi32(*sums);
    }
    out
}
