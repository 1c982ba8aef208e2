//! The command line of minfer-bench. This file parses and checks; it does nothing else.

use crate::device::{
    Device, Layers, Placement, Prefill, Verify, check_device, parse_device, parse_layers, tier,
    tier_named,
};
use crate::foreign::ForeignArgs;
use crate::numbers::{Numbers, pair};
use crate::output::Format;
use crate::plan::Grid;
use clap::{Args as ClapArgs, Command, CommandFactory, FromArgMatches, Parser, ValueHint};
use cli::{Color, Failure, GlobalArgs, ProgressMode, Shell};
use kernels::Tier;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Lists: 512 · 1,2,4 · 1-8 · 128-512+128 · 1-64*2; a flag may also be repeated. Every combination is
a test. -p, -n and --pg take turns in llama-bench's order.

Examples:
  minfer-bench model.mpk                        prompt 512 and generation 128, as llama-bench
  minfer-bench model.mpk -p 0 -n 64 -d 0,4096   generation at two depths
  minfer-bench a.mpk b.mpk -t 1,2 -o json
  minfer-bench model.mpk --load --cold          from a file that is on disk only

The columns behind t/s are ours: what a test moved or computed, and how much of what this machine
can do that is, measured beside it (--no-limits leaves them out).
";

/// Measure the speed of packed models
///
/// Flags, table and JSON keys are llama-bench's, so that the same scripts read both.
#[derive(Debug, Parser)]
#[command(
    name = "minfer-bench",
    version,
    long_version = cli::LONG_VERSION,
    after_help = format!("{AFTER_HELP}\n{}", cli::EXIT_CODES_HELP),
    override_usage = "minfer-bench [OPTIONS] <MODEL.mpk>..."
)]
pub(crate) struct Flags {
    /// Packed models, as minfer-pack writes them
    #[arg(value_name = "MODEL.mpk", value_hint = ValueHint::FilePath)]
    positional: Vec<PathBuf>,

    /// The same, for people used to llama-bench (a list, or repeated)
    #[arg(short, long, value_name = "MODEL.mpk,...", value_delimiter = ',', value_hint = ValueHint::FilePath)]
    model: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) test: TestArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) out: OutArgs,
    #[command(flatten)]
    global: OwnGlobalArgs,
    #[command(flatten)]
    foreign: ForeignArgs,
}

/// What is timed.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Tests")]
pub(crate) struct TestArgs {
    /// Tokens of a prompt (0: no such test) [default: 512]
    #[arg(short = 'p', long, value_name = "LIST")]
    pub(crate) n_prompt: Vec<Numbers>,

    /// Tokens to generate (0: no such test) [default: 128]
    #[arg(short = 'n', long, value_name = "LIST")]
    pub(crate) n_gen: Vec<Numbers>,

    /// A prompt and a generation after it, timed together (also -pg; repeatable)
    #[arg(long, value_name = "PP,TG", value_parser = pair)]
    pub(crate) pg: Vec<(u32, u32)>,

    /// Positions that are filled before the clock starts [default: 0]
    #[arg(short = 'd', long, value_name = "LIST")]
    pub(crate) n_depth: Vec<Numbers>,

    /// Prompt tokens computed together [default: 512]
    #[arg(
        short,
        long = "batch-size",
        value_name = "LIST",
        env = "MINFER_BATCH",
        hide_env_values = true
    )]
    pub(crate) batch_size: Vec<Numbers>,

    /// llama-bench's: what is computed together there, and -b here
    #[arg(long, value_name = "LIST", hide = true)]
    pub(crate) ubatch_size: Vec<Numbers>,

    /// Times that each test is repeated
    #[arg(short, long, value_name = "N", default_value_t = 5, overrides_with = "repetitions", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) repetitions: u32,

    /// Seconds to rest before each test
    #[arg(long, value_name = "SECONDS", default_value_t = 0, overrides_with = "delay")]
    pub(crate) delay: u32,

    /// No run before the first that counts
    #[arg(long)]
    pub(crate) no_warmup: bool,

    /// Generate the model's own most likely tokens, chosen on the device where it can, as
    /// minfer-run --temp 0 does. Without it: random tokens, and the logits of each come to the host
    #[arg(long)]
    pub(crate) greedy: bool,

    /// Do not measure what the machine can do
    #[arg(long)]
    pub(crate) no_limits: bool,
}

