//! The thread pool: persistent workers that meet in short regions.
//!
//! A decoded token passes through a few hundred regions of some microseconds each, so a region
//! must cost less than a system call. Workers spin for a bounded time and park after it; chunks
//! are handed out by atomic counters; the caller works too.
//!
//! A region never waits for a worker that has not begun. The caller closes the region once the
//! chunks are gone, and then waits only for those that joined before. On a machine that is busy
//! with something else a late worker therefore costs its help, not a time slice.
//!
//! This module and its child are the only ones of the crate with `unsafe` in them. Two facts carry it:
//! * a region's closure is called only between a successful join and the leave that follows, and
//!   [`Pool::run`] returns (or unwinds) only when the region is closed and all joiners have left;
//! * [`Chunks`] hands every index of a region to exactly one caller.
#![allow(unsafe_code)] // lifetime erasure of the region's closure and disjoint `&mut` parts

mod chunks;
mod kernels;
mod trail;

use self::chunks::{Chunks, Counters, Cut, Order};
pub(crate) use self::kernels::{Product, Queries};
use self::trail::{Asked, Trail};
use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a worker spins for the next region before it parks. Longer than the serial stretches
/// of a decode step, far shorter than a scheduler's time slice.
const SPIN: Duration = Duration::from_micros(60);
/// Spins of the caller on a worker's last chunk before it offers its time slice to others.
const CALLER_SPINS: u32 = 4000;

/// State word: the region's number in the high half, then the open bit, then the joiners.
const OPEN: u64 = 1 << 31;
const JOINED: u64 = OPEN - 1;
const EPOCH_SHIFT: u32 = 32;

/// One cache line a counter: otherwise every chunk taken would disturb the state's readers.
#[repr(align(128))]
struct Padded<T>(T);

/// What the workers of a region call: worker index and where to get chunks.
type Body<'f> = dyn Fn(usize, &Chunks<'_>) + Sync + 'f;

#[derive(Clone, Copy)]
struct Job {
    /// The region's closure, its lifetime erased.
    body: *const Body<'static>,
    cut: Cut,
}

struct Shared {
    state: Padded<AtomicU64>,
    next: Counters,
    trail: Trail,
    /// What the pool's caller has asked for while it waited.
    asked: Mutex<Asked>,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written by the holder of the region lock while the region is closed and
// nobody is joined, and read only by joiners; the state word's release/acquire pair orders both.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used only while the caller of `run` keeps the closure alive,
// and the closure is `Sync`, so calling it from another thread is allowed.
unsafe impl Send for Shared {}

struct Worker {
    thread: Thread,
    parked: Arc<Padded<AtomicBool>>,
    handle: Option<JoinHandle<()>>,
}

/// Persistent worker threads for data-parallel regions.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// Held for the length of a region: regions of several sessions take turns.
    region: Mutex<()>,
}

/// The range in pieces of `grain`, so that a long chunk is still worked on in the cache.
fn pieces(range: Range<usize>, grain: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(grain).map(move |start| start..end.min(start + grain))
}

