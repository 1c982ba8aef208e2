//! The tests of speed: every model, every combination of the flags.

use crate::args::Args;
use crate::device::{failure, load_options, max_bytes, report_fallbacks};
use crate::limits::Limits;
use crate::measure::{self, Way};
use crate::open::ModelFile;
use crate::output::Output;
use crate::plan::{Grid, Setup, Test};
use crate::record::{Place, Reached, Row};
use crate::subject::Subject;
use crate::work::Work;
use crate::{machine, stats};
use cli::{Bytes, ExitCode, Failure, Ui};
use runtime::{LoadWatch, Model};
use std::path::Path;
use std::time::Duration;

/// Measures and prints.
///
/// # Errors
/// Whatever ends the tests early; what was measured before has been printed.
pub(crate) fn run(args: &Args, ui: &Ui) -> Result<ExitCode, Failure> {
    let grid = args.grid()?;
    let mut output = Output::new(args, ui, &grid);
    let done = all(args, ui, &grid, &mut output);
    output.end()?;
    done.map(|()| ExitCode::Ok)
}

fn all(args: &Args, ui: &Ui, grid: &Grid, output: &mut Output<'_>) -> Result<(), Failure> {
    let tests = grid.tests();
    let n_all = tests.len() * args.models().count();
    let mut limits = Limits::default();
    let mut n_begun = 0;
    let mut paths = args.models().peekable();
    while let Some(path) = paths.next() {
        let file = ModelFile::open(path)?;
        let container = file.container()?;
        file.verify(&container, args.flags.device.verify, ui)?;
        let subject = Subject::of(path, &container)?;
        let mut loaded: Option<(Setup, Model<'_>, Work)> = None;
        for &(setup, test) in &tests {
            n_begun += 1;
            let say = |what: &str| {
                if args.says_progress() {
                    ui.note(format_args!("minfer-bench: benchmark {n_begun}/{n_all}: {what}"));
                }
            };
            say("starting");
            // The old one goes before the new one comes: both may not fit.
            if loaded.as_ref().is_some_and(|(of, ..)| *of != setup) {
                loaded = None;
            }
            let (_, model, work) = match &mut loaded {
                Some(loaded) => loaded,
                none => {
                    let options = load_options(setup.tier, setup.n_threads)?;
                    let silent = LoadWatch::SILENT;
                    let model = setup
                        .placement
                        .open(ui, &file.map, &container, &options, silent)
                        .map_err(|e| file.blame(e))?;
                    report_fallbacks(ui, &model, args.flags.device.strict)?;
                    check_trained(ui, path, &model, grid);
                    let work = Work::of(&model, &container);
                    none.insert((setup, model, work))
                }
            };
            check_fits(model, &test).map_err(|e| file.blame(e))?;
            std::thread::sleep(Duration::from_secs(args.flags.test.delay.into()));
            let row =
                measure_one(args, ui, &subject, model, work, &setup, &test, &mut limits, say)?;
            output.row(&row)?;
        }
        if paths.peek().is_none() {
            // The end of the process gives everything back at once; piece by piece it takes a driver a
            // tenth of a second.
            std::mem::forget(loaded);
        }
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "one call: everything that a row is made of")]
fn measure_one(
    args: &Args,
    ui: &Ui,
    subject: &Subject,
    model: &Model<'_>,
    work: &Work,
    setup: &Setup,
    test: &Test,
    limits: &mut Limits,
    say: impl FnMut(&str),
) -> Result<Row, Failure> {
    let place = Place::of(model, setup);
    let flags = &args.flags.test;
    let way = Way {
        n_repetitions: flags.repetitions as usize,
        warm_up: !flags.no_warmup,
        greedy: flags.greedy,
    };
    let test_time = machine::time();
    // Beside the test itself: a machine that others use has not the same memory a minute later.
    let (read, dot) = match &place.gpu {
        _ if flags.no_limits => (None, None),
        // Of a model on two devices neither's limit is the limit.
        Some(_) if model.gpu_layers().is_some_and(|layers| layers.start > 0) => (None, None),
        Some((ordinal, _)) => limits
            .gpu(*ordinal, room(model)?, |line| ui.note(format_args!("{line}")))
            .map_err(|e| failure(e.into()))?,
        None if test.n_prompt == 0 => (limits.read(setup.tier, setup.n_threads), None),
        None if test.n_gen == 0 => (None, limits.dot(setup.tier, setup.n_threads)),
        None => (None, None),
    };
    let samples_ns = measure::samples(model, subject, test, way, say)?;
    let median = stats::median(&samples_ns.iter().map(|&ns| ns as f64 / 1e9).collect::<Vec<_>>());
    let reached = Reached::of(work, test, median, read, dot);
    Ok(Row {
        subject: subject.clone(),
        place,
        setup: *setup,
        test: *test,
        greedy: flags.greedy,
        test_time,
        samples_ns,
        reached,
        load: None,
    })
}

/// Bytes of the GPU's memory that `MINFER_GPU_MEMORY` leaves beside the model.
///
/// # Errors
/// Wrong use: a value that the variable cannot have.
fn room(model: &Model<'_>) -> Result<u64, Failure> {
    let most = max_bytes()?;
    let taken = model.gpu_plan().map_or(0, |plan| plan.need_bytes());
    Ok(if most == 0 { u64::MAX } else { most.saturating_sub(taken) })
}

/// # Errors
/// If keys and values of the test do not fit into memory (5).
fn check_fits(model: &Model<'_>, test: &Test) -> Result<(), Failure> {
    // A GPU's memory was looked at when the model went there.
    if model.gpu().is_some() {
        return Ok(());
    }
    let need = model.memory().kv_bytes_per_token.saturating_mul(test.n_ctx() as u64);
    match cli::available_memory() {
        Some(available) if need > available => Err(Failure::new(
            ExitCode::Memory,
            format!(
                "{} needs {} for keys and values, {} are available",
                test.name(),
                Bytes(need),
                Bytes(available)
            ),
        )),
        _ => Ok(()),
    }
}

fn check_trained(ui: &Ui, path: &Path, model: &Model<'_>, grid: &Grid) {
    let (n_ctx, trained) = (grid.n_ctx(), model.config().n_ctx_train);
    if n_ctx > trained {
        ui.warn(format_args!(
            "{}: tests of up to {n_ctx} positions; the model was trained on {trained}",
            path.display()
        ));
    }
}
