//! The GPU backend: weights in one arena on the device, everything launched in order on one stream.
//!
//! A step of few tokens multiplies 8-bit activations with the quantized blocks (GEMV). A step of
//! many has two families: int8 tensor-core products that read blocks or planes (MMQ), and bf16
//! products, from the `bf16` plane or from a dequantized copy, in our own kernels on Hopper and in
//! cuBLASLt elsewhere, where it is found.
//! The launches of a one-token step are recorded and repeated: positions and tokens are in device
//! memory, so that a recording serves every position.
//!
//! Operations do not return errors; the first failure is kept, what follows is left out, and the
//! step ([`Backend::step`](super::Backend::step)) reports it.

mod ahead;
mod attention;
mod bind;
mod cache;
mod choice;
mod copies;
mod dense;
mod fused;
mod moe;
mod open;
mod operations;
mod plan;
mod product;
mod report;
mod ring;
mod scratch;
mod step;
mod tensor;
mod upload;
mod weights;

use self::bind::Matrix;
use self::cache::Cache;
use self::moe::Mixed;
pub(crate) use self::open::Prepared;
use self::tensor::{Epoch, Forms, Operand};
use self::weights::Arena;
use crate::open::CudaOptions;
use crate::report::{GpuLoadReport, GpuPlan};
use kernels::cuda::{Blas, Buffer, CudaError, CudaResult, Gpu, MAX_GEMV_TOKENS, RopeTable};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Positions of the smallest table of angles.
const MIN_ANGLES: usize = 4096;

/// Tokens up to which a step reads quantized weights even where bf16 products are the rule, unless
/// copies are kept or soon made: to write one would cost more than it saves.
const MAX_SMALL_TOKENS: usize = 64;

/// How steps of many tokens multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Mmq,
    Bf16,
}

/// Angles of a run of positions.
pub(crate) struct Rotation {
    steps: Vec<f64>,
    factor: f64,
    neox: bool,
    table: Option<RopeTable>,
}

/// Buffers that steps share.
#[derive(Default)]
struct Shared {
    /// The step's first position, then its tokens.
    step: Option<Buffer<u32>>,
    /// A matrix in bf16.
    dense: Option<Buffer<half::bf16>>,
    part_out: Option<Buffer<f32>>,
    part_ml: Option<Buffer<[f32; 2]>>,
    /// For each 32 rows of a gated pair, zero between launches.
    n_done: Option<Buffer<u32>>,
}

/// One device.
pub(crate) struct Cuda {
    gpu: Arc<Gpu>,
    blas: Option<Blas>,
    family: Family,
    /// Whose kernels make bf16 products.
    dense: dense::Dense,
    n_dense: dense::Counts,
    options: CudaOptions,
    /// `exp` and `dsc` may be read.
    exp_plane: bool,
    /// Matrices that no int8 product reads: plain floats, bases other than `padded`.
    needs_bf16: AtomicBool,
    /// The mixtures of experts, if there are any.
    mixed: Mutex<Option<Mixed>>,
    arena: Arena,
    plan: GpuPlan,
    load: GpuLoadReport,
    epoch: Epoch,
    shared: Mutex<Shared>,
    copies: copies::Copies,
    /// Held for a step: sessions take turns.
    turn: Mutex<()>,
    /// First position of the step under way.
    first_pos: AtomicUsize,
    failure: Mutex<Option<CudaError>>,
    /// Whose choice the step in device memory is, and at which position it comes next.
    held: Mutex<Option<(u64, usize)>>,
    /// Tokens chosen on the device.
    n_choices: Arc<AtomicU64>,
    /// Attention of many queries, by kernel.
    n_attended: attention::Counts,
    /// Products of few tokens, by kernel.
    n_products: ring::Counts,
    /// While launches are recorded: the counters of the products among them.
    recorded: Mutex<Option<Vec<Arc<AtomicU64>>>>,
}

impl Cuda {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mixed(&self) -> MutexGuard<'_, Option<Mixed>> {
        self.mixed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation unless one has failed.
    fn attempt(&self, op: impl FnOnce() -> CudaResult<()>) {
        let failed = |slot: &Mutex<Option<CudaError>>| {
            slot.lock().unwrap_or_else(PoisonError::into_inner).is_some()
        };
        if failed(&self.failure) {
            return;
        }
        if let Err(e) = op() {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
        }
    }

    /// The first failure since the last call.
    fn outcome(&self) -> CudaResult<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }

    /// The forms that products with `n_tokens` tokens read.
    fn forms(&self, n_tokens: usize) -> Forms {
        if n_tokens <= MAX_GEMV_TOKENS {
            return Forms { f32: true, bf16: false, int8: true };
        }
        let int8 = self.is_int8(n_tokens);
        let bf16 = !int8 || self.needs_bf16.load(Ordering::Relaxed);
        let experts = self.expert_forms(n_tokens);
        // A router reads f32.
        let f32 = self.mixed().is_some();
        Forms { f32, bf16: bf16 || experts.bf16, int8: int8 || experts.int8 }
    }

    fn prepare(&self, out: &mut Operand, n_tokens: usize) -> CudaResult<()> {
        out.resize(&self.gpu, &self.epoch, n_tokens, self.forms(n_tokens))
    }
}
