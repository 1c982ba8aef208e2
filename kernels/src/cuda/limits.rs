//! What a device can do at most, measured on it: bytes read in a second, products in a second.
//!
//! The kernels are a module of their own that is loaded for a measurement and not kept, so that no
//! model waits for it.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::result;
use half::bf16;

use super::blas::Blas;
use super::driver::{Gpu, check};
use super::error::{CudaError, CudaResult};
use super::launch::{Kernel, Shape};
use super::memory::{Buffer, Span};
use super::ops::{params, u32_of};

static PROBE: &[u8] = include_bytes!("../../dist/probe.fatbin");

/// Bytes of the buffer that is read: many times the second-level cache of any device.
const READ_BYTES: usize = 2 << 30;
/// Rows, row length and tokens of the product that is timed.
const SIDE: usize = 8192;
/// Passes, of which the best counts: a limit is what can be reached.
const N_PASSES: usize = 10;
/// Threads of a block, and blocks of a multiprocessor.
const BLOCK: u32 = 256;
const BLOCKS: u32 = 8;

/// The module of the kernels, for as long as it is used.
struct Module<'g> {
    gpu: &'g Arc<Gpu>,
    module: cudarc::driver::sys::CUmodule,
}

impl<'g> Module<'g> {
    fn load(gpu: &'g Arc<Gpu>) -> CudaResult<Self> {
        gpu.bind()?;
        // SAFETY: the bytes are a fatbin, which the driver checks.
        let module = unsafe { result::module::load_data(PROBE.as_ptr().cast()) };
        Ok(Self { gpu, module: check("loading kernels", module)? })
    }

    fn kernel(&self, name: &str) -> CudaResult<Kernel> {
        let name_c = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded as long as `self`, which outlives its kernels.
        let found = unsafe { result::module::get_function(self.module, name_c) };
        let missing = || CudaError::Driver { what: "finding a kernel", code: name.to_owned() };
        found.map(Kernel).map_err(|_| missing())
    }

    fn shape(&self) -> Shape {
        let grid = (self.gpu.info().n_multiprocessors.max(1) * BLOCKS, 1, 1);
        Shape { grid, block: BLOCK, shared: 0, waits: true }
    }

    /// Fills memory with numbers that are 1 to 2 or their negatives as bf16, no two words in a row alike.
    fn fill(&self, out: Span<'_, u32>) -> CudaResult<()> {
        let n = u32_of(out.len());
        let params = params![out.ptr, n];
        // SAFETY: the parameters of `probe_fill`, which writes `n` words.
        unsafe { self.gpu.launch(self.kernel("probe_fill")?, self.shape(), params) }
    }

    /// Adds all words to `sum[0]`.
    fn read(&self, words: Span<'_, u32>, sum: Span<'_, u32>) -> CudaResult<()> {
        assert!(words.len().is_multiple_of(4) && !sum.is_empty(), "buffers");
        let n = u32_of(words.len() / 4);
        let params = params![words.ptr, n, sum.ptr];
        // SAFETY: the parameters of `probe_read`, which reads `n` times 16 bytes and adds to one word.
        unsafe { self.gpu.launch(self.kernel("probe_read")?, self.shape(), params) }
    }
}

impl Drop for Module<'_> {
    fn drop(&mut self) {
        // Launches that still run need the code.
        let _ = self.gpu.synchronize();
        // SAFETY: functions of the module are not used any more.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

impl Gpu {
    /// Bytes of device memory that [`measure_read`](Self::measure_read) takes meanwhile.
    pub const MEASURE_READ_BYTES: u64 = READ_BYTES as u64;

    /// Bytes that [`measure_bf16_products`](Self::measure_bf16_products) takes: two matrices, their
    /// product, and the library's own.
    pub const MEASURE_PRODUCTS_BYTES: u64 =
        (SIDE * SIDE * (2 * size_of::<bf16>() + size_of::<f32>()) + Blas::WORKSPACE_BYTES) as u64;

    /// The sum of these words, wrapping, computed by the kernel that [`measure_read`](Self::measure_read)
    /// times, of memory that its sister has filled; and the words. For tests.
    ///
    /// # Errors
    /// If memory is short or the driver fails.
    pub fn probe_sum(self: &Arc<Self>, n_words: usize) -> CudaResult<(u32, Vec<u32>)> {
        let module = Module::load(self)?;
        let words = self.alloc::<u32>(n_words)?;
        let sum = self.upload(&[0u32])?;
        module.fill(words.all())?;
        module.read(words.all(), sum.all())?;
        let (mut of_all, mut filled) = ([0u32], vec![0u32; n_words]);
        self.read(&mut of_all, sum.all())?;
        self.read(&mut filled, words.all())?;
        Ok((of_all[0], filled))
    }

    /// Bytes a second that kernels read from the device's memory, the best of some passes.
    ///
    /// # Errors
    /// If memory is short or the driver fails.
    pub fn measure_read(self: &Arc<Self>) -> CudaResult<f64> {
        let module = Module::load(self)?;
        let words = self.alloc::<u32>(READ_BYTES / size_of::<u32>())?;
        let sum = self.upload(&[0u32])?;
        module.fill(words.all())?;
        let seconds = best(self, || module.read(words.all(), sum.all()))?;
        Ok(READ_BYTES as f64 / seconds)
    }

    /// Operations a second of a large product of bf16 numbers by cuBLASLt, the best of some; nothing
    /// where this machine does not have the library.
    ///
    /// # Errors
    /// If memory is short, or the driver or the library fails.
    pub fn measure_bf16_products(self: &Arc<Self>) -> CudaResult<Option<f64>> {
        let Some(blas) = Blas::find(self)? else { return Ok(None) };
        let module = Module::load(self)?;
        let numbers = || -> CudaResult<Buffer<bf16>> { self.alloc(SIDE * SIDE) };
        let (w, x, y) = (numbers()?, numbers()?, self.alloc::<f32>(SIDE * SIDE)?);
        for buffer in [&w, &x] {
            let span = buffer.all();
            module.fill(Span::at(span.ptr, span.len() * size_of::<bf16>() / size_of::<u32>()))?;
        }
        let shape = (SIDE, SIDE, SIDE);
        let seconds =
            best(self, || blas.gemm(y.all(), (w.all(), SIDE), x.all(), None, shape, false))?;
        Ok(Some(2.0 * (SIDE as f64).powi(3) / seconds))
    }
}

/// Seconds of the shortest pass, after one that does not count.
fn best(gpu: &Arc<Gpu>, mut pass: impl FnMut() -> CudaResult<()>) -> CudaResult<f64> {
    pass()?;
    let mut best = f64::INFINITY;
    for _ in 0..N_PASSES {
        best = best.min(gpu.time(&mut pass)?);
    }
    Ok(best)
}
