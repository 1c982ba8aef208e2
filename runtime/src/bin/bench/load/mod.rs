//! `--load`: how long a model takes to be there, and the memory that it then holds.
//!
//! Each repetition is a new process, since only a new process has nothing: no code in memory, no
//! context of a GPU, no page of the file mapped. The parent takes the time just before it starts the
//! child, the child takes three more, on the clock that all processes share.

mod child;

use crate::args::Args;
use crate::device::{Device, Layers, Verify, failure};
use crate::open::ModelFile;
use crate::output::Output;
use crate::plan::{Grid, Setup, Test};
use crate::record::{Place, Reached, Row};
use crate::subject::Subject;
use crate::{machine, stats};
pub(crate) use child::child;
use child::{Child, GpuTimes, now};
use clap::ValueEnum as _;
use cli::{Bytes, ExitCode, Failure, Ui};
use runtime::Model;
use std::path::Path;
use std::process::{Command, Stdio};

/// What `--load` adds to a row: medians, and the last child's memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Loaded {
    pub(crate) cold: bool,
    /// From opening the file to weights that can be used.
    pub(crate) usable_ns: u64,
    /// On a GPU: making its context and loading kernels.
    pub(crate) context_ns: Option<u64>,
    /// From the first byte's way to the last byte's arrival.
    pub(crate) upload_ns: Option<u64>,
    /// Beside that: starting the library of bf16 products.
    pub(crate) library_ns: Option<u64>,
    /// Bytes of the map whose pages were read while the context was made.
    pub(crate) read_ahead_bytes: Option<u64>,
    /// From opening the file to the first token.
    opened_to_token_ns: u64,
    /// From the start of the process to the first token.
    pub(crate) first_token_ns: u64,
    /// What was sent to a GPU, or what the first token read of the map.
    pub(crate) bytes: u64,
    is_gpu: bool,
    /// What came from the disk, where the system tells.
    pub(crate) disk_bytes: Option<u64>,
    /// The most memory that the process held at a time.
    pub(crate) peak_rss_bytes: Option<u64>,
    /// What it holds besides pages of files.
    pub(crate) anon_rss_bytes: Option<u64>,
    /// Keys and values.
    pub(crate) kv_bytes: u64,
}

impl Loaded {
    /// On a GPU, bytes are there when the weights can be used. A map is read when it is used: there
    /// the clock runs to the first token.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        let ns = if self.is_gpu { self.usable_ns } else { self.opened_to_token_ns };
        self.bytes as f64 * 1e9 / ns.max(1) as f64
    }
}

/// Positions that a session on a GPU begins with.
const BEGIN_POSITIONS: usize = 4096;

/// Measures and prints.
///
/// # Errors
/// Whatever ends the tests early; what was measured before has been printed.
pub(crate) fn run(args: &Args, ui: &Ui) -> Result<ExitCode, Failure> {
    let grid = grid(args)?;
    let mut output = Output::new(args, ui, &grid);
    let done = all(args, ui, &grid, &mut output);
    output.end()?;
    done.map(|()| ExitCode::Ok)
}

/// A prompt of one token, unless -p says something else; nothing else is timed.
fn grid(args: &Args) -> Result<Grid, Failure> {
    let given = args.given_prompts();
    let n_prompt = if given.is_empty() { vec![1] } else { given };
    if n_prompt.contains(&0) {
        return Err(Failure::usage("--load -p 0: there is no first token without a prompt"));
    }
    let test = &args.flags.test;
    let other = [
        (!test.n_gen.is_empty(), "-n"),
        (!test.n_depth.is_empty(), "-d"),
        (!test.pg.is_empty(), "-pg"),
        (test.greedy, "--greedy"),
        (test.delay > 0, "--delay"),
    ];
    if let Some((_, flag)) = other.iter().find(|(given, _)| *given) {
        return Err(Failure::usage(format!("--load {flag}: a load ends with the first token")));
    }
    let mut grid =
        Grid { n_prompt, n_gen: vec![0], n_depth: vec![0], pairs: Vec::new(), ..args.grid()? };
    // As minfer-run without -c: room for the positions that a session begins with, unless the prompt is
    // longer.
    let n_ctx = grid.n_ctx();
    let planned = if n_ctx > BEGIN_POSITIONS { n_ctx } else { 0 };
    grid.placements.iter_mut().for_each(|placement| placement.n_ctx = planned);
    Ok(grid)
}

