//! Every bit counts: each flipped bit of a container is found by verification, and whatever a
//! flipped bit does to the runtime, it answers.
//!
//! A run verifies with every 7th bit flipped and generates with every 97th;
//! `cargo test --release -p tests --test it -- --ignored --nocapture every_bit` takes all of them.

use std::time::{Duration, Instant};

use format_spec::container::Container;
use preprocess::verify::{self, Finding};
use tests::packing::pack;
use tests::properties::generate;
use tests::tiny_model::smallest_model;

const PLANES: [&str; 3] = ["default", "planar,bf16", "tile"];

/// What `minfer-verify` does without options.
fn check(file: &Vec<u8>) -> Result<Vec<Finding>, preprocess::Error> {
    let front = verify::read_front(file, file.len() as u64)?;
    let container = verify::open(&front, file.len() as u64)?;
    let mut findings = verify::gaps(file, &container)?;
    findings.extend(verify::hashes(file, &container, &|_| ())?);
    Ok(findings)
}

/// Flips every `step`th bit for the verifier and every `run_step`th of these for the runtime; returns
/// how many there were of each, and how many did not keep the runtime from running.
fn flip(planes: &str, step: usize, run_step: usize) -> (usize, usize, usize) {
    let mut file = pack(&smallest_model(), planes);
    assert_eq!(check(&file).unwrap(), []);
    assert_eq!(generate(&file, &[1, 2], 2).unwrap().len(), 2);
    let container = Container::parse(&file).unwrap();
    let data_offset = container.header().data_offset as usize;
    let objects: Vec<_> =
        container.objects().iter().map(|o| (o.tensor.clone(), o.range())).collect();
    let (mut n_flips, mut n_runs, mut n_ran) = (0, 0, 0);
    for bit in (0..8 * file.len()).step_by(step) {
        let at = bit / 8;
        file[at] ^= 1 << (bit % 8);
        match check(&file) {
            Err(error) => {
                assert!(at < data_offset, "bit {bit}: {error}");
                assert_eq!(error.class(), preprocess::Class::Input, "bit {bit}: {error}");
            }
            Ok(findings) => {
                let at = at as u64;
                let found = findings.iter().find(|found| found.bytes.contains(&at));
                let found = found.unwrap_or_else(|| panic!("bit {bit} not found: {findings:?}"));
                // Named: the object, or the padding between objects.
                let object = objects.iter().find(|(_, range)| range.contains(&at));
                let name = object.map_or("padding", |(name, _)| name);
                assert_eq!(found.tensor, name, "bit {bit}");
            }
        }
        n_flips += 1;
        if n_flips % run_step > 0 {
            file[at] ^= 1 << (bit % 8);
            continue;
        }
        n_runs += 1;
        let start = Instant::now();
        match generate(&file, &[1, 2], 2) {
            Ok(tokens) => {
                assert!(at >= data_offset && tokens.len() == 2, "bit {bit}");
                n_ran += 1;
            }
            Err(error) => assert!(!error.is_empty(), "bit {bit}"),
        }
        assert!(start.elapsed() < Duration::from_secs(20), "bit {bit} took {:?}", start.elapsed());
        file[at] ^= 1 << (bit % 8);
    }
    (n_flips, n_runs, n_ran)
}

#[test]
fn every_seventh_bit() {
    for planes in PLANES {
        // 7 and 97 have no factor in common with 8: all places in a byte have their turn.
        let (n_flips, n_runs, n_ran) = flip(planes, 7, 97);
        assert!(n_flips > 10_000 && n_runs > 100 && n_ran > 0, "{n_flips} {n_runs} {n_ran}");
    }
}

#[test]
#[ignore = "takes minutes to an hour"]
fn every_bit() {
    let run_step = std::env::var("BITS_RUN_STEP").map_or(1, |step| step.parse().unwrap());
    for planes in PLANES {
        let (n_flips, n_runs, n_ran) = flip(planes, 1, run_step);
        println!(
            "--planes {planes}: {n_flips} bits flipped, all found and named; {n_runs} given to the \
             runtime, which ran with {n_ran} and refused the others"
        );
    }
}
