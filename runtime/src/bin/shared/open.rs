//! Opening the model file: what it is, the map, and the checks that `--verify` asks for.
#![allow(unsafe_code)]

use crate::bus_error;
use crate::device::Verify;
use cli::{Failure, Ui};
use format_spec::container::{Container, LEAF_BYTES, Object, hash_leaf};
use memmap2::Mmap;
use rayon::prelude::*;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A mapped model file.
pub(crate) struct ModelFile {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) map: Mmap,
}

impl ModelFile {
    /// Opens and maps `path`.
    ///
    /// # Errors
    /// If it cannot be opened or mapped, or is a GGUF file: the message then has the line that
    /// packs it.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let (file, len) = cli::open_regular(path)?;
        if len == 0 {
            return Err(Failure::input(format!("{}: the file is empty", path.display())));
        }
        watch(path)?;
        // SAFETY: the bytes are only read. Another process that changes them can change what is
        // computed, as it could by changing the file before; one that cuts the file short raises
        // SIGBUS, which ends this process in an orderly way (`bus_error`).
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Failure::io(path, "cannot map", &e))?;
        if map.starts_with(b"GGUF") {
            return Err(Failure::input(format!(
                "{} is a GGUF file; pack it once, then run the result: minfer-pack {}",
                path.display(),
                shell_word(path)
            )));
        }
        Ok(Self { path: path.to_owned(), file, map })
    }

    /// From now on a file that becomes shorter is this one.
    ///
    /// # Errors
    /// When the system refuses the handler.
    #[allow(dead_code)] // one of the commands has several files
    pub(crate) fn watch(&self) -> Result<(), Failure> {
        watch(&self.path)
    }

    /// The container in the file, header and index checked.
    ///
    /// # Errors
    /// If they cannot be trusted.
    pub(crate) fn container(&self) -> Result<Container<'_>, Failure> {
        Container::parse(&self.map).map_err(|e| Failure::format(&self.path, &e))
    }

    /// Puts the file's name in front of a failure about its contents.
    pub(crate) fn blame(&self, failure: Failure) -> Failure {
        Failure::new(failure.code, format!("{}: {}", self.path.display(), failure.message))
    }

    /// Checks the hashes of every object, in parallel, and that the bytes between them are zero.
    ///
    /// # Errors
    /// Failed work (1), naming the first object whose bytes are not the recorded ones.
    pub(crate) fn verify(
        &self,
        container: &Container<'_>,
        level: Verify,
        ui: &Ui,
    ) -> Result<(), Failure> {
        if matches!(level, Verify::Off | Verify::Header) {
            return Ok(());
        }
        let total = container.objects().iter().map(|o| o.len).sum();
        let progress = ui.progress(&["verify"]);
        let stage = progress.stage("verify", total);
        let bad = container.objects().par_iter().find_first(|object| {
            let sound = self.is_sound(object, level);
            stage.add(object.len);
            !sound
        });
        if let Some(object) = bad {
            return Err(Failure::failed(format!(
                "{}: {}: its bytes are not the recorded ones (minfer-verify says where)",
                self.path.display(),
                object.name
            )));
        }
        match container.zero_gaps().iter().find(|gap| !self.is_zero(gap)) {
            None => Ok(()),
            Some(gap) => Err(Failure::failed(format!(
                "{}: bytes {} to {} lie between objects and must be zero (minfer-verify says where)",
                self.path.display(),
                gap.start,
                gap.end
            ))),
        }
    }

    fn is_zero(&self, gap: &Range<u64>) -> bool {
        let bytes = self.map.get(gap.start as usize..gap.end as usize);
        bytes.is_some_and(|bytes| bytes.iter().all(|&b| b == 0))
    }

    fn is_sound(&self, object: &Object, level: Verify) -> bool {
        let bytes = object.bytes(&self.map);
        match level {
            Verify::Full => {
                bytes.chunks(LEAF_BYTES).map(hash_leaf).eq(object.leaves.iter().copied())
            }
            _ => xxhash_rust::xxh3::xxh3_64(bytes) == object.xxh3,
        }
    }
}

fn watch(path: &Path) -> Result<(), Failure> {
    bus_error::install(path).map_err(|e| Failure::io(path, "cannot handle SIGBUS", &e))
}

/// The path as one word of a shell command.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_one_shell_word() {
        assert_eq!(shell_word(Path::new("a/b.gguf")), "a/b.gguf");
        assert_eq!(shell_word(Path::new("my model.gguf")), "'my model.gguf'");
        assert_eq!(shell_word(Path::new("it's")), r"'it'\''s'");
    }
}
