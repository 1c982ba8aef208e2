//! Mixtures of experts: which expert a token goes to stays on the device.

use super::bind::{Matrix, Role};
use super::tensor::{Forms, Operand, Tensor, absent, grow};
use super::{Cuda, Family, MAX_SMALL_TOKENS};
use crate::backend::{Backend, ExpertMatrices, ExpertShape};
use crate::error::{Error, Result};
use crate::open::Prefill;
use kernels::cuda::{
    Buffer, CudaError, CudaResult, ExpertOut, ExpertTable, Gate, MAX_GEMV_TOKENS, OperandRef,
    RoutingShape, SortedRows, Span,
};
use std::sync::atomic::Ordering;

/// A layer's experts.
pub(crate) struct Experts {
    pub(super) matrices: ExpertMatrices<Matrix>,
    gate: ExpertTable,
    up: ExpertTable,
    down: ExpertTable,
}

/// Which experts the tokens of a step go to, and what they make of them. A step of few tokens has
/// rows in order of tokens, one for each expert of a token; one of many has them in order of
/// experts.
pub(crate) struct Mixture {
    shape: RoutingShape,
    logits: Tensor,
    choices: Option<Buffer<[u32; 2]>>,
    sorted: Option<Buffer<u32>>,
    /// The tokens' rows in order of experts.
    gathered: Operand,
    gate: Tensor,
    up: Tensor,
    gated: Operand,
    out: Tensor,
}

/// What the mixtures of a model have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mixed {
    routing: RoutingShape,
    /// Some experts' matrices have no int8 product.
    has_dense: bool,
}

fn routing_of(shape: ExpertShape) -> RoutingShape {
    RoutingShape { n_expert: shape.n_expert, n_used: shape.n_used }
}

impl Experts {
    pub(super) fn new(
        cuda: &Cuda,
        mut matrices: ExpertMatrices<Matrix>,
        shape: ExpertShape,
    ) -> Result<Self> {
        let table = |matrices: &mut [Matrix]| {
            let weights: Vec<_> = matrices.iter().map(|matrix| &matrix.weight).collect();
            let table = ExpertTable::new(&cuda.gpu, &weights, shape.n_expert).map_err(|e| {
                let name = matrices.first().map_or("", |matrix| &matrix.name);
                Error::Device(CudaError::Weight(format!("tensor {name}: {e}")))
            })?;
            let by_descriptors = table.is_read_by_descriptors();
            let role = Role::Experts { int8: table.has_mmq(), by_descriptors };
            matrices.iter_mut().for_each(|matrix| matrix.role = role);
            Ok::<_, Error>(table)
        };
        let gate = table(&mut matrices.gate)?;
        let (up, down) = (table(&mut matrices.up)?, table(&mut matrices.down)?);
        let has_dense = ![&gate, &up, &down].into_iter().all(ExpertTable::has_mmq);
        matrices.router.role = Role::Router;
        let mut mixed = cuda.mixed();
        let before = mixed.is_some_and(|mixed| mixed.has_dense);
        *mixed = Some(Mixed { routing: routing_of(shape), has_dense: before || has_dense });
        Ok(Self { matrices, gate, up, down })
    }
}

impl Cuda {
    /// Whether a step of many tokens multiplies experts' matrices in int8, where it can.
    pub(super) fn experts_int8(&self, routing: RoutingShape, n_tokens: usize) -> bool {
        // What counts is how many tokens share a dense copy of a matrix.
        let n_shared = routing.n_pairs(n_tokens) / routing.n_expert;
        let small = self.options.prefill == Prefill::Auto && n_shared <= MAX_SMALL_TOKENS;
        self.family == Family::Mmq || small
    }

