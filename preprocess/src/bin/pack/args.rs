//! The command line of `minfer-pack`.

use std::path::PathBuf;

use clap::Parser;
use preprocess::PlaneSet;

/// Turn a GGUF model into a packed .mpk that loads without conversion
#[derive(Debug, Parser)]
#[command(
    name = "minfer-pack",
    version,
    long_version = cli::LONG_VERSION,
    after_long_help = AFTER_HELP,
    max_term_width = 100,
)]
pub(crate) struct Args {
    /// GGUF file, or an .mpk whose planes are to change
    #[arg(value_name = "INPUT")]
    pub(crate) input: PathBuf,

    /// The .mpk to write [default: the input's name with .mpk, beside it]
    #[arg(value_name = "OUTPUT.mpk")]
    pub(crate) output: Option<PathBuf>,

    /// The output as a flag, for those who are used to it.
    #[arg(
        short,
        long = "output",
        value_name = "OUTPUT.mpk",
        hide = true,
        conflicts_with = "output"
    )]
    pub(crate) output_flag: Option<PathBuf>,

    /// Plane kinds: default (padded,exp,dsc), none (padded), cpu-fast (tile), cuda-fast (planar,bf16),
    /// all, or a list
    ///
    /// A plane is a form of the weights that a kernel reads without conversion. `padded`, `planar`
    /// and `tile` hold every tensor as the GGUF has it, in other places; every tensor has one of
    /// them. The others serve matrix products: `exp` and `dsc` are expanded integers and scales of
    /// q6_K, `eb` and `sb` those of q4_K, `bf16` the weights of any type as bf16. Any container
    /// runs on any device: what a plane would have sped up is slower, never wrong.
    #[arg(long, value_name = "LIST", default_value = "default", hide_default_value = true)]
    pub(crate) planes: PlaneSet,

    /// Print what would be written, to the byte, and write nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,

    /// Replace an existing output (of a symbolic link, the link itself)
    #[arg(short, long)]
    pub(crate) force: bool,

    /// Refuse a model that minfer-run cannot run, instead of warning
    ///
    /// Any sound GGUF can be packed. If this version of minfer-run does not know its architecture, or
    /// a tensor or hyper-parameter is not as the architecture needs it, or its chat template is not
    /// valid, a warning says so before anything is written; with --strict it is an error (exit 3), and nothing is written. The object
    /// of --json says it too: `runnable` is false, and the reason is among its `warnings`.
    #[arg(long)]
    pub(crate) strict: bool,

    /// Do not read the finished file back and check it
    #[arg(long)]
    pub(crate) no_verify: bool,

    /// Print metadata and tensors of the input and exit
    #[arg(long, conflicts_with_all = ["output", "output_flag", "dry_run", "force", "strict", "no_verify"])]
    pub(crate) inspect: bool,

    #[command(flatten)]
    pub(crate) global: cli::GlobalArgs,
}

const AFTER_HELP: &str = "\
Examples:
  minfer-pack model.gguf                         write model.mpk
  minfer-pack model.gguf -n                      what would it cost?
  minfer-pack model.gguf small.mpk --planes none
  minfer-pack model.mpk lean.mpk --planes none   drop planes, no GGUF needed

The output appears complete or not at all: it is written beside its final name, read back and
checked, synced, and renamed. The same input and planes give the same bytes, whatever the threads.

Exit codes: 0 packed · 1 verification failed · 2 usage · 3 input not usable · 4 I/O or output
exists · 5 does not fit in memory · 128+n signal n";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_is_well_formed() {
        Args::command().debug_assert();
    }
}
