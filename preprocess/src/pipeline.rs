//! Ordered parallel work: jobs are claimed in order, and each may wait for its turn.
//!
//! Leaves of an object are hashed on all threads, but the object's xxh3 runs over its bytes in
//! order. Because jobs are claimed strictly in order, the job before a waiting one is always held
//! by a running worker, so that waiting cannot deadlock.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// Runs jobs `0..n_jobs` on every thread of the rayon pool that this is called in, claimed in
/// order; `init` makes each worker's scratch.
///
/// # Errors
/// The error of the earliest job that failed; jobs not yet claimed then are not run.
pub(crate) fn run_in_order<S>(
    n_jobs: usize,
    init: impl Fn() -> S + Sync,
    job: impl Fn(&mut S, usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let first_error = Mutex::new(None::<(usize, Error)>);
    let worker = || {
        let mut scratch = init();
        while !failed.load(Ordering::Relaxed) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n_jobs {
                break;
            }
            if let Err(error) = job(&mut scratch, i) {
                failed.store(true, Ordering::Relaxed);
                let mut first = lock(&first_error);
                if first.as_ref().is_none_or(|(at, _)| i < *at) {
                    *first = Some((i, error));
                }
            }
        }
    };
    rayon::scope(|scope| {
        for _ in 0..rayon::current_num_threads().min(n_jobs) {
            scope.spawn(|_| worker());
        }
    });
    let first = first_error.into_inner().unwrap_or_else(PoisonError::into_inner);
    first.map_or(Ok(()), |(_, error)| Err(error))
}

/// A value that jobs update one after the other, in the order of their turn numbers.
#[derive(Debug)]
pub(crate) struct InTurn<T> {
    state: Mutex<State<T>>,
    moved: Condvar,
}

#[derive(Debug)]
struct State<T> {
    next: usize,
    value: T,
    abandoned: bool,
}

impl<T> InTurn<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            state: Mutex::new(State { next: 0, value, abandoned: false }),
            moved: Condvar::new(),
        }
    }

    /// Waits until the turns before `turn` are over, then updates the value. Does nothing once a
    /// turn was abandoned.
    pub(crate) fn update(&self, turn: usize, f: impl FnOnce(&mut T)) {
        let mut state = lock(&self.state);
        while state.next != turn && !state.abandoned {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !state.abandoned {
            f(&mut state.value);
            state.next += 1;
        }
        drop(state);
        self.moved.notify_all();
    }

    /// Lets every waiting turn go on without updating: a job before them failed.
    pub(crate) fn abandon(&self) {
        lock(&self.state).abandoned = true;
        self.moved.notify_all();
    }

    /// A turn that abandons the value if the job ends, by error or panic, before it was taken.
    pub(crate) fn turn(&self, turn: usize) -> Turn<'_, T> {
        Turn { in_turn: self, turn, taken: false }
    }

    /// The value, if every one of `n_turns` was taken.
    pub(crate) fn finish(self, n_turns: usize) -> Option<T> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        (state.next == n_turns && !state.abandoned).then_some(state.value)
    }
}

/// See [`InTurn::turn`].
#[derive(Debug)]
pub(crate) struct Turn<'a, T> {
    in_turn: &'a InTurn<T>,
    turn: usize,
    taken: bool,
}

impl<T> Turn<'_, T> {
    /// Waits for the turn and updates the value.
    pub(crate) fn take(mut self, f: impl FnOnce(&mut T)) {
        self.taken = true;
        self.in_turn.update(self.turn, f);
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        if !self.taken {
            self.in_turn.abandon();
        }
    }
}

/// Locks; a panic elsewhere ends the process anyway, so its half-done value is not looked at.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(n_threads: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().expect("a pool")
    }

    #[test]
    fn turns_are_taken_in_order_whatever_the_threads() {
        for n_threads in [1, 2, 7] {
            let order = InTurn::new(Vec::new());
            let push = |i| {
                order.turn(i).take(|order| order.push(i));
                Ok(())
            };
            let run = || run_in_order(100, || (), |(), i| push(i));
            assert!(pool(n_threads).install(run).is_ok());
            assert_eq!(order.finish(100), Some((0..100).collect()));
        }
    }

    #[test]
    fn the_earliest_error_is_reported_and_nobody_waits_for_it() {
        for n_threads in [1, 2, 7] {
            let order = InTurn::new(0);
            let job = |i: usize| {
                let turn = order.turn(i);
                if i >= 10 {
                    return Err(Error::NotVerified(i.to_string()));
                }
                turn.take(|n| *n += 1);
                Ok(())
            };
            let run = || run_in_order(50, || (), |(), i| job(i));
            let error = pool(n_threads).install(run).expect_err("job 10 fails");
            assert!(matches!(error, Error::NotVerified(at) if at == "10"));
            assert_eq!(order.finish(50), None);
        }
    }
}
