//! The flags that every command takes.

use clap::{Args, ValueEnum};
use clap_complete::Shell;

/// Flags that every minfer command takes; flatten it into the command's own arguments.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Print the product, errors and warnings of what will not work, no more (-qq: no warning)
    #[arg(short, long, conflicts_with = "verbose", action = clap::ArgAction::Count)]
    pub quiet: u8,

    /// Print more of what is being done (-vv for more still)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// When to colour messages (the NO_COLOR variable is respected)
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub color: Color,

    /// Print the result as one JSON object with "exit" in it on standard output
    #[arg(long)]
    pub json: bool,

    /// How to show progress on standard error
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub progress: ProgressMode,

    /// Worker threads [default: physical cores that this process may use]
    #[arg(short, long, value_name = "N", env = "MINFER_THREADS", hide_env_values = true,
          allow_negative_numbers = true, value_parser = crate::number(1..=1024u16))]
    pub threads: Option<u16>,

    /// Print a completion script for this shell and exit
    #[arg(long, value_name = "SHELL", value_enum, exclusive = true)]
    pub completions: Option<Shell>,
}

/// When messages are coloured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How progress is shown on standard error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ProgressMode {
    /// A bar on a terminal, else plain lines for work that takes longer than a second
    #[default]
    Auto,
    /// A bar with bytes per second and time left
    Bar,
    /// One line every 10 %
    Plain,
    /// One JSON object a line
    Json,
    /// Nothing
    None,
}
