//! The driver: one device, one stream, its modules, memory, and recorded launches.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};

use super::error::{CudaError, CudaResult};
use super::fatbins::FATBINS;
use super::mmq::MMQ_KERNELS;

/// CUDA 13.0, which driver r580 brings.
const MIN_DRIVER: i32 = 13000;
/// Compute capability 8.0.
const MIN_COMPUTE: (i32, i32) = (8, 0);
/// Device memory is handed out at multiples of this.
pub const DEVICE_ALIGN: usize = 256;

pub(super) fn check<T>(what: &'static str, r: Result<T, result::DriverError>) -> CudaResult<T> {
    r.map_err(|e| CudaError::Driver { what, code: name_of(e) })
}

fn name_of(e: result::DriverError) -> String {
    let name = e.error_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|_| format!("{:?}", e.0))
}

/// What a device says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number among the machine's devices.
    pub ordinal: usize,
    /// Name.
    pub name: String,
    /// Compute capability.
    pub compute: (i32, i32),
    /// Multiprocessors.
    pub n_multiprocessors: u32,
    /// Bytes of memory.
    pub total_bytes: u64,
    /// Version of CUDA that the driver supports, 1000 * major + 10 * minor.
    pub driver: i32,
}

/// A device in use: context, stream, modules. Everything that is launched runs in order on the one
/// stream.
pub struct Gpu {
    info: DeviceInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    modules: Vec<sys::CUmodule>,
    kernels: Mutex<HashMap<&'static str, Kernel>>,
    chained: bool,
    n_launches: AtomicU64,
}

// SAFETY: handles of the driver may be used from any thread; each use makes the context current on
// its thread first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver serializes calls on a stream, and everything else is immutable.
unsafe impl Sync for Gpu {}

/// Grid and block of a launch, and its dynamic shared memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) grid: (u32, u32, u32),
    pub(super) block: u32,
    pub(super) shared: u32,
    /// Whether the kernel waits by itself for the one before it (`wait_for_previous`).
    pub(super) waits: bool,
}

impl Shape {
    /// Blocks of 256 that cover `n` elements.
    pub(super) fn over(n: u64) -> Self {
        let blocks = u32::try_from(n.div_ceil(256)).unwrap_or(u32::MAX);
        Self { grid: (blocks.max(1), 1, 1), block: 256, shared: 0, waits: true }
    }
}

/// The version of CUDA that the driver supports.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::OldDriver`].
fn driver_version() -> CudaResult<i32> {
    // SAFETY: it only tries to load the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the library is there; the function needs no initialization.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    check("asking for the driver's version", status.result())?;
    if version < MIN_DRIVER {
        return Err(CudaError::OldDriver { major: version / 1000, minor: version % 1000 / 10 });
    }
    Ok(version)
}

fn describe(ordinal: usize, driver: i32) -> CudaResult<(sys::CUdevice, DeviceInfo)> {
    result::init().map_err(|e| CudaError::NoDevice(name_of(e)))?;
    let n_devices = check("counting devices", result::device::get_count())?;
    let n_devices = usize::try_from(n_devices).unwrap_or(0);
    if n_devices == 0 {
        return Err(CudaError::NoDevice("0 devices".to_owned()));
    }
    let number = i32::try_from(ordinal).ok().filter(|_| ordinal < n_devices);
    let number = number.ok_or(CudaError::NoSuchDevice { ordinal, n_devices })?;
    let device = check("opening the device", result::device::get(number))?;
    let attribute = |attribute| {
        // SAFETY: `device` is a device.
        check("asking the device", unsafe { result::device::get_attribute(device, attribute) })
    };
    use sys::CUdevice_attribute as A;
    let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let name = check("asking the device's name", result::device::get_name(device))?;
    if (major, minor) < MIN_COMPUTE {
        return Err(CudaError::OldDevice { name, major, minor });
    }
    let n = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    // SAFETY: `device` is a device.
    let total = check("asking the device", unsafe { result::device::total_mem(device) })?;
    let info = DeviceInfo {
        ordinal,
        name,
        compute: (major, minor),
        n_multiprocessors: u32::try_from(n).unwrap_or(1).max(1),
        total_bytes: total as u64,
        driver,
    };
    Ok((device, info))
}

