//! The output file: complete under its name, or not there at all.
//!
//! The bytes go into `.NAME.tmp-PID-RANDOM` in the target's directory, which is synced and then
//! renamed. Whatever ends the process, an error, a panic, SIGINT or SIGTERM, removes it; only
//! SIGKILL or a power cut leaves it. The writer holds a lock on it, so that the next run tells what
//! was left from what is being written, and removes it.

mod target;
mod temporary;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FallocateFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::Failure;

pub use target::Target;
pub use temporary::{exit, remove_on_signal};
use temporary::{forget, noted};

/// A temporary file on its way to its name. Dropping it removes the file.
#[derive(Debug)]
pub struct Output {
    target: Target,
    file: File,
    temporary: PathBuf,
    len_bytes: u64,
}

impl Output {
    /// An output whose room on disk is reserved.
    fn allocated(
        target: Target,
        file: File,
        temporary: PathBuf,
        len_bytes: u64,
    ) -> Result<Self, Failure> {
        let output = Self { target, file, temporary, len_bytes };
        output.allocate()?;
        Ok(output)
    }

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

    /// The failure for an error while writing: a full disk says how much is missing, and a quota how
    /// much was wanted.
    pub fn write_failure(&self, what: &str, error: &io::Error) -> Failure {
        let failure = Failure::io(self.path(), what, error);
        let needed = self.len_bytes;
        match error.kind() {
            io::ErrorKind::StorageFull => match self.target.available_bytes() {
                Ok(Some(available)) if available < needed => self.target.full(needed, available),
                // What the file system counts as free is not for everybody, or not for everything.
                _ => Failure::new(failure.code, format!("{failure}; {needed} bytes needed")),
            },
            io::ErrorKind::QuotaExceeded => {
                Failure::new(failure.code, format!("{failure}; {needed} bytes needed"))
            }
            _ => failure,
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
            let mut noted = noted();
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
            let mut noted = noted();
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
    use crate::ExitCode;

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

    #[test]
    fn what_is_no_full_disk_is_not_called_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let target = Target::new(&dir.path().join("x"), &[], false).expect("a target");
        let output = target.create(3).expect("room");
        for errno in [Errno::DQUOT, Errno::NOSPC] {
            let failure = output.write_failure("cannot write", &errno.into());
            assert_eq!(failure.code, ExitCode::Io);
            assert!(failure.message.contains("/x: cannot write: "), "{failure}");
            assert!(failure.message.ends_with("; 3 bytes needed"), "{failure}");
        }
        let target = Target::new(&dir.path().join("y"), &[], false).expect("a target");
        let failure = target.create(u64::MAX / 2).expect_err("no disk is as large");
        assert!(failure.message.contains("/y: disk full: "), "{failure}");
    }

    /// Of errors only those that a file system without files answers with.
    #[test]
    fn a_file_system_without_a_size_is_not_to_blame_for_everything() {
        let of = |dir: &Path, errno: Errno| {
            let (path, dir) = (dir.join("x"), dir.to_path_buf());
            Target { path, dir, replaces: false }.cannot_create(&errno.into()).message
        };
        let why = "; the file system there says that it has no room for files at all";
        let proc = Path::new("/proc");
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::PERM] {
            let message = of(proc, errno);
            assert!(message.starts_with("/proc/x: cannot create: "), "{message}");
            assert!(message.ends_with(why), "{message}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let others = [Errno::NAMETOOLONG, Errno::MFILE, Errno::ROFS].map(|errno| of(proc, errno));
        for message in others.into_iter().chain([of(dir.path(), Errno::ACCESS)]) {
            assert!(!message.contains("no room"), "{message}");
        }
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
}
