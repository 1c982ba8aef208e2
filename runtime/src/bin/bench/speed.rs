//! The tests of speed: every model, every combination of the flags.

use crate::args::Args;
use crate::device::{Placement, failure, report_fallbacks};
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
use format_spec::container::Container;
use runtime::report::MemoryReport;
use runtime::{LoadWatch, Model};
use std::collections::HashSet;
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

/// A model that can be measured, as far as that is known before.
struct Candidate<'f> {
    file: &'f ModelFile,
    container: Container<'f>,
    subject: Subject,
}

impl<'f> Candidate<'f> {
    /// # Errors
    /// Whatever is wrong with the file, or with its tests on a CPU.
    fn of(grid: &Grid, file: &'f ModelFile) -> Result<Self, Failure> {
        file.watch()?;
        let container = file.container()?;
        let memory = Model::memory_of(&container).map_err(|e| file.blame(failure(e)))?;
        if grid.placements.iter().any(Placement::is_on_cpu)
            && let Some((_, longest)) = grid.tests().iter().max_by_key(|(_, test)| test.n_ctx())
        {
            check_fits(&memory, longest).map_err(|e| file.blame(e))?;
        }
        let subject = Subject::of(&file.path, &container)?;
        Ok(Self { file, container, subject })
    }
}

fn all(args: &Args, ui: &Ui, grid: &Grid, output: &mut Output<'_>) -> Result<(), Failure> {
    // All of them before the first test: minutes later is too late to hear of a name that was
    // mistyped. What takes no time comes first.
    let files = args.models().map(|path| ModelFile::open(path)).collect::<Result<Vec<_>, _>>()?;
    let candidates = files.iter().map(|file| Candidate::of(grid, file));
    let candidates = candidates.collect::<Result<Vec<_>, _>>()?;
    for Candidate { file, container, .. } in &candidates {
        file.watch()?;
        file.verify(container, args.flags.device.verify, ui)?;
    }
    let mut so_far = SoFar::default();
    for (i, candidate) in candidates.iter().enumerate() {
        candidate.file.watch()?;
        let kept = of_model(args, ui, grid, candidate, &mut so_far, output)?;
        if i + 1 == candidates.len() {
            // The end of the process gives everything back at once; piece by piece it takes a driver a
            // tenth of a second.
            std::mem::forget(kept);
        }
    }
    Ok(())
}

/// What is known of the tests before.
#[derive(Default)]
struct SoFar {
    limits: Limits,
    n_begun: usize,
    /// Each is said once, however often the model is opened.
    warnings: HashSet<String>,
}

impl SoFar {
    fn warn(&mut self, ui: &Ui, line: String) {
        if !self.warnings.contains(&line) {
            ui.warn(format_args!("{line}"));
            self.warnings.insert(line);
        }
    }
}

/// A model as it was opened last, what for, and the work that a token is.
type Loaded<'f> = Option<(Setup, Model<'f>, Work)>;

/// The tests of one model, which stays open behind the last.
fn of_model<'f>(
    args: &Args,
    ui: &Ui,
    grid: &Grid,
    candidate: &'f Candidate<'f>,
    so_far: &mut SoFar,
    output: &mut Output<'_>,
) -> Result<Loaded<'f>, Failure> {
    let Candidate { file, container, subject } = candidate;
    let tests = grid.tests();
    let n_all = tests.len() * args.models().count();
    let mut loaded: Loaded<'_> = None;
    for &(setup, test) in &tests {
        so_far.n_begun += 1;
        let n_begun = so_far.n_begun;
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
                let Setup { placement, tier, n_threads } = setup;
                let options = placement.switches.load_options(tier, n_threads);
                let model = placement
                    .open(ui, &file.map, container, &options, LoadWatch::SILENT)
                    .map_err(|e| file.blame(e))?;
                let strict = args.flags.device.strict;
                report_fallbacks(&file.path, &model, strict, |line| so_far.warn(ui, line))?;
                if let Some(line) = beyond_training(&file.path, &model, grid) {
                    so_far.warn(ui, line);
                }
                let work = Work::of(&model, container);
                none.insert((setup, model, work))
            }
        };
        // A GPU's memory was looked at when the model went there.
        if model.gpu().is_none() {
            check_fits(&model.memory(), &test).map_err(|e| file.blame(e))?;
        }
        std::thread::sleep(Duration::from_secs(args.flags.test.delay.into()));
        let limits = &mut so_far.limits;
        let row = measure_one(args, ui, subject, model, work, &setup, &test, limits, say)?;
        output.row(&row)?;
    }
    Ok(loaded)
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
            .gpu(*ordinal, room(model, setup), |line| ui.note(format_args!("{line}")))
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
fn room(model: &Model<'_>, setup: &Setup) -> u64 {
    let taken = model.gpu_plan().map_or(0, |plan| plan.need_bytes());
    match setup.placement.switches.max_bytes {
        0 => u64::MAX,
        most => most.saturating_sub(taken),
    }
}

/// # Errors
/// If keys and values of the test do not fit into memory (5).
fn check_fits(memory: &MemoryReport, test: &Test) -> Result<(), Failure> {
    let need = memory.kv_bytes_per_token.saturating_mul(test.n_ctx() as u64);
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

fn beyond_training(path: &Path, model: &Model<'_>, grid: &Grid) -> Option<String> {
    let (n_ctx, trained) = (grid.n_ctx(), model.config().n_ctx_train);
    (n_ctx > trained).then(|| {
        let path = path.display();
        format!("{path}: tests of up to {n_ctx} positions; the model was trained on {trained}")
    })
}
