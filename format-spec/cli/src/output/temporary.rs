//! Temporary files: their names, the lock that says that one is being written, and the list of those
//! that must go when the process ends.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::signal::Signal;

/// The temporary files that must go when the process ends. Held while one is renamed, so that a
/// signal comes before or after, never between.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

pub(super) fn noted() -> MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets up signals for a command that writes files: those that end it remove what is unfinished,
/// and the file-size limit is an error.
///
/// # Errors
/// When the handlers cannot be set up.
pub fn remove_on_signal() -> io::Result<()> {
    crate::signal::survive_file_size_limit()?;
    crate::signal::on_signal(|signal| exit(signal))
}

/// Removes what is unfinished and ends the process with the code of `signal`.
pub fn exit(signal: Signal) -> ! {
    // Held until the process is gone, so that no new file is made meanwhile.
    let mut noted = noted();
    for path in noted.drain(..) {
        // There is nobody left to tell when this fails too.
        let _ = fs::remove_file(path);
    }
    crate::signal::exit(signal)
}

/// Takes the lock that says that a file is being written; `false` if another process has it.
pub(super) fn lock(file: &File) -> Result<bool, Errno> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Removes a temporary file, unless it has its final name already.
pub(super) fn forget(path: &Path) {
    let mut noted = noted();
    if let Some(i) = noted.iter().position(|noted| noted == path) {
        noted.swap_remove(i);
        let _ = fs::remove_file(path);
    }
}

/// Whether `name` is `{prefix}PID-RANDOM`.
pub(super) fn is_temporary(name: &OsStr, prefix: &OsStr) -> bool {
    let rest = name.as_bytes().strip_prefix(prefix.as_bytes()).unwrap_or_default();
    let mut parts = rest.split(|&byte| byte == b'-');
    let is = |part: Option<&[u8]>, digit: fn(&u8) -> bool| {
        part.is_some_and(|part| !part.is_empty() && part.iter().all(digit))
    };
    is(parts.next(), u8::is_ascii_digit)
        && is(parts.next(), u8::is_ascii_hexdigit)
        && parts.next().is_none()
}

/// `.NAME.tmp-`, with NAME cut so that the whole temporary name fits into 255 bytes.
pub(super) fn temporary_prefix(name: &OsStr) -> OsString {
    const LONGEST_NAME: usize = 255;
    /// Dot, `.tmp-`, a pid of at most ten digits, `-`, eight hex digits.
    const AROUND: usize = 1 + 5 + 10 + 1 + 8;
    let bytes = name.as_bytes();
    let mut end = bytes.len().min(LONGEST_NAME - AROUND);
    // Some file systems refuse names that are cut inside a character.
    while end > 0 && bytes.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
        end -= 1;
    }
    let mut prefix = b".".to_vec();
    prefix.extend_from_slice(bytes.get(..end).unwrap_or(bytes));
    prefix.extend_from_slice(b".tmp-");
    OsString::from_vec(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_fit_and_are_not_cut_inside_a_character() {
        let long = "ü".repeat(127) + ".";
        assert_eq!(long.len(), 255);
        for name in ["a.mpk", long.as_str(), &"x".repeat(255)] {
            let prefix = temporary_prefix(OsStr::new(name));
            assert!(prefix.len() + 10 + 1 + 8 <= 255, "{name}");
            assert!(prefix.to_str().is_some_and(|text| text.ends_with(".tmp-")));
        }
        assert_eq!(temporary_prefix(OsStr::new("a.mpk")), OsStr::new(".a.mpk.tmp-"));
    }

    #[test]
    fn only_our_own_names_are_taken_for_temporary_files() {
        let is = |name: &str| is_temporary(OsStr::new(name), OsStr::new(".a.mpk.tmp-"));
        assert!(is(".a.mpk.tmp-123-00c0ffee"));
        for other in [
            "",
            "a.mpk",
            ".a.mpk.tmp-",
            ".a.mpk.tmp-1",
            ".a.mpk.tmp-1-",
            ".a.mpk.tmp-x-1",
            ".a.mpk.tmp-1-x",
            ".a.mpk.tmp-1-1-1",
            ".b.mpk.tmp-1-1",
        ] {
            assert!(!is(other), "{other}");
        }
    }
}