    /// The forms that experts' products of a step of `n_tokens` tokens read.
    pub(super) fn expert_forms(&self, n_tokens: usize) -> Forms {
        let Some(Mixed { routing, has_dense }) = *self.mixed() else { return Forms::default() };
        if n_tokens <= MAX_GEMV_TOKENS {
            return Forms { f32: true, bf16: false, int8: true };
        }
        let int8 = self.experts_int8(routing, n_tokens);
        Forms { f32: false, bf16: !int8 || has_dense, int8 }
    }

    /// Affinities to experts. Their sums stay in f32: rounded, they would choose other experts.
    fn multiply_router(&self, out: &Tensor, router: &Matrix, y: &Operand) -> CudaResult<()> {
        let x = y.get();
        let (Some(x), Some(_)) = (x.f32, router.weight.f32_rows()) else {
            return self.multiply(&[(out, router)], y, false);
        };
        if y.n_tokens > MAX_GEMV_TOKENS {
            router.n_gemm.fetch_add(1, Ordering::Relaxed);
        } else {
            self.count(&router.n_gemv);
        }
        self.gpu.router_logits(out.rows(), &router.weight, x, y.n_tokens)
    }
}

/// A product with the experts' matrices: where it goes, with which, and whose counters it moves.
type Job<'j> = (&'j Tensor, &'j ExpertTable, &'j [Matrix]);

impl Mixture {
    pub(super) fn new(cuda: &Cuda, shape: ExpertShape) -> Result<Self> {
        Ok(Self {
            shape: routing_of(shape),
            logits: cuda.tensor(shape.n_expert),
            choices: None,
            sorted: None,
            gathered: cuda.operand(shape.n_embd)?,
            gate: cuda.tensor(shape.n_ff),
            up: cuda.tensor(shape.n_ff),
            gated: cuda.operand(shape.n_ff)?,
            out: cuda.tensor(shape.n_embd),
        })
    }

