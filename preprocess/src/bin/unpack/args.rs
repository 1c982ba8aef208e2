//! The command line of `minfer-unpack`.

use std::path::PathBuf;

use clap::Parser;

/// Rebuild the GGUF that an .mpk was packed from, byte for byte
#[derive(Debug, Parser)]
#[command(
    name = "minfer-unpack",
    version,
    long_version = cli::LONG_VERSION,
    after_long_help = AFTER_HELP,
    max_term_width = 100,
)]
pub(crate) struct Args {
    /// The container
    #[arg(value_name = "MODEL.mpk")]
    pub(crate) input: PathBuf,

    /// The .gguf to write [default: the container's name with .gguf, beside it]
    ///
    /// A model that was split over several files becomes several files again: OUT.gguf stands for
    /// OUT-00001-of-00003.gguf and so on.
    #[arg(value_name = "OUT.gguf")]
    pub(crate) output: Option<PathBuf>,

    /// Replace existing outputs (of a symbolic link, the link itself)
    #[arg(short, long)]
    pub(crate) force: bool,

    /// Do not read the finished files back and compare them
    #[arg(long)]
    pub(crate) no_verify: bool,

    #[command(flatten)]
    pub(crate) global: cli::GlobalArgs,
}

const AFTER_HELP: &str = "\
Examples:
  minfer-unpack model.mpk                        write model.gguf
  minfer-unpack model.mpk again.gguf && cmp model.gguf again.gguf

Any choice of planes will do. Every byte that is used is checked against its hash first; a damaged
container gives no output. The output appears complete or not at all: it is written beside its final
name, read back and compared, synced, and renamed.

Exit codes: 0 unpacked · 1 the container is damaged, or the output does not verify · 2 usage · 3 input
not usable · 4 I/O or output exists · 5 does not fit in memory · 128+n signal n";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_is_well_formed() {
        Args::command().debug_assert();
    }
}
