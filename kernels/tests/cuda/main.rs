//! GPU kernels against the CPU's oracle and plain f64, on poisoned outputs.
//!
//! A program of its own: on a machine without a GPU it says how many tests it skipped and why, and
//! a prebuilt copy runs where there is a driver and nothing else. An argument is a filter, and
//! `--skip=TEXT` leaves out what has TEXT in its name.
#![allow(clippy::print_stdout)] // a test program
#![allow(clippy::unwrap_used)] // what fails here fails the test

#[path = "../fixture/mod.rs"]
mod fixture;

mod attention;
mod cluster;
mod experts;
mod fresh;
mod products;
mod rest;
mod ring;
mod sm90;

use kernels::cuda::{Gpu, probe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;

type Test = (&'static str, fn(&Arc<Gpu>));

fn main() -> ExitCode {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let all = [
        products::TESTS,
        experts::TESTS,
        attention::TESTS,
        rest::TESTS,
        fresh::TESTS,
        cluster::TESTS,
        ring::TESTS,
    ];
    let skipped: Vec<String> =
        std::env::args().filter_map(|arg| arg.strip_prefix("--skip=").map(str::to_owned)).collect();
    let is_chosen =
        |name: &str| name.contains(&filter) && !skipped.iter().any(|skip| name.contains(skip));
    let tests: Vec<Test> = all.concat().into_iter().filter(|(name, _)| is_chosen(name)).collect();
    if let Err(why) = probe(0) {
        println!("cuda: 0 run, {} skipped: {why}", tests.len());
        let needed = std::env::var("MINFER_NEED_GPU").is_ok_and(|value| value == "1");
        return if needed { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let chained = !std::env::args().any(|arg| arg == "--unchained");
    let gpu = Gpu::open(0, chained).unwrap();
    println!("cuda: on {}", gpu.info().name);
    let mut n_failed = 0;
    for (name, test) in &tests {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            test(&gpu);
            gpu.synchronize().unwrap();
        }));
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        n_failed += u32::from(outcome.is_err());
    }
    println!("cuda: {} run, {n_failed} failed, 0 skipped", tests.len());
    if n_failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A NaN that no kernel makes.
pub(crate) const POISON: u32 = 0x7fc0_dead;

/// Asserts that `found` is `expected` up to `tolerance` times `scale` (one number, or one an
/// element).
pub(crate) fn assert_close(what: &str, found: &[f32], expected: &[f64], scale: &[f64], tol: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: lengths");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let bound = tol * scale[i % scale.len()] + 1e-30;
        let off = (f64::from(found) - expected).abs();
        assert!(off <= bound, "{what}[{i}]: found {found}, expected {expected}, bound {bound:e}");
    }
}
