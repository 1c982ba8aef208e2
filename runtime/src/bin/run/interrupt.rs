//! What ^C does: the first one asks the answer to stop, a second one ends the process.

use cli::signal::{self, Signal};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by the first ^C, cleared when a chat has dealt with it.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Installs the handlers.
///
/// # Errors
/// I/O, when the system refuses.
pub(crate) fn install() -> Result<(), cli::Failure> {
    signal::on_signal(|which| match which {
        Signal::Interrupt if !ASKED.swap(true, Ordering::Relaxed) => {}
        which => signal::exit(which),
    })
    .map_err(|e| cli::Failure::new(cli::ExitCode::Io, format!("cannot handle signals: {e}")))
}

/// Whether ^C was pressed since the last [`clear`].
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Forgets the ^C: what it asked for has been done.
pub(crate) fn clear() {
    ASKED.store(false, Ordering::Relaxed);
}
