//! Opening a device: which family of products, what it reads, and the way of the weights there.

use super::ahead::while_reading;
use super::attention;
use super::bind::product_shapes;
use super::copies::Copies;
use super::dense::{self, Dense};
use super::plan::Wish;
use super::tensor::Epoch;
use super::upload::{Sending, Sent};
use super::weights::{Arena, Kinds, Used};
use super::{Cuda, Family};
use crate::error::{Error, Result};
use crate::open::{CudaOptions, GpuLayers, LoadOptions, LoadWatch, Prefill};
use crate::report::{ChoiceReport, CopiesReport, GpuLoadReport, GpuPlan};
use format_spec::PlaneKind;
use format_spec::container::{Container, Object};
use format_spec::model::Blueprint;
use kernels::cuda::{Blas, CudaError, CudaResult, DeviceInfo, Gpu};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Tokens of the products that are tried while the weights arrive: the usual batch and a long one.
const WARM_UP_TOKENS: [usize; 2] = [512, 4096];

/// Whether there are blocks as GGUF has them, which int8 products of many tokens read.
fn has_blocks(container: &Container<'_>) -> bool {
    container.objects().iter().any(|object| object.kind == PlaneKind::Padded)
}

/// A device that a model may go to: nothing of it is taken yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    gpu: Arc<Gpu>,
    family: Family,
    dense: Dense,
    kinds: Kinds,
    /// Making the context and loading the kernels.
    context: Duration,
}

impl Prepared {
    /// Opens the device, and decides how a model is to run on it.
    pub(crate) fn new(
        options: &CudaOptions,
        common: &LoadOptions,
        container: &Container<'_>,
    ) -> Result<Self> {
        let start = Instant::now();
        let gpu = Gpu::open(options.ordinal, options.chained)?;
        gpu.set_wide(options.wide);
        let dense = Dense::of(&gpu, options.gemm);
        let family = match options.prefill {
            Prefill::Mmq => Family::Mmq,
            Prefill::Bf16 => Family::Bf16,
            // int8 tensor cores outrun bf16 ones on consumer parts alone.
            Prefill::Auto => match gpu.info().compute {
                (8, 0) | (9 | 10, _) if dense.is_fast() => Family::Bf16,
                _ if has_blocks(container) => Family::Mmq,
                _ => Family::Bf16,
            },
        };
        let int8 = family == Family::Mmq;
        let kinds = Kinds { bf16: !int8, int8, exp: int8 && common.exp_plane };
        Ok(Self { gpu, family, dense, kinds, context: start.elapsed() })
    }

    fn wish<'w>(
        &self,
        options: &'w CudaOptions,
        blueprint: &'w Blueprint,
        container: &'w Container<'w>,
    ) -> Wish<'w> {
        Wish { blueprint, container, options, family: self.family, kinds: self.kinds }
    }

    /// What the model will take.
    pub(crate) fn plan(
        &self,
        options: &CudaOptions,
        blueprint: &Blueprint,
        container: &Container<'_>,
    ) -> Result<GpuPlan> {
        // Before anything is sent, so that the CPU can do it where that is allowed.
        check_heads(blueprint.config.head_dim)?;
        Cuda::plan(&self.gpu, &self.wish(options, blueprint, container))
    }

    /// What the device says about itself.
    pub(crate) fn info(&self) -> &DeviceInfo {
        self.gpu.info()
    }
}

/// Refuses attention heads that no kernel is made for.
pub(super) fn check_heads(dim: usize) -> Result<()> {
    if Gpu::attends(dim) {
        return Ok(());
    }
    let why = format!("attention heads of {dim} elements (64, 80, 96, 128 and 256 are)");
    Err(Error::Device(CudaError::Weight(format!("not supported on a GPU: {why}"))))
}

/// What is surely sent, before the device has been asked for anything: bases, in file order.
fn sure_parts(options: &CudaOptions, container: &Container<'_>) -> Vec<Range<usize>> {
    // Which layers those are is not known yet, or few.
    if options.layers != GpuLayers::All {
        return Vec::new();
    }
    let used = Used { kinds: Kinds::BASES, elsewhere: HashSet::new() };
    let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let range = |object: &Object| at(object.offset)..at(object.offset.saturating_add(object.len));
    used.of(container).map(range).collect()
}