/// The module that has a kernel.
fn module_of(name: &str) -> &'static str {
    if let Some(kernel) = MMQ_KERNELS.iter().find(|kernel| kernel.name == name) {
        return kernel.module;
    }
    let prefixes = [
        ("argmax", "argmax"),
        ("attention_prefill", "attention_prefill"),
        ("attention_", "attention_decode"),
        ("gemv_planar_", "gemv_planar"),
        ("dequant_planar_", "gemv_planar"),
        ("embed_planar_", "gemv_planar"),
        ("gemv_", "gemv"),
        ("dequant_", "dequant"),
        ("embed_", "dequant"),
        ("gemm_bf16", "gemm_bf16"),
        ("rmsnorm", "norm"),
        ("add_rmsnorm", "norm"),
        ("rope", "rope"),
        ("store_kv", "rope"),
    ];
    let known = prefixes.iter().find(|(prefix, _)| name.starts_with(prefix));
    known.map_or("elementwise", |(_, module)| module)
}

/// Looks at a device without using it.
///
/// # Errors
/// If there is no driver, no such device, or one of them is too old.
pub fn probe(ordinal: usize) -> CudaResult<DeviceInfo> {
    Ok(describe(ordinal, driver_version()?)?.1)
}

impl Gpu {
    /// Opens a device and loads the kernels. `chained`: a launch may start before the one before
    /// it has ended (each kernel waits by itself), where the device can do that.
    ///
    /// # Errors
    /// If there is no driver, no such device, one of them is too old, or the driver refuses the
    /// kernels.
    pub fn open(ordinal: usize, chained: bool) -> CudaResult<Arc<Self>> {
        let (device, info) = describe(ordinal, driver_version()?)?;
        // SAFETY: `device` is a device; `drop` releases it.
        let context = unsafe { result::primary_ctx::retain(device) };
        let context = check("creating a context", context)?;
        let mut gpu = Self {
            chained: chained && info.compute.0 >= 9,
            info,
            device,
            context,
            stream: std::ptr::null_mut(),
            modules: Vec::new(),
            kernels: Mutex::default(),
            n_launches: AtomicU64::new(0),
        };
        gpu.bind()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        gpu.stream = check("creating a stream", stream)?;
        for fatbin in FATBINS {
            // SAFETY: the bytes are a fatbin, which the driver checks.
            let module = unsafe { result::module::load_data(fatbin.bytes.as_ptr().cast()) };
            let module = module.map_err(|e| CudaError::Driver {
                what: "loading kernels",
                code: format!("{} ({})", name_of(e), fatbin.name),
            })?;
            gpu.modules.push(module);
        }
        Ok(Arc::new(gpu))
    }

    /// What the device says about itself.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Kernels launched so far, recorded ones counted once a recording.
    pub fn n_launches(&self) -> u64 {
        self.n_launches.load(Ordering::Relaxed)
    }

    /// Bytes of device memory (free, all).
    ///
    /// # Errors
    /// If the driver fails.
    pub fn memory(&self) -> CudaResult<(u64, u64)> {
        self.bind()?;
        let (free, total) = check("asking for free memory", result::mem_get_info())?;
        Ok((free as u64, total as u64))
    }

    /// Makes the context current on this thread.
    pub(super) fn bind(&self) -> CudaResult<()> {
        // SAFETY: the context lives as long as `self`.
        check("entering the context", unsafe { result::ctx::set_current(self.context) })
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// The kernel `name`.
    pub(super) fn kernel(&self, name: &str) -> CudaResult<Kernel> {
        self.bind()?;
        let missing = || CudaError::Driver { what: "finding a kernel", code: name.to_owned() };
        let module = module_of(name);
        let index = FATBINS.iter().position(|fatbin| fatbin.name == module).ok_or_else(missing)?;
        let module = *self.modules.get(index).ok_or_else(missing)?;
        // SAFETY: modules live as long as `self`.
        let found =
            unsafe { result::module::get_function(module, CString::new(name).unwrap_or_default()) };
        found.map(Kernel).map_err(|_| missing())
    }

    /// As [`kernel`](Self::kernel), remembered.
    pub(super) fn known(&self, name: &'static str) -> CudaResult<Kernel> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(name) {
            return Ok(*kernel);
        }
        let kernel = self.kernel(name)?;
        kernels.insert(name, kernel);
        Ok(kernel)
    }

