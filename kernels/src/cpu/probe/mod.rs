//! What a machine can do at most: kernels that do nothing but read memory, or multiply bytes.
//!
//! A benchmark runs them on its threads, beside a model, to say how far the model is from the
//! machine's limits. They are chosen by tier like all kernels. What they return depends on every
//! byte, so that nothing can be left out, and is the same in every tier.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use super::Tier;
use crate::Result;

/// Bytes of a cache line, and of the vectors that are multiplied.
const LINE: usize = 64;

/// How a thread reads memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Places at which it reads at the same time. One stream is a chain of pages, at whose ends
    /// hardware prefetching starts anew.
    pub n_streams: usize,
    /// How far ahead of each it asks for a line; 0: that is left to the hardware.
    pub ahead_bytes: usize,
}

const fn way<const STREAMS: usize, const AHEAD: usize>() -> Way {
    Way { n_streams: STREAMS, ahead_bytes: AHEAD }
}

/// One of something generic for each way.
macro_rules! each_way {
    ($of:path) => {{
        use $of as of;
        [of::<2, 0>, of::<4, 0>, of::<8, 0>, of::<4, 4096>]
    }};
}
use each_way;

/// The ways that a thread can be made to read in. Which is the fastest differs from machine to machine, and
/// with what else it does: a limit is the best of all.
pub const WAYS: [Way; N_WAYS] = [way::<2, 0>(), way::<4, 0>(), way::<8, 0>(), way::<4, 4096>()];

const N_WAYS: usize = 4;

/// Vectors on either side of a tile: its products stay in registers, as those of a matrix kernel do.
const SIDE: usize = 4;

/// Tiles of a round. All operands are 8 KiB, a part of the first-level cache.
const N_STEPS: usize = 16;

/// Memory in as many parts of the same length, and what is left.
fn streams<const N: usize>(lines: &[[u8; LINE]]) -> ([&[[u8; LINE]]; N], &[[u8; LINE]]) {
    let n = lines.len() / N;
    (std::array::from_fn(|i| &lines[i * n..][..n]), &lines[N * n..])
}

/// Products of every weight vector with every activation vector.
pub type Products = [[i32; SIDE]; SIDE];

type ReadFn = unsafe fn(&[[u8; LINE]]) -> u64;
type DotFn = unsafe fn(&Operands, usize) -> Products;

/// Vectors of bytes to multiply: weights of 7 bits, so that pairs of products fit 16 bits as in
/// the kernels of the quant types, and signed activations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operands {
    w: [[[u8; LINE]; SIDE]; N_STEPS],
    x: [[[i8; LINE]; SIDE]; N_STEPS],
}

impl Operands {
    /// Operations (a product or a sum) of one round.
    pub const N_OPS: u64 = (2 * N_STEPS * SIDE * SIDE * LINE) as u64;

    /// Pseudo-random values, the same for the same seed.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let mut operands =
            Self { w: [[[0; LINE]; SIDE]; N_STEPS], x: [[[0; LINE]; SIDE]; N_STEPS] };
        operands.w.as_flattened_mut().as_flattened_mut().fill_with(|| next() & 0x7f);
        operands.x.as_flattened_mut().as_flattened_mut().fill_with(|| next() as i8);
        operands
    }
}

/// The kernels of a tier.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    read: [ReadFn; N_WAYS],
    dot: DotFn,
    /// What is multiplied with, for people. Nothing, where the tier has no kernel of its own here: its
    /// twin stands in, and what that reaches is no limit of the tier.
    pub dot_name: Option<&'static str>,
}

impl Probe {
    /// The kernels of `tier`.
    ///
    /// # Errors
    /// If this machine does not have it.
    pub fn new(tier: Tier) -> Result<Self> {
        let (read, dot, dot_name): ([ReadFn; N_WAYS], DotFn, Option<_>) = match tier.require()? {
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => (avx2::READ, avx2::dot::<false>, Some("AVX2 maddubs + madd")),
            #[cfg(target_arch = "x86_64")]
            Tier::AvxVnni => (avx2::READ, avx2::dot::<true>, Some("AVX-VNNI dpbusd")),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => (avx512::READ, avx512::dot, Some("AVX-512 VNNI dpbusd")),
            Tier::Scalar => (scalar::READ, scalar::dot, Some("int8 products of plain Rust")),
            #[cfg(target_arch = "aarch64")]
            Tier::Neon | Tier::DotProd | Tier::I8mm => (neon::READ, scalar::dot, None),
            // `require` leaves no other on this architecture.
            _ => (scalar::READ, scalar::dot, None),
        };
        Ok(Self { read, dot, dot_name })
    }

