//! What `--explain` shows: for each matrix the kernels chosen and how often they ran.

use std::time::Duration;

/// How one phase (prefill or decode) multiplies with a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReport {
    /// Kind of the object that is read, e.g. `padded` or `exp`.
    pub reads: String,
    /// Kernel, with its tier.
    pub kernel: String,
    /// The kind read, `off` (switched off) or `fallback!` (there, supported, and not used).
    pub label: String,
    /// Why this one.
    pub reason: String,
    /// Whether no kernel of the device is made for what the container holds of the matrix: rows are
    /// rebuilt for every product, or weights found by their descriptors alone.
    pub is_slow: bool,
    /// Products computed this way so far, however many threads shared one. A path that the table
    /// names and that never ran shows a zero here.
    pub n_launches: u64,
}

impl KernelReport {
    /// Whether the path is slower than what the container could give here, and nobody asked for that:
    /// a plane that the device has kernels for and that is not used, or a detour for want of a kernel.
    /// Of what was switched off nobody is surprised.
    pub fn falls_short(&self) -> bool {
        self.label == "fallback!" || self.is_slow && self.label != "off"
    }
}

/// One row of the table: a matrix and its two phases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatmulReport {
    /// The tensor's GGUF name.
    pub name: String,
    /// Quant type as llama.cpp prints it.
    pub quant: &'static str,
    /// Rows (outputs).
    pub n_rows: u64,
    /// Elements a row (inputs).
    pub row_len: u64,
    /// Many tokens.
    pub prefill: KernelReport,
    /// Few tokens.
    pub decode: KernelReport,
}

/// Greedy choice where the logits are, on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChoiceReport {
    /// Whether it is not switched off.
    pub on: bool,
    /// Choices so far, those of steps that were begun and not asked for among them.
    pub n_launches: u64,
}

/// Attention on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionReport {
    /// Whether Hopper's own instructions are not switched off.
    pub on: bool,
    /// Launches of the kernel that is made of them, `attention_wgmma`.
    pub n_wgmma: u64,
    /// Launches of the one that every GPU has, `attention_prefill`.
    pub n_plain: u64,
    /// Whether launches of a one-token step that belong together are one.
    pub fused: bool,
    /// Whether attention of one token in one launch is not switched off.
    pub cluster: bool,
    /// Launches of it, `attention_cluster`: it makes its queries and key itself.
    pub n_cluster: u64,
    /// Attention of one token that makes its queries and key itself in two launches, `attention_fresh` and
    /// what puts its parts together.
    pub n_fresh: u64,
    /// Launches of attention of few tokens that finds them made, `attention_decode`.
    pub n_few: u64,
}

/// Products of few tokens on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingReport {
    /// Whether the ring in shared memory is not switched off.
    pub on: bool,
    /// Launches of kernels whose weights come through it.
    pub n_ring: u64,
    /// Products among them that make their norm on the way, and a pair its gate.
    pub n_fused: u64,
    /// Launches of their twins, which read weights into registers.
    pub n_plain: u64,
}

/// Norms, gates, conversions and rotation on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WideReport {
    /// Whether kernels of eight elements a thread are not switched off.
    pub on: bool,
    /// Launches of them, recorded ones counted once a recording.
    pub n_wide: u64,
    /// Launches of their twins of one element or one pair a thread.
    pub n_narrow: u64,
}

/// bf16 products of many tokens on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmReport {
    /// What makes them: `gemm_sm90`, `cublaslt_bf16` or `gemm_bf16`.
    pub kernel: &'static str,
    /// Launches of our own kernels for Hopper; matrices with the same tokens share one.
    pub n_sm90: u64,
    /// Products in cuBLASLt.
    pub n_cublas: u64,
    /// Launches of the kernel that every GPU has.
    pub n_mma: u64,
}

/// Copies of matrices in bf16 that a GPU keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopiesReport {
    /// Memory that was taken for them.
    pub n_bytes: u64,
    /// Matrices that were copied.
    pub n_made: u64,
    /// Products that read a copy which was there.
    pub n_read: u64,
}

/// Objects of one kind on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindBytes {
    /// `padded`, `exp`, ...
    pub kind: &'static str,
    /// How many.
    pub n_objects: usize,
    /// Their bytes in the device's memory.
    pub n_bytes: u64,
}

/// What a model takes of a GPU's memory, known before anything is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPlan {
    /// The first layer on the device; those before it are on the CPU.
    pub first_layer: usize,
    /// Layers of the model.
    pub n_layer: usize,
    /// Objects by kind, in file order.
    pub weights: Vec<KindBytes>,
    /// Bytes that are sent: the objects without what lies between them.
    pub upload_bytes: u64,
    /// Keys and values of `n_ctx` positions.
    pub kv_bytes: u64,
    /// Positions: those asked for, else those that a session begins with.
    pub n_ctx: usize,
    /// Activations, tables, libraries: at most.
    pub scratch_bytes: u64,
    /// Copies of matrices in bf16, kept because there is memory to spare.
    pub copies_bytes: u64,
    /// Tokens of a batch.
    pub n_batch: usize,
    /// Memory that is free before.
    pub free_bytes: u64,
    /// All of the device's memory.
    pub total_bytes: u64,
}

impl GpuPlan {
    /// Bytes of all weights.
    pub fn weights_bytes(&self) -> u64 {
        self.weights.iter().map(|row| row.n_bytes).sum()
    }

    /// Bytes of everything.
    pub fn need_bytes(&self) -> u64 {
        let parts = [self.kv_bytes, self.scratch_bytes, self.copies_bytes];
        parts.into_iter().fold(self.weights_bytes(), u64::saturating_add)
    }
}

/// How long the parts of a load onto a GPU took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuLoadReport {
    /// Making a context, loading kernels.
    pub context: Duration,
    /// Bytes of the map whose pages were read meanwhile.
    pub read_ahead: u64,
    /// From the first byte's way to the last byte's arrival.
    pub upload: Duration,
    /// Beside that: starting the library of bf16 products and trying the model's shapes.
    pub library: Duration,
}

/// Where memory goes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReport {
    /// Objects of the container that are read in place (mapped, not allocated).
    pub mapped_bytes: u64,
    /// Keys and values of one position, all layers.
    pub kv_bytes_per_token: u64,
}

/// Tokens and time of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Tokens that came through [`Session::prefill`](crate::Session::prefill).
    pub n_prefill_tokens: u64,
    /// Time spent there.
    pub prefill: Duration,
    /// Tokens that came through [`Session::decode`](crate::Session::decode).
    pub n_decode_tokens: u64,
    /// Time spent there.
    pub decode: Duration,
}
