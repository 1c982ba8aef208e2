//! Greedy choice on the device: the launch, and the way of its result to the host.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::driver::{Gpu, check};
use super::error::CudaResult;
use super::launch::Shape;
use super::memory::{Buffer, HostBuffer, Span};
use super::ops::{params, u32_of};

/// Steps whose results may be on their way at once.
const N_SLOTS: usize = 2;

/// What the kernel writes where no logit is finite.
const NONE: u32 = u32::MAX;

/// Where the tokens of one sequence arrive: pinned memory that the kernel writes to.
pub struct Chooser {
    gpu: Arc<Gpu>,
    n_tokens: usize,
    /// A bit a token.
    banned: Option<Buffer<u32>>,
    state: Buffer<u64>,
    slots: HostBuffer<u32>,
    written: [sys::CUevent; N_SLOTS],
}

// SAFETY: handles of the driver may be used from any thread, and the rest is `Send`.
unsafe impl Send for Chooser {}

impl Chooser {
    /// Chooses among tokens `0..n_tokens` without those of `banned`.
    ///
    /// # Errors
    /// If memory is short or the driver fails.
    pub fn new(gpu: &Arc<Gpu>, n_tokens: usize, banned: &[u32]) -> CudaResult<Self> {
        let mut words = vec![0u32; n_tokens.div_ceil(32)];
        for &id in banned {
            if let Some(word) = words.get_mut(id as usize / 32) {
                *word |= 1 << (id % 32);
            }
        }
        let banned = (!banned.is_empty()).then(|| gpu.upload(&words)).transpose()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = || check("creating an event", result::event::create(flags));
        Ok(Self {
            n_tokens,
            banned,
            state: gpu.upload(&[0; 2])?,
            slots: HostBuffer::new(gpu, N_SLOTS)?,
            gpu: Arc::clone(gpu),
            written: [event()?, event()?],
        })
    }

    /// Marks the end of what was launched for the step at `position`.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn launched(&self, position: usize) -> CudaResult<()> {
        self.gpu.bind()?;
        let event = self.written[position % N_SLOTS];
        // SAFETY: event and stream are alive.
        check("marking a step", unsafe { result::event::record(event, self.gpu.stream()) })
    }

    /// Waits for the step at `position`, marked by [`launched`](Self::launched) as one of the last
    /// two, and returns its token: nothing if no logit is finite.
    ///
    /// # Errors
    /// If any launch before the mark failed.
    pub fn chosen(&self, position: usize) -> CudaResult<Option<u32>> {
        self.gpu.bind()?;
        let slot = position % N_SLOTS;
        // SAFETY: the event is alive.
        check("running kernels", unsafe { result::event::synchronize(self.written[slot]) })?;
        let token = self.slots.get_fresh(slot);
        Ok((token != NONE).then_some(token))
    }
}

impl Drop for Chooser {
    fn drop(&mut self) {
        // A step that is still running writes to the pinned memory.
        let _ = self.gpu.synchronize();
        for event in self.written {
            // SAFETY: made in `new`, used by nothing any more.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

impl std::fmt::Debug for Chooser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chooser").field("n_tokens", &self.n_tokens).finish_non_exhaustive()
    }
}

impl Gpu {
    /// Chooses the first largest of `logits` and makes `step`, position and token, the next one.
    ///
    /// The position is read before the launch in front of this one has ended: between two calls lies a copy, or
    /// a launch that begins alone ([`embed`](Self::embed)), as at the start of every step.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn choose(
        &self,
        chooser: &Chooser,
        logits: Span<'_, f32>,
        step: Span<'_, u32>,
    ) -> CudaResult<()> {
        assert!(logits.len() >= chooser.n_tokens && step.len() >= 2, "buffers");
        let n = u32_of(chooser.n_tokens);
        let banned = chooser.banned.as_ref().map_or(0, |banned| banned.all().address());
        let (best, n_done) = (chooser.state.span(0..1), chooser.state.span(1..2));
        let (slots, n_slots) = (chooser.slots.address(), N_SLOTS as u32);
        let shape = Shape {
            grid: (n.div_ceil(1024).clamp(1, 128), 1, 1),
            block: 256,
            shared: 0,
            waits: true,
        };
        let params = params![slots, n_slots, step.ptr, logits.ptr, n, banned, best.ptr, n_done.ptr];
        // SAFETY: the parameters of `argmax`; lengths are checked above, the slots are N_SLOTS.
        unsafe { self.launch(self.known("argmax")?, shape, params) }
    }
}