fn all(args: &Args, ui: &Ui, grid: &Grid, output: &mut Output<'_>) -> Result<(), Failure> {
    // All of them before the first load, in which most of what can be wrong with them would show
    // minutes later.
    let subjects = args.models().map(|path| subject(path)).collect::<Result<Vec<_>, _>>()?;
    for (path, subject) in args.models().zip(subjects) {
        for (setup, test) in grid.tests() {
            output.row(&measure(args, ui, path, &subject, &setup, &test)?)?;
        }
    }
    Ok(())
}

/// What is known of a model that can be loaded, as far as its header and index say.
fn subject(path: &Path) -> Result<Subject, Failure> {
    // The map goes at once: pages that somebody has mapped stay in memory.
    let file = ModelFile::open(path)?;
    let container = file.container()?;
    Model::memory_of(&container).map_err(|e| file.blame(failure(e)))?;
    Subject::of(path, &container)
}

fn measure(
    args: &Args,
    ui: &Ui,
    path: &Path,
    subject: &Subject,
    setup: &Setup,
    test: &Test,
) -> Result<Row, Failure> {
    let cold = args.flags.load.cold;
    let start = |quiet| start(args, ui, path, setup, test, quiet);
    if !cold && !args.flags.test.no_warmup {
        start(false)?;
    }
    let test_time = machine::time();
    let mut children = Vec::new();
    for _ in 0..args.flags.test.repetitions {
        if cold {
            drop_cached(path)?;
        }
        let quiet = !cold || !children.is_empty();
        children.push(start(quiet)?);
    }
    let median = |key: &dyn Fn(&Child) -> u64| {
        stats::median(&children.iter().map(|child| key(child) as f64).collect::<Vec<_>>()) as u64
    };
    let last = children.last().cloned().unwrap_or_default();
    let of_gpu = |key: fn(&GpuTimes) -> u64| {
        last.gpu_times.is_some().then(|| median(&|child| child.gpu_times.as_ref().map_or(0, key)))
    };
    let least_from_disk = children.iter().filter_map(|child| child.disk_bytes).min();
    if cold {
        say_what_stayed(ui, path, last.bytes, least_from_disk);
    }
    let load = Loaded {
        cold,
        usable_ns: median(&|child| child.usable - child.opened),
        context_ns: of_gpu(|times| times.context),
        upload_ns: of_gpu(|times| times.upload),
        library_ns: of_gpu(|times| times.library),
        read_ahead_bytes: of_gpu(|times| times.read_ahead),
        opened_to_token_ns: median(&|child| child.token - child.opened),
        first_token_ns: median(&|child| child.token - child.started),
        bytes: last.bytes,
        is_gpu: last.gpu.is_some(),
        disk_bytes: least_from_disk,
        peak_rss_bytes: children.iter().filter_map(|child| child.peak_rss_bytes).max(),
        anon_rss_bytes: last.anon_rss_bytes,
        kv_bytes: last.kv_bytes,
    };
    Ok(Row {
        subject: subject.clone(),
        place: Place { gpu: last.gpu },
        setup: *setup,
        test: *test,
        greedy: false,
        test_time,
        samples_ns: children.iter().map(|child| child.token - child.started).collect(),
        reached: Reached::default(),
        load: Some(load),
    })
}

/// Asks the system to forget what it has cached of the file.
fn drop_cached(path: &Path) -> Result<(), Failure> {
    let (file, _) = cli::open_regular(path)?;
    let fail = |what, e: rustix::io::Errno| Failure::io(path, what, &e.into());
    // Pages that wait to be written cannot be dropped.
    rustix::fs::fdatasync(&file).map_err(|e| fail("cannot write back", e))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|e| fail("cannot drop what is cached", e))
}

