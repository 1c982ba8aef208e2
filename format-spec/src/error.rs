//! The one error type of this crate: which field, where, what was expected and what was found.

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why some bytes are not usable. The caller adds the file's name.
///
/// Messages are lower case without a final dot and always name the field or tensor and, where the
/// bytes have one, the offset from the start of the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field holds a value that the format does not allow.
    #[error("{field} at offset {offset}: expected {expected}, found {found}")]
    Field {
        /// The field, key or tensor, as the specification names it.
        field: String,
        /// Byte offset of the field from the start of the file.
        offset: u64,
        /// What the format allows there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The bytes end before something that the header promises.
    #[error("{what} at offset {offset} needs bytes {offset}..{end}, file has {have}")]
    Truncated {
        /// What was being read.
        what: String,
        /// Where it starts.
        offset: u64,
        /// Where it would end (exclusive).
        end: u64,
        /// How many bytes there are.
        have: u64,
    },
    /// Well formed, but outside what this version handles.
    #[error("{what}: {found} is not supported ({supported})")]
    Unsupported {
        /// Tensor, key or feature.
        what: String,
        /// What was asked for.
        found: String,
        /// What is supported instead, or what to do.
        supported: String,
    },
    /// A hash in the header or index differs from its bytes.
    #[error("{what}: sha256 is {found}, header says {expected}")]
    Hash {
        /// Section or object.
        what: String,
        /// Recorded digest, hex.
        expected: String,
        /// Computed digest, hex.
        found: String,
    },
    /// A hyper-parameter is missing or has a value that no model can have.
    #[error("key {key}: expected {expected}, found {found}")]
    Hyperparameter {
        /// The GGUF key.
        key: String,
        /// What is allowed.
        expected: String,
        /// What the file says.
        found: String,
    },
    /// A tensor is missing, surplus or of another shape than the architecture needs.
    #[error("tensor {tensor}: expected {expected}, found {found}")]
    Tensor {
        /// The tensor's GGUF name.
        tensor: String,
        /// The shape that is needed, rows first, or `nothing`.
        expected: String,
        /// The shape that is there, or `nothing`.
        found: String,
    },
    /// No file of `model/` knows this architecture.
    #[error("architecture {found:?} is not supported (supported: {supported})")]
    Architecture {
        /// `general.architecture` of the model.
        found: String,
        /// Names of the architectures that are.
        supported: String,
    },
    /// Not this kind of file at all.
    #[error("not {wanted}: {looks_like}")]
    NotThisFormat {
        /// `a GGUF file` or `an .mpk container`.
        wanted: &'static str,
        /// What the first bytes look like.
        looks_like: String,
    },
}
