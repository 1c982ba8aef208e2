//! How the items of a region are handed out.

use super::Padded;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the items go that nobody has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// All workers take the next ones: items are done in ascending order, as near as may be.
    Together,
    /// Each worker begins with an equal part of its own, then helps others with theirs. What a worker
    /// reads from memory is one stream that way.
    Apart,
}

/// The next item of each part.
pub(super) struct Counters(Box<[Padded<AtomicUsize>]>);

/// The items of a region, and how they are cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) n_items: usize,
    pub(super) grain: usize,
    pub(super) n_parts: usize,
    /// Grains of a part that are left, divided by this, are a chunk.
    pub(super) share: usize,
}

impl Cut {
    /// For a region of `n_threads`: a worker takes a quarter of its fair share of what is left.
    pub(super) fn new(n_items: usize, grain: usize, n_threads: usize, order: Order) -> Self {
        let n_parts = if order == Order::Apart { n_threads } else { 1 };
        Self { n_items, grain, n_parts, share: (4 * n_threads).div_ceil(n_parts) }
    }

    /// Where a part begins, and the one before it ends.
    pub(super) fn boundary(&self, part: usize) -> usize {
        let n_grains = self.n_items.div_ceil(self.grain);
        self.n_items.min(n_grains * part / self.n_parts * self.grain)
    }
}

impl Counters {
    pub(super) fn new(n_threads: usize) -> Self {
        Self((0..n_threads.max(1)).map(|_| Padded(AtomicUsize::new(0))).collect())
    }

    /// Every part at its beginning.
    pub(super) fn open(&self, cut: &Cut) {
        for (part, next) in self.0.iter().enumerate().take(cut.n_parts) {
            next.0.store(cut.boundary(part), Ordering::Relaxed);
        }
    }

    /// Nobody shall start what is left.
    pub(super) fn close(&self) {
        for next in &self.0 {
            next.0.store(usize::MAX / 2, Ordering::Relaxed);
        }
    }

    /// What worker `worker` takes chunks from.
    pub(super) fn chunks(&self, cut: Cut, worker: usize) -> Chunks<'_> {
        Chunks { counters: &self.0[..cut.n_parts], cut, first_part: worker % cut.n_parts }
    }
}

/// The chunks of a region, each item once; within a part in ascending order.
///
/// Chunks shrink as the work does: the first is a good part of what one thread has to do, the last
/// is one grain. That keeps the counters, which several threads write, quiet, and the end even.
pub(crate) struct Chunks<'r> {
    counters: &'r [Padded<AtomicUsize>],
    cut: Cut,
    first_part: usize,
}

impl<'r> Chunks<'r> {
    /// All items in one chunk, for a thread alone; `next` is 0.
    pub(super) fn whole(next: &'r [Padded<AtomicUsize>; 1], n_items: usize, grain: usize) -> Self {
        let cut = Cut { n_items, grain, n_parts: 1, share: 1 };
        Self { counters: next, cut, first_part: 0 }
    }

    /// The next chunk that nobody has taken, or `None` when the region's work is given out. It
    /// starts at a multiple of the grain and ends at one or with the items.
    #[inline]
    pub(crate) fn take(&self) -> Option<Range<usize>> {
        let n_parts = self.counters.len();
        (self.first_part..self.first_part + n_parts).find_map(|part| self.take_of(part % n_parts))
    }

    fn take_of(&self, part: usize) -> Option<Range<usize>> {
        let (next, last) = (&self.counters[part].0, self.cut.boundary(part + 1));
        let mut start = next.load(Ordering::Relaxed);
        loop {
            if start >= last {
                return None;
            }
            let n_grains = (last - start) / (self.cut.grain * self.cut.share);
            let end = last.min(start + n_grains.max(1) * self.cut.grain);
            // Nothing but the counter is agreed on here; joining and leaving order the data.
            match next.compare_exchange_weak(start, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start..end),
                Err(now) => start = now,
            }
        }
    }
}
