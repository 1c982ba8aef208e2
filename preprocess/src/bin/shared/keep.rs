//! What `--force` does not replace.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use cli::{ExitCode, Failure};

/// Refuses an output that is there and begins with `magic`: a model in the form that this program reads, as
/// `minfer-pack --force *.gguf` names it. A link is replaced, not what it leads to.
pub(crate) fn keep(output: &Path, magic: &[u8], what: &str) -> Result<(), Failure> {
    let is_file = fs::symlink_metadata(output).is_ok_and(|metadata| metadata.is_file());
    let mut start = vec![0; magic.len()];
    let begins = is_file
        && fs::File::open(output).is_ok_and(|mut file| file.read_exact(&mut start).is_ok())
        && start == magic;
    match begins {
        true => Err(Failure::new(
            ExitCode::Io,
            format!(
                "{}: is {what}, which --force does not replace; every input takes a command of its own",
                output.display()
            ),
        )),
        false => Ok(()),
    }
}
