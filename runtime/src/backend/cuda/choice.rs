//! Greedy choice on the device: a step ends in it, and the next may begin before the host has seen
//! the token.

use super::Cuda;
use super::step::Replay;
use super::tensor::{Tensor, absent};
use kernels::cuda::{CudaResult, Gpu};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// A sequence whose tokens are chosen on the device.
pub(crate) struct Chooser {
    inner: kernels::cuda::Chooser,
    /// No other chooser of this process has it.
    id: u64,
}

impl Chooser {
    pub(super) fn new(gpu: &Arc<Gpu>, n_tokens: usize, banned: &[u32]) -> CudaResult<Self> {
        static N_CHOOSERS: AtomicU64 = AtomicU64::new(0);
        let inner = kernels::cuda::Chooser::new(gpu, n_tokens, banned)?;
        Ok(Self { inner, id: N_CHOOSERS.fetch_add(1, Ordering::Relaxed) })
    }

    pub(super) fn chosen(&self, pos: usize) -> CudaResult<Option<u32>> {
        self.inner.chosen(pos)
    }
}

impl Cuda {
    /// Says what the step in device memory is: a chooser's next one, or nobody's.
    pub(super) fn hold(&self, next: Option<(u64, usize)>) -> Option<(u64, usize)> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *held, next)
    }

    pub(super) fn launch_choice(&self, chooser: &Chooser, logits: &Tensor) {
        self.attempt(|| {
            let shared = self.shared();
            let step = shared.step.as_ref().ok_or_else(|| absent("step"))?;
            self.count(&self.n_choices);
            self.gpu.choose(&chooser.inner, logits.rows(), step.span(0..2))
        });
    }

    pub(super) fn step_with_choice(
        &self,
        chooser: &Chooser,
        replay: &mut Replay,
        token: Option<u32>,
        pos: usize,
        body: &mut dyn FnMut(),
    ) -> CudaResult<bool> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        match token {
            Some(token) => self.place_step(&[token], pos)?,
            // Taken out first: a step that fails leaves nothing to go on from.
            None if self.hold(None) != Some((chooser.id, pos)) => return Ok(false),
            None => self.first_pos.store(pos, Ordering::Relaxed),
        }
        self.step_once(replay, body)?;
        chooser.inner.launched(pos)?;
        self.hold(Some((chooser.id, pos + 1)));
        Ok(true)
    }
}