/// The advice is only advice, so the reader is told when it was not followed.
fn say_what_stayed(ui: &Ui, path: &Path, n_read: u64, from_disk: Option<u64>) {
    match from_disk {
        None => ui.warn(format_args!(
            "{}: the system does not say how much was read from the disk; --cold may have been warm",
            path.display()
        )),
        Some(from_disk) if from_disk < n_read / 10 * 9 => ui.warn(format_args!(
            "{}: {} came from the disk and {} were read: the rest was still cached",
            path.display(),
            Bytes(from_disk),
            Bytes(n_read)
        )),
        Some(_) => {}
    }
}

/// Starts a child and waits for its report.
fn start(
    args: &Args,
    ui: &Ui,
    path: &Path,
    setup: &Setup,
    test: &Test,
    quiet: bool,
) -> Result<Child, Failure> {
    let failed = |what: &str| Failure::failed(format!("{}: {what}", path.display()));
    let program = std::env::current_exe()
        .map_err(|e| Failure::new(ExitCode::Io, format!("cannot find this program: {e}")))?;
    let mut command = Command::new(&program);
    command.args(["--load", "--child"]).args(child_flags(setup, test, args.flags.device.verify));
    if args.flags.device.strict {
        command.arg("--strict");
    }
    command.arg("--").arg(path).stdin(Stdio::null());
    let started = now();
    let output = command.output().map_err(|e| Failure::io(&program, "cannot start", &e))?;
    let talk = String::from_utf8_lossy(&output.stderr);
    let mut error = String::new();
    for line in talk.lines() {
        match line.strip_prefix("error: ") {
            Some(message) => error = message.to_owned(),
            None if !quiet => ui.note(format_args!("{line}")),
            None => {}
        }
    }
    if output.status.success() {
        return Child::parse(&output.stdout, started)
            .ok_or_else(|| failed("no report of its load"));
    }
    let code =
        ExitCode::ALL.iter().find(|code| Some(i32::from(code.code())) == output.status.code());
    match code {
        Some(&code) if !error.is_empty() => Err(Failure::new(code, error)),
        _ => Err(failed(&format!("the process that loads it ended with {}", output.status))),
    }
}

fn child_flags(setup: &Setup, test: &Test, verify: Verify) -> Vec<String> {
    let device = match setup.placement.device {
        Device::Auto => "auto".to_owned(),
        Device::Cpu => "cpu".to_owned(),
        Device::Cuda(ordinal) => format!("cuda:{ordinal}"),
    };
    let layers = match setup.placement.layers {
        None => "-1".to_owned(),
        Some(Layers::Auto) => "auto".to_owned(),
        Some(Layers::Last(n)) => n.to_string(),
    };
    let name = |value: Option<clap::builder::PossibleValue>| {
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    };
    [
        ("--device", device),
        ("--gpu-layers", layers),
        ("--prefill", name(setup.placement.prefill.to_possible_value())),
        ("--verify", name(verify.to_possible_value())),
        ("--tier", setup.tier.name().to_owned()),
        ("--threads", setup.n_threads.to_string()),
        ("--n-prompt", test.n_prompt.to_string()),
        ("--batch-size", test.n_ubatch.to_string()),
    ]
    .into_iter()
    .flat_map(|(flag, value)| [flag.to_owned(), value])
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_counts_until_bytes_are_there() {
        let load = Loaded {
            cold: false,
            usable_ns: 1_000,
            context_ns: None,
            upload_ns: None,
            library_ns: None,
            read_ahead_bytes: None,
            opened_to_token_ns: 4_000,
            first_token_ns: 9_000,
            bytes: 8_000,
            is_gpu: false,
            disk_bytes: None,
            peak_rss_bytes: None,
            anon_rss_bytes: None,
            kv_bytes: 0,
        };
        assert_eq!(load.bytes_per_second(), 2e9);
        assert_eq!(Loaded { is_gpu: true, ..load }.bytes_per_second(), 8e9);
    }
}
