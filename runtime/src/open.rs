//! Opening a model.

use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::{Backend, Bind};
use crate::error::{Error, Result};
use crate::lane::{Lane, Run};
use crate::loader::Loader;
use crate::model::{self, Network};
use crate::report::{ChoiceReport, GpuPlan, MatmulReport, MemoryReport};
use format_spec::container::Container;
use format_spec::model::{Blueprint, Config};
use kernels::Tier;
use kernels::cpu::MatmulOptions;
use kernels::cuda::DeviceInfo;
use std::ops::Range;

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

/// How a model runs on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaOptions {
    /// Which GPU.
    pub ordinal: usize,
    /// Whether the launches of a one-token step are recorded and repeated.
    pub graphs: bool,
    /// Whether a launch may start before the one before it has ended, where the GPU can do that.
    pub chained: bool,
    /// How steps of many tokens multiply.
    pub prefill: Prefill,
    /// Whether greedy choice happens on the GPU.
    pub argmax: bool,
    /// How weights get there.
    pub load: Load,
    /// Positions that must fit beside the weights; 0: those that a session begins with.
    pub n_ctx: usize,
    /// Tokens of a batch, whose activations must fit.
    pub n_batch: usize,
}

/// How steps of many tokens multiply on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Prefill {
    /// Whichever is faster on the device: bf16 where its tensor cores outrun int8 ones and
    /// cuBLASLt is found, else int8; few tokens in int8 always.
    #[default]
    Auto,
    /// int8 tensor cores, from the quantized blocks or their planes.
    Mmq,
    /// bf16 tensor cores, from the `bf16` plane or a dequantized copy.
    Bf16,
}

/// How weights get from the mapped file into a GPU's memory. The bytes are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Copied into small pinned buffers first.
    Pinned,
    /// From the map, so many bytes of which are pinned at a time, where the system allows that;
    /// else as `Pinned`.
    Map(usize),
}

impl Load {
    /// What is pinned at a time unless somebody says otherwise.
    pub const MAP_BYTES: usize = 64 << 20;
}

/// Is told how a load onto a GPU goes on.
#[derive(Clone, Copy)]
pub struct LoadWatch<'w> {
    /// What it will take, before anything is taken.
    pub planned: &'w dyn Fn(&GpuPlan),
    /// So many more bytes are on their way.
    pub sent: &'w (dyn Fn(u64) + Sync),
}

impl LoadWatch<'_> {
    /// Tells nobody.
    pub const SILENT: LoadWatch<'static> = LoadWatch { planned: &|_| (), sent: &|_| () };
}

impl std::fmt::Debug for LoadWatch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadWatch").finish_non_exhaustive()
    }
}

impl Default for CudaOptions {
    /// The first GPU, launches recorded.
    fn default() -> Self {
        Self {
            ordinal: 0,
            graphs: true,
            chained: true,
            prefill: Prefill::Auto,
            argmax: true,
            load: Load::Pinned,
            n_ctx: 0,
            n_batch: 512,
        }
    }
}

/// A model ready to run: weights in place in the container's bytes or on a GPU, each with its
/// kernels chosen.
pub struct Model<'a> {
    pub(crate) config: Config,
    engine: Engine<'a>,
    options: LoadOptions,
    mapped_bytes: u64,
}

/// Where it runs.
enum Engine<'a> {
    Cpu(Bound<'a, Cpu<'a>>),
    Cuda(Box<Bound<'a, Cuda>>),
}

/// A network with the backend that its weights are bound to.
struct Bound<'a, B: Backend> {
    backend: B,
    network: Box<dyn Network<B> + 'a>,
    /// Which of the model's layers.
    layers: Range<usize>,
}

impl<'a, B: Bind<'a> + 'a> Bound<'a, B> {
    fn load(
        backend: B,
        file: &'a [u8],
        container: &'a Container<'a>,
        blueprint: &mut Blueprint,
        layers: Range<usize>,
    ) -> Result<Self> {
        let mut loader = Loader::new(&backend, file, container, &blueprint.tensors);
        let network = model::load(&mut blueprint.config, layers.clone(), &mut loader)?;
        loader.finish(&layers)?;
        Ok(Self { backend, network, layers })
    }
}