    /// `x +=` the weighted sums of what the tokens' experts make of `y`.
    pub(super) fn add(
        &mut self,
        cuda: &Cuda,
        x: &Tensor,
        y: &Operand,
        experts: &Experts,
    ) -> CudaResult<()> {
        let n_tokens = y.n_tokens;
        let many = n_tokens > MAX_GEMV_TOKENS;
        self.route(cuda, y, &experts.matrices.router)?;
        let n_rows = self.shape.n_pairs(n_tokens);
        let Self { shape, choices, sorted, gathered, gate, up, gated, out, .. } = self;
        for tensor in [&mut *gate, &mut *up, &mut *out] {
            tensor.resize(&cuda.gpu, &cuda.epoch, n_rows)?;
        }
        let forms = cuda.expert_forms(n_tokens);
        gated.resize(&cuda.gpu, &cuda.epoch, n_rows, forms)?;
        let choices = choices.as_ref().map(Buffer::all).ok_or_else(|| absent("routing"))?;
        let ExpertMatrices { gate: w_gate, up: w_up, down: w_down, .. } = &experts.matrices;
        let first: [Job<'_>; 2] = [(&*gate, &experts.gate, w_gate), (&*up, &experts.up, w_up)];
        let second: [Job<'_>; 1] = [(&*out, &experts.down, w_down)];
        let gate_up =
            |gated: &Operand| cuda.gpu.gate(&gated.get(), gate.rows(), up.rows(), Gate::Silu);
        if !many {
            multiply_few(cuda, &first, &y.get(), choices, (n_rows, shape.n_used))?;
            gate_up(gated)?;
            multiply_few(cuda, &second, &gated.get(), choices, (n_rows, 1))?;
            let tokens = (n_tokens, shape.n_used);
            return cuda.gpu.add_experts(x.rows(), out.rows(), choices, None, tokens);
        }
        let words = sorted.as_ref().map(Buffer::all).ok_or_else(|| absent("order of rows"))?;
        let sorted = SortedRows::new(*shape, n_tokens, words);
        gathered.resize(&cuda.gpu, &cuda.epoch, n_rows, forms)?;
        cuda.gpu.gather_rows(&gathered.get(), &y.get(), &sorted, y.row_len)?;
        let int8 = cuda.experts_int8(*shape, n_tokens);
        first.iter().try_for_each(|job| multiply_many(cuda, job, gathered, &sorted, int8))?;
        gate_up(gated)?;
        second.iter().try_for_each(|job| multiply_many(cuda, job, gated, &sorted, int8))?;
        let (place, tokens) = (Some(sorted.place()), (n_tokens, shape.n_used));
        cuda.gpu.add_experts(x.rows(), out.rows(), choices, place, tokens)
    }

    /// Each token's experts and, where there are many tokens, the order of their rows.
    fn route(&mut self, cuda: &Cuda, y: &Operand, router: &Matrix) -> CudaResult<()> {
        let (shape, n_tokens) = (self.shape, y.n_tokens);
        self.logits.resize(&cuda.gpu, &cuda.epoch, n_tokens)?;
        cuda.multiply_router(&self.logits, router, y)?;
        let n_pairs = shape.n_pairs(n_tokens);
        let choices = grow(&cuda.gpu, &cuda.epoch, &mut self.choices, n_pairs)?;
        cuda.gpu.route(choices.all(), self.logits.rows(), shape, n_tokens)?;
        if n_tokens <= MAX_GEMV_TOKENS {
            return Ok(());
        }
        let n_words = shape.n_sorted_words(n_tokens);
        let words = grow(&cuda.gpu, &cuda.epoch, &mut self.sorted, n_words)?;
        cuda.gpu.sort_by_expert(&SortedRows::new(shape, n_tokens, words.all()), choices.all())
    }
}

/// Products of few tokens: tables of one type share a launch.
fn multiply_few(
    cuda: &Cuda,
    jobs: &[Job<'_>],
    x: &OperandRef<'_>,
    choices: Span<'_, [u32; 2]>,
    rows: (usize, usize),
) -> CudaResult<()> {
    let mut rest = jobs;
    while !rest.is_empty() {
        let tables: Vec<_> = rest.iter().map(|(_, table, _)| *table).collect();
        let (now, later) = rest.split_at(ExpertTable::n_together(&tables));
        let outs: Vec<_> =
            now.iter().map(|(y, table, _)| ExpertOut { table, y: y.rows() }).collect();
        cuda.gpu.gemv_experts(&outs, x, choices, rows)?;
        let matrices = now.iter().flat_map(|(_, _, matrices)| *matrices);
        matrices.for_each(|matrix| cuda.count(&matrix.n_gemv));
        rest = later;
    }
    Ok(())
}

/// One product of many tokens.
fn multiply_many(
    cuda: &Cuda,
    (y, table, matrices): &Job<'_>,
    x: &Operand,
    sorted: &SortedRows<'_>,
    int8: bool,
) -> CudaResult<()> {
    let out = ExpertOut { table, y: y.rows() };
    if int8 && table.has_mmq() {
        matrices.iter().for_each(|matrix| {
            matrix.n_mmq.fetch_add(1, Ordering::Relaxed);
        });
        return cuda.gpu.mmq_experts(&out, &x.get(), sorted);
    }
    matrices.iter().for_each(|matrix| {
        matrix.n_gemm.fetch_add(1, Ordering::Relaxed);
    });
    if table.has_bf16() {
        return cuda.gpu.gemm_experts(&out, None, &x.get(), sorted);
    }
    let lens: Vec<_> = matrices.iter().map(|m| m.weight.n_rows() * m.weight.row_len()).collect();
    let mut shared = cuda.shared();
    let dense = grow(&cuda.gpu, &cuda.epoch, &mut shared.dense, lens.iter().sum())?;
    let mut start = 0;
    for (matrix, len) in matrices.iter().zip(lens) {
        cuda.gpu.dequantize(dense.span(start..start + len), &matrix.weight)?;
        start += len;
    }
    cuda.gpu.gemm_experts(&out, Some(dense.all()), &x.get(), sorted)
}