/// On what and how.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// Where to run: auto, cpu, cuda, cuda:N (a list; also -dev, and llama-bench's none and CUDA0)
    /// [default: auto]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = any_device,
          env = "MINFER_DEVICE", hide_env_values = true)]
    device: Vec<Device>,

    /// Layers on the GPU: the last N, or as many as fit (auto); -1: all (a list; also -ngl)
    #[arg(long, value_name = "LIST", alias = "n-gpu-layers", allow_hyphen_values = true, value_parser = layer_list,
          env = "MINFER_GPU_LAYERS", hide_env_values = true)]
    gpu_layers: Vec<LayerList>,

    /// How a GPU multiplies many tokens: auto, mmq, bf16 (a list) [default: auto]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    prefill: Vec<Prefill>,

    /// Instruction sets of the CPU: scalar, avx2, avx512 (a list) [default: MINFER_CPU, else the
    /// best there is]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tier: Vec<String>,

    /// Threads on the CPU (a list) [default: physical cores that this process may use]
    #[arg(short, long, value_name = "LIST", env = "MINFER_THREADS", hide_env_values = true)]
    threads: Vec<Numbers>,

    /// A fast path that is not taken ends the run (exit 6) instead of being reported
    #[arg(long)]
    pub(crate) strict: bool,

    /// How much of the file to check at each opening: header and index always, every byte with fast
    /// (xxh3) or full (sha256)
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t)]
    pub(crate) verify: Verify,
}

/// How fast a model is there.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// Measure in new processes how long a model takes to be there: from opening to usable weights,
    /// from the start of the process to the first token (after a prompt of 1 token, or of -p); and
    /// the memory it then holds
    #[arg(long)]
    pub(crate) load: bool,

    /// Before each, drop what the system has cached of the file
    #[arg(long, requires = "load")]
    pub(crate) cold: bool,

    /// One such process
    #[arg(long, hide = true, requires = "load")]
    pub(crate) child: bool,
}

/// What is printed.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutArgs {
    /// Format on standard output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Md, conflicts_with = "json",
          overrides_with = "output")]
    pub(crate) output: Format,

    /// Format on standard error, besides (also -oe) [default: none]
    #[arg(long, value_name = "FORMAT", value_enum, overrides_with = "output_err")]
    pub(crate) output_err: Option<Format>,
}

/// The flags that every minfer command takes, where llama-bench does not give them another form.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Global options")]
struct OwnGlobalArgs {
    /// Print the product, errors and warnings of what will not work, no more (-qq: no warning)
    #[arg(short, long, conflicts_with = "verbose", action = clap::ArgAction::Count)]
    quiet: u8,

    /// Print more of what is being done (-vv for more still)
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// When to colour messages (the NO_COLOR variable is respected)
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    color: Color,

    /// Print the result as one JSON object with "exit" in it on standard output
    #[arg(long)]
    json: bool,

    /// Say on standard error which test runs (--progress=HOW also for the bars of --verify)
    #[arg(long, value_name = "HOW", value_enum, num_args = 0..=1, require_equals = true,
          default_missing_value = "plain")]
    progress: Option<ProgressMode>,

    /// Print a completion script for this shell and exit
    #[arg(long, value_name = "SHELL", value_enum, exclusive = true)]
    completions: Option<Shell>,
}

/// The flags, with those that every command has in the form that every command takes.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) flags: Flags,
    pub(crate) global: GlobalArgs,
}

impl From<Flags> for Args {
    fn from(flags: Flags) -> Self {
        let OwnGlobalArgs { quiet, verbose, color, json, progress, completions } = flags.global;
        let progress = progress.unwrap_or_default();
        let global =
            GlobalArgs { quiet, verbose, color, json, progress, threads: None, completions };
        Self { flags, global }
    }
}

