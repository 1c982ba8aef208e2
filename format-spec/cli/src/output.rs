//! The output file: complete under its name, or not there at all.
//!
//! The bytes go into `.NAME.tmp-PID-RANDOM` in the target's directory, which is synced and then
//! renamed. Whatever ends the process, an error, a panic, SIGINT or SIGTERM, removes it; only
//! SIGKILL or a power cut leaves it. The writer holds a lock on it, so that the next run tells what
//! was left from what is being written, and removes it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{
    Access, CWD, Dir, DirEntry, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, access,
    flock, renameat_with,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::signal::Signal;
use crate::{Bytes, ExitCode, Failure, open_regular};

/// The temporary files that must go when the process ends. Held while one is renamed, so that a
/// signal comes before or after, never between.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn temporary() -> MutexGuard<'static, Vec<PathBuf>> {
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
    let mut noted = temporary();
    for path in noted.drain(..) {
        // There is nobody left to tell when this fails too.
        let _ = fs::remove_file(path);
    }
    crate::signal::exit(signal)
}

/// Where the output goes, checked before anything is written.
#[derive(Debug)]
pub struct Target {
    path: PathBuf,
    dir: PathBuf,
    replaces: bool,
}

impl Target {
    /// Checks that `path` may be written: not one of the inputs, not existing unless `force`, in a
    /// directory that takes files. A symbolic link to a file is replaced itself; the file stays.
    ///
    /// # Errors
    /// I/O (4), saying why not.
    pub fn new(path: &Path, inputs: &[&File], force: bool) -> Result<Self, Failure> {
        let io = |error: &io::Error| Failure::io(path, "cannot write", error);
        let refuse =
            |why: &str| Err(Failure::new(ExitCode::Io, format!("{}: {why}", path.display())));
        let mut replaces = false;
        match fs::metadata(path) {
            Ok(existing) => {
                for input in inputs {
                    let input = input.metadata().map_err(|error| io(&error))?;
                    if (existing.dev(), existing.ino()) == (input.dev(), input.ino()) {
                        return refuse("is the input itself");
                    }
                }
                if existing.is_dir() {
                    return refuse(
                        "is a directory and no regular file: give the output a name in it",
                    );
                }
                if !existing.is_file() {
                    return refuse("exists and is no regular file");
                }
                if !force {
                    return refuse("exists already (--force replaces it)");
                }
                // Of a symbolic link, the link: what it leads to may be somebody's only copy.
                replaces = true;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(path).is_ok() {
                    return refuse("is a symbolic link to nothing");
                }
                if path.as_os_str().as_bytes().ends_with(b"/") {
                    return refuse("ends with a slash, and there is no such directory");
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
        match access(&dir, Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) => {}
            Err(errno) => return Err(Failure::io(path, "cannot create", &errno.into())),
        }
        Ok(Self { path: path.to_path_buf(), dir, replaces })
    }

    /// The final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that an unprivileged user can still write to the target's file system.
    ///
    /// # Errors
    /// I/O (4).
    pub fn available_bytes(&self) -> Result<u64, Failure> {
        let stat = rustix::fs::statvfs(&self.dir)
            .map_err(|errno| Failure::io(&self.dir, "cannot look at", &errno.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Removes temporary files of this target that a killed process has left, and returns their
    /// paths. Whatever cannot be locked is still being written.
    pub fn remove_stale(&self) -> Vec<PathBuf> {
        let Some(name) = self.path.file_name() else { return Vec::new() };
        let prefix = temporary_prefix(name);
        // Not `std::fs::read_dir`, which panics where closing the directory fails.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&self.dir, flags, Mode::empty());
        let Ok(entries) = dir.and_then(Dir::new) else { return Vec::new() };
        let name = |entry: &DirEntry| OsString::from_vec(entry.file_name().to_bytes().to_vec());
        let names = entries.filter_map(|entry| Some(name(&entry.ok()?)));
        let ours = names.filter(|name| is_temporary(name, &prefix));
        let is_stale = |path: &PathBuf| {
            open_regular(path).is_ok_and(|(file, _)| lock(&file) == Ok(true))
                && fs::remove_file(path).is_ok()
        };
        ours.map(|name| self.dir.join(name)).filter(is_stale).collect()
    }

    /// Makes the temporary file with room for `len_bytes`.
    ///
    /// # Errors
    /// I/O (4), with needed and available bytes if the disk is full.
    pub fn create(self, len_bytes: u64) -> Result<Output, Failure> {
        if let Some(allowed) = getrlimit(Resource::Fsize).current
            && allowed < len_bytes
        {
            let message = format!(
                "{}: file-size limit: {len_bytes} bytes ({}) needed, {allowed} bytes ({}) allowed \
                 (ulimit -f)",
                self.path.display(),
                Bytes(len_bytes),
                Bytes(allowed),
            );
            return Err(Failure::new(ExitCode::Io, message));
        }
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
                    noted.push(path.clone());
                    drop(noted);
                    // Where there are no locks, nobody takes it for a stale one either.
                    let locked = lock(&file);
                    // Whoever looked between creating and locking has taken it for one and
                    // removed it.
                    let is_there = file.metadata().is_ok_and(|file| file.nlink() > 0);
                    if locked == Ok(false) || !is_there {
                        forget(&path);
                        tries += 1;
                        if tries < 16 {
                            continue;
                        }
                        let error = io::ErrorKind::ResourceBusy.into();
                        return Err(Failure::io(&self.path, "cannot create", &error));
                    }
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

/// Takes the lock that says that a file is being written; `false` if another process has it.
fn lock(file: &File) -> Result<bool, Errno> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Removes a temporary file, unless it has its final name already.
fn forget(path: &Path) {
    let mut noted = temporary();
    if let Some(i) = noted.iter().position(|noted| noted == path) {
        noted.swap_remove(i);
        let _ = fs::remove_file(path);
    }
}

/// Whether `name` is `{prefix}PID-RANDOM`.
fn is_temporary(name: &OsStr, prefix: &OsStr) -> bool {
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
pub struct Output {
    target: Target,
    file: File,
    temporary: PathBuf,
    len_bytes: u64,
}

impl Output {
    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The final path.
    pub fn path(&self) -> &Path {
        &self.target.path
    }

    /// Opens the temporary file anew, to read back what is in it.
    ///
    /// # Errors
    /// I/O (4), or failed work (1) if it has another length than was written.
    pub fn reopen(&self) -> Result<File, Failure> {
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
    pub fn write_failure(&self, what: &str, error: &io::Error) -> Failure {
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
    ///
    /// # Errors
    /// I/O (4).
    pub fn sync(&self) -> Result<(), Failure> {
        self.file.sync_all().map_err(|error| self.write_failure("cannot sync", &error))
    }

    /// Gives the synced file its name and syncs the directory.
    ///
    /// # Errors
    /// I/O (4); the target is then what it was before, except that a directory that could not be
    /// synced may have lost the old file already.
    pub fn commit(self) -> Result<(), Failure> {
        {
            let mut noted = temporary();
            self.rename().map_err(|errno| self.rename_failure(errno))?;
            noted.retain(|noted| *noted != self.temporary);
        }
        self.sync_directory()
    }

    /// Gives several synced files their names: all of them, or, if one cannot get its name, none.
    /// Only a kill between two renames leaves some of them, each of them whole.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_all(outputs: Vec<Self>) -> Result<(), Failure> {
        {
            // Held over all renames: a signal comes before or after them.
            let mut noted = temporary();
            let mut placed = Vec::new();
            for output in &outputs {
                match output.place() {
                    Ok(exchanged) => placed.push((output, exchanged)),
                    Err(errno) => {
                        placed.iter().rev().for_each(|(output, old)| output.take_back(*old));
                        drop(noted);
                        return Err(output.rename_failure(errno));
                    }
                }
            }
            for (output, exchanged) in placed {
                if exchanged {
                    // Under the temporary name lies what was replaced.
                    let _ = fs::remove_file(&output.temporary);
                }
                noted.retain(|noted| *noted != output.temporary);
            }
        }
        outputs.iter().try_for_each(Self::sync_directory)
    }

    /// Renames so that it can be taken back; whether the old file has the temporary name now.
    fn place(&self) -> Result<bool, Errno> {
        let (from, to) = (&self.temporary, &self.target.path);
        if !self.target.replaces {
            return self.rename().map(|()| false);
        }
        match renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(true),
            // The file system cannot exchange: what was there is gone then.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => self.rename().map(|()| false),
            Err(errno) => Err(errno),
        }
    }

    /// Undoes [`place`](Self::place); dropping the output removes the temporary file then.
    fn take_back(&self, exchanged: bool) {
        let (from, to) = (&self.temporary, &self.target.path);
        // The failure that made this necessary is the one that is told.
        let _ = match exchanged {
            true => renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE),
            false if self.target.replaces => Ok(()),
            false => rustix::fs::rename(to, from),
        };
    }

    fn rename_failure(&self, errno: Errno) -> Failure {
        let doing = match errno {
            Errno::EXIST => "appeared meanwhile (--force replaces it)",
            _ => "cannot rename the finished file",
        };
        Failure::io(self.path(), doing, &io::Error::from(errno))
    }

    fn sync_directory(&self) -> Result<(), Failure> {
        let synced = File::open(&self.target.dir).and_then(|dir| match dir.sync_all() {
            // Some file systems have no sync for directories.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
            other => other,
        });
        synced.map_err(|error| {
            if !self.target.replaces {
                let _ = fs::remove_file(self.path());
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
        // After `commit` it is no longer noted, and nothing is removed.
        forget(&self.temporary);
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

    /// Three outputs with their contents, the second of which replaces an old file.
    fn three(dir: &Path) -> Vec<Output> {
        fs::write(dir.join("1"), b"old").expect("writing");
        let output = |name: &str| {
            let target = Target::new(&dir.join(name), &[], true).expect("a target");
            let output = target.create(3).expect("room");
            fs::write(&output.temporary, b"new").expect("writing");
            output
        };
        ["0", "1", "2"].map(output).into()
    }

    fn names(dir: &Path) -> Vec<(String, Vec<u8>)> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .expect("a directory")
            .map(|entry| {
                let path = entry.expect("an entry").path();
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                (name, fs::read(&path).unwrap_or_default())
            })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn several_outputs_get_their_names_together_or_not_at_all() {
        let file = |name: &str, bytes: &[u8]| (name.to_owned(), bytes.to_vec());
        let dir = tempfile::tempdir().expect("a directory");
        Output::commit_all(three(dir.path())).expect("nothing is in the way");
        let all = [file("0", b"new"), file("1", b"new"), file("2", b"new")];
        assert_eq!(names(dir.path()), all);
        let dir = tempfile::tempdir().expect("a directory");
        let outputs = three(dir.path());
        fs::create_dir(dir.path().join("2")).expect("a directory in the way");
        let failure = Output::commit_all(outputs).expect_err("the third cannot get its name");
        assert_eq!(failure.code, ExitCode::Io);
        assert!(failure.message.contains("/2: appeared meanwhile"), "{failure}");
        assert_eq!(names(dir.path()), [file("1", b"old"), file("2", b"")]);
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