impl Cuda {
    /// Opens the device and puts the container's objects on it.
    pub(crate) fn open(
        options: CudaOptions,
        common: &LoadOptions,
        blueprint: &Blueprint,
        file: &[u8],
        container: &Container<'_>,
        watch: LoadWatch<'_>,
    ) -> Result<Self> {
        let ahead = sure_parts(&options, container);
        let prepare = || Prepared::new(&options, common, container);
        let (prepared, read_ahead) = while_reading(file, &ahead, common.n_threads, prepare);
        let prepared = prepared?;
        let mut plan = prepared.plan(&options, blueprint, container)?;
        (watch.planned)(&plan);
        let (need, free) = (plan.need_bytes(), plan.free_bytes);
        if need > free {
            let what = "weights, keys and values, and scratch";
            return Err(Error::DeviceMemory { what, need, free });
        }
        let wish = prepared.wish(&options, blueprint, container);
        let used = &wish.used_from(plan.first_layer);
        let Prepared { gpu, family, dense, context, .. } = &prepared;
        let library = *family == Family::Bf16 && *dense == Dense::Blas;
        // Before the library takes memory for its trials, which it can do without.
        let mut arena = Arena::reserve(gpu, container, used)?;
        let sending = Sending { load: options.load, n_threads: common.n_threads, sent: watch.sent };
        // The library takes as long to get ready as the weights to arrive.
        let (blas, filled) = std::thread::scope(|scope| {
            let n_bytes = plan.copies_bytes;
            let find =
                move || Ok((Copies::reserve(gpu, n_bytes)?, find_blas(gpu, library, container)?));
            let blas = scope.spawn(move || timed(find));
            let filled = timed(|| arena.fill(gpu, file, container, used, &sending));
            (blas.join(), filled)
        });
        let (upload, filled) = filled;
        filled?;
        let lost = |_| Error::Device(CudaError::Blas("starting it ended early".to_owned()));
        let (library, blas): (_, CudaResult<_>) = blas.map_err(lost)?;
        let (copies, blas) = blas?;
        // Another program may have been faster.
        plan.copies_bytes = copies.report().n_bytes;
        let load = GpuLoadReport { context: *context, upload, library, read_ahead };
        Ok(Self {
            blas,
            family: *family,
            dense: *dense,
            n_dense: dense::Counts::default(),
            options,
            exp_plane: common.exp_plane,
            needs_bf16: AtomicBool::new(false),
            mixed: Mutex::default(),
            arena,
            gpu: Arc::clone(gpu),
            epoch: Epoch::default(),
            shared: Mutex::default(),
            copies,
            turn: Mutex::default(),
            first_pos: AtomicUsize::new(0),
            failure: Mutex::default(),
            plan,
            load,
            held: Mutex::default(),
            n_choices: Arc::default(),
            n_attended: attention::Counts::default(),
            n_products: super::ring::Counts::default(),
            recorded: Mutex::default(),
        })
    }

    /// What the device says about itself.
    pub(crate) fn info(&self) -> &DeviceInfo {
        self.gpu.info()
    }

    /// What was sent to the device.
    pub(crate) fn sent(&self) -> Sent {
        self.arena.sent()
    }

    /// How often kept copies were made and read.
    pub(crate) fn copies_report(&self) -> CopiesReport {
        self.copies.report()
    }

    /// How long the parts of loading took.
    pub(crate) fn load_report(&self) -> GpuLoadReport {
        self.load
    }

    /// The first layer that is on the device.
    pub(crate) fn first_layer(&self) -> usize {
        self.plan.first_layer
    }

    /// What it was to take of the device's memory.
    pub(crate) fn memory_plan(&self) -> &GpuPlan {
        &self.plan
    }

    /// Greedy choice on the device: whether, and how often.
    pub(crate) fn choice(&self) -> ChoiceReport {
        ChoiceReport { on: self.options.argmax, n_launches: self.n_choices.load(Ordering::Relaxed) }
    }

    /// Bytes of device memory that are free.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        Ok(self.gpu.memory()?.0)
    }
}

/// The library for bf16 products, where it is to make them, with the model's shapes tried.
fn find_blas(
    gpu: &Arc<Gpu>,
    is_wanted: bool,
    container: &Container<'_>,
) -> CudaResult<Option<Blas>> {
    if !is_wanted {
        return Ok(None);
    }
    let blas = Blas::find(gpu)?;
    if let Some(blas) = &blas {
        let shapes = product_shapes(container);
        WARM_UP_TOKENS.iter().try_for_each(|&n| blas.warm_up(&shapes, n))?;
    }
    Ok(blas)
}

fn timed<R>(work: impl FnOnce() -> R) -> (Duration, R) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}