impl Pool {
    /// A pool of `n_threads` threads in all, the caller of [`run`](Self::run) among them.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub(crate) fn new(n_threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Padded(AtomicU64::new(0)),
            next: Counters::new(n_threads),
            trail: Trail::new(n_threads.max(1)),
            asked: Mutex::default(),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Self { shared, workers: Vec::new(), region: Mutex::new(()) };
        for index in 1..n_threads.max(1) {
            let parked = Arc::new(Padded(AtomicBool::new(false)));
            let (shared, flag) = (Arc::clone(&pool.shared), Arc::clone(&parked));
            let handle = std::thread::Builder::new()
                .name(format!("minfer-{index}"))
                .spawn(move || work(&shared, &flag.0, index))?;
            let thread = handle.thread().clone();
            pool.workers.push(Worker { thread, parked, handle: Some(handle) });
        }
        Ok(pool)
    }

    /// Threads that work on a region, the caller included.
    pub(crate) fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `body(worker, chunks)` on the caller (worker 0) and on every worker that is awake in
    /// time; `chunks` hands out `0..n_items` in pieces of whole `grain`s.
    ///
    /// Results must not depend on who takes which chunk. With one thread, or one chunk, the body
    /// runs inline. A region must not start another one.
    ///
    /// # Panics
    /// If the body panics on any thread, with that panic's payload.
    pub(crate) fn run(
        &self,
        n_items: usize,
        grain: usize,
        body: impl Fn(usize, &Chunks<'_>) + Sync,
    ) {
        self.run_in(Order::Together, n_items, grain, body);
    }

    /// As [`run`](Self::run), in an order that the caller chooses.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub(crate) fn run_in(
        &self,
        order: Order,
        n_items: usize,
        grain: usize,
        body: impl Fn(usize, &Chunks<'_>) + Sync,
    ) {
        let grain = grain.max(1);
        if self.workers.is_empty() || n_items <= grain {
            let next = [Padded(AtomicUsize::new(0))];
            return body(0, &Chunks::whole(&next, n_items, grain));
        }
        let cut = Cut::new(n_items, grain, self.n_threads(), order);
        // A panic in an earlier region poisons the lock, but leaves nothing half done behind it.
        let region: MutexGuard<'_, ()> = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = catch_unwind(AssertUnwindSafe(|| self.region(cut, &body)));
        let theirs = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(region);
        if let Err(payload) = mine {
            resume_unwind(payload);
        }
        if let Some(payload) = theirs {
            resume_unwind(payload);
        }
    }

    fn region(&self, cut: Cut, body: &Body<'_>) {
        let shared = &*self.shared;
        let erased: *const Body<'_> = body;
        // SAFETY: only the lifetime changes. The pointer is read by joiners of this region alone,
        // and `Close` below waits for them before the closure's borrow ends, unwinding included.
        let erased: *const Body<'static> = unsafe { std::mem::transmute(erased) };
        shared.next.open(&cut);
        // SAFETY: the region lock is held and the last region is closed with nobody joined, so
        // no other thread reads or writes the cell.
        unsafe { *shared.job.get() = Some(Job { body: erased, cut }) };
        let epoch = (shared.state.0.load(Ordering::Relaxed) >> EPOCH_SHIFT).wrapping_add(1);
        // SeqCst pairs with the worker's "parked, then look again": one of the two sees the other.
        shared.state.0.store(epoch << EPOCH_SHIFT | OPEN, Ordering::SeqCst);
        for worker in &self.workers {
            if worker.parked.0.load(Ordering::SeqCst) {
                worker.parked.0.store(false, Ordering::Relaxed);
                worker.thread.unpark();
            }
        }
        let close = Close(shared);
        body(0, &shared.next.chunks(cut, 0));
        drop(close);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            if let Some(handle) = worker.handle.take() {
                // A worker catches the panics of its bodies; there is nothing to report here.
                let _ = handle.join();
            }
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("n_threads", &self.n_threads()).finish()
    }
}

/// Closes the region when dropped and waits for the workers that joined it.
struct Close<'s>(&'s Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let state = &self.0.state.0;
        // If the body panicked, chunks may be left: nobody shall start them.
        self.0.next.close();
        let mut joined = state.fetch_and(!OPEN, Ordering::AcqRel) & JOINED;
        let mut spins = 0;
        // Kept between regions: what was asked for once is not asked for again after each of a prompt's.
        let mut asked = self.0.asked.lock().unwrap_or_else(PoisonError::into_inner);
        while joined != 0 {
            spins += 1;
            match spins < CALLER_SPINS {
                _ if asked.more(&self.0.trail, 0) => {}
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
            joined = state.load(Ordering::Acquire) & JOINED;
        }
    }
}

/// A worker's life: wait for a region, join it if it is still open, work, leave.
fn work(shared: &Shared, parked: &AtomicBool, index: usize) {
    let mut seen = 0;
    let mut asked = Asked::default();
    while let Some(state) = wait(shared, parked, seen, || asked.more(&shared.trail, index)) {
        seen = state >> EPOCH_SHIFT;
        if !join(shared, state) {
            continue;
        }
        // SAFETY: joined, so the caller neither ends the region nor writes the cell before the
        // leave below; the acquire of the join makes its earlier write visible.
        let job = unsafe { *shared.job.get() };
        if let Some(job) = job {
            // SAFETY: as above, the closure lives until this worker has left.
            let body = unsafe { &*job.body };
            let chunks = shared.next.chunks(job.cut, index);
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| body(index, &chunks))) {
                shared.next.close();
                *shared.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
            }
        }
        shared.state.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Adds this worker to the region of `state`, if that region is still open.