    /// As [`known`](Self::known), for launches with `shared` bytes of dynamic shared memory.
    pub(super) fn known_with(&self, name: &'static str, shared: u32) -> CudaResult<Kernel> {
        let kernel = self.known(name)?;
        let attribute =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let shared = i32::try_from(shared).unwrap_or(i32::MAX);
        // SAFETY: the function is a handle of this context.
        let set = unsafe { result::function::set_function_attribute(kernel.0, attribute, shared) };
        check("allowing shared memory", set)?;
        Ok(kernel)
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// `params` are the kernel's parameters in order, each of its own type, and every device
    /// pointer among them is good for what the kernel does with it.
    pub(super) unsafe fn launch(
        &self,
        kernel: Kernel,
        shape: Shape,
        params: &mut [*mut c_void],
    ) -> CudaResult<()> {
        self.bind()?;
        // SAFETY: all zeros is a value of this plain C struct.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id =
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid.0,
            gridDimY: shape.grid.1,
            gridDimZ: shape.grid.2,
            blockDimX: shape.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared,
            hStream: self.stream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(self.chained && shape.waits),
        };
        let no_extra = std::ptr::null_mut();
        // SAFETY: by the caller; config and parameters live for the call.
        let status = unsafe {
            sys::cuLaunchKernelEx(&raw const config, kernel.0, params.as_mut_ptr(), no_extra)
        };
        self.n_launches.fetch_add(1, Ordering::Relaxed);
        check("launching a kernel", status.result())
    }

    /// Waits until everything launched has run.
    ///
    /// # Errors
    /// If any of it failed.
    pub fn synchronize(&self) -> CudaResult<()> {
        self.bind()?;
        // SAFETY: the stream lives as long as `self`.
        check("running kernels", unsafe { result::stream::synchronize(self.stream) })
    }

    /// Takes device memory. Its contents are undefined.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn alloc<T: Plain>(self: &Arc<Self>, len: usize) -> CudaResult<Buffer<T>> {
        let n_bytes = len.saturating_mul(size_of::<T>()).max(1);
        self.bind()?;
        // SAFETY: the memory is freed by the buffer's drop and by nothing else.
        let ptr = unsafe { result::malloc_sync(n_bytes) }.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                CudaError::Memory { n_bytes: n_bytes as u64 }
            }
            _ => CudaError::Driver { what: "allocating GPU memory", code: name_of(e) },
        })?;
        Ok(Buffer { gpu: Arc::clone(self), ptr, len, item: PhantomData })
    }

    /// Device memory with these contents.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn upload<T: Plain>(self: &Arc<Self>, values: &[T]) -> CudaResult<Buffer<T>> {
        let buffer = self.alloc(values.len())?;
        self.write(buffer.all(), values)?;
        Ok(buffer)
    }

    /// Copies `values` to the device, in order with launches; they may be reused at once.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn write<T: Plain>(&self, to: Span<'_, T>, values: &[T]) -> CudaResult<()> {
        assert!(values.len() <= to.len, "{} of {}", values.len(), to.len);
        if values.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the span is that long; pageable memory is taken over before the call returns.
        check("copying to the GPU", unsafe {
            result::memcpy_htod_async(to.ptr, values, self.stream)
        })
    }

    /// Copies from the device and waits for it.
    ///
    /// # Errors
    /// If the driver or an earlier launch fails.
    pub fn read<T: Plain>(&self, to: &mut [T], from: Span<'_, T>) -> CudaResult<()> {
        assert!(to.len() <= from.len, "{} of {}", to.len(), from.len);
        self.bind()?;
        if !to.is_empty() {
            // SAFETY: the span is that long, and the copy ends before this function does.
            check("copying from the GPU", unsafe {
                result::memcpy_dtoh_async(to, from.ptr, self.stream)
            })?;
        }
        self.synchronize()
    }

    /// Copies `from` over the start of `to`, on the device, in order with launches.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn copy<T: Plain>(&self, to: Span<'_, T>, from: Span<'_, T>) -> CudaResult<()> {
        assert!(from.len <= to.len, "{} into {}", from.len, to.len);
        if from.len == 0 {
            return Ok(());
        }
        self.bind()?;
        let n_bytes = from.len * size_of::<T>();
        // SAFETY: both spans are that long.
        check("copying on the GPU", unsafe {
            result::memcpy_dtod_async(to.ptr, from.ptr, n_bytes, self.stream)
        })
    }

    /// Records what `body` launches instead of running it.
    ///
    /// # Errors
    /// If the driver fails; what `body` reports comes first.
    pub fn record(
        self: &Arc<Self>,
        body: impl FnOnce() -> CudaResult<()>,
    ) -> CudaResult<Recording> {
        self.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as `self`.
        check("recording launches", unsafe { result::stream::begin_capture(self.stream, mode) })?;
        let outcome = body();
        // SAFETY: the capture was begun above.
        let graph = unsafe { result::stream::end_capture(self.stream) };
        outcome?;
        let graph = check("recording launches", graph)?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is one that the driver made.
        let status = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) };
        let made = check("preparing recorded launches", status.result());
        // SAFETY: nothing else uses the graph; the instance does not need it.
        let destroyed = unsafe { result::graph::destroy(graph) };
        made?;
        check("preparing recorded launches", destroyed)?;
        Ok(Recording { gpu: Arc::clone(self), exec })
    }

    /// Seconds that the device takes for what `body` launches.
    ///
    /// # Errors
    /// What `body` reports, or the driver.
    pub fn time(&self, body: impl FnOnce() -> CudaResult<()>) -> CudaResult<f64> {
        self.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let start = check("timing", result::event::create(flags))?;
        let end = check("timing", result::event::create(flags))?;
        // SAFETY: event and stream are alive.
        check("timing", unsafe { result::event::record(start, self.stream) })?;
        body()?;
        // SAFETY: event and stream are alive.
        check("timing", unsafe { result::event::record(end, self.stream) })?;
        self.synchronize()?;
        // SAFETY: both events have been recorded and have happened.
        let ms = check("timing", unsafe { result::event::elapsed(start, end) })?;
        for event in [start, end] {
            // SAFETY: nothing else uses the event.
            check("timing", unsafe { result::event::destroy(event) })?;
        }
        Ok(f64::from(ms) / 1e3)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // Failures here have nobody to report to: the process is done with the device.
        let _ = self.bind();
        for &module in &self.modules {
            // SAFETY: functions of the module die with `self`.
            let _ = unsafe { result::module::unload(module) };
        }
        if !self.stream.is_null() {
            // SAFETY: made in `open`, used by nothing any more.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
        // SAFETY: retained in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("info", &self.info).finish_non_exhaustive()
    }
}

