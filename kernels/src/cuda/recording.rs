//! Recorded launches, which repeat at once.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::driver::{Gpu, check};
use super::error::CudaResult;

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
        check("launching a recording", unsafe {
            result::graph::launch(self.exec, self.gpu.stream())
        })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.gpu.bind();
        // SAFETY: made by `record`, used by nothing any more.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
    }
}

impl Gpu {
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
        check("recording launches", unsafe { result::stream::begin_capture(self.stream(), mode) })?;
        let outcome = body();
        // SAFETY: the capture was begun above.
        let graph = unsafe { result::stream::end_capture(self.stream()) };
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
}
