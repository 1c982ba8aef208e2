//! The driver: one device, one stream, its modules and their kernels.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};

use super::error::{CudaError, CudaResult};
use super::fatbins::FATBINS;
use super::launch::Kernel;
use super::mmq::MMQ_KERNELS;
use super::probe::{DeviceInfo, describe, driver_version};

pub(super) fn check<T>(what: &'static str, r: Result<T, result::DriverError>) -> CudaResult<T> {
    r.map_err(|e| CudaError::Driver { what, code: name_of(e) })
}

pub(super) fn name_of(e: result::DriverError) -> String {
    let name = e.error_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|_| format!("{:?}", e.0))
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
    /// How many clusters of so many blocks run at once, of kernels that were asked about.
    pub(super) clusters: Mutex<HashMap<(&'static str, u32), u32>>,
    pub(super) chained: bool,
    pub(super) n_launches: AtomicU64,
    wide: AtomicBool,
    n_wide: AtomicU64,
    n_narrow: AtomicU64,
}

// SAFETY: handles of the driver may be used from any thread; each use makes the context current on
// its thread first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver serializes calls on a stream, and everything else is immutable.
unsafe impl Sync for Gpu {}

/// Modules whose kernels run beside those of the ring, on devices that have it. Between kernels that split a multiprocessor's
/// memory otherwise into shared memory and cache, it has to run empty first.
const BESIDE_RING: [&str; 7] =
    ["argmax", "attention_cluster", "attention_decode", "elementwise", "gemv_ring", "norm", "rope"];

/// The module that has a kernel.
pub(super) fn module_of(name: &str) -> &'static str {
    if let Some(kernel) = MMQ_KERNELS.iter().find(|kernel| kernel.name == name) {
        return kernel.module;
    }
    let prefixes = [
        ("dequant_any", "any"),
        ("embed_any", "any"),
        ("gemv_any", "any"),
        ("argmax", "argmax"),
        ("attention_cluster", "attention_cluster"),
        ("attention_prefill", "attention_prefill"),
        ("attention_wgmma", "attention_wgmma"),
        ("attention_", "attention_decode"),
        ("experts_gemm_", "moe_gemm"),
        ("experts_mmq_", "moe_mmq"),
        ("gemv_experts_any", "moe_gemv_any"),
        ("gemv_experts_planar_", "moe_gemv_planar"),
        ("gemv_experts_", "moe_gemv"),
        ("moe_", "moe_route"),
        ("gemv_planar_", "gemv_planar"),
        ("gemv_ring_", "gemv_ring"),
        ("dequant_planar_", "gemv_planar"),
        ("embed_planar_", "gemv_planar"),
        ("gemv_", "gemv"),
        ("dequant_", "dequant"),
        ("embed_", "dequant"),
        ("gemm_bf16", "gemm_bf16"),
        ("gemm_sm90_", "gemm_sm90"),
        ("rmsnorm", "norm"),
        ("add_rmsnorm", "norm"),
        ("rope", "rope"),
        ("store_kv", "rope"),
    ];
    let known = prefixes.iter().find(|(prefix, _)| name.starts_with(prefix));
    known.map_or("elementwise", |(_, module)| module)
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
            clusters: Mutex::default(),
            n_launches: AtomicU64::new(0),
            wide: AtomicBool::new(true),
            n_wide: AtomicU64::new(0),
            n_narrow: AtomicU64::new(0),
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

    /// Whether norms, gates, conversions and rotation may take eight elements a thread (from the
    /// start they may); otherwise every launch takes their twins of one element, or one pair.
    pub fn set_wide(&self, wide: bool) {
        self.wide.store(wide, Ordering::Relaxed);
    }

    /// Launches of the kernels that [`set_wide`](Self::set_wide) is about and of their twins,
    /// recorded ones counted once a recording.
    pub fn n_wide(&self) -> (u64, u64) {
        (self.n_wide.load(Ordering::Relaxed), self.n_narrow.load(Ordering::Relaxed))
    }

    /// Whether a launch that `may` be wide is; it is counted.
    pub(super) fn takes_wide(&self, may: bool) -> bool {
        let wide = may && self.wide.load(Ordering::Relaxed);
        let counter = if wide { &self.n_wide } else { &self.n_narrow };
        counter.fetch_add(1, Ordering::Relaxed);
        wide
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
        let kernel = found.map(Kernel).map_err(|_| missing())?;
        if self.has_sm90() && BESIDE_RING.contains(&FATBINS[index].name) {
            let attribute =
                sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // SAFETY: the function is a handle of this context.
            let set = unsafe { result::function::set_function_attribute(kernel.0, attribute, 100) };
            check("preferring shared memory", set)?;
        }
        Ok(kernel)
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

    /// Waits until everything launched has run.
    ///
    /// # Errors
    /// If any of it failed.
    pub fn synchronize(&self) -> CudaResult<()> {
        self.bind()?;
        // SAFETY: the stream lives as long as `self`.
        check("running kernels", unsafe { result::stream::synchronize(self.stream) })
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
}