fn join(shared: &Shared, mut state: u64) -> bool {
    let epoch = state >> EPOCH_SHIFT;
    loop {
        if state >> EPOCH_SHIFT != epoch || state & OPEN == 0 {
            return false;
        }
        match shared.state.0.compare_exchange_weak(
            state,
            state + 1,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return true,
            Err(now) => state = now,
        }
    }
}

/// Waits for a region with another number than `seen`: as long as `ask` has something to do, then spinning, then
/// parked. `None` to stop.
fn wait(
    shared: &Shared,
    parked: &AtomicBool,
    seen: u64,
    mut ask: impl FnMut() -> bool,
) -> Option<u64> {
    let mut since = None;
    let mut spins = 0u32;
    loop {
        let state = shared.state.0.load(Ordering::Acquire);
        if state >> EPOCH_SHIFT != seen && state & OPEN != 0 {
            return Some(state);
        }
        if ask() {
            continue;
        }
        spins = spins.wrapping_add(1);
        if !spins.is_multiple_of(64) {
            std::hint::spin_loop();
            continue;
        }
        if since.get_or_insert_with(Instant::now).elapsed() < SPIN {
            continue;
        }
        parked.store(true, Ordering::SeqCst);
        if shared.stop.load(Ordering::SeqCst) {
            return None;
        }
        let state = shared.state.0.load(Ordering::SeqCst);
        if state >> EPOCH_SHIFT == seen || state & OPEN == 0 {
            std::thread::park();
        }
        parked.store(false, Ordering::SeqCst);
        if shared.stop.load(Ordering::SeqCst) {
            return None;
        }
        since = None;
    }
}

/// Mutable rows of one slice, `[n_rows, width]`, that workers take apart by rows.
pub(crate) struct Rows<'d, T> {
    data: *mut T,
    n_rows: usize,
    width: usize,
    lifetime: PhantomData<&'d mut [T]>,
}

// SAFETY: a `Rows` gives out `&mut T` of disjoint ranges only, which is sound for `T: Send`.
unsafe impl<T: Send> Sync for Rows<'_, T> {}

impl<'d, T> Rows<'d, T> {
    /// Views `data` as `[data.len() / width, width]`.
    pub(crate) fn new(data: &'d mut [T], width: usize) -> Self {
        let n_rows = data.len().checked_div(width).unwrap_or(0);
        Self { data: data.as_mut_ptr(), n_rows, width, lifetime: PhantomData }
    }

    /// The rows of `range`.
    ///
    /// # Safety
    /// No part with an overlapping range may be alive.
    unsafe fn part(&self, range: Range<usize>) -> &'d mut [T] {
        assert!(range.start <= range.end && range.end <= self.n_rows, "rows {range:?}");
        let start = self.data.wrapping_add(range.start * self.width);
        // SAFETY: inside the slice as just checked, and unique by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(start, range.len() * self.width) }
    }
}

impl Pool {
    /// Splits `rows` into pieces of `grain` and calls `body(range, part)` for each, once.
    ///
    /// # Panics
    /// If the body panics on any thread.
    pub(crate) fn split<T: Send>(
        &self,
        rows: &Rows<'_, T>,
        grain: usize,
        body: impl Fn(Range<usize>, &mut [T]) + Sync,
    ) {
        self.run(rows.n_rows, grain, |_, chunks| {
            while let Some(chunk) = chunks.take() {
                for range in pieces(chunk, grain) {
                    // SAFETY: `Chunks` hands out each index once.
                    let part = unsafe { rows.part(range.clone()) };
                    body(range, part);
                }
            }
        });
    }

    /// Splits two matrices of equally many rows together; otherwise as [`split`](Self::split).
    ///
    /// # Panics
    /// If the body panics on any thread, or the numbers of rows differ.
    pub(crate) fn split2<T: Send, U: Send>(
        &self,
        a: &Rows<'_, T>,
        b: &Rows<'_, U>,
        grain: usize,
        body: impl Fn(Range<usize>, &mut [T], &mut [U]) + Sync,
    ) {
        assert_eq!(a.n_rows, b.n_rows, "rows split together");
        self.run(a.n_rows, grain, |_, chunks| {
            while let Some(chunk) = chunks.take() {
                for range in pieces(chunk, grain) {
                    // SAFETY: `Chunks` hands out each index once.
                    let part_a = unsafe { a.part(range.clone()) };
                    // SAFETY: `Chunks` hands out each index once.
                    let part_b = unsafe { b.part(range.clone()) };
                    body(range, part_a, part_b);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests;
