//! The command line of `minfer-verify`.

use std::path::PathBuf;

use clap::Parser;

/// Check packed models: structure, every hash, and on request the source
#[derive(Debug, Parser)]
#[command(
    name = "minfer-verify",
    version,
    long_version = cli::LONG_VERSION,
    after_long_help = AFTER_HELP,
    max_term_width = 100,
)]
pub(crate) struct Args {
    /// The containers to check
    #[arg(value_name = "MODEL.mpk", required = true)]
    pub(crate) models: Vec<PathBuf>,

    /// Check structure only: header, index, bounds, descriptors (milliseconds)
    #[arg(long, conflicts_with_all = ["source", "deep"], help_heading = "Levels")]
    pub(crate) quick: bool,

    /// Also compare with the GGUF it was packed from, bit for bit
    ///
    /// Of many differences the first are listed, with -v all.
    #[arg(long, value_name = "MODEL.gguf", help_heading = "Levels")]
    pub(crate) source: Option<PathBuf>,

    /// Also recompute every plane, weight by weight, with code that did not write it
    #[arg(long, help_heading = "Levels")]
    pub(crate) deep: bool,

    /// One line for every object, not only for failures
    #[arg(short, long, conflicts_with = "status", help_heading = "Output")]
    pub(crate) all: bool,

    /// Print nothing: the exit code says it all
    #[arg(long, help_heading = "Output")]
    pub(crate) status: bool,

    /// List the objects: name, type, plane, geometry, offset, bytes, sha256 (start)
    #[arg(short, long, group = "print", help_heading = "Print and exit")]
    pub(crate) list: bool,

    /// Print the GGUF's keys and values
    #[arg(long, group = "print", help_heading = "Print and exit")]
    pub(crate) metadata: bool,

    /// Print sha256 and name of the whole file, as `sha256sum -c` reads it
    #[arg(long, group = "print", help_heading = "Print and exit")]
    pub(crate) print_sha256: bool,

    /// Print the root: the sha256 of header and index, which identifies the weights
    #[arg(long, group = "print", help_heading = "Print and exit")]
    pub(crate) root: bool,

    #[command(flatten)]
    pub(crate) global: cli::GlobalArgs,
}

const AFTER_HELP: &str = "\
Output: \"model.mpk: OK\", or for each failure
  model.mpk: blk.3.ffn_up.weight: FAILED (bytes 812646400..816840704) in padded8960x1536: ...
-q drops the OK lines, --status prints nothing. Every file is checked, also after a failure.

Examples:
  minfer-verify model.mpk
  minfer-verify --source model.gguf model.mpk
  minfer-verify --print-sha256 model.mpk | tee model.mpk.sha256 | sha256sum -c

Exit codes: 0 all good · 1 mismatch · 2 usage · 3 not an .mpk, newer, or header or index not to be
trusted · 4 cannot read (also: shorter than when opened) · 5 does not fit in memory · 128+n signal n";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_is_well_formed() {
        Args::command().debug_assert();
    }
}
