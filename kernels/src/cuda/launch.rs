//! Launches: their shapes, and what the driver is told beside them.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use cudarc::driver::sys;

use super::driver::{Gpu, check};
use super::error::CudaResult;

/// A kernel of a loaded module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel(pub(super) sys::CUfunction);

// SAFETY: a handle of the driver, usable from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above; it is immutable.
unsafe impl Sync for Kernel {}

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
    /// A launch of this shape as the driver is told of it.
    pub(super) fn config(
        self,
        stream: sys::CUstream,
        attributes: &mut [sys::CUlaunchAttribute],
    ) -> sys::CUlaunchConfig {
        sys::CUlaunchConfig {
            gridDimX: self.grid.0,
            gridDimY: self.grid.1,
            gridDimZ: self.grid.2,
            blockDimX: self.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: u32::try_from(attributes.len()).unwrap_or(0),
        }
    }

    /// Blocks of 256 that cover `n` elements.
    pub(super) fn over(n: u64) -> Self {
        let blocks = u32::try_from(n.div_ceil(256)).unwrap_or(u32::MAX);
        Self { grid: (blocks.max(1), 1, 1), block: 256, shared: 0, waits: true }
    }
}

/// What a launch is told beside its shape, and how much of it: that it may start before the one before it
/// has ended, if `chained`; how many blocks make a cluster, if more than one.
pub(super) fn attributes(cluster: u32, chained: bool) -> ([sys::CUlaunchAttribute; 2], usize) {
    // SAFETY: all zeros is a value of this plain C struct.
    let mut all: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
    let mut n = 0;
    if chained {
        all[n].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        all[n].value.programmaticStreamSerializationAllowed = 1;
        n += 1;
    }
    if cluster > 1 {
        all[n].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        all[n].value.clusterDim =
            sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 };
        n += 1;
    }
    (all, n)
}

impl Gpu {
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
        // SAFETY: by the caller.
        unsafe { self.launch_clustered(kernel, shape, 1, params) }
    }

    /// As [`launch`](Self::launch), `cluster` neighbouring blocks in a cluster.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn launch_clustered(
        &self,
        kernel: Kernel,
        shape: Shape,
        cluster: u32,
        params: &mut [*mut c_void],
    ) -> CudaResult<()> {
        self.bind()?;
        let (mut attributes, n) = attributes(cluster, self.chained && shape.waits);
        let config = shape.config(self.stream(), &mut attributes[..n]);
        let no_extra = std::ptr::null_mut();
        // SAFETY: by the caller; config and parameters live for the call.
        let status = unsafe {
            sys::cuLaunchKernelEx(&raw const config, kernel.0, params.as_mut_ptr(), no_extra)
        };
        self.n_launches.fetch_add(1, Ordering::Relaxed);
        check("launching a kernel", status.result())
    }
}
