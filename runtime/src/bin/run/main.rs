//! minfer-run: runs a packed model.

mod answer;
mod args;
mod bus_error;
mod cmd;
mod device_args;
mod gpu;
mod history;
mod interrupt;
mod memory;
mod open;
mod prompt;
mod render;
mod report;
mod sampling_args;
mod setup;

use args::Args;

fn main() -> std::process::ExitCode {
    cli::run(|args: &Args| &args.global, cmd::dispatch)
}
