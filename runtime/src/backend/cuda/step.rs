//! A step: where kernels find its position and tokens, and the recorded launches of one token.

use super::Cuda;
use super::tensor::{absent, grow};
use kernels::cuda::{CudaError, CudaResult, Recording, Span};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// The recorded launches of a one-token step.
#[derive(Default)]
pub(crate) struct Replay {
    recording: Option<Recording>,
    /// Counters of the products in it.
    counters: Vec<Arc<AtomicU64>>,
    /// The epoch that the recording, or the last step before it, belongs to.
    epoch: Option<u64>,
}

impl Cuda {
    /// Puts position and tokens where kernels look for them.
    pub(super) fn place_step(&self, tokens: &[u32], first_pos: usize) -> CudaResult<()> {
        let mut words = Vec::with_capacity(1 + tokens.len());
        words.push(u32::try_from(first_pos).unwrap_or(u32::MAX));
        words.extend_from_slice(tokens);
        self.hold(None);
        self.first_pos.store(first_pos, Ordering::Relaxed);
        let mut shared = self.shared();
        let step = grow(&self.gpu, &self.epoch, &mut shared.step, words.len())?;
        self.gpu.write(step.all(), &words)
    }

    /// Calls `op` with the step's position and tokens on the device.
    pub(super) fn with_step(
        &self,
        op: impl FnOnce(Span<'_, u32>, Span<'_, u32>) -> CudaResult<()>,
    ) {
        self.attempt(|| match &self.shared().step {
            Some(step) => op(step.span(0..1), step.span(1..step.len())),
            None => Err(absent("step")),
        });
    }

    /// Counts a product, or remembers to count it whenever the recording runs.
    pub(super) fn count(&self, counter: &Arc<AtomicU64>) {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *recorded {
            Some(counters) => counters.push(Arc::clone(counter)),
            None => {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn set_recorded(&self, value: Option<Vec<Arc<AtomicU64>>>) -> Vec<Arc<AtomicU64>> {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *recorded, value).unwrap_or_default()
    }

    /// One token: recorded at the second step in a row that moves no buffer.
    pub(super) fn step_once(&self, replay: &mut Replay, body: &mut dyn FnMut()) -> CudaResult<()> {
        if !self.options.graphs {
            body();
            return self.outcome();
        }
        let epoch = self.epoch.get();
        if replay.epoch != Some(epoch) {
            replay.recording = None;
            body();
            // Buffers may have been made just now; the next step will find them in place.
            replay.epoch = Some(self.epoch.get());
            return self.outcome();
        }
        if replay.recording.is_none() {
            self.set_recorded(Some(Vec::new()));
            let recording = self.gpu.record(|| {
                body();
                self.outcome()
            });
            replay.counters = self.set_recorded(None);
            let recording = recording?;
            if self.epoch.get() != epoch {
                replay.epoch = None;
                let code = "a buffer moved while launches were recorded".to_owned();
                return Err(CudaError::Driver { what: "recording launches", code });
            }
            replay.recording = Some(recording);
        }
        for counter in &replay.counters {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        replay.recording.as_ref().map_or(Ok(()), Recording::launch)
    }
}
