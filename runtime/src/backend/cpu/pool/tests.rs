use super::*;

#[test]
fn every_item_is_done_once() {
    for n_threads in [1, 2, 3, 8] {
        let pool = Pool::new(n_threads).unwrap();
        for n_items in [0, 1, 2, 7, 64, 1000] {
            for grain in [1, 3, 16] {
                let counts: Vec<AtomicUsize> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
                pool.run(n_items, grain, |worker, chunks| {
                    assert!(worker < n_threads);
                    while let Some(range) = chunks.take() {
                        assert!(range.start.is_multiple_of(grain) && !range.is_empty());
                        assert!(range.end.is_multiple_of(grain) || range.end == n_items);
                        range.for_each(|i| {
                            counts[i].fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }
}

#[test]
fn every_item_is_done_once_apart_too() {
    for n_threads in [1, 2, 3, 8] {
        let pool = Pool::new(n_threads).unwrap();
        for n_items in [0, 1, 2, 7, 64, 1000] {
            for grain in [1, 3, 16] {
                let counts: Vec<AtomicUsize> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
                pool.run_in(Order::Apart, n_items, grain, |_, chunks| {
                    while let Some(range) = chunks.take() {
                        assert!(range.start.is_multiple_of(grain) && !range.is_empty());
                        assert!(range.end.is_multiple_of(grain) || range.end == n_items);
                        range.for_each(|i| {
                            counts[i].fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }
}

#[test]
fn workers_begin_in_parts_of_their_own_and_then_help() {
    let (cut, counters) = (Cut::new(100, 1, 3, Order::Apart), Counters::new(3));
    counters.open(&cut);
    let firsts: Vec<usize> =
        (0..3).map(|worker| counters.chunks(cut, worker).take().unwrap().start).collect();
    assert_eq!(firsts, [0, 33, 66]);
    // One worker alone: first the rest of its own part, in order, then the others'.
    let last = counters.chunks(cut, 2);
    let starts: Vec<usize> = std::iter::from_fn(|| last.take()).map(|range| range.start).collect();
    let own = starts.iter().take_while(|start| **start > 66).count();
    assert!(own > 1 && starts[..own].is_sorted(), "{starts:?}");
    assert!(starts[own..].iter().all(|start| *start < 66) && starts.len() > own, "{starts:?}");
    assert!((0..3).all(|worker| counters.chunks(cut, worker).take().is_none()));
}

#[test]
fn what_followed_a_product_is_asked_for_when_it_comes_again() {
    let trail = Trail::new(2);
    let bytes = vec![0u8; 3 * trail::MAX_BYTES];
    let at = |i: usize| bytes.as_ptr().addr() + i * trail::MAX_BYTES;
    let mut asked = Asked::default();
    trail.begins(1, [at(0), at(0) + 64].into_iter());
    assert!(!asked.more(&trail, 1), "nobody knows yet what follows");
    trail.begins(2, [at(1), at(2)].into_iter());
    assert!(!asked.more(&trail, 1));
    // The second token.
    trail.begins(1, [at(0), at(0) + 64].into_iter());
    let n = std::iter::from_fn(|| asked.more(&trail, 1).then_some(())).count();
    assert!(n > 1 && asked.place() == (at(2), trail::MAX_BYTES));
    assert!(!asked.more(&trail, 1), "once");
    trail.begins(2, [at(1), at(2)].into_iter());
    assert!(asked.more(&trail, 1) && asked.place().0 == at(0) + 64);
}

#[test]
fn rows_are_written_by_one_worker_each() {
    let pool = Pool::new(4).unwrap();
    let mut data = vec![0usize; 1000 * 3];
    for round in 0..200 {
        pool.split(&Rows::new(&mut data, 3), 7, |range, part| {
            for (row, out) in range.zip(part.chunks_exact_mut(3)) {
                out.fill(row + round);
            }
        });
        assert!(data.iter().enumerate().all(|(i, &v)| v == i / 3 + round));
    }
}

#[test]
fn a_panic_on_any_thread_reaches_the_caller_and_the_pool_lives_on() {
    let pool = Pool::new(3).unwrap();
    for bad in [0, 50, 99] {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, 1, |_, chunks| {
                while let Some(range) = chunks.take() {
                    assert!(!range.contains(&bad), "chunk {bad} fails");
                }
            });
        }));
        let payload = outcome.unwrap_err();
        let text = payload.downcast_ref::<String>().cloned().unwrap_or_default();
        assert_eq!(text, format!("chunk {bad} fails"));
        let sum = AtomicUsize::new(0);
        pool.run(100, 1, |_, chunks| {
            while let Some(range) = chunks.take() {
                sum.fetch_add(range.sum::<usize>(), Ordering::Relaxed);
            }
        });
        assert_eq!(sum.into_inner(), 4950);
    }
}

#[test]
fn parked_workers_wake_up() {
    let pool = Pool::new(2).unwrap();
    let helped = AtomicBool::new(false);
    // The caller leaves the work to the other thread, so the region ends only if it woke.
    for _ in 0..3 {
        std::thread::sleep(SPIN * 50);
        helped.store(false, Ordering::SeqCst);
        pool.run(2, 1, |worker, _| {
            if worker == 1 {
                helped.store(true, Ordering::SeqCst);
            }
            while !helped.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
        assert!(helped.load(Ordering::SeqCst));
    }
}

#[test]
fn regions_of_several_callers_take_turns() {
    let pool = Pool::new(2).unwrap();
    let total = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    pool.run(10, 1, |_, chunks| {
                        while let Some(range) = chunks.take() {
                            total.fetch_add(range.len(), Ordering::Relaxed);
                        }
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 4 * 500 * 10);
}

/// Run with `--release -- --ignored --nocapture` on a quiet machine: a region that nobody has to
/// join, and one that ends only when all have.
#[test]
#[ignore = "a measurement, not a check"]
fn latency_of_a_region() {
    for n_threads in [1, 2] {
        let pool = Pool::new(n_threads).unwrap();
        let n = 200_000u32;
        let start = Instant::now();
        for _ in 0..n {
            pool.run(4, 1, |_, chunks| while chunks.take().is_some() {});
        }
        println!("{n_threads} threads: {:?} a region", start.elapsed() / n);
        let start = Instant::now();
        for _ in 0..n {
            let n_joined = AtomicUsize::new(0);
            pool.run(4, 1, |_, _| {
                n_joined.fetch_add(1, Ordering::Relaxed);
                while n_joined.load(Ordering::Relaxed) < n_threads {
                    std::hint::spin_loop();
                }
            });
        }
        println!("{n_threads} threads: {:?} a region that all join", start.elapsed() / n);
    }
}
