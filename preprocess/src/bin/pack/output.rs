//! The output file: complete under its name, or not there at all.
//!
//! The bytes go into `.NAME.tmp-PID-RANDOM` in the target's directory, which is synced and then
//! renamed. Whatever ends the process, an error, a panic, SIGINT or SIGTERM, removes it; only
//! SIGKILL or a power cut leaves it, and the next run reports it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cli::{Bytes, ExitCode, Failure};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

/// The temporary file that must go when the process ends. Held while it is renamed, so that a
/// signal comes before or after, never between.
static TEMPORARY: Mutex<Option<PathBuf>> = Mutex::new(None);

fn temporary() -> MutexGuard<'static, Option<PathBuf>> {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary file, if there is one. The guard it returns keeps others from making one.
pub(crate) fn remove_temporary() -> MutexGuard<'static, Option<PathBuf>> {
    let mut temporary = temporary();
    if let Some(path) = temporary.take() {
        // There is nobody left to tell when this fails too.
        let _ = fs::remove_file(path);
    }
    temporary
}

/// Where the output goes, checked before anything is written.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    dir: PathBuf,
    replaces: bool,
}

impl Target {
    /// Checks that `path` may be written: not the input, not existing unless `force`.
    pub(crate) fn new(path: &Path, input: &File, force: bool) -> Result<Self, Failure> {
        let io = |error: &io::Error| Failure::io(path, "cannot write", error);
        let refuse =
            |why: &str| Err(Failure::new(ExitCode::Io, format!("{}: {why}", path.display())));
        let mut path = path.to_path_buf();
        let mut replaces = false;
        match fs::metadata(&path) {
            Ok(existing) => {
                let input = input.metadata().map_err(|error| io(&error))?;
                if (existing.dev(), existing.ino()) == (input.dev(), input.ino()) {
                    return refuse("is the input itself");
                }
                if !existing.is_file() {
                    return refuse("exists and is no regular file");
                }
                if !force {
                    return refuse("exists already (--force replaces it)");
                }
                // Behind a symbolic link, the file is replaced and the link stays.
                path = fs::canonicalize(&path).map_err(|error| io(&error))?;
                replaces = true;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(&path).is_ok() {
                    return refuse("is a symbolic link to nothing");
                }
            }
            Err(error) => return Err(io(&error)),
        }
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.to_path_buf(),
            _ => PathBuf::from("."),
        };
        if path.file_name().is_none() {
            return refuse("names no file");
        }
        Ok(Self { path, dir, replaces })
    }

    /// The final path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that an unprivileged user can still write to the target's file system.
    pub(crate) fn available_bytes(&self) -> Result<u64, Failure> {
        let stat = rustix::fs::statvfs(&self.dir)
            .map_err(|errno| Failure::io(&self.dir, "cannot look at", &errno.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Temporary files of this target that a process no longer running has left.
    pub(crate) fn stale(&self) -> Vec<PathBuf> {
        let Some(name) = self.path.file_name() else { return Vec::new() };
        let prefix = temporary_prefix(name);
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        let is_stale = |name: &OsStr| {
            let rest = name.as_bytes().strip_prefix(prefix.as_bytes());
            let pid = rest.and_then(|rest| rest.split(|&byte| byte == b'-').next());
            let pid = pid.and_then(|pid| std::str::from_utf8(pid).ok()?.parse::<u32>().ok());
            pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
        };
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
        names.filter(|name| is_stale(name)).map(|name| self.dir.join(name)).collect()
    }

    /// Makes the temporary file with room for `len_bytes`.
    pub(crate) fn create(self, len_bytes: u64) -> Result<Output, Failure> {
        let available_bytes = self.available_bytes()?;
        if available_bytes < len_bytes {
            return Err(self.full(len_bytes, available_bytes));
        }
        let (file, temporary) = self.create_temporary()?;
        let output = Output { target: self, file, temporary, len_bytes };
        output.allocate()?;
        Ok(output)
    }

    fn create_temporary(&self) -> Result<(File, PathBuf), Failure> {
        let name = self.path.file_name().unwrap_or_default();
        let prefix = temporary_prefix(name);
        let mut tries = 0;
        loop {
            // Not a secret: only different from what another process picks.
            let random = RandomState::new().build_hasher().finish() as u32;
            let mut file_name = prefix.clone();
            file_name.push(format!("{}-{random:08x}", std::process::id()));
            let path = self.dir.join(file_name);
            // A signal between creating and noting the path would leave the file behind.
            let mut noted = temporary();
            match File::options().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => {
                    *noted = Some(path.clone());
                    return Ok((file, path));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < 16 => {
                    tries += 1;
                }
                Err(error) => return Err(Failure::io(&self.path, "cannot create", &error)),
            }
        }
    }

    fn full(&self, needed: u64, available: u64) -> Failure {
        let message = format!(
            "{}: disk full: {needed} bytes ({}) needed, {available} bytes ({}) available",
            self.path.display(),
            Bytes(needed),
            Bytes(available),
        );
        Failure::new(ExitCode::Io, message)
    }
}

/// `.NAME.tmp-`, with NAME cut so that the whole temporary name fits into 255 bytes.
fn temporary_prefix(name: &OsStr) -> OsString {
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

/// A temporary file on its way to its name. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct Output {
    target: Target,
    file: File,
    temporary: PathBuf,
    len_bytes: u64,
}

impl Output {
    /// The file to write to.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The final path.
    pub(crate) fn path(&self) -> &Path {
        &self.target.path
    }

    /// Opens the temporary file anew, to read back what is in it.
    pub(crate) fn reopen(&self) -> Result<File, Failure> {
        let fail = |error: &io::Error| Failure::io(self.path(), "cannot read back", error);
        let file = File::open(&self.temporary).map_err(|error| fail(&error))?;
        let len_bytes = file.metadata().map_err(|error| fail(&error))?.len();
        if len_bytes == self.len_bytes {
            return Ok(file);
        }
        let (path, wrote) = (self.path().display(), self.len_bytes);
        Err(Failure::failed(format!("{path}: wrote {wrote} bytes, the file has {len_bytes}")))
    }

    /// The failure for an error while writing: a full disk says how much is missing.
    pub(crate) fn write_failure(&self, what: &str, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                self.target.full(self.len_bytes, self.target.available_bytes().unwrap_or(0))
            }
            _ => Failure::io(self.path(), what, error),
        }
    }

    /// Reserves the room on disk, so that a full disk shows now and the file lies in one piece.
    fn allocate(&self) -> Result<(), Failure> {
        let fail = |errno: Errno| self.write_failure("cannot reserve space", &errno.into());
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.len_bytes) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                // Not every file system can; writing finds out by itself.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => break,
                Err(errno) => return Err(fail(errno)),
            }
        }
        self.file
            .set_len(self.len_bytes)
            .map_err(|error| self.write_failure("cannot set the length", &error))
    }

    /// Syncs the data. A failed sync is final: the pages it could not write may be gone.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.file.sync_all().map_err(|error| self.write_failure("cannot sync", &error))
    }

    /// Gives the synced file its name and syncs the directory.
    pub(crate) fn commit(self) -> Result<(), Failure> {
        let path = self.path();
        {
            let mut noted = temporary();
            self.rename().map_err(|errno| {
                let error = io::Error::from(errno);
                let doing = match errno {
                    Errno::EXIST => "appeared meanwhile (--force replaces it)",
                    _ => "cannot rename the finished file",
                };
                Failure::io(path, doing, &error)
            })?;
            *noted = None;
        }
        let synced = File::open(&self.target.dir).and_then(|dir| match dir.sync_all() {
            // Some file systems have no sync for directories.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
            other => other,
        });
        synced.map_err(|error| {
            if !self.target.replaces {
                let _ = fs::remove_file(path);
            }
            Failure::io(&self.target.dir, "cannot sync the directory", &error)
        })
    }

    fn rename(&self) -> Result<(), Errno> {
        let (from, to) = (&self.temporary, &self.target.path);
        if self.target.replaces {
            return rustix::fs::rename(from, to);
        }
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // The file system cannot check and rename in one step: look, then rename.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => match to.symlink_metadata() {
                Ok(_) => Err(Errno::EXIST),
                Err(_) => rustix::fs::rename(from, to),
            },
            other => other,
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // After `commit` nothing is noted and nothing is removed.
        drop(remove_temporary());
    }
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
}
