//! What every minfer command shares: global flags, exit codes, error lines, progress, signals.
//!
//! A binary is a `main` of one line that calls [`run`] with its arguments type and its body:
//!
//! ```no_run
//! #[derive(clap::Parser)]
//! #[command(name = "minfer-example", version)]
//! struct Args {
//!     #[command(flatten)]
//!     global: cli::GlobalArgs,
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     cli::run(|args: &Args| &args.global, |args, ui| {
//!         ui.note(format_args!("{} threads", ui.threads()));
//!         ui.print("the product\n")?;
//!         Ok(cli::ExitCode::Ok)
//!     })
//! }
//! ```
//!
//! Standard output carries the product, standard error the talk. Whatever goes wrong, the user
//! sees one line that starts with `error:` and gets one of the codes of [`ExitCode`].

mod args;
mod environment;
mod exit;
mod file;
mod main_loop;
mod memory;
mod number;
pub mod output;
mod progress;
pub mod signal;
mod size;
mod threads;
mod ui;
mod version;

pub use args::{Color, GlobalArgs, ProgressMode};
pub use clap_complete::Shell;
pub use environment::variable;
pub use exit::{ExitCode, Failure};
pub use file::open_regular;
pub use main_loop::{run, run_renaming};
pub use memory::available_memory;
pub use number::{number, whole};
pub use progress::{Progress, Stage};
pub use size::{Bytes, Seconds, hex, parse_size};
pub use threads::threads;
pub use ui::Ui;
pub use version::{BUILD_NUMBER, COMMIT, LONG_VERSION};

/// Text for the end of every `--help`: the exit codes.
pub const EXIT_CODES_HELP: &str = "\
Exit codes: 0 done · 1 the check or the work failed · 2 usage · 3 input not usable · 4 I/O or output \
exists · 5 does not fit in memory · 6 device or --strict · 128+n signal n";