/// A kernel of a loaded module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel(sys::CUfunction);

// SAFETY: a handle of the driver, usable from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above; it is immutable.
unsafe impl Sync for Kernel {}

/// Types that any bytes are a value of.
///
/// # Safety
/// Every bit pattern is a value, and there is no padding.
pub unsafe trait Plain: Copy + 'static {}
// SAFETY: a number.
unsafe impl Plain for u8 {}
// SAFETY: a number.
unsafe impl Plain for i8 {}
// SAFETY: a number.
unsafe impl Plain for u16 {}
// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: a number.
unsafe impl Plain for u64 {}
// SAFETY: a number.
unsafe impl Plain for f32 {}
// SAFETY: a number.
unsafe impl Plain for f64 {}
// SAFETY: a number.
unsafe impl Plain for half::f16 {}
// SAFETY: a number.
unsafe impl Plain for half::bf16 {}
// SAFETY: two numbers of one size.
unsafe impl Plain for [f32; 2] {}

/// Device memory.
#[derive(Debug)]
pub struct Buffer<T> {
    gpu: Arc<Gpu>,
    ptr: sys::CUdeviceptr,
    len: usize,
    item: PhantomData<T>,
}

impl<T> Buffer<T> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it.
    pub fn all(&self) -> Span<'_, T> {
        Span { ptr: self.ptr, len: self.len, item: PhantomData }
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it has no such part.
    pub fn span(&self, range: Range<usize>) -> Span<'_, T> {
        self.all().span(range)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // Failures here have nobody to report to.
        let _ = self.gpu.bind();
        // SAFETY: allocated by `alloc`; the driver waits for launches that use it.
        let _ = unsafe { result::free_sync(self.ptr) };
    }
}

/// Pinned host memory, which the device reaches at full speed.
pub struct HostBuffer<T> {
    gpu: Arc<Gpu>,
    ptr: *mut T,
    len: usize,
}

