//! The twins in plain Rust.

use super::{LINE, N_WAYS, Operands, Products, ReadFn, SIDE, each_way, streams};

/// Sum of the little-endian words of `bytes`; the last may be shorter.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    words
        .iter()
        .fold(u64::from_le_bytes(last), |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

pub(super) const READ: [ReadFn; N_WAYS] = each_way!(self::read);

/// Nothing is asked for ahead: plain Rust cannot.
fn read<const STREAMS: usize, const AHEAD: usize>(lines: &[[u8; LINE]]) -> u64 {
    let (streams, rest) = streams::<STREAMS>(lines);
    let mut total = sum(rest.as_flattened());
    for i in 0..streams[0].len() {
        for stream in streams {
            total = total.wrapping_add(sum(&stream[i]));
        }
    }
    total
}

/// Products of 16-bit factors: even a baseline processor multiplies eight at a time.
fn dot_line(w: &[u8; LINE], x: &[i8; LINE]) -> i32 {
    w.iter().zip(x).map(|(&w, &x)| i32::from(i16::from(w)) * i32::from(i16::from(x))).sum()
}

pub(super) fn dot(operands: &Operands, n_rounds: usize) -> Products {
    let mut sums = [[0i32; SIDE]; SIDE];
    for _ in 0..n_rounds {
        // Opaque, since the sums of a round are the same in each.
        let operands = std::hint::black_box(operands);
        for (w, x) in operands.w.iter().zip(&operands.x) {
            for (sums, w) in sums.iter_mut().zip(w) {
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = sum.wrapping_add(dot_line(w, x));
                }
            }
        }
    }
    sums
}
