//! What the machine can do, measured in this process: bytes read and bytes multiplied in a second,
//! on as many threads as the test has.

use crate::machine;
use cli::Bytes;
use kernels::Tier;
use kernels::cpu::probe::{Operands, Probe, WAYS};
use kernels::cuda::{CudaError, Gpu};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Barrier, OnceLock};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Less is no measurement of memory, whatever the caches. Two threads of a Zen 5 machine with 32 MiB of cache read
/// 64 MiB again and again at 57 GB/s, 256 MiB at 40 and 1 GiB at 35: caches keep parts of what was read.
const MIN_BUFFER_BYTES: u64 = 1 << 30;
/// So many times the caches, for the same reason.
const CACHES: u64 = 16;
/// How long a pass of multiplications lasts: short, so that of some passes on a busy machine a few are
/// not interrupted.
const PASS: Duration = Duration::from_millis(2);
/// Passes of them, of which the best counts: a limit is what can be reached.
const N_PASSES: usize = 40;
/// Passes over all of the memory in each way. Shorter ones would be less often interrupted on a busy
/// machine, but the best of them is one whose part a cache had kept: 84 GB/s were seen.
const N_READS: usize = 3;

/// A limit, in units a second, and what it was measured with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Limit {
    pub(crate) per_second: f64,
    pub(crate) name: String,
}

/// Measures limits, and remembers those that do not drift.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    buffer: Vec<u8>,
    peaks: HashMap<(Tier, usize), Option<f64>>,
    /// Reading and multiplying, of each device.
    gpus: HashMap<usize, (Option<f64>, Option<f64>)>,
}

impl Limits {
    /// What GPU `ordinal` reads and multiplies in a second. Nothing of what needs more than `room` bytes of
    /// its memory, or more than is free, or the library of bf16 products where that is not; `say` is told so.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn gpu(
        &mut self,
        ordinal: usize,
        room: u64,
        say: impl Fn(&str),
    ) -> Result<(Option<Limit>, Option<Limit>), CudaError> {
        let (read, products) = match self.gpus.get(&ordinal) {
            Some(known) => *known,
            None => {
                let gpu = Gpu::open(ordinal, false)?;
                let read = fitting("memory", Gpu::MEASURE_READ_BYTES, room, &say, || {
                    gpu.measure_read().map(Some)
                })?;
                let products =
                    fitting("bf16 products", Gpu::MEASURE_PRODUCTS_BYTES, room, &say, || {
                        gpu.measure_bf16_products()
                    })?;
                *self.gpus.entry(ordinal).or_insert((read, products))
            }
        };
        let limit = |name: &str| {
            let name = name.to_owned();
            move |per_second| Limit { per_second, name }
        };
        Ok((
            read.map(limit("device memory read")),
            products.map(limit("bf16 products of cuBLASLt")),
        ))
    }

    /// Bytes a second that `n_threads` threads read from memory at once. Measured anew each time,
    /// since neighbours on the machine take their share. Nothing, if memory does not suffice.
    pub(crate) fn read(&mut self, tier: Tier, n_threads: usize) -> Option<Limit> {
        let probe = Probe::new(tier).ok()?;
        if self.buffer.is_empty() {
            self.buffer = buffer(n_threads)?;
        }
        let n_share = self.buffer.len() / n_threads;
        let shares: Vec<&[u8]> = self.buffer.chunks_exact(n_share).take(n_threads).collect();
        let mut shortest = (Duration::MAX, 0);
        for (way, of) in WAYS.iter().enumerate() {
            let time = best(&shares, N_READS, |share| {
                black_box(probe.read(way, black_box(share)));
            })?;
            shortest = shortest.min((time, of.n_streams));
        }
        let (time, n_streams) = shortest;
        let per_second = (n_share * shares.len()) as f64 / time.as_secs_f64();
        Some(Limit { per_second, name: format!("memory read, {n_streams} streams a thread") })
    }

    /// Operations a second of `n_threads` threads that do nothing but multiply bytes in registers. Nothing
    /// for a tier without a kernel for that.
    pub(crate) fn dot(&mut self, tier: Tier, n_threads: usize) -> Option<Limit> {
        let probe = Probe::new(tier).ok()?;
        let name = probe.dot_name?;
        let measure = || {
            let operands: Vec<Operands> = (0..n_threads as u64).map(Operands::new).collect();
            let mut n_rounds = 1000;
            loop {
                let time = best(&operands, N_PASSES, |operands| {
                    black_box(probe.dot(black_box(operands), n_rounds));
                })?;
                if time >= PASS {
                    let n_ops = Operands::N_OPS * (n_rounds * n_threads) as u64;
                    return Some(n_ops as f64 / time.as_secs_f64());
                }
                n_rounds *= 2;
            }
        };
        let per_second = (*self.peaks.entry((tier, n_threads)).or_insert_with(measure))?;
        Some(Limit { per_second, name: name.to_owned() })
    }
}

