//! Bytes to the device as they are, through small pinned buffers.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::driver::{Gpu, check};
use super::error::CudaResult;
use super::memory::Span;

/// Size of a pinned buffer. Larger ones are slower and cost more to make.
const PIECE_BYTES: usize = 8 << 20;
/// Buffers of an uploader: one is filled while another is on its way.
const N_PIECES: usize = 2;

struct Piece {
    memory: *mut c_void,
    sent: sys::CUevent,
}

/// One reader's way to the device: a stream of its own and two pinned buffers.
pub struct Uploader {
    gpu: Arc<Gpu>,
    stream: sys::CUstream,
    pieces: Vec<Piece>,
    next: usize,
    n_bytes: u64,
}

// SAFETY: handles of the driver and pinned memory may be used from any thread, one at a time.
unsafe impl Send for Uploader {}

impl Uploader {
    /// Bytes that travel together.
    pub const PIECE_BYTES: usize = PIECE_BYTES;

    /// An uploader with its buffers.
    ///
    /// # Errors
    /// If memory cannot be pinned.
    pub fn new(gpu: &Arc<Gpu>) -> CudaResult<Self> {
        gpu.bind()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = check("creating a stream", stream)?;
        let pieces = Vec::with_capacity(N_PIECES);
        let mut this = Self { gpu: Arc::clone(gpu), stream, pieces, next: 0, n_bytes: 0 };
        for _ in 0..N_PIECES {
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            let sent = check("creating an event", result::event::create(flags))?;
            // SAFETY: freed by `drop`.
            let memory = unsafe { result::malloc_host(PIECE_BYTES, 0) };
            this.pieces.push(Piece { memory: check("pinning memory", memory)?, sent });
        }
        Ok(this)
    }

    /// Sends `bytes` to `to`. `fill` writes a part of them, from the given offset on, into the
    /// buffer that it is handed: a copy out of a map, or a read from a file.
    ///
    /// # Errors
    /// What `fill` reports, or the driver.
    ///
    /// # Panics
    /// If `to` is shorter than `n_bytes`.
    pub fn send<E: From<super::CudaError>>(
        &mut self,
        to: Span<'_, u8>,
        n_bytes: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        assert!(to.len() >= n_bytes, "{} of {n_bytes}", to.len());
        self.gpu.bind()?;
        let mut at = 0;
        while at < n_bytes {
            let len = (n_bytes - at).min(PIECE_BYTES);
            let piece = &self.pieces[self.next];
            self.next = (self.next + 1) % self.pieces.len();
            // SAFETY: the event lives as long as `self`; one never recorded has happened.
            check("waiting for a copy", unsafe { result::event::synchronize(piece.sent) })?;
            // SAFETY: the buffer has PIECE_BYTES bytes, and no copy reads it any more.
            let buffer = unsafe { std::slice::from_raw_parts_mut(piece.memory.cast(), len) };
            fill(at, buffer)?;
            // SAFETY: the span is that long; the buffer is not touched before the event.
            check("copying to the GPU", unsafe {
                result::memcpy_htod_async(to.ptr + at as u64, buffer, self.stream)
            })?;
            // SAFETY: event and stream are alive.
            check("copying to the GPU", unsafe { result::event::record(piece.sent, self.stream) })?;
            at += len;
            self.n_bytes += len as u64;
        }
        Ok(())
    }

    /// Waits for all that was sent; returns how many bytes that were.
    ///
    /// # Errors
    /// If a copy failed.
    pub fn finish(&mut self) -> CudaResult<u64> {
        self.gpu.bind()?;
        // SAFETY: the stream lives as long as `self`.
        check("copying to the GPU", unsafe { result::stream::synchronize(self.stream) })?;
        Ok(self.n_bytes)
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        let _ = self.finish();
        for piece in &self.pieces {
            // SAFETY: pinned in `new`; no copy is under way after `finish`.
            let _ = unsafe { result::free_host(piece.memory) };
            // SAFETY: made in `new`.
            let _ = unsafe { result::event::destroy(piece.sent) };
        }
        // SAFETY: made in `new`.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}

impl std::fmt::Debug for Uploader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uploader").field("n_bytes", &self.n_bytes).finish_non_exhaustive()
    }
}
