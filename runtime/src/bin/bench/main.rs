//! minfer-bench: speed, load time and memory of packed models, with llama-bench's flags and output.

mod args;
#[path = "../shared/bus_error.rs"]
mod bus_error;
#[path = "../shared/device.rs"]
mod device;
mod foreign;
mod limits;
mod load;
mod machine;
mod measure;
mod numbers;
// The descriptor is for those who write beside the model.
#[allow(dead_code)]
#[path = "../shared/open.rs"]
mod open;
mod output;
mod plan;
mod record;
mod speed;
mod stats;
mod subject;
#[path = "../shared/switches.rs"]
mod switches;
mod work;

use args::Args;
use cli::{ExitCode, Failure, Ui};

fn main() -> std::process::ExitCode {
    cli::run_renaming(&foreign::long_names(), |args: &Args| &args.global, dispatch)
}

fn dispatch(args: Args, ui: &Ui) -> Result<ExitCode, Failure> {
    args.check()?;
    // Which ends the process at once: there is nothing to tidy up.
    cli::signal::on_signal(|signal| cli::signal::exit(signal))
        .map_err(|e| Failure::new(ExitCode::Io, format!("cannot handle signals: {e}")))?;
    match (args.flags.load.child, args.flags.load.load) {
        (true, _) => load::child(&args, ui),
        (false, true) => load::run(&args, ui),
        (false, false) => speed::run(&args, ui),
    }
}
