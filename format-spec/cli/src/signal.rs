//! Signals: what the ones that ask a process to end do, and the ones that must not kill.
//!
//! SIGPIPE needs nothing here: the Rust runtime ignores it, so that writing to a closed pipe is an
//! error that [`Failure::stdout`](crate::Failure::stdout) turns into a quiet end.

use crate::ExitCode;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

/// Which signal came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The terminal was closed.
    HangUp,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-\.
    Quit,
    /// A polite request to end.
    Terminate,
}

impl Signal {
    /// The code that a command ends with after this signal.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::HangUp => ExitCode::HungUp,
            Self::Interrupt => ExitCode::Interrupted,
            Self::Quit => ExitCode::Quit,
            Self::Terminate => ExitCode::Terminated,
        }
    }
}

/// Calls `f` on its own thread (no signal-handler restrictions apply there) for each SIGHUP, SIGINT,
/// SIGQUIT and SIGTERM from now on. A handler that wants to end the process calls [`exit`].
///
/// A SIGHUP that the process was started to ignore, as `nohup` does, stays ignored.
///
/// # Errors
/// When the handlers or the thread cannot be set up.
pub fn on_signal(mut f: impl FnMut(Signal) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGQUIT, SIGTERM])?;
    if !is_ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            f(match signal {
                SIGHUP => Signal::HangUp,
                SIGINT => Signal::Interrupt,
                SIGQUIT => Signal::Quit,
                _ => Signal::Terminate,
            });
        }
    })?;
    Ok(())
}

/// Whether this process ignores a signal; no if the system does not tell.
fn is_ignored(signal: i32) -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, signal))
}

fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    // Bit 0 is signal 1.
    let bit = u32::try_from(signal).ok().and_then(|n| n.checked_sub(1));
    bit.and_then(|bit| mask.checked_shr(bit)).is_some_and(|mask| mask & 1 == 1)
}

/// Ends the process with the code of `signal`, without running destructors of other threads. With
/// `--json` the result object, of which only `exit` is known here, comes first.
pub fn exit(signal: Signal) -> ! {
    crate::ui::last_word(signal.exit_code());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        let status = "SigBlk:\t0000000000000005\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert!(ignores(status, SIGHUP));
        assert!(ignores(status, 13));
        assert!(!ignores(status, SIGINT) && !ignores(status, SIGQUIT));
        assert!(!ignores("SigIgn:\tx\n", SIGHUP) && !ignores("", SIGHUP));
    }
}
