//! Which product follows which: threads that wait for a region ask for the weights that it will read.
//!
//! While the caller of the pool does what is too small to share (norms, activations), memory would have nothing
//! to do. Every token passes through the same products, so what followed a product last time will follow it again; if
//! it does not, some lines were fetched in vain, while nobody else wanted the memory.

use super::Padded;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a thread asks for at most: a part of its second-level cache.
pub(super) const MAX_BYTES: usize = 128 << 10;
/// Bytes between two looks at whether the region has begun.
const STEP_BYTES: usize = 1024;

/// The products as they followed each other, and where each worker begins in the next.
pub(super) struct Trail {
    known: Mutex<Known>,
    starts: Box<[Padded<AtomicUsize>]>,
}

#[derive(Default)]
struct Known {
    last: Option<usize>,
    /// For a product, the addresses at which workers begin to read what comes after it.
    followers: HashMap<usize, Box<[usize]>>,
}

impl Trail {
    pub(super) fn new(n_threads: usize) -> Self {
        let starts = (0..n_threads).map(|_| Padded(AtomicUsize::new(0))).collect();
        Self { known: Mutex::default(), starts }
    }

    /// A product begins: `key` names it, and worker `i` reads from address `starts[i]` on.
    pub(super) fn begins(&self, key: usize, starts: impl ExactSizeIterator<Item = usize>) {
        // A panic in here would leave a wrong guess behind and nothing worse.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = known.last.replace(key) {
            let next = known.followers.entry(last).or_default();
            if next.len() == starts.len() {
                next.iter_mut().zip(starts).for_each(|(next, start)| *next = start);
            } else {
                *next = starts.collect();
            }
        }
        let followers = known.followers.get(&key).into_iter().flatten();
        for (start, next) in self.starts.iter().zip(followers) {
            start.0.store(*next, Ordering::Relaxed);
        }
    }
}

/// What a thread has asked for already.
#[derive(Default)]
pub(super) struct Asked {
    start: usize,
    n_bytes: usize,
}

impl Asked {
    /// Asks for some more of what worker `worker` reads next. False, if it has asked for all that it may.
    pub(super) fn more(&mut self, trail: &Trail, worker: usize) -> bool {
        let start = trail.starts[worker].0.load(Ordering::Relaxed);
        if start != self.start {
            *self = Self { start, n_bytes: 0 };
        }
        if start == 0 || self.n_bytes >= MAX_BYTES {
            return false;
        }
        let at = std::ptr::without_provenance(start.wrapping_add(self.n_bytes));
        kernels::cpu::prefetch(at, STEP_BYTES);
        self.n_bytes += STEP_BYTES;
        true
    }

    /// From where, and how much.
    #[cfg(test)]
    pub(super) fn place(&self) -> (usize, usize) {
        (self.start, self.n_bytes)
    }
}