// SAFETY: it owns plain memory.
unsafe impl<T: Plain + Send> Send for HostBuffer<T> {}

impl<T: Plain> HostBuffer<T> {
    /// Zeros.
    ///
    /// # Errors
    /// If memory cannot be pinned.
    pub fn new(gpu: &Arc<Gpu>, len: usize) -> CudaResult<Self> {
        gpu.bind()?;
        let n_bytes = len.saturating_mul(size_of::<T>()).max(1);
        // SAFETY: freed by `drop`.
        let ptr = check("pinning memory", unsafe { result::malloc_host(n_bytes, 0) })?;
        // SAFETY: it has that many bytes, and zeros are a value of a plain type.
        unsafe { std::ptr::write_bytes(ptr.cast::<u8>(), 0, n_bytes) };
        Ok(Self { gpu: Arc::clone(gpu), ptr: ptr.cast(), len })
    }

    /// The elements.
    pub fn get(&self) -> &[T] {
        // SAFETY: it owns `len` initialized elements.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    /// The elements.
    pub fn get_mut(&mut self) -> &mut [T] {
        // SAFETY: it owns `len` initialized elements.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

impl<T> Drop for HostBuffer<T> {
    fn drop(&mut self) {
        let _ = self.gpu.bind();
        // SAFETY: allocated by `new`; reads into it have ended when they returned.
        let _ = unsafe { result::free_host(self.ptr.cast()) };
    }
}

/// A part of device memory. Launches run in order, so that one may write what the next reads, as
/// with a `Cell`.
#[derive(Debug)]
pub struct Span<'b, T> {
    pub(super) ptr: sys::CUdeviceptr,
    pub(super) len: usize,
    item: PhantomData<&'b T>,
}

impl<T> Clone for Span<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Span<'_, T> {}

impl<T> Default for Span<'_, T> {
    /// Nothing.
    fn default() -> Self {
        Self { ptr: 0, len: 0, item: PhantomData }
    }
}

impl<T> Span<'_, T> {
    /// Memory whose owner is known to outlive the span.
    pub(super) fn at(ptr: sys::CUdeviceptr, len: usize) -> Self {
        Self { ptr, len, item: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it has no such part.
    pub fn span(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        let ptr = self.ptr + (range.start * size_of::<T>()) as u64;
        Self { ptr, len: range.len(), item: PhantomData }
    }

    /// Its address on the device: what a base is known by.
    pub fn address(&self) -> u64 {
        self.ptr
    }
}

/// Launches that can be repeated at once.
#[derive(Debug)]
pub struct Recording {
    gpu: Arc<Gpu>,
    exec: sys::CUgraphExec,
}

// SAFETY: a handle of the driver, usable from any thread; launching takes `&self.gpu`'s stream.
unsafe impl Send for Recording {}

impl Recording {
    /// Runs them all.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn launch(&self) -> CudaResult<()> {
        self.gpu.bind()?;
        // SAFETY: instance and stream are alive; the recorder keeps the memory that it uses alive.
        check("launching a recording", unsafe { result::graph::launch(self.exec, self.gpu.stream) })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.gpu.bind();
        // SAFETY: made by `record`, used by nothing any more.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The committed lists of kernels say which module has each; launches must look there.
    #[test]
    fn kernels_are_looked_for_where_they_are() {
        let dist = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("dist");
        let mut n_kernels = 0;
        for fatbin in FATBINS {
            let list = std::fs::read_to_string(dist.join(format!("{}.sass", fatbin.name)));
            let list = list.expect("a list of kernels beside each fatbin");
            for line in list.lines().filter(|line| !line.starts_with('#')) {
                let name = line.split(':').next().unwrap_or_default();
                assert_eq!(module_of(name), fatbin.name, "{name}");
                n_kernels += 1;
            }
        }
        assert!(n_kernels > 100, "{n_kernels} kernels");
    }

    #[test]
    fn a_machine_without_a_gpu_says_why() {
        match probe(9999) {
            Ok(info) => panic!("{info:?}"),
            Err(CudaError::NoSuchDevice { ordinal, n_devices }) => {
                assert!(ordinal == 9999 && n_devices > 0);
            }
            Err(other) => assert!(other.to_string().contains("NVIDIA"), "{other}"),
        }
    }
}
