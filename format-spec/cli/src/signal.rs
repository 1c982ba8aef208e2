//! Signals: what SIGINT and SIGTERM do, and the ones that must not kill.
//!
//! SIGPIPE needs nothing here: the Rust runtime ignores it, so that writing to a closed pipe is an
//! error that [`Failure::stdout`](crate::Failure::stdout) turns into a quiet end.

use crate::ExitCode;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Which of the two signals came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// A polite request to end.
    Terminate,
}

impl Signal {
    /// The code that a command ends with after this signal.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Interrupt => ExitCode::Interrupted,
            Self::Terminate => ExitCode::Terminated,
        }
    }
}

/// Calls `f` on its own thread (no signal-handler restrictions apply there) for each SIGINT and
/// SIGTERM from now on. A handler that wants to end the process calls [`exit`].
///
/// # Errors
/// When the handlers or the thread cannot be set up.
pub fn on_signal(mut f: impl FnMut(Signal) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            f(if signal == SIGINT { Signal::Interrupt } else { Signal::Terminate });
        }
    })?;
    Ok(())
}

/// Ends the process with the code of `signal`, without running destructors of other threads.
pub fn exit(signal: Signal) -> ! {
    std::process::exit(i32::from(signal.exit_code().code()))
}

/// Makes writing past the file-size limit an `EFBIG` error instead of death by SIGXFSZ.
///
/// # Errors
/// When the handler cannot be set up.
pub fn survive_file_size_limit() -> io::Result<()> {
    // SIGXFSZ has this number on every Linux architecture that minfer runs on (x86, Arm).
    const SIGXFSZ: i32 = 25;
    // Any handler will do: what matters is that the default action, termination, is gone.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}
