//! Opening a device: which family of products, what it reads, and the way of the weights there.

use super::attention;
use super::bind::product_shapes;
use super::plan::Wish;
use super::tensor::Epoch;
use super::upload::{Sending, Sent};
use super::weights::{Arena, Kinds};
use super::{Cuda, Family};
use crate::error::{Error, Result};
use crate::open::{CudaOptions, LoadOptions, LoadWatch, Prefill};
use crate::report::{ChoiceReport, GpuPlan};
use format_spec::PlaneKind;
use format_spec::container::Container;
use format_spec::model::Blueprint;
use kernels::cuda::{Blas, CudaResult, DeviceInfo, Gpu};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Tokens of the products that are tried while the weights arrive: the usual batch and a long one.
const WARM_UP_TOKENS: [usize; 2] = [512, 4096];

/// Whether there are blocks as GGUF has them, which int8 products of many tokens read.
fn has_blocks(container: &Container<'_>) -> bool {
    container.objects().iter().any(|object| object.kind == PlaneKind::Padded)
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
        let exp_plane = common.exp_plane;
        let gpu = Gpu::open(options.ordinal, options.chained)?;
        let family = match options.prefill {
            Prefill::Mmq => Family::Mmq,
            Prefill::Bf16 => Family::Bf16,
            // int8 tensor cores outrun bf16 ones on consumer parts alone.
            Prefill::Auto => match gpu.info().compute {
                (8, 0) | (9 | 10, _) if Blas::is_here() => Family::Bf16,
                _ if has_blocks(container) => Family::Mmq,
                _ => Family::Bf16,
            },
        };
        let int8 = family == Family::Mmq;
        let kinds = Kinds { bf16: !int8, int8, exp: int8 && exp_plane };
        let wish = Wish { blueprint, container, options: &options, family, kinds };
        let plan = Self::plan(&gpu, &wish)?;
        (watch.planned)(&plan);
        let used = &wish.used_from(plan.first_layer);
        let (need, free) = (plan.need_bytes(), plan.free_bytes);
        if need > free {
            let what = "weights, keys and values, and scratch";
            return Err(Error::DeviceMemory { what, need, free });
        }
        // Before the library takes memory for its trials, which it can do without.
        let mut arena = Arena::reserve(&gpu, container, used)?;
        let n_threads = common.n_threads;
        let sending = Sending { load: options.load, n_threads, sent: watch.sent };
        let shapes = product_shapes(container);
        let find = || -> CudaResult<Option<Blas>> {
            let blas = if int8 { None } else { Blas::find(&gpu)? };
            if let Some(blas) = &blas {
                WARM_UP_TOKENS.iter().try_for_each(|&n| blas.warm_up(&shapes, n))?;
            }
            Ok(blas)
        };
        // The library takes as long to get ready as the weights to arrive.
        let (blas, filled) = std::thread::scope(|scope| {
            let blas = scope.spawn(find);
            let filled = arena.fill(&gpu, file, container, used, &sending);
            (blas.join().unwrap_or(Ok(None)), filled)
        });
        filled?;
        let blas = blas?;
        Ok(Self {
            blas,
            family,
            options,
            exp_plane,
            needs_bf16: AtomicBool::new(false),
            mixed: Mutex::default(),
            arena,
            gpu,
            epoch: Epoch::default(),
            shared: Mutex::default(),
            turn: Mutex::default(),
            first_pos: AtomicUsize::new(0),
            failure: Mutex::default(),
            plan,
            held: Mutex::default(),
            n_choices: Arc::default(),
            n_attended: attention::Counts::default(),
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
