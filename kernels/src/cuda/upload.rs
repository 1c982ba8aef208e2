//! Bytes to the device as they are: through small pinned buffers, or from where they lie, pinned
//! for the time of the copy.

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

/// One reader's way to the device: a stream of its own, and two pinned buffers once they are used.
pub struct Uploader {
    gpu: Arc<Gpu>,
    stream: sys::CUstream,
    pieces: Vec<Piece>,
    next: usize,
    n_bytes: u64,
    n_in_place: u64,
}

// SAFETY: handles of the driver and pinned memory may be used from any thread, one at a time.
unsafe impl Send for Uploader {}

impl Uploader {
    /// Bytes that travel together.
    pub const PIECE_BYTES: usize = PIECE_BYTES;

    /// An uploader.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn new(gpu: &Arc<Gpu>) -> CudaResult<Self> {
        gpu.bind()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = check("creating a stream", stream)?;
        let pieces = Vec::with_capacity(N_PIECES);
        Ok(Self { gpu: Arc::clone(gpu), stream, pieces, next: 0, n_bytes: 0, n_in_place: 0 })
    }

    fn pin_buffers(&mut self) -> CudaResult<()> {
        while self.pieces.len() < N_PIECES {
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            let sent = check("creating an event", result::event::create(flags))?;
            // SAFETY: freed by `drop`.
            let memory = unsafe { result::malloc_host(PIECE_BYTES, 0) };
            self.pieces.push(Piece { memory: check("pinning memory", memory)?, sent });
        }
        Ok(())
    }

    /// Sends parts of `bytes`, (start, length) each, to the spans beside them, from where they lie:
    /// their pages are pinned, read by the device, and released again before this returns.
    ///
    /// # Errors
    /// If the memory cannot be pinned, in which case nothing was sent; or the driver fails.
    ///
    /// # Panics
    /// If a part is not inside `bytes` or longer than its span.
    pub fn send_in_place(
        &mut self,
        bytes: &[u8],
        parts: &[(usize, usize, Span<'_, u8>)],
    ) -> CudaResult<()> {
        self.gpu.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_READ_ONLY;
        let start = bytes.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the device only reads the memory, which is borrowed until it is unregistered.
        let status = unsafe { sys::cuMemHostRegister_v2(start, bytes.len(), flags) };
        check("pinning the file", status.result())?;
        let outcome = self.copy_parts(bytes, parts);
        // The memory must not be released while a copy reads it, whatever happened.
        // SAFETY: the stream lives as long as `self`.
        let done = check("copying to the GPU", unsafe { result::stream::synchronize(self.stream) });
        // SAFETY: registered above; no copy reads it any more.
        let status = unsafe { sys::cuMemHostUnregister(start) };
        outcome.and(done).and(check("releasing the file", status.result()))
    }

    fn copy_parts(
        &mut self,
        bytes: &[u8],
        parts: &[(usize, usize, Span<'_, u8>)],
    ) -> CudaResult<()> {
        for &(start, len, to) in parts {
            assert!(to.len() >= len, "{} of {len}", to.len());
            // SAFETY: the span is that long; the caller waits before the bytes go.
            check("copying to the GPU", unsafe {
                result::memcpy_htod_async(to.ptr, &bytes[start..start + len], self.stream)
            })?;
            self.n_bytes += len as u64;
            self.n_in_place += len as u64;
        }
        Ok(())
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
        self.pin_buffers()?;
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

    /// Waits for all that was sent; returns how many bytes that were, and how many of them went
    /// from where they lay.
    ///
    /// # Errors
    /// If a copy failed.
    pub fn finish(&mut self) -> CudaResult<(u64, u64)> {
        self.gpu.bind()?;
        // SAFETY: the stream lives as long as `self`.
        check("copying to the GPU", unsafe { result::stream::synchronize(self.stream) })?;
        Ok((self.n_bytes, self.n_in_place))
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
