//! Opening a model.

use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::{Backend, Bind};
use crate::error::{Error, Result};
use crate::lane::{Lane, Run};
use crate::loader::Loader;
use crate::model::{self, Network};
pub use crate::options::{CudaOptions, Gemm, GpuLayers, Load, LoadOptions, LoadWatch, Prefill};
use crate::relay::Relay;
use crate::report::{
    AttentionReport, ChoiceReport, CopiesReport, GemmReport, GpuLoadReport, GpuPlan, MatmulReport,
    MemoryReport, RingReport, WideReport,
};
use format_spec::container::Container;
use format_spec::model::{Blueprint, Config};
use kernels::Tier;
use kernels::cpu::MatmulOptions;
use kernels::cuda::{CudaError, DeviceInfo};
use std::ops::Range;

/// A model ready to run: weights in place in the container's bytes or on a GPU, each with its
/// kernels chosen.
pub struct Model<'a> {
    pub(crate) config: Config,
    /// Layers on the CPU: the first.
    cpu: Option<Bound<'a, Cpu<'a>>>,
    /// Layers on a GPU: the last. One of the two is there.
    gpu: Option<Box<Bound<'a, Cuda>>>,
    options: LoadOptions,
    mapped_bytes: u64,
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
    fn lane<'m>(&'m self, config: &Config, n_ctx: usize) -> Result<Lane<'m, B>>
    where
        'a: 'm,
    {
        Lane::new(&self.backend, &*self.network, config, &self.layers, n_ctx)
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
        let cpu = on_cpu(file, container, options, &mut blueprint, layers)?;
        Ok(Self::new(blueprint.config, Some(cpu), None, options, container))
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
        let backend = Cuda::open(*cuda, options, &blueprint, file, container, watch)?;
        let (first, n_layer) = (backend.first_layer(), blueprint.config.n_layer);
        let cpu = match first {
            0 => None,
            // A copy, since binding may complete the hyper-parameters.
            _ => Some(on_cpu(file, container, options, &mut blueprint.clone(), 0..first)?),
        };
        let gpu = Bound::load(backend, file, container, &mut blueprint, first..n_layer)?;
        Ok(Self::new(blueprint.config, cpu, Some(Box::new(gpu)), options, container))
    }

    fn new(
        config: Config,
        cpu: Option<Bound<'a, Cpu<'a>>>,
        gpu: Option<Box<Bound<'a, Cuda>>>,
        options: &LoadOptions,
        container: &Container<'_>,
    ) -> Self {
        let mapped_bytes = mapped_bytes(container);
        Self { config, cpu, gpu, options: *options, mapped_bytes }
    }

    pub(crate) fn run(&self, n_ctx: usize) -> Result<Box<dyn Run + '_>> {
        let config = &self.config;
        let cpu = self.cpu.as_ref().map(|bound| bound.lane(config, n_ctx)).transpose()?;
        let gpu = self.gpu.as_ref().map(|bound| bound.lane(config, n_ctx)).transpose()?;
        match (cpu, gpu) {
            (Some(cpu), Some(gpu)) => Ok(Box::new(Relay::new(cpu, gpu))),
            (Some(cpu), None) => Ok(Box::new(cpu)),
            (None, Some(gpu)) => Ok(Box::new(gpu)),
            (None, None) => Err(Error::Device(CudaError::NoDriver)),
        }
    }

    fn cuda(&self) -> Option<&Cuda> {
        self.gpu.as_ref().map(|bound| &bound.backend)
    }

    /// The layers on a GPU, if any are: from the first to the model's last.
    pub fn gpu_layers(&self) -> Option<Range<usize>> {
        self.gpu.as_ref().map(|bound| bound.layers.clone())
    }

    /// The GPU that the model is on, if it is on one.
    pub fn gpu(&self) -> Option<&DeviceInfo> {
        self.cuda().map(Cuda::info)
    }

    /// Bytes of GPU memory that are free now.
    ///
    /// # Errors
    /// If the model is not on a GPU or the driver fails.
    pub fn gpu_free_bytes(&self) -> Result<u64> {
        self.cuda().ok_or(Error::Device(CudaError::NoDriver))?.free_bytes()
    }

    /// What the model was to take of its GPU's memory, if it is on one.
    pub fn gpu_plan(&self) -> Option<&GpuPlan> {
        self.cuda().map(Cuda::memory_plan)
    }

    /// How often kept copies were made and read, if the model is on a GPU.
    pub fn gpu_copies(&self) -> Option<CopiesReport> {
        self.cuda().map(Cuda::copies_report)
    }

    /// How long the parts of loading took, if the model is on a GPU.
    pub fn gpu_load(&self) -> Option<GpuLoadReport> {
        self.cuda().map(Cuda::load_report)
    }

    /// How greedy choice went, if the model is on a GPU.
    pub fn gpu_choice(&self) -> Option<ChoiceReport> {
        self.cuda().map(Cuda::choice)
    }

    /// Which kernel attended to many queries, if the model is on a GPU.
    pub fn gpu_attention(&self) -> Option<AttentionReport> {
        self.cuda().map(Cuda::attention_report)
    }

    /// Which kernels made products of few tokens, if the model is on a GPU.
    pub fn gpu_ring(&self) -> Option<RingReport> {
        self.cuda().map(Cuda::ring_report)
    }

    /// Which form of norms, gates, conversions and rotation ran, if the model is on a GPU.
    pub fn gpu_wide(&self) -> Option<WideReport> {
        self.cuda().map(Cuda::wide_report)
    }

    /// Which kernels made bf16 products, if the model is on a GPU.
    pub fn gpu_gemm(&self) -> Option<GemmReport> {
        self.cuda().map(Cuda::gemm_report)
    }

    /// Bytes of objects that were sent to the GPU.
    pub fn uploaded_bytes(&self) -> u64 {
        self.cuda().map_or(0, |cuda| cuda.sent().n_bytes)
    }

    /// Those of them that went from the map itself, without a copy into pinned buffers.
    pub fn uploaded_in_place_bytes(&self) -> u64 {
        self.cuda().map_or(0, |cuda| cuda.sent().n_in_place)
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
        self.cpu.as_ref().map_or(self.options.n_threads, |bound| bound.backend.n_threads())
    }

    /// Instruction-set tier of the kernels.
    pub fn tier(&self) -> Tier {
        self.cpu.as_ref().map_or(self.options.tier, |bound| bound.backend.tier())
    }

    /// For each matrix the kernels chosen and how often they ran, in order of use.
    pub fn explain(&self) -> Vec<MatmulReport> {
        let mut rows = self.cpu.as_ref().map(Bound::explain).unwrap_or_default();
        rows.extend(self.gpu.as_ref().map(|bound| bound.explain()).unwrap_or_default());
        rows
    }

    /// Where memory goes.
    pub fn memory(&self) -> MemoryReport {
        memory(&self.config, self.mapped_bytes)
    }

    /// Where the memory of a model that is not opened would go on a CPU. What cannot be opened
    /// anywhere is found out here.
    ///
    /// # Errors
    /// If the architecture is not supported, or a hyper-parameter or a tensor is missing or has a value
    /// or shape that it cannot have.
    pub fn memory_of(container: &Container<'_>) -> Result<MemoryReport> {
        Ok(memory(&blueprint(container)?.config, mapped_bytes(container)))
    }
}

