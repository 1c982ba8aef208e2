//! SIGBUS: what reading a mapped file raises once the file has become shorter, or its disk fails.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const SIGBUS: i32 = 7;

/// Files that have a line of their own; any after them have the last's.
const N_LINES: usize = 64;

/// The whole line of each file, made beforehand: a signal handler must not allocate.
static LINES: [OnceLock<Vec<u8>>; N_LINES] = [const { OnceLock::new() }; N_LINES];

/// How many of them there are.
static N_FILES: AtomicUsize = AtomicUsize::new(0);

/// From now on a SIGBUS ends the process with one line about `path` and exit code 4 instead of a
/// core dump. Of several files the one installed last is in use.
///
/// # Errors
/// When the system refuses the handler.
pub(crate) fn install(path: &Path) -> io::Result<()> {
    let line = format!(
        "error: {}: the file became shorter or unreadable while it was in use\n",
        path.display()
    );
    let which = N_FILES.load(Ordering::Acquire).min(N_LINES - 1);
    LINES[which].get_or_init(|| line.into_bytes());
    N_FILES.store(which + 1, Ordering::Release);
    if which > 0 {
        return Ok(());
    }
    let handler = || {
        let last = N_FILES.load(Ordering::Acquire).saturating_sub(1);
        if let Some(line) = LINES[last.min(N_LINES - 1)].get() {
            // Nobody is left to be told if this fails.
            let _ = rustix::io::write(rustix::stdio::stderr(), line);
        }
        signal_hook::low_level::exit(i32::from(cli::ExitCode::Io.code()));
    };
    // SAFETY: the handler does only what is async-signal-safe: it reads cells that are filled
    // before the number that leads to them, makes one write system call, and ends with `_exit`.
    unsafe { signal_hook::low_level::register(SIGBUS, handler) }?;
    Ok(())
}
