//! Opening input files: regular files only, once.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::Failure;

/// Opens a regular file for reading and tells its length, both from the same descriptor.
///
/// A FIFO, directory or device is refused at once instead of blocking or never ending. Use the
/// descriptor from here on: the path may name another file a moment later.
///
/// # Errors
/// I/O (4) if it cannot be opened, input not usable (3) if it is no regular file.
pub fn open_regular(path: &Path) -> Result<(File, u64), Failure> {
    // Without O_NONBLOCK, opening a FIFO waits for a writer. It has no effect on regular files.
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblock)
        .open(path)
        .map_err(|error| Failure::io(path, "cannot open", &error))?;
    let metadata = file.metadata().map_err(|error| Failure::io(path, "cannot look at", &error))?;
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok((file, metadata.len()));
    }
    let what = if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "not a file"
    };
    Err(Failure::input(format!("{}: is {what}; a regular file is needed", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExitCode;

    #[test]
    fn only_regular_files_open() {
        for (path, code) in [
            ("/dev/zero", ExitCode::Input),
            ("/", ExitCode::Input),
            ("/nonexistent/file", ExitCode::Io),
        ] {
            let failure = open_regular(Path::new(path)).expect_err(path);
            assert_eq!(failure.code, code, "{path}: {failure}");
        }
        let (_, len) = open_regular(Path::new(env!("CARGO_MANIFEST_PATH"))).expect("a file");
        assert!(len > 0);
    }
}