    /// Reads every byte once and returns the sum of all 8-byte little-endian words, wrapping. Bytes that fill
    /// no word count as a word filled with zeros. `way` is an index into [`WAYS`].
    ///
    /// # Panics
    /// If there is no such way.
    #[allow(unsafe_code)]
    pub fn read(&self, way: usize, bytes: &[u8]) -> u64 {
        let (lines, rest) = bytes.as_chunks::<LINE>();
        // SAFETY: `new` has found the tier's instructions on this machine.
        unsafe { self.read[way](lines) }.wrapping_add(scalar::sum(rest))
    }

    /// Multiplies all operands, `n_rounds` times; sums wrap.
    #[allow(unsafe_code)]
    pub fn dot(&self, operands: &Operands, n_rounds: usize) -> Products {
        // SAFETY: `new` has found the tier's instructions on this machine.
        unsafe { (self.dot)(operands, n_rounds) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it claims, word by word.
    fn sum_of_words(bytes: &[u8]) -> u64 {
        bytes
            .iter()
            .enumerate()
            .fold(0, |sum: u64, (i, &byte)| sum.wrapping_add(u64::from(byte) << (8 * (i % 8))))
    }

    fn probes() -> impl Iterator<Item = (Tier, Probe)> {
        let available = Tier::ALL.iter().filter(|tier| tier.available());
        available.map(|&tier| (tier, Probe::new(tier).unwrap()))
    }

    #[test]
    fn every_byte_is_read_once() {
        let mut state = 1u64;
        let mut bytes = vec![0u8; 29 * LINE + 13];
        bytes.fill_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        });
        for (tier, probe) in probes() {
            for (way, of) in WAYS.iter().enumerate() {
                for n in [0, 1, 8, 63, 64, 65, 511, 512, 513, 1100, bytes.len()] {
                    let found = probe.read(way, &bytes[..n]);
                    assert_eq!(found, sum_of_words(&bytes[..n]), "{tier:?} {of:?} {n}");
                }
                // One byte more or less anywhere is another sum.
                let whole = probe.read(way, &bytes);
                for at in [0, 700, bytes.len() - 1] {
                    let mut other = bytes.clone();
                    other[at] ^= 0x10;
                    assert_ne!(probe.read(way, &other), whole, "{tier:?} {of:?} {at}");
                }
            }
        }
    }

    #[test]
    fn parts_are_all_of_it() {
        let lines: Vec<[u8; LINE]> = (0..11).map(|i| [i; LINE]).collect();
        let (parts, rest) = streams::<4>(&lines);
        let firsts = parts.map(|part| (part.len(), part[0][0]));
        assert_eq!(firsts, [(2, 0), (2, 2), (2, 4), (2, 6)]);
        assert_eq!((rest.len(), rest[0][0]), (3, 8));
    }

    #[test]
    fn products_are_those_of_wide_integers() {
        let operands = Operands::new(7);
        assert!(operands.w.as_flattened().as_flattened().iter().all(|&w| w < 128));
        assert!(operands.x.as_flattened().as_flattened().contains(&-128));
        for (tier, probe) in probes() {
            // 4000 rounds wrap.
            for n_rounds in [0usize, 1, 3, 4000] {
                let got = probe.dot(&operands, n_rounds);
                for i in 0..SIDE {
                    for j in 0..SIDE {
                        let wide: i64 = operands
                            .w
                            .iter()
                            .zip(&operands.x)
                            .flat_map(|(w, x)| w[i].iter().zip(&x[j]))
                            .map(|(&w, &x)| i64::from(w) * i64::from(x))
                            .sum();
                        let expected = (wide * n_rounds as i64) as i32;
                        assert_eq!(got[i][j], expected, "{tier:?} {n_rounds} rounds, {i} {j}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_round_has_the_operations_it_says() {
        let operands = Operands::new(1);
        let n_products: usize =
            operands.w.iter().zip(&operands.x).map(|(w, x)| w.len() * x.len() * w[0].len()).sum();
        assert_eq!(Operands::N_OPS, 2 * n_products as u64);
    }
}
