//! SIGBUS: what reading a mapped file raises once the file has become shorter, or its disk fails.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;
use std::sync::OnceLock;

const SIGBUS: i32 = 7;

/// The whole line, made beforehand: a signal handler must not allocate.
static LINE: OnceLock<Vec<u8>> = OnceLock::new();

/// From now on a SIGBUS ends the process with one line about `path` and exit code 4 instead of a
/// core dump.
///
/// # Errors
/// When the system refuses the handler.
pub(crate) fn install(path: &Path) -> io::Result<()> {
    let line = format!(
        "error: {}: the file became shorter or unreadable while it was in use\n",
        path.display()
    );
    LINE.get_or_init(|| line.into_bytes());
    let handler = || {
        if let Some(line) = LINE.get() {
            // Nobody is left to be told if this fails.
            let _ = rustix::io::write(rustix::stdio::stderr(), line);
        }
        signal_hook::low_level::exit(i32::from(cli::ExitCode::Io.code()));
    };
    // SAFETY: the handler does only what is async-signal-safe: it reads a cell that was filled
    // before the handler existed, makes one write system call, and ends with `_exit`.
    unsafe { signal_hook::low_level::register(SIGBUS, handler) }?;
    Ok(())
}