impl<'a, B: Backend> Bound<'a, B> {
    fn run<'m>(&'m self, config: &Config, n_ctx: usize) -> Result<Box<dyn Run + 'm>>
    where
        'a: 'm,
    {
        let Self { backend, network, layers } = self;
        Ok(Box::new(Lane::new(backend, &**network, config, layers.len(), n_ctx)?))
    }

    fn explain(&self) -> Vec<MatmulReport> {
        let mut rows = Vec::new();
        self.network.matrices(&self.backend, &mut |matrix| rows.push(self.backend.report(matrix)));
        rows
    }
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
        let mut blueprint = blueprint(container)?;
        let layers = 0..blueprint.config.n_layer;
        let matmul = MatmulOptions { exp_plane: options.exp_plane };
        let backend = Cpu::new(options.tier, options.n_threads, matmul)?;
        let bound = Bound::load(backend, file, container, &mut blueprint, layers)?;
        Ok(Self::new(blueprint.config, Engine::Cpu(bound), options, container))
    }

    /// Puts the weights of `container`, which lies in `file`, on a GPU.
    ///
    /// # Errors
    /// As [`open`](Self::open); and if there is no driver, no such GPU, one of them is too old,
    /// or the weights, keys and values of `cuda.n_ctx` positions and scratch do not fit into its
    /// memory together.
    pub fn open_cuda(
        file: &'a [u8],
        container: &'a Container<'a>,
        options: &LoadOptions,
        cuda: &CudaOptions,
        watch: LoadWatch<'_>,
    ) -> Result<Self> {
        let mut blueprint = blueprint(container)?;
        let layers = 0..blueprint.config.n_layer;
        let backend = Cuda::open(*cuda, options, &blueprint.config, file, container, watch)?;
        let bound = Bound::load(backend, file, container, &mut blueprint, layers)?;
        Ok(Self::new(blueprint.config, Engine::Cuda(Box::new(bound)), options, container))
    }

    fn new(
        config: Config,
        engine: Engine<'a>,
        options: &LoadOptions,
        container: &Container<'_>,
    ) -> Self {
        let mapped_bytes = container.objects().iter().map(|object| object.len).sum();
        Self { config, engine, options: *options, mapped_bytes }
    }

    pub(crate) fn run(&self, n_ctx: usize) -> Result<Box<dyn Run + '_>> {
        match &self.engine {
            Engine::Cpu(bound) => bound.run(&self.config, n_ctx),
            Engine::Cuda(bound) => bound.run(&self.config, n_ctx),
        }
    }

    /// The GPU that the model is on, if it is on one.
    pub fn gpu(&self) -> Option<&DeviceInfo> {
        match &self.engine {
            Engine::Cpu(_) => None,
            Engine::Cuda(bound) => Some(bound.backend.info()),
        }
    }

    /// Bytes of GPU memory that are free now.
    ///
    /// # Errors
    /// If the model is not on a GPU or the driver fails.
    pub fn gpu_free_bytes(&self) -> Result<u64> {
        match &self.engine {
            Engine::Cpu(_) => Err(Error::Device(kernels::cuda::CudaError::NoDriver)),
            Engine::Cuda(bound) => bound.backend.free_bytes(),
        }
    }

    /// What the model was to take of its GPU's memory, if it is on one.
    pub fn gpu_plan(&self) -> Option<&GpuPlan> {
        match &self.engine {
            Engine::Cpu(_) => None,
            Engine::Cuda(bound) => Some(bound.backend.memory_plan()),
        }
    }

    /// How greedy choice went, if the model is on a GPU.
    pub fn gpu_choice(&self) -> Option<ChoiceReport> {
        match &self.engine {
            Engine::Cpu(_) => None,
            Engine::Cuda(bound) => Some(bound.backend.choice()),
        }
    }

    /// Bytes of objects that were sent to the GPU.
    pub fn uploaded_bytes(&self) -> u64 {
        match &self.engine {
            Engine::Cpu(_) => 0,
            Engine::Cuda(bound) => bound.backend.sent().n_bytes,
        }
    }

    /// Those of them that went from the map itself, without a copy into pinned buffers.
    pub fn uploaded_in_place_bytes(&self) -> u64 {
        match &self.engine {
            Engine::Cpu(_) => 0,
            Engine::Cuda(bound) => bound.backend.sent().n_in_place,
        }
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
        match &self.engine {
            Engine::Cpu(bound) => bound.backend.n_threads(),
            Engine::Cuda(_) => self.options.n_threads,
        }
    }

    /// Instruction-set tier of the kernels.
    pub fn tier(&self) -> Tier {
        match &self.engine {
            Engine::Cpu(bound) => bound.backend.tier(),
            Engine::Cuda(_) => self.options.tier,
        }
    }

    /// For each matrix the kernels chosen and how often they ran, in order of use.
    pub fn explain(&self) -> Vec<MatmulReport> {
        match &self.engine {
            Engine::Cpu(bound) => bound.explain(),
            Engine::Cuda(bound) => bound.explain(),
        }
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

/// The network that the container's GGUF files describe.
fn blueprint(container: &Container<'_>) -> Result<Blueprint> {
    let files: Vec<_> = container.source().shards().map(|shard| &shard.gguf).collect();
    Ok(Blueprint::of_files(&files)?)
}
