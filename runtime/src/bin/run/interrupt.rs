//! What ^C does: while an answer is being made, the first one asks it to stop; a second one, or one
//! at any other time, ends the process.

use cli::signal::{self, Signal};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by the first ^C, cleared when a chat has dealt with it.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Whether something is running that looks at [`asked`].
static LISTENING: AtomicBool = AtomicBool::new(false);

/// While it lives, the first ^C is left to [`asked`].
pub(crate) struct Listening(());

/// Announces that [`asked`] will be looked at from now on.
pub(crate) fn listen() -> Listening {
    LISTENING.store(true, Ordering::Relaxed);
    Listening(())
}

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENING.store(false, Ordering::Relaxed);
    }
}

/// How the terminal was before a line editor changed it.
static TERMINAL: OnceLock<Termios> = OnceLock::new();

/// Remembers the terminal's state, so that a signal in the middle of a line does not leave it
/// without echo. Call it before the first line is read.
pub(crate) fn remember_terminal() {
    if let Ok(state) = tcgetattr(rustix::stdio::stdin()) {
        TERMINAL.get_or_init(|| state);
    }
}

fn restore_terminal() {
    if let Some(state) = TERMINAL.get() {
        // The process is about to end; there is nobody to tell if this fails.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, state);
    }
}

/// Installs the handlers. A signal that ends the process removes what is unfinished of `--logits`.
///
/// # Errors
/// I/O, when the system refuses.
pub(crate) fn install() -> Result<(), cli::Failure> {
    let installed = signal::survive_file_size_limit().and_then(|()| {
        signal::on_signal(|which| match which {
            Signal::Interrupt
                if LISTENING.load(Ordering::Relaxed) && !ASKED.swap(true, Ordering::Relaxed) => {}
            which => {
                restore_terminal();
                cli::output::exit(which)
            }
        })
    });
    installed
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
