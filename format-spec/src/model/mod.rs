//! What a GGUF says about its network: hyper-parameters, and the tensors that they imply.
//!
//! The packer asks here whether a model can run, and the runtime takes every shape from here, so
//! that the two cannot disagree. Computing with the tensors is the runtime's.
//!
//! To add an architecture, write `model/<name>.rs` with `configure` and `tensors`, and add its
//! `mod` line and its table line here.

mod config;
mod gemma3;
mod llama;
mod qwen2;
mod qwen3;
mod qwen3moe;
pub mod rope;
mod tensors;

pub use config::{Config, Experts};
pub use tensors::ExpectedTensor;

use crate::error::{Error, Result};
use crate::gguf::{Gguf, Metadata, TensorInfo};
use config::Keys;
use tensors::Tensors;

macro_rules! architectures {
    ($($name:literal => $module:ident,)*) => {
        /// Names of the architectures that are known, as `general.architecture` gives them.
        pub const ARCHITECTURES: &[&str] = &[$($name,)*];

        fn configure(name: &str, keys: &Keys<'_, '_>, n_tensors: usize) -> Result<Config> {
            match name {
                $($name => $module::configure(keys, n_tensors),)*
                _ => Err(unknown(name)),
            }
        }

        fn list(config: &Config, tensors: &mut Tensors) -> Result<()> {
            match config.architecture.as_str() {
                $($name => $module::tensors(config, tensors),)*
                name => return Err(unknown(name)),
            }
            Ok(())
        }
    };
}

architectures! {
    "llama" => llama,
    "qwen2" => qwen2,
    "qwen3" => qwen3,
    "qwen3moe" => qwen3moe,
    "gemma3" => gemma3,
}

/// The error of an architecture that is not in the table.
pub fn unknown(found: &str) -> Error {
    Error::Architecture { found: found.to_owned(), supported: ARCHITECTURES.join(", ") }
}

/// A model's hyper-parameters and the tensors of its network.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint {
    /// The hyper-parameters.
    pub config: Config,
    /// What the network is made of, in no particular order; each name once.
    pub tensors: Vec<ExpectedTensor>,
}

impl Blueprint {
    /// Reads `gguf`'s keys and proves that its tensors are those of its architecture, each of the
    /// shape that the keys imply, and no others.
    ///
    /// # Errors
    /// If the architecture is not known, a hyper-parameter is missing or has a value that no model
    /// can have, or a tensor is missing, of another shape, or of no use to the architecture.
    pub fn of(gguf: &Gguf<'_>) -> Result<Self> {
        Self::of_files(&[gguf])
    }

    /// As [`of`](Self::of), for all files of a model; the first has the keys.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn of_files(files: &[&Gguf<'_>]) -> Result<Self> {
        let tensors: Vec<_> = files.iter().flat_map(|file| file.tensors()).collect();
        let config = read_config(files.first().map(|file| file.metadata()), &tensors)?;
        let mut expected = Tensors::default();
        list(&config, &mut expected)?;
        expected.check(&tensors)?;
        Ok(Self { config, tensors: expected.into_vec() })
    }
}

/// Finds out in which form the experts are. A tensor each is believed only where there can be so
/// many: the list of them grows with the number of layers times that of experts.
fn find_experts(
    tensors: &[&TensorInfo<'_>],
    keys: &Keys<'_, '_>,
    config: &mut Config,
) -> Result<()> {
    let Some(experts) = &mut config.experts else { return Ok(()) };
    if !tensors.iter().any(|tensor| tensor.name() == "blk.0.ffn_down.0.weight") {
        return Ok(());
    }
    experts.are_stacked = false;
    let n_expert_tensors = config.n_layer.saturating_mul(3).saturating_mul(experts.n_expert);
    let n_tensors = tensors.len();
    if n_expert_tensors > n_tensors {
        let each = format!("a number of which {} layers have tensors of their own", config.n_layer);
        return keys.refuse("expert_count", format!("{each} (there are {n_tensors} tensors)"));
    }
    Ok(())
}

/// Hyper-parameters, with the vocabulary's two sizes checked against each other.
fn read_config(metadata: Option<&Metadata<'_>>, tensors: &[&TensorInfo<'_>]) -> Result<Config> {
    let key = "general.architecture";
    let nothing = || Error::Hyperparameter {
        key: key.to_owned(),
        expected: "the name of an architecture".to_owned(),
        found: "nothing".to_owned(),
    };
    let metadata = metadata.ok_or_else(nothing)?;
    let architecture = metadata.str(key)?.ok_or_else(nothing)?;
    let keys = Keys::new(metadata, architecture);
    let mut config = configure(architecture, &keys, tensors.len())?;
    find_experts(tensors, &keys, &mut config)?;
    let embedding = "token_embd.weight";
    let n_rows = tensors.iter().find(|tensor| tensor.name() == embedding);
    let n_rows = n_rows.map(|tensor| tensor.n_rows());
    let Some(n_vocab) = n_rows.and_then(|n_rows| usize::try_from(n_rows).ok()) else {
        return Err(Error::Tensor {
            tensor: embedding.to_owned(),
            expected: format!("[n_vocab, {}]", config.n_embd),
            found: "nothing".to_owned(),
        });
    };
    let n_tokens = metadata.array("tokenizer.ggml.tokens")?.map_or(n_vocab, |tokens| tokens.len());
    if n_tokens > n_vocab {
        return Err(Error::Tensor {
            tensor: embedding.to_owned(),
            expected: format!("a row for each of {n_tokens} tokens"),
            found: format!("{n_vocab} rows"),
        });
    }
    (config.n_vocab, config.n_tokens) = (n_vocab, n_tokens);
    Ok(config)
}
