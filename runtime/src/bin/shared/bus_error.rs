//! SIGBUS: what reading a mapped file raises once the file has become shorter, or its disk fails.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

const SIGBUS: i32 = 7;

/// The whole line of the file in use, made beforehand: a signal handler must not allocate. What it
/// points to is never freed.
static LINE: AtomicPtr<Vec<u8>> = AtomicPtr::new(null_mut());

/// Whether a thread is already on its way out: several may meet the missing bytes at once.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Whether the handler is there.
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// From now on a SIGBUS ends the process with one line about `path` and exit code 4 instead of a
/// core dump. Of several files the one installed last is in use.
///
/// # Errors
/// When the system refuses the handler.
pub(crate) fn install(path: &Path) -> io::Result<()> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        // SAFETY: `end` does only what is async-signal-safe: it touches atomics, yields or
        // writes by a system call, and ends with `_exit`.
        unsafe { signal_hook::low_level::register(SIGBUS, end) }?;
        *installed = true;
    }
    let line = format!(
        "error: {}: the file became shorter or unreadable while it was in use\n",
        path.display()
    );
    LINE.store(Box::leak(Box::new(line.into_bytes())), Ordering::Release);
    Ok(())
}

fn end() {
    // One line, and nobody ends the process before it is written.
    while ENDING.swap(true, Ordering::AcqRel) {
        rustix::thread::sched_yield();
    }
    // SAFETY: null, or a line that `install` leaked and nobody changes.
    let line = unsafe { LINE.load(Ordering::Acquire).as_ref() };
    if let Some(line) = line {
        // Nobody is left to be told if this fails.
        let _ = rustix::io::write(rustix::stdio::stderr(), line);
    }
    signal_hook::low_level::exit(i32::from(cli::ExitCode::Io.code()));
}
