//! Activations on the device, and the pinned copies that the host reads.

use kernels::cuda::{Buffer, CudaError, CudaResult, Gpu, HostBuffer, OperandRef, Span};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// `[n_tokens, width]` f32; the buffer keeps the size of the largest step.
pub(crate) struct Tensor {
    buffer: Option<Buffer<f32>>,
    pub(super) width: usize,
    /// Rows before the first that counts.
    first: usize,
    pub(super) n_tokens: usize,
    pub(super) host: Option<HostBuffer<f32>>,
}

/// Counts changes of addresses: launches recorded before one are void.
#[derive(Debug, Default)]
pub(super) struct Epoch(AtomicU64);

impl Epoch {
    pub(super) fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A buffer of `len` elements at least, in the place of `buffer`.
pub(super) fn grow<'b, T: kernels::cuda::Plain>(
    gpu: &Arc<Gpu>,
    epoch: &Epoch,
    buffer: &'b mut Option<Buffer<T>>,
    len: usize,
) -> CudaResult<&'b Buffer<T>> {
    let kept = match buffer.take().filter(|buffer| buffer.len() >= len) {
        Some(kept) => kept,
        None => {
            epoch.advance();
            gpu.alloc(len)?
        }
    };
    Ok(buffer.insert(kept))
}

/// The error of something that must be there before a launch, and is not.
pub(super) fn absent(what: &str) -> CudaError {
    CudaError::Driver { what: "launching a kernel", code: format!("no {what}") }
}

impl Tensor {
    pub(super) fn new(width: usize) -> Self {
        Self { buffer: None, width, first: 0, n_tokens: 0, host: None }
    }

    /// Room for `n_tokens` rows, whose contents are undefined.
    pub(super) fn resize(
        &mut self,
        gpu: &Arc<Gpu>,
        epoch: &Epoch,
        n_tokens: usize,
    ) -> CudaResult<()> {
        self.n_tokens = n_tokens;
        self.first = 0;
        grow(gpu, epoch, &mut self.buffer, n_tokens * self.width).map(|_| ())
    }

    /// All rows.
    pub(super) fn rows(&self) -> Span<'_, f32> {
        self.some_rows(0, self.n_tokens)
    }

    pub(super) fn some_rows(&self, first: usize, n_rows: usize) -> Span<'_, f32> {
        let start = (self.first + first) * self.width;
        match &self.buffer {
            Some(buffer) => buffer.span(start..start + n_rows * self.width),
            None => Span::default(),
        }
    }

    /// Leaves out all but `n_rows` rows from `first` on.
    pub(super) fn keep(&mut self, first: usize, n_rows: usize) {
        self.first += first;
        self.n_tokens = n_rows;
    }
}

/// Activations as a right-hand side, in the forms that the step's products read.
pub(crate) struct Operand {
    pub(super) row_len: usize,
    pub(super) n_tokens: usize,
    f32: Option<Buffer<f32>>,
    bf16: Option<Buffer<half::bf16>>,
    q: Option<Buffer<i8>>,
    ds: Option<Buffer<[f32; 2]>>,
    forms: Forms,
}

/// Which forms of an operand a step needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Forms {
    pub(super) f32: bool,
    pub(super) bf16: bool,
    pub(super) int8: bool,
}

impl Forms {
    /// bf16 and nothing else.
    pub(super) const BF16: Self = Self { f32: false, bf16: true, int8: false };
}

impl Operand {
    pub(super) fn new(row_len: usize) -> Self {
        let forms = Forms::default();
        Self { row_len, n_tokens: 0, f32: None, bf16: None, q: None, ds: None, forms }
    }

    pub(super) fn resize(
        &mut self,
        gpu: &Arc<Gpu>,
        epoch: &Epoch,
        n_tokens: usize,
        forms: Forms,
    ) -> CudaResult<()> {
        let n = n_tokens * self.row_len;
        self.n_tokens = n_tokens;
        self.forms = forms;
        if forms.f32 {
            grow(gpu, epoch, &mut self.f32, n)?;
        }
        if forms.bf16 {
            grow(gpu, epoch, &mut self.bf16, n)?;
        }
        if forms.int8 {
            grow(gpu, epoch, &mut self.q, n)?;
            grow(gpu, epoch, &mut self.ds, n / 32)?;
        }
        Ok(())
    }

    pub(super) fn get(&self) -> OperandRef<'_> {
        let Forms { f32, bf16, int8 } = self.forms;
        OperandRef {
            f32: self.f32.as_ref().filter(|_| f32).map(Buffer::all),
            bf16: self.bf16.as_ref().filter(|_| bf16).map(Buffer::all),
            int8: match (&self.q, &self.ds) {
                (Some(q), Some(ds)) if int8 => Some((q.all(), ds.all())),
                _ => None,
            },
        }
    }
}
