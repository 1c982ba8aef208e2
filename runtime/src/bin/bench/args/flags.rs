//! The flags of minfer-bench, and how each value is read.

use crate::device::{Device, Layers, Prefill, Verify, parse_device, parse_layers};
use crate::foreign::{self, ForeignArgs};
use crate::numbers::{Numbers, pair, up_to};
use crate::output::Format;
use clap::{Args as ClapArgs, Parser, ValueHint};
use cli::{Color, ProgressMode, Shell};
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

/// Most threads, as for every command.
const MAX_THREADS: u32 = 1024;
/// Most tokens computed together.
const MAX_BATCH: u32 = 32768;

/// Measure the speed of packed models
///
/// Flags, table and JSON keys are llama-bench's, so that the same scripts read both.
#[derive(Debug, Parser)]
#[command(
    name = "minfer-bench",
    version,
    long_version = cli::LONG_VERSION,
    after_help = format!("{AFTER_HELP}\n{}\n{}", foreign::help(), cli::EXIT_CODES_HELP),
    override_usage = "minfer-bench [OPTIONS] <MODEL.mpk>..."
)]
pub(crate) struct Flags {
    /// Packed models, as minfer-pack writes them
    #[arg(value_name = "MODEL.mpk", value_hint = ValueHint::FilePath)]
    pub(super) positional: Vec<PathBuf>,

    /// The same, for people used to llama-bench (a list, or repeated)
    #[arg(short, long, value_name = "MODEL.mpk,...", value_delimiter = ',', value_hint = ValueHint::FilePath)]
    pub(super) model: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) test: TestArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) out: OutArgs,
    #[command(flatten)]
    pub(super) global: OwnGlobalArgs,
    #[command(flatten)]
    pub(super) foreign: ForeignArgs,
}

/// What is timed.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Tests")]
pub(crate) struct TestArgs {
    /// Tokens of a prompt (0: no such test) [default: 512]
    #[arg(short = 'p', long, allow_negative_numbers = true, value_name = "LIST")]
    pub(crate) n_prompt: Vec<Numbers>,

    /// Tokens to generate (0: no such test) [default: 128]
    #[arg(short = 'n', long, allow_negative_numbers = true, value_name = "LIST")]
    pub(crate) n_gen: Vec<Numbers>,

    /// A prompt and a generation after it, timed together (also -pg; repeatable)
    #[arg(long, allow_negative_numbers = true, value_name = "PP,TG", value_parser = pair)]
    pub(crate) pg: Vec<(u32, u32)>,

    /// Positions that are filled before the clock starts [default: 0]
    #[arg(short = 'd', long, allow_negative_numbers = true, value_name = "LIST")]
    pub(crate) n_depth: Vec<Numbers>,

    /// Prompt tokens computed together [default: 512]
    #[arg(short, long = "batch-size", allow_negative_numbers = true, value_name = "LIST", value_parser = up_to(MAX_BATCH),
          env = "MINFER_BATCH", hide_env_values = true)]
    pub(crate) batch_size: Vec<Numbers>,

    /// llama-bench's name for the same (also -ub). With -b as well, the smaller of both is computed
    /// together, as there
    #[arg(long, allow_negative_numbers = true, value_name = "LIST", value_parser = up_to(MAX_BATCH))]
    pub(crate) ubatch_size: Vec<Numbers>,

    /// Times that each test is repeated
    #[arg(short, long, value_name = "N", default_value_t = 5, overrides_with = "repetitions", allow_negative_numbers = true, value_parser = cli::number(1..=100_000u32))]
    pub(crate) repetitions: u32,

    /// Seconds to rest before each test
    #[arg(long, value_name = "SECONDS", default_value_t = 0, overrides_with = "delay", allow_negative_numbers = true, value_parser = cli::number(0..=86_400u32))]
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
    pub(super) device: Vec<Device>,

    /// Layers on the GPU: the last N, or as many as fit (auto); -1: all (a list; also -ngl)
    #[arg(long, value_name = "LIST", alias = "n-gpu-layers", allow_hyphen_values = true, value_parser = layer_list,
          env = "MINFER_GPU_LAYERS", hide_env_values = true)]
    pub(super) gpu_layers: Vec<LayerList>,

    /// How a GPU multiplies many tokens: auto, mmq, bf16 (a list) [default: auto]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub(super) prefill: Vec<Prefill>,

    /// Instruction sets of the CPU: scalar, avx2, avxvnni, avx512, neon, dotprod, i8mm (a list)
    /// [default: MINFER_CPU, else the best there is]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(super) tier: Vec<String>,

    /// Threads on the CPU (a list) [default: physical cores that this process may use]
    #[arg(short, long, allow_negative_numbers = true, value_name = "LIST", value_parser = up_to(MAX_THREADS),
          env = "MINFER_THREADS", hide_env_values = true)]
    pub(super) threads: Vec<Numbers>,

    /// End with exit 6, not a warning, where a matrix is slower than need be: a plane in the file that is
    /// not used, or nothing in the file that this device has kernels for (planar on a CPU, tile on a GPU).
    /// What a variable switches off is not refused
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
pub(super) struct OwnGlobalArgs {
    /// Print the product, errors and warnings of what will not work, no more (-qq: no warning)
    #[arg(short, long, conflicts_with = "verbose", action = clap::ArgAction::Count)]
    pub(super) quiet: u8,

    /// Print more of what is being done (-vv for more still)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,

    /// When to colour messages (the NO_COLOR variable is respected)
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub(super) color: Color,

    /// Print the result as one JSON object with "exit" in it on standard output
    #[arg(long)]
    pub(super) json: bool,

    /// Say on standard error which test runs (--progress=HOW also for the bars of --verify)
    #[arg(long, value_name = "HOW", value_enum, num_args = 0..=1, require_equals = true,
          default_missing_value = "plain")]
    pub(super) progress: Option<ProgressMode>,

    /// Print a completion script for this shell and exit
    #[arg(long, value_name = "SHELL", value_enum, exclusive = true)]
    pub(super) completions: Option<Shell>,
}

pub(super) fn any_device(text: &str) -> Result<Device, String> {
    match text.strip_prefix("CUDA") {
        Some(number) => parse_device(&format!("cuda:{number}")),
        None if text == "none" => Ok(Device::Cpu),
        None => parse_device(text),
    }
}

/// One occurrence of `--gpu-layers`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerList(pub(super) Vec<Option<Layers>>);

fn layer_list(text: &str) -> Result<LayerList, String> {
    let mut list = Vec::new();
    for item in text.split(',') {
        match item {
            "-1" => list.push(None),
            "auto" | "all" => list.push(Some(parse_layers(item)?)),
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

    #[test]
    fn devices_go_by_both_names() {
        assert_eq!(any_device("CUDA1"), Ok(Device::Cuda(1)));
        assert_eq!(any_device("cuda:1"), Ok(Device::Cuda(1)));
        assert_eq!(any_device("none"), Ok(Device::Cpu));
        assert!(any_device("CUDA").is_err() && any_device("tpu").is_err());
    }

    #[test]
    fn layers_are_numbers_or_words() {
        let all = Some(Layers::Last(usize::MAX));
        let list = vec![None, all, Some(Layers::Auto), Some(Layers::Last(7))];
        assert_eq!(layer_list("-1,all,auto,7"), Ok(LayerList(list)));
        assert!(layer_list("some").is_err());
        assert_eq!(crate::plan::layers_number(all), -1, "as llama-bench writes it");
    }
}
