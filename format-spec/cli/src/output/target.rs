//! Where an output goes, and whether it may.

use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, Dir, DirEntry, Mode, OFlags, access};
use rustix::process::{Resource, getrlimit};

use super::Output;
use super::temporary::{forget, is_temporary, lock, noted, temporary_prefix};
use crate::{Bytes, ExitCode, Failure, open_regular};

/// Where the output goes, checked before anything is written.
#[derive(Debug)]
pub struct Target {
    pub(super) path: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) replaces: bool,
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

    /// Bytes that an unprivileged user can still write to the target's file system. Nothing if it has
    /// no size: it keeps no files, as /proc, or does not tell, as some that are elsewhere or unlimited.
    ///
    /// # Errors
    /// I/O (4).
    pub fn available_bytes(&self) -> Result<Option<u64>, Failure> {
        let stat = rustix::fs::statvfs(&self.dir)
            .map_err(|errno| Failure::io(&self.dir, "cannot look at", &errno.into()))?;
        Ok((stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize)))
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
        if let Some(available_bytes) = available_bytes.filter(|&bytes| bytes < len_bytes) {
            return Err(self.full(len_bytes, available_bytes));
        }
        let (file, temporary) = self.create_temporary()?;
        Output::allocated(self, file, temporary, len_bytes)
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
            let mut noted = noted();
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
                Err(error) => return Err(self.cannot_create(&error)),
            }
        }
    }

    /// The failure of making a file. What the system says by itself, that /proc has no such file and that
    /// even root may not write to /sys, sends people looking for a name that they mistyped, or for rights.
    /// Other errors speak of something else: a file system that does not tell its size takes files.
    pub(super) fn cannot_create(&self, error: &io::Error) -> Failure {
        let failure = Failure::io(&self.path, "cannot create", error);
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                if self.available_bytes() == Ok(None) =>
            {
                let why = "the file system there says that it has no room for files at all";
                Failure::new(failure.code, format!("{failure}; {why}"))
            }
            _ => failure,
        }
    }

    pub(super) fn full(&self, needed: u64, available: u64) -> Failure {
        let message = format!(
            "{}: disk full: {needed} bytes ({}) needed, {available} bytes ({}) available",
            self.path.display(),
            Bytes(needed),
            Bytes(available),
        );
        Failure::new(ExitCode::Io, message)
    }
}
