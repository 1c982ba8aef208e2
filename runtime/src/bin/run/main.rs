//! minfer-run: runs a packed model.

mod answer;
mod args;
#[path = "../shared/bus_error.rs"]
mod bus_error;
mod cmd;
#[path = "../shared/device.rs"]
mod device;
mod device_args;
mod gpu;
mod history;
mod interrupt;
mod memory;
#[path = "../shared/open.rs"]
mod open;
mod prompt;
mod render;
mod report;
mod sampling_args;
mod setup;
#[path = "../shared/switches.rs"]
mod switches;

use args::Args;

fn main() -> std::process::ExitCode {
    cli::run(|args: &Args| &args.global, cmd::dispatch)
}
