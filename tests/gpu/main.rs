//! Whole models on a GPU: which kernels ran and how often, choices on the device, uploads, memory.
//!
//! A program of its own: on a machine without a GPU it says how many tests it skipped and why, and
//! a prebuilt copy runs where there is a driver and nothing else (`MINFER_NEED_GPU=1` makes a
//! missing GPU a failure). An argument is a filter, and `--skip=TEXT` leaves out what has TEXT in its name.
#![allow(clippy::print_stdout)] // a test program
#![allow(clippy::unwrap_used)] // what fails here fails the test

mod experts;
mod greedy;
mod launches;
mod memory;
mod model;
mod parity;
mod split;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

type Test = (&'static str, fn());

/// Tests that found what they need missing, and said so.
static N_SKIPPED: AtomicU32 = AtomicU32::new(0);

/// Counts the running test as skipped.
pub(crate) fn skip(why: &str) {
    println!("  skipped: {why}");
    N_SKIPPED.fetch_add(1, Ordering::Relaxed);
}

fn main() -> ExitCode {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let skipped: Vec<String> =
        std::env::args().filter_map(|arg| arg.strip_prefix("--skip=").map(str::to_owned)).collect();
    let is_chosen =
        |name: &str| name.contains(&filter) && !skipped.iter().any(|skip| name.contains(skip));
    let tests: Vec<Test> = [
        launches::TESTS,
        experts::TESTS,
        greedy::TESTS,
        memory::TESTS,
        parity::TESTS,
        split::TESTS,
    ]
    .concat()
    .into_iter()
    .filter(|(name, _)| is_chosen(name))
    .collect();
    let needed = std::env::var("MINFER_NEED_GPU").is_ok_and(|value| value == "1");
    let info = match runtime::probe_gpu(0) {
        Ok(info) => info,
        Err(why) => {
            println!("gpu: 0 run, {} skipped: {why}", tests.len());
            return if needed { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    println!("gpu: on {}", info.name);
    let mut n_failed = 0;
    for (name, test) in &tests {
        let before = N_SKIPPED.load(Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(test));
        let n_skipped = N_SKIPPED.load(Ordering::Relaxed);
        let word = match outcome {
            Err(_) => "FAILED",
            Ok(()) if n_skipped > before => "skipped",
            Ok(()) => "ok",
        };
        println!("test {name} ... {word}");
        n_failed += u32::from(outcome.is_err());
    }
    let n_skipped = N_SKIPPED.load(Ordering::Relaxed);
    let n_run = tests.len() - n_skipped as usize;
    println!("gpu: {n_run} run, {n_failed} failed, {n_skipped} skipped");
    if n_failed == 0 && !(needed && n_skipped > 0) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
