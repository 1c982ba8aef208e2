//! Opening a device: which family of products, what it reads, and the way of the weights there.

use super::bind::product_shapes;
use super::tensor::Epoch;
use super::weights::{self, Arena, Used};
use super::{Cuda, Family};
use crate::error::{Error, Result};
use crate::open::{CudaOptions, Prefill};
use crate::report::ChoiceReport;
use format_spec::container::Container;
use kernels::cuda::{Blas, CudaResult, DeviceInfo, Gpu};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Tokens of the products that are tried while the weights arrive: the usual batch and a long one.
const WARM_UP_TOKENS: [usize; 2] = [512, 4096];

impl Cuda {
    /// Opens the device and puts the container's objects on it.
    pub(crate) fn open(
        options: CudaOptions,
        exp_plane: bool,
        file: &[u8],
        container: &Container<'_>,
        n_threads: usize,
    ) -> Result<Self> {
        let gpu = Gpu::open(options.ordinal, options.chained)?;
        let family = match options.prefill {
            Prefill::Mmq => Family::Mmq,
            Prefill::Bf16 => Family::Bf16,
            // int8 tensor cores outrun bf16 ones on consumer parts alone.
            Prefill::Auto => match gpu.info().compute {
                (8, 0) | (9 | 10, _) if Blas::is_here() => Family::Bf16,
                _ => Family::Mmq,
            },
        };
        let int8 = family == Family::Mmq;
        let used = Used { bf16: !int8, int8, exp: int8 && exp_plane };
        let need = weights::arena_bytes(container, used);
        let (free, _) = gpu.memory()?;
        if need > free {
            return Err(Error::DeviceMemory { what: "weights", need, free });
        }
        let shapes = product_shapes(container);
        let find = || -> CudaResult<Option<Blas>> {
            let blas = if int8 { None } else { Blas::find(&gpu)? };
            if let Some(blas) = &blas {
                WARM_UP_TOKENS.iter().try_for_each(|&n| blas.warm_up(&shapes, n))?;
            }
            Ok(blas)
        };
        // The library takes as long to get ready as the weights to arrive.
        let (blas, arena) = std::thread::scope(|scope| {
            let blas = scope.spawn(find);
            let arena = Arena::load(&gpu, file, container, used, n_threads);
            (blas.join().unwrap_or(Ok(None)), arena)
        });
        let (blas, arena) = (blas?, arena?);
        Ok(Self {
            blas,
            family,
            options,
            exp_plane,
            has_floats: AtomicBool::new(false),
            arena,
            gpu,
            epoch: Epoch::default(),
            shared: Mutex::default(),
            turn: Mutex::default(),
            first_pos: AtomicUsize::new(0),
            failure: Mutex::default(),
            held: Mutex::default(),
            n_choices: Arc::default(),
            recorded: Mutex::default(),
        })
    }

    /// What the device says about itself.
    pub(crate) fn info(&self) -> &DeviceInfo {
        self.gpu.info()
    }

    /// Bytes of objects that were sent to the device.
    pub(crate) fn uploaded_bytes(&self) -> u64 {
        self.arena.n_bytes()
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