impl CommandFactory for Args {
    fn command() -> Command {
        Flags::command()
    }

    fn command_for_update() -> Command {
        Flags::command_for_update()
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        Flags::from_arg_matches(matches).map(Self::from)
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Most threads, as for every command.
const MAX_THREADS: u32 = 1024;
/// Most tokens computed together.
const MAX_BATCH: u32 = 32768;
/// Positions fit this in every kernel.
const MAX_CTX: u64 = 1 << 30;

impl Args {
    /// The models, in the order given.
    pub(crate) fn models(&self) -> impl Iterator<Item = &PathBuf> {
        self.flags.positional.iter().chain(&self.flags.model)
    }

    /// Whether it is said on standard error which test runs.
    pub(crate) fn says_progress(&self) -> bool {
        self.flags.global.progress.is_some_and(|how| how != ProgressMode::None)
    }

    /// Checks what clap cannot.
    ///
    /// # Errors
    /// Wrong use (2), or a device that is not there (6).
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.flags.foreign.check()?;
        if self.models().next().is_none() && !self.flags.load.child {
            return Err(Failure::usage("no model: minfer-bench MODEL.mpk"));
        }
        let test = &self.flags.test;
        let (batch, together) = (numbers(&test.batch_size), numbers(&test.ubatch_size));
        if !together.is_empty() && together != self.or(batch, 512) {
            return Err(Failure::usage(
                "-ub: the tokens computed together are those of -b: give the number there",
            ));
        }
        for &device in &self.flags.device.device {
            check_device(device)?;
        }
        let grid = self.grid()?;
        if grid.tests().is_empty() && !self.flags.load.load {
            return Err(Failure::usage("no test: -p and -n are 0"));
        }
        let n_ctx = grid.n_ctx() as u64;
        if n_ctx > MAX_CTX {
            return Err(Failure::usage(format!("a test of {n_ctx} positions, at most {MAX_CTX}")));
        }
        Ok(())
    }

    fn or(&self, values: Vec<usize>, default: usize) -> Vec<usize> {
        if values.is_empty() { vec![default] } else { values }
    }

    /// Prompt lengths that were asked for by name.
    pub(crate) fn given_prompts(&self) -> Vec<usize> {
        numbers(&self.flags.test.n_prompt)
    }

    /// The tests.
    ///
    /// # Errors
    /// A number that cannot be (2), or a tier that this processor does not have (6).
    pub(crate) fn grid(&self) -> Result<Grid, Failure> {
        let Flags { test, device, .. } = &self.flags;
        let n_batch = self.or(within("-b", &test.batch_size, MAX_BATCH)?, 512);
        let default_threads = cli::threads(None);
        let n_threads = self.or(within("-t", &device.threads, MAX_THREADS)?, default_threads);
        let mut grid = Grid {
            placements: Vec::new(),
            tiers: self.tiers()?,
            n_batch,
            n_threads,
            n_depth: self.or(numbers(&test.n_depth), 0),
            n_prompt: self.or(numbers(&test.n_prompt), 512),
            n_gen: self.or(numbers(&test.n_gen), 128),
            pairs: test.pg.iter().map(|&(pp, tg)| (pp as usize, tg as usize)).collect(),
        };
        grid.placements = self.placements(&grid);
        // A model makes room for the longest of its tests.
        let n_ctx = grid.n_ctx();
        grid.placements.iter_mut().for_each(|placement| placement.n_ctx = n_ctx);
        Ok(grid)
    }

    fn placements(&self, grid: &Grid) -> Vec<Placement> {
        let given = &self.flags.device;
        let lists = given.gpu_layers.iter().flat_map(|list| list.0.iter().copied());
        let mut layers: Vec<Option<Layers>> = lists.collect();
        if layers.is_empty() {
            layers.push(None);
        }
        let or = |list: &[Device]| if list.is_empty() { vec![Device::Auto] } else { list.to_vec() };
        let prefill = match given.prefill.as_slice() {
            [] => vec![Prefill::Auto],
            list => list.to_vec(),
        };
        let n_batch = grid.n_batch.iter().copied().max().unwrap_or(1);
        let mut placements = Vec::new();
        for &layers in &layers {
            for device in or(&given.device) {
                let of = |&prefill| Placement { device, prefill, layers, n_ctx: 0, n_batch };
                placements.extend(prefill.iter().map(of));
            }
        }
        placements
    }

    fn tiers(&self) -> Result<Vec<Tier>, Failure> {
        let names = &self.flags.device.tier;
        if names.is_empty() {
            return Ok(vec![tier()?]);
        }
        names.iter().map(|name| tier_named("--tier", name)).collect()
    }
}

fn numbers(lists: &[Numbers]) -> Vec<usize> {
    lists.iter().flat_map(|list| list.0.iter().map(|&n| n as usize)).collect()
}

/// Numbers of which each is 1 to `max`.
fn within(flag: &str, lists: &[Numbers], max: u32) -> Result<Vec<usize>, Failure> {
    let bad = |n: &&u32| **n == 0 || **n > max;
    match lists.iter().flat_map(|list| &list.0).find(bad) {
        Some(n) => Err(Failure::usage(format!("{flag} {n}: expected 1 to {max}"))),
        None => Ok(numbers(lists)),
    }
}

fn any_device(text: &str) -> Result<Device, String> {
    match text.strip_prefix("CUDA") {
        Some(number) => parse_device(&format!("cuda:{number}")),
        None if text == "none" => Ok(Device::Cpu),
        None => parse_device(text),
    }
}

/// One occurrence of `--gpu-layers`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LayerList(Vec<Option<Layers>>);

fn layer_list(text: &str) -> Result<LayerList, String> {
    let mut list = Vec::new();
    for item in text.split(',') {
        match item {
            "-1" => list.push(None),
            "auto" => list.push(Some(parse_layers(item)?)),
            _ => {
                let Numbers(values) = item.parse()?;
                list.extend(values.iter().map(|&n| Some(Layers::Last(n as usize))));
            }
        }
    }
    Ok(LayerList(list))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::long_names;

    fn parse(line: &[&str]) -> Result<Args, String> {
        // As `cli` renames them.
        let long = |arg: &&str| {
            let names = long_names();
            names.iter().find(|(short, _)| short == arg).map_or(*arg, |(_, long)| *long).to_owned()
        };
        let argv = ["minfer-bench"].iter().chain(line).map(long);
        let matches = Args::command().try_get_matches_from(argv).map_err(|e| e.to_string())?;
        let args = Args::from_arg_matches(&matches).map_err(|e| e.to_string())?;
        args.check().map_err(|e| format!("{} {}", e.code.code(), e.message))?;
        Ok(args)
    }

    fn names(line: &[&str]) -> Vec<String> {
        let grid = parse(line).unwrap().grid().unwrap();
        grid.tests().iter().map(|(_, test)| test.name()).collect()
    }

    #[test]
    fn the_command_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_llama_benchs() {
        assert_eq!(names(&["m.mpk"]), ["pp512", "tg128"]);
        let args = parse(&["m.mpk"]).unwrap();
        let grid = args.grid().unwrap();
        assert_eq!((grid.n_batch, grid.n_depth), (vec![512], vec![0]));
        assert_eq!(args.flags.test.repetitions, 5);
        assert_eq!(args.flags.out.output, Format::Md);
        assert_eq!(grid.placements.len(), 1);
        assert_eq!((grid.placements[0].n_ctx, grid.placements[0].layers), (512, None));
    }

    #[test]
    fn lists_and_repetition() {
        let args =
            parse(&["a.mpk", "-m", "b.mpk,c.mpk", "-m", "d.mpk", "-p", "1,2", "-p", "4-8*2"])
                .unwrap();
        let models: Vec<_> = args.models().map(|m| m.to_str().unwrap()).collect();
        assert_eq!(models, ["a.mpk", "b.mpk", "c.mpk", "d.mpk"]);
        assert_eq!(args.grid().unwrap().n_prompt, [1, 2, 4, 8]);
        // Of flags with one value the last counts.
        let args = parse(&["m", "-r", "3", "-r", "2", "-o", "csv", "-o", "sql"]).unwrap();
        assert_eq!((args.flags.test.repetitions, args.flags.out.output), (2, Format::Sql));
        assert_eq!(names(&["m", "-p", "0", "-n", "8", "-d", "0,4"]), ["tg8", "tg8 @ d4"]);
        assert_eq!(
            names(&["m", "-p", "0", "-n", "0", "-pg", "4,2", "-pg", "0,3"]),
            ["pp4+tg2", "tg3"]
        );
        let grid =
            parse(&["m", "-t", "1,2", "-b", "64-128*2", "-ngl", "-1,0,8-10", "-ngl", "auto"]);
        let grid = grid.unwrap().grid().unwrap();
        assert_eq!((grid.n_threads, grid.n_batch), (vec![1, 2], vec![64, 128]));
        let layers: Vec<_> = grid.placements.iter().map(|p| p.layers).collect();
        let last = |n| Some(Layers::Last(n));
        assert_eq!(layers, [None, last(0), last(8), last(9), last(10), Some(Layers::Auto)]);
    }

    #[test]
    fn devices_go_by_both_names() {
        assert_eq!(any_device("CUDA1"), Ok(Device::Cuda(1)));
        assert_eq!(any_device("cuda:1"), Ok(Device::Cuda(1)));
        assert_eq!(any_device("none"), Ok(Device::Cpu));
        assert!(any_device("CUDA").is_err() && any_device("tpu").is_err());
        assert!(parse(&["m", "-dev", "none"]).is_ok());
    }

    #[test]
    fn flags_that_switch_nothing_here_are_explained() {
        for fine in [
            ["-fa", "1"],
            ["-fa", "on,auto"],
            ["-ctk", "f16"],
            ["--cache-type-v", "f16"],
            ["-ub", "512"],
            ["--prio", "0"],
            ["-mmp", "1"],
            ["--repack", "0"],
            ["-sm", "layer"],
            ["-C", "0x0"],
        ] {
            assert!(parse(&[&["m.mpk"], &fine[..]].concat()).is_ok(), "{fine:?}");
        }
        for (bad, message) in [
            (["-fa", "0"], "2 -fa 0: attention never"),
            (["-ctk", "q8_0"], "2 -ctk q8_0: keys are kept as f16 (accepted: f16)"),
            (["-ub", "128"], "2 -ub: the tokens computed together are those of -b"),
            (["--prio", "2"], "2 --prio 2: the priority stays"),
            (["-hf", "a/b"], "2 -hf a/b: models are local files"),
            (["--poll", "50"], "2 --poll 50: threads that wait spin"),
        ] {
            let error = parse(&[&["m.mpk"], &bad[..]].concat()).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn wrong_use() {
        for bad in [
            &["m", "-p", "x"][..],
            &["m", "-p", "4-1"],
            &["m", "-n", "1-4+0"],
            &["m", "-pg", "4"],
            &["m", "-p", "0", "-n", "0"],
            &["m", "-t", "0"],
            &["m", "-t", "4096"],
            &["m", "-b", "0"],
            &["m", "-r", "0"],
            &["m", "-o", "xml"],
            &["m", "-o", "md", "--json"],
            &["m", "--tier", "sse9"],
            &["m", "--device", "tpu"],
            &["m", "--prefill", "fp4"],
            &["m", "--cold"],
            &["m", "--child"],
            &["m", "-ngl", "some"],
            &["m", "-p", "1000000000", "-d", "1000000000"],
            &["m", "--unknown"],
            &[],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn progress_needs_no_value() {
        assert!(parse(&["--progress", "m.mpk"]).unwrap().says_progress());
        assert!(!parse(&["m.mpk"]).unwrap().says_progress());
        assert!(!parse(&["--progress=none", "m.mpk"]).unwrap().says_progress());
    }
}
