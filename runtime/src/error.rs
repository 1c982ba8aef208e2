//! Why a model cannot be loaded or a step cannot be made.

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong between a container and its logits.
///
/// Messages are lower case without a final dot; the caller adds the file's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The container, its source section, its hyper-parameters or tensors are not usable.
    #[error(transparent)]
    Format(#[from] format_spec::Error),
    /// The kernels refuse a weight's shape or layout.
    #[error("tensor {tensor}: {reason}")]
    Weight {
        /// The tensor's GGUF name.
        tensor: String,
        /// What the kernels said.
        reason: String,
    },
    /// The context cannot take the tokens.
    #[error("context is full: {n_past} of {n_ctx} positions are used, {n_tokens} more do not fit")]
    ContextFull {
        /// Positions in use.
        n_past: usize,
        /// Tokens that were to be added.
        n_tokens: usize,
        /// Positions there are.
        n_ctx: usize,
    },
    /// A token id that the model has no embedding for.
    #[error("token id {token} is not below the vocabulary's {n_vocab}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Rows of the embedding.
        n_vocab: usize,
    },
    /// A call without tokens.
    #[error("no tokens to process")]
    NoTokens,
    /// Memory for something could not be had.
    #[error("{what} needs {n_bytes} bytes, which could not be allocated")]
    Memory {
        /// What the memory is for.
        what: &'static str,
        /// How much.
        n_bytes: u64,
    },
    /// The GPU cannot be used, or failed.
    #[error(transparent)]
    Device(#[from] kernels::cuda::CudaError),
    /// Something does not fit into the GPU's memory.
    #[error("{what} need {need} bytes of GPU memory, {free} are free")]
    DeviceMemory {
        /// What the memory is for.
        what: &'static str,
        /// How much of it is needed.
        need: u64,
        /// How much there is.
        free: u64,
    },
    /// The tier asked for cannot run on this machine.
    #[error("{0}")]
    Tier(String),
    /// The system refuses to start a worker thread.
    #[error("cannot start a worker thread")]
    Threads(#[source] std::io::Error),
    /// The receiver of logits asked to stop.
    #[error("stopped by the receiver of the logits")]
    Stopped,
}