fn memory(config: &Config, mapped_bytes: u64) -> MemoryReport {
    let Config { n_layer, n_head_kv, head_dim, .. } = *config;
    let kv_elems = 2 * n_layer * n_head_kv * head_dim;
    let kv_bytes_per_token = (kv_elems * size_of::<half::f16>()) as u64;
    MemoryReport { mapped_bytes, kv_bytes_per_token }
}

fn mapped_bytes(container: &Container<'_>) -> u64 {
    container.objects().iter().map(|object| object.len).sum()
}

/// Binds layers to the CPU.
fn on_cpu<'a>(
    file: &'a [u8],
    container: &'a Container<'a>,
    options: &LoadOptions,
    blueprint: &mut Blueprint,
    layers: Range<usize>,
) -> Result<Bound<'a, Cpu<'a>>> {
    let matmul = MatmulOptions { exp_plane: options.exp_plane, tile_units: options.tile_units };
    let backend = Cpu::new(options.tier, options.n_threads, matmul)?;
    Bound::load(backend, file, container, blueprint, layers)
}

impl std::fmt::Debug for Model<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The network that the container's GGUF files describe.
pub(crate) fn blueprint(container: &Container<'_>) -> Result<Blueprint> {
    let files: Vec<_> = container.source().shards().map(|shard| &shard.gguf).collect();
    Ok(Blueprint::of_files(&files)?)
}
