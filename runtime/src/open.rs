//! Opening a model.

use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::error::{Error, Result};
use crate::loader::Loader;
use crate::model::config::{Config, Keys};
use crate::model::{self, Network};
use crate::report::{MatmulReport, MemoryReport};
use format_spec::container::Container;
use kernels::Tier;
use kernels::cpu::MatmulOptions;

/// How a model runs. None of it changes a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// Instruction-set tier of the kernels.
    pub tier: Tier,
    /// Threads that compute, the caller's among them.
    pub n_threads: usize,
    /// Whether prefill reads the `exp` and `dsc` planes of q6_K weights.
    pub exp_plane: bool,
}

impl Default for LoadOptions {
    /// The machine's best tier, one thread, planes in use.
    fn default() -> Self {
        Self { tier: Tier::detect(), n_threads: 1, exp_plane: true }
    }
}

/// A model ready to run: weights in place in the container's bytes, each with its kernels chosen.
pub struct Model<'a> {
    pub(crate) config: Config,
    pub(crate) backend: Cpu<'a>,
    pub(crate) network: Box<dyn Network<Cpu<'a>> + 'a>,
    mapped_bytes: u64,
}

impl<'a> Model<'a> {
    /// Binds the weights of `container`, which lies in `file`.
    ///
    /// # Errors
    /// If the architecture is not supported, a hyper-parameter or a tensor is missing or has a
    /// value or shape that it cannot have, or the tier is not to be had on this machine.
    pub fn open(
        file: &'a [u8],
        container: &'a Container<'a>,
        options: &LoadOptions,
    ) -> Result<Self> {
        let mut config = read_config(container)?;
        let matmul = MatmulOptions { exp_plane: options.exp_plane };
        let backend = Cpu::new(options.tier, options.n_threads, matmul)?;
        let mut loader = Loader::new(&backend, file, container);
        let network = model::load(&mut config, &mut loader)?;
        loader.finish()?;
        let mapped_bytes = container.objects().iter().map(|object| object.len).sum();
        Ok(Self { config, backend, network, mapped_bytes })
    }

    /// The hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Length of the logits: rows of the embedding. Ids from [`n_tokens`](Self::n_tokens) on are
    /// padding, which a sampler leaves out.
    pub fn n_vocab(&self) -> usize {
        self.config.n_vocab
    }

    /// Tokens of the tokenizer, at most [`n_vocab`](Self::n_vocab).
    pub fn n_tokens(&self) -> usize {
        self.config.n_tokens
    }

    /// Positions the model was trained on.
    pub fn n_ctx_train(&self) -> usize {
        self.config.n_ctx_train
    }

    /// Threads that compute.
    pub fn n_threads(&self) -> usize {
        self.backend.n_threads()
    }

    /// Instruction-set tier of the kernels.
    pub fn tier(&self) -> Tier {
        self.backend.tier()
    }

    /// For each matrix the kernels chosen and how often they ran, in order of use.
    pub fn explain(&self) -> Vec<MatmulReport> {
        let mut rows = Vec::new();
        self.network.matrices(&mut |matrix| rows.push(self.backend.report(matrix)));
        rows
    }

    /// Where memory goes.
    pub fn memory(&self) -> MemoryReport {
        let Config { n_layer, n_head_kv, head_dim, .. } = self.config;
        let kv_elems = 2 * n_layer * n_head_kv * head_dim;
        let kv_bytes_per_token = (kv_elems * size_of::<half::f16>()) as u64;
        MemoryReport { mapped_bytes: self.mapped_bytes, kv_bytes_per_token }
    }
}

impl std::fmt::Debug for Model<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Hyper-parameters of a container, with the vocabulary's two sizes checked against each other.
fn read_config(container: &Container<'_>) -> Result<Config> {
    let metadata = container.gguf().metadata();
    let key = "general.architecture";
    let Some(architecture) = metadata.str(key)? else {
        return Err(Error::Hyperparameter {
            key: key.to_owned(),
            expected: "the name of an architecture".to_owned(),
            found: "nothing".to_owned(),
        });
    };
    let keys = Keys::new(metadata, architecture);
    let mut config = model::configure(architecture, &keys, container.tensors().len())?;
    let embedding = "token_embd.weight";
    let n_rows = container.tensor(embedding).map(|entry| entry.geometry.n_rows);
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