/// What `measure` finds, if its `need` bytes fit into `room` and into what is free.
fn fitting(
    what: &str,
    need: u64,
    room: u64,
    say: impl Fn(&str),
    measure: impl FnOnce() -> Result<Option<f64>, CudaError>,
) -> Result<Option<f64>, CudaError> {
    let found = if need > room { Err(CudaError::Memory { n_bytes: need }) } else { measure() };
    match found {
        Err(CudaError::Memory { .. }) => {
            say(&format!(
                "the GPU's limit of {what} was not measured: no room for {} beside the model",
                Bytes(need)
            ));
            Ok(None)
        }
        other => other,
    }
}

/// Memory that no cache holds, written page by page: pages that were never written are all the same
/// one. Each thread writes its own share, so that it lies near it.
fn buffer(n_threads: usize) -> Option<Vec<u8>> {
    let caches = machine::cache_bytes();
    let wanted = MIN_BUFFER_BYTES.max(CACHES.saturating_mul(caches));
    let most = cli::available_memory().map_or(wanted, |available| available / 4);
    let n_bytes = wanted.min(most);
    if n_bytes < wanted / 2 {
        return None;
    }
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(usize::try_from(n_bytes).ok()?).ok()?;
    buffer.resize(usize::try_from(n_bytes).ok()?, 0);
    let n = buffer.len().div_ceil(n_threads);
    let all_started = std::thread::scope(|scope| {
        buffer.chunks_mut(n).all(|share| {
            let fill = || {
                let (words, _) = share.as_chunks_mut::<8>();
                for (i, word) in words.iter_mut().enumerate() {
                    *word = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
                }
            };
            Builder::new().spawn_scoped(scope, fill).is_ok()
        })
    });
    all_started.then_some(buffer)
}

/// The shortest pass in which every share was worked on by a thread of its own, all at once: from the
/// first to begin to the last to end. One thread's clock would not do: where the machine is busy, others
/// may have ended before it wakes up to start it. Nothing, where the system refuses a thread.
fn best<T: Sync>(shares: &[T], n_passes: usize, work: impl Fn(&T) + Sync) -> Option<Duration> {
    let barrier = Barrier::new(shares.len());
    // Nobody waits at the barrier before it is known that all will come.
    let all_are_here = OnceLock::new();
    let passes = |share: &T| -> Vec<(Instant, Instant)> {
        let pass = |_| {
            barrier.wait();
            let start = Instant::now();
            work(share);
            (start, Instant::now())
        };
        let n_passes = if *all_are_here.wait() { n_passes } else { 0 };
        (0..n_passes).map(pass).collect()
    };
    let threads: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let passes = &passes;
        let started: Vec<_> = shares
            .iter()
            .map_while(|share| Builder::new().spawn_scoped(scope, move || passes(share)).ok())
            .collect();
        all_are_here.get_or_init(|| started.len() == shares.len());
        // A panic in there is a bug of the kernels, and the line about it has been printed.
        started.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let lasted = |i: usize| {
        let of_pass = || threads.iter().filter_map(|passes| passes.get(i));
        let first = of_pass().map(|(start, _)| *start).min();
        let last = of_pass().map(|(_, end)| *end).max();
        Some(last?.duration_since(first?))
    };
    (0..n_passes).filter_map(lasted).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_share_is_worked_on_in_every_pass() {
        let n = AtomicUsize::new(0);
        let time = best(&[1usize, 10, 100], 4, |share| {
            n.fetch_add(*share, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(2));
        });
        let time = time.unwrap();
        assert_eq!(n.into_inner(), 111 * 4);
        assert!(time >= Duration::from_millis(2) && time < Duration::from_secs(1));
    }

    #[test]
    fn a_pass_lasts_as_long_as_its_slowest_share() {
        let time = best(&[1u64, 20], 3, |ms| std::thread::sleep(Duration::from_millis(*ms)));
        let time = time.unwrap();
        assert!(time >= Duration::from_millis(20), "{time:?}");
    }

    #[test]
    fn what_does_not_fit_is_said_and_a_failure_is_one() {
        let said = std::cell::RefCell::new(String::new());
        let say = |text: &str| *said.borrow_mut() = text.to_owned();
        assert_eq!(fitting("memory", 2, 1, say, || panic!("not begun")).unwrap(), None);
        assert!(said.borrow().contains("memory was not measured"), "{}", said.borrow());
        let full = || Err(CudaError::Memory { n_bytes: 2 });
        assert_eq!(fitting("memory", 2, 2, say, full).unwrap(), None);
        assert_eq!(fitting("memory", 2, 2, say, || Ok(Some(3.0))).unwrap(), Some(3.0));
        assert!(fitting("memory", 2, 2, say, || Err(CudaError::NoDriver)).is_err());
    }
}
