//! NEON: 16 bytes an instruction. Reading alone: how fast these machines multiply at most, nobody has
//! measured, so that there is no such limit.

use std::arch::aarch64::*;

use super::{LINE, N_WAYS, ReadFn, each_way, scalar, streams};
use crate::cpu::mem::{prefetch, read as load};

/// Bytes of a vector.
const VECTOR: usize = 16;

pub(super) const READ: [ReadFn; N_WAYS] = each_way!(self::read);

#[target_feature(enable = "neon")]
fn read<const STREAMS: usize, const AHEAD: usize>(lines: &[[u8; LINE]]) -> u64 {
    let (streams, rest) = streams::<STREAMS>(lines);
    let n = streams[0].len();
    let streams = streams.map(|stream| &stream[..n]);
    // Two a stream: additions that wait for each other are slower than memory.
    let mut sums = [[vdupq_n_u64(0); 2]; STREAMS];
    for i in 0..n {
        for (sums, stream) in sums.iter_mut().zip(streams) {
            let line = &stream[i];
            if AHEAD > 0 {
                prefetch(line.as_ptr().wrapping_add(AHEAD), 1);
            }
            for at in (0..LINE).step_by(VECTOR) {
                let sum = &mut sums[at / VECTOR % 2];
                *sum = vaddq_u64(*sum, vreinterpretq_u64_u8(load(line, at)));
            }
        }
    }
    let total = scalar::sum(rest.as_flattened());
    sums.as_flattened().iter().fold(total, |total, &sum| total.wrapping_add(vaddvq_u64(sum)))
}
