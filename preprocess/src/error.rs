//! What can go wrong between an input and a finished container.

use std::io;
use std::path::Path;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why packing or verifying stopped. The caller adds the names of the files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input's bytes are not usable.
    #[error(transparent)]
    Format(#[from] format_spec::Error),
    /// Reading the input failed; a file that shrank is `UnexpectedEof`.
    #[error("cannot read {what}: {source}")]
    Read {
        /// Tensor, object or section, with its bytes.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// Writing the output failed.
    #[error("cannot write {what}: {source}")]
    Write {
        /// Which of the outputs, from 0.
        output: usize,
        /// Object or section, with its bytes.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A weight or block scale is infinite or not a number.
    #[error(
        "tensor {tensor}: row {row}, block {block} (bytes {start}..{end} of the tensor): \
         {field} is {value}, expected a finite number"
    )]
    NonFinite {
        /// The tensor.
        tensor: String,
        /// Row in the tensor.
        row: u64,
        /// Block in the row (element, for plain floats).
        block: u64,
        /// First byte of the block in the tensor as the GGUF has it.
        start: u64,
        /// End of the block.
        end: u64,
        /// Which field of the block.
        field: &'static str,
        /// What it holds.
        value: f32,
    },
    /// The container that is repacked does not hold what its own hashes say.
    #[error("{object}: bytes {start}..{end}: sha256 differs from the index: the input is damaged")]
    Damaged {
        /// Name of the object.
        object: String,
        /// First byte of the leaf in the file.
        start: u64,
        /// End of the leaf.
        end: u64,
    },
    /// The chat template is none that the runtime can use.
    #[error("key {key} {problem}")]
    Template {
        /// Where the GGUF has it.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The finished file does not hold what was written.
    #[error("the written file does not verify: {0}")]
    NotVerified(String),
}

/// What kind of trouble an [`Error`] is; a binary has one exit code for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The input is not usable.
    Input,
    /// Reading or writing failed.
    Io,
    /// It does not fit in memory.
    Memory,
    /// The check failed: bytes are not those that hashes speak of.
    Failed,
}

impl From<Class> for cli::ExitCode {
    fn from(class: Class) -> Self {
        match class {
            Class::Input => Self::Input,
            Class::Io => Self::Io,
            Class::Memory => Self::Memory,
            Class::Failed => Self::Failed,
        }
    }
}

impl Error {
    /// Which class this belongs to.
    pub fn class(&self) -> Class {
        match self {
            Self::Format(_) | Self::NonFinite { .. } | Self::Template { .. } => Class::Input,
            Self::Damaged { .. } | Self::NotVerified(_) => Class::Failed,
            Self::Read { source, .. } | Self::Write { source, .. } => match source.kind() {
                io::ErrorKind::OutOfMemory => Class::Memory,
                _ => Class::Io,
            },
        }
    }

    /// What a command ends with after this error about the file at `path`.
    pub fn failure(&self, path: &Path) -> cli::Failure {
        let hint = if self.is_shrunk() { " (the file became shorter meanwhile)" } else { "" };
        cli::Failure::new(self.class().into(), format!("{}: {self}{hint}", path.display()))
    }

    /// Whether a file has become shorter than it was when it was opened.
    pub fn is_shrunk(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof)
    }
}
