//! The merge loop that BPE and SentencePiece share: a chain of symbols, and a queue of the
//! neighbours that may be merged, best first.

use std::collections::BinaryHeap;

/// A merge that was possible when it was queued. The greatest is done first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate<P> {
    priority: P,
    /// Of equal priorities the leftmost first.
    left: std::cmp::Reverse<u32>,
    right: u32,
    /// Lengths of both when queued: one that has grown since makes the candidate void.
    n_bytes: u32,
    merged: u32,
}

/// One link of the chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    /// Symbol, or what the tokenizer wants.
    pub(super) symbol: u32,
    /// Where its text starts.
    pub(super) start: u32,
    /// Bytes of text; 0 = merged into the one on its left.
    pub(super) n_bytes: u32,
    prev: u32,
    next: u32,
}

const END: u32 = u32::MAX;

/// Buffers of one merge loop, to be used again.
#[derive(Debug)]
pub(super) struct Chain<P> {
    links: Vec<Link>,
    queue: BinaryHeap<Candidate<P>>,
}

impl<P: Ord> Default for Chain<P> {
    fn default() -> Self {
        Self { links: Vec::new(), queue: BinaryHeap::new() }
    }
}

impl<P: Ord + Copy> Chain<P> {
    pub(super) fn clear(&mut self) {
        self.links.clear();
        self.queue.clear();
    }

    /// Adds a symbol of `n_bytes` bytes at the end.
    pub(super) fn push(&mut self, symbol: u32, n_bytes: u32) {
        let index = self.links.len() as u32;
        let start = self.links.last().map_or(0, |link| link.start + link.n_bytes);
        if let Some(last) = self.links.last_mut() {
            last.next = index;
        }
        let prev = index.checked_sub(1).unwrap_or(END);
        self.links.push(Link { symbol, start, n_bytes, prev, next: END });
    }

    /// Merges until nothing can be merged. `find` says with which priority two neighbours merge,
    /// and into which symbol.
    pub(super) fn merge(&mut self, find: impl Fn(Link, Link) -> Option<(P, u32)>) {
        for right in 1..self.links.len() as u32 {
            self.consider(right - 1, right, &find);
        }
        while let Some(best) = self.queue.pop() {
            let (left, right) = (best.left.0, best.right);
            let (Some(&l), Some(&r)) =
                (self.links.get(left as usize), self.links.get(right as usize))
            else {
                continue;
            };
            if l.n_bytes == 0 || r.n_bytes == 0 || l.n_bytes + r.n_bytes != best.n_bytes {
                continue;
            }
            let merged = Link { symbol: best.merged, n_bytes: best.n_bytes, next: r.next, ..l };
            self.links[left as usize] = merged;
            self.links[right as usize].n_bytes = 0;
            if let Some(next) = self.links.get_mut(r.next as usize) {
                next.prev = left;
            }
            self.consider(merged.prev, left, &find);
            self.consider(left, merged.next, &find);
        }
    }

    fn consider(&mut self, left: u32, right: u32, find: impl Fn(Link, Link) -> Option<(P, u32)>) {
        let (Some(&l), Some(&r)) = (self.links.get(left as usize), self.links.get(right as usize))
        else {
            return;
        };
        if let Some((priority, merged)) = find(l, r) {
            let n_bytes = l.n_bytes + r.n_bytes;
            let left = std::cmp::Reverse(left);
            self.queue.push(Candidate { priority, left, right, n_bytes, merged });
        }
    }

    /// What is left, in order.
    pub(super) fn links(&self) -> impl Iterator<Item = Link> {
        self.links.iter().copied().filter(|link| link.n_bytes > 0)
    }
}
