//! How a model is opened.

use crate::report::GpuPlan;
use kernels::Tier;

/// How a model runs. None of it changes a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// Instruction-set tier of the kernels.
    pub tier: Tier,
    /// Threads that compute, the caller's among them.
    pub n_threads: usize,
    /// Whether prefill reads the `exp` and `dsc` planes of q6_K weights.
    pub exp_plane: bool,
    /// Whether CPU kernels read `tile` objects; otherwise their rows are rebuilt, or another base read.
    pub tile_units: bool,
}

impl Default for LoadOptions {
    /// The machine's best tier, one thread, planes in use.
    fn default() -> Self {
        Self { tier: Tier::detect(), n_threads: 1, exp_plane: true, tile_units: true }
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
    /// Whose kernels make bf16 products.
    pub gemm: Gemm,
    /// Whether greedy choice happens on the GPU.
    pub argmax: bool,
    /// Whether attention of many queries takes Hopper's own instructions, where the GPU has them.
    pub wgmma_attention: bool,
    /// Whether attention of one token takes one launch of clusters of blocks, where the GPU can do that.
    pub cluster_attention: bool,
    /// Whether copies in bf16 of quantized matrices are kept where there is memory to spare.
    pub keep_bf16: bool,
    /// Whether norms, gates, conversions and rotation may take eight elements a thread.
    pub wide: bool,
    /// Whether launches of a one-token step that belong together are one.
    pub fused: bool,
    /// Whether weights of a one-token step come through a ring in shared memory, where the GPU can do that.
    pub ring: bool,
    /// How weights get there.
    pub load: Load,
    /// Positions that must fit beside the weights; 0: those that a session begins with.
    pub n_ctx: usize,
    /// Tokens of a batch, whose activations must fit.
    pub n_batch: usize,
    /// Which layers are on the GPU.
    pub layers: GpuLayers,
    /// Memory of the GPU that may be used, where that is less than what is free; 0: all of it.
    pub max_bytes: u64,
}

/// How steps of many tokens multiply on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Prefill {
    /// Whichever is faster on the device: bf16 where its tensor cores outrun int8 ones and there are
    /// fast kernels for them (on Hopper our own, else cuBLASLt, where it is found), else int8; few
    /// tokens in int8 always.
    #[default]
    Auto,
    /// int8 tensor cores, from the quantized blocks or their planes.
    Mmq,
    /// bf16 tensor cores, from the `bf16` plane or a dequantized copy.
    Bf16,
}

/// Whose kernels make bf16 products of many tokens on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Gemm {
    /// Our own on Hopper, elsewhere cuBLASLt where it is found.
    #[default]
    Auto,
    /// Our own.
    Own,
    /// cuBLASLt, where it is found.
    Cublas,
}

/// Which layers of a model are on a GPU; those before them are on the CPU, as the embedding is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// All of them, and the embedding.
    #[default]
    All,
    /// The last so many, one at least, with what stands behind them; as many as the model has: all.
    Last(usize),
    /// As many of the last as fit.
    Auto,
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
            gemm: Gemm::Auto,
            argmax: true,
            wgmma_attention: true,
            cluster_attention: true,
            keep_bf16: true,
            wide: true,
            fused: true,
            ring: true,
            load: Load::Pinned,
            n_ctx: 0,
            n_batch: 512,
            layers: GpuLayers::All,
            max_bytes: 0,
        }
    }
}
