//! Where a forward pass runs: the [`Backend`] trait, about a dozen operations, on CPU and GPU.
//!
//! Everything that a kernel choice depends on is settled when a matrix is bound, at load. The
//! operations below therefore never look at a quant type or an instruction set.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::error::Result;
use crate::report::MatmulReport;
use format_spec::container::TensorEntry;
use format_spec::model::rope::RopeConfig;
use std::ops::Range;

/// How a gated feed-forward network bends its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
}

/// What an attention step needs to know besides its tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionStep {
    /// Layer whose cache is read.
    pub(crate) layer: usize,
    /// Position of the first query row.
    pub(crate) first_pos: usize,
    /// Query scale, applied before the scores are summed.
    pub(crate) scale: f32,
    /// Only the last `window` positions are seen, the query's own among them.
    pub(crate) window: Option<usize>,
}

/// Shapes of the attention cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheShape {
    pub(crate) n_layer: usize,
    pub(crate) n_head_kv: usize,
    pub(crate) head_dim: usize,
    /// Positions that the cache may grow to.
    pub(crate) n_ctx: usize,
}

/// Shapes of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertShape {
    /// Experts of a layer.
    pub(crate) n_expert: usize,
    /// Experts of a token, at most `n_expert`.
    pub(crate) n_used: usize,
    /// Width of the residual stream.
    pub(crate) n_embd: usize,
    /// Inner width of an expert.
    pub(crate) n_ff: usize,
}

/// The matrices of a layer's mixture of experts. The experts' are one matrix, all experts one below
/// the other, or a matrix each.
pub(crate) struct ExpertMatrices<M> {
    /// `[n_expert, n_embd]`: a token's affinity to each expert.
    pub(crate) router: M,
    /// `[n_ff, n_embd]` an expert.
    pub(crate) gate: Vec<M>,
    /// `[n_ff, n_embd]` an expert.
    pub(crate) up: Vec<M>,
    /// `[n_embd, n_ff]` an expert.
    pub(crate) down: Vec<M>,
}

impl<M> ExpertMatrices<M> {
    /// Calls `visit` for every matrix in order of use.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&M)) {
        visit(&self.router);
        [&self.gate, &self.up, &self.down].into_iter().flatten().for_each(visit);
    }
}

/// The operations that forward passes are written in.
///
/// Tensors are `[n_tokens, width]`, row-major f32; an output takes its `n_tokens` from the
/// inputs. An operand is a tensor in the form that matrices multiply (on the CPU: quantized per
/// 32 elements), so that several matrices share one conversion.
pub(crate) trait Backend: Send + Sync {
    /// A weight `[n_rows, row_len]`, its bias, and the kernels chosen for it.
    type Matrix: Send + Sync;
    /// A parameter vector.
    type Vector: Send + Sync;
    /// Activations `[n_tokens, width]`.
    type Tensor: Send;
    /// Activations as a right-hand side.
    type Operand: Send;
    /// Rotation angles of a run of positions.
    type Rotation: Send;
    /// Keys and values of one session.
    type Cache: Send;
    /// What a session remembers of its steps, so as to repeat them.
    type Replay: Default + Send;
    /// What chooses a session's tokens where the logits are.
    type Chooser: Send;
    /// A layer's mixture of experts.
    type Experts: Send + Sync;
    /// Where a session keeps which experts its tokens go to, and what they make of them.
    type Mixture: Send;

    /// An empty tensor of `width` columns.
    fn tensor(&self, width: usize) -> Self::Tensor;
    /// An empty operand for rows of `row_len` elements.
    fn operand(&self, row_len: usize) -> Result<Self::Operand>;
    /// Angles for heads rotated as `rope` says.
    fn rotation(&self, rope: &RopeConfig) -> Self::Rotation;
    /// An empty cache.
    fn cache(&self, shape: CacheShape) -> Result<Self::Cache>;

    /// An empty mixture.
    fn mixture(&self, shape: ExpertShape) -> Result<Self::Mixture>;

    /// Makes room for positions `0..n_positions`.
    fn reserve(&self, cache: &mut Self::Cache, n_positions: usize) -> Result<()>;
    /// Bytes that a cache holds now.
    fn cache_bytes(&self, cache: &Self::Cache) -> u64;
    /// Makes the angles of positions `0..n_positions` available.
    fn rotate_to(&self, rotation: &mut Self::Rotation, n_positions: usize);

    /// Runs `body`, which makes the forward pass of `tokens`, the first of them at `first_pos`;
    /// reports what failed in it. A backend may repeat what an earlier body of one token did: it
    /// must not depend on anything else that changes from step to step.
    fn step(
        &self,
        replay: &mut Self::Replay,
        tokens: &[u32],
        first_pos: usize,
        body: &mut dyn FnMut(),
    ) -> Result<()>;

    /// `out[t] = scale * table[tokens[t]]`. Every token is a row of the table.
    fn embed(&self, out: &mut Self::Tensor, table: &Self::Matrix, tokens: &[u32], scale: f32);
    /// `out = rms_norm(x) * gain`.
    fn norm(&self, out: &mut Self::Operand, x: &Self::Tensor, gain: &Self::Vector, eps: f32);
    /// `out = matrix * x + bias` for each pair, in one region.
    fn linear<const N: usize>(
        &self,
        outs: [(&mut Self::Tensor, &Self::Matrix); N],
        x: &Self::Operand,
    );
    /// `x += matrix * y + bias`; `delta` is scratch of the same shape.
    fn linear_add(
        &self,
        x: &mut Self::Tensor,
        delta: &mut Self::Tensor,
        matrix: &Self::Matrix,
        y: &Self::Operand,
    ) {
        self.linear([(&mut *delta, matrix)], y);
        self.add(x, delta);
    }
    /// [`norm`](Self::norm) and [`linear`](Self::linear). What `normed` holds afterwards is undefined.
    fn norm_linear<const N: usize>(
        &self,
        outs: [(&mut Self::Tensor, &Self::Matrix); N],
        normed: &mut Self::Operand,
        x: &Self::Tensor,
        gain: &Self::Vector,
        eps: f32,
    ) {
        self.norm(normed, x, gain, eps);
        self.linear(outs, normed);
    }
    /// `out = activation(gate y) * (up y)` with `y = rms_norm(x) * gain`, from `(x, gain, eps)`; the
    /// pair has room for the products where these are made apart. What `normed` and the two hold
    /// afterwards is undefined.
    fn norm_gated(
        &self,
        out: &mut Self::Operand,
        [gate, up]: [(&mut Self::Tensor, &Self::Matrix); 2],
        normed: &mut Self::Operand,
        (x, gain, eps): (&Self::Tensor, &Self::Vector, f32),
        activation: Activation,
    ) {
        self.norm_linear([(&mut *gate.0, gate.1), (&mut *up.0, up.1)], normed, x, gain, eps);
        self.gate(out, gate.0, up.0, activation);
    }
    /// Normalizes each head, `head = rms_norm(head) * gain`.
    fn norm_heads(&self, x: &mut Self::Tensor, gain: &Self::Vector, eps: f32);
    /// Rotates the heads of each row; row `t` is at position `first_pos + t`.
    fn rotate(
        &self,
        x: &mut Self::Tensor,
        rotation: &Self::Rotation,
        head_dim: usize,
        first_pos: usize,
    );
    /// Puts keys and values into the cache of `layer`, from `first_pos` on.
    fn store(
        &self,
        cache: &mut Self::Cache,
        layer: usize,
        first_pos: usize,
        k: &Self::Tensor,
        v: &Self::Tensor,
    );
    /// Rotates queries and keys of rows from `first_pos` on, and puts keys and values into the
    /// cache of `layer`. What `k` holds afterwards is undefined.
    fn rotate_and_store(
        &self,
        cache: &mut Self::Cache,
        layer: usize,
        first_pos: usize,
        qkv: (&mut Self::Tensor, &mut Self::Tensor, &Self::Tensor),
        rotation: &Self::Rotation,
    );
    /// Of a step of one token: [`norm_heads`](Self::norm_heads) of queries and keys, where there are
    /// gains, [`rotate_and_store`](Self::rotate_and_store) and [`attention`](Self::attention) at once.
    /// Says whether the backend has that; if not, nothing is done.
    fn attend_alone(
        &self,
        _out: &mut Self::Operand,
        _cache: &mut Self::Cache,
        _qkv: (&Self::Tensor, &Self::Tensor, &Self::Tensor),
        _rotation: &Self::Rotation,
        _norms: Option<(&Self::Vector, &Self::Vector, f32)>,
        _step: AttentionStep,
    ) -> bool {
        false
    }
    /// Causal attention of the queries over the cache.
    fn attention(
        &self,
        out: &mut Self::Operand,
        q: &Self::Tensor,
        cache: &Self::Cache,
        step: AttentionStep,
    );
    /// `out = activation(gate) * up`.
    fn gate(
        &self,
        out: &mut Self::Operand,
        gate: &Self::Tensor,
        up: &Self::Tensor,
        activation: Activation,
    );
    /// `x += y`.
    fn add(&self, x: &mut Self::Tensor, y: &Self::Tensor);
    /// `y = rms_norm(y) * gain`, then `x += y`.
    fn add_normed(&self, x: &mut Self::Tensor, y: &mut Self::Tensor, gain: &Self::Vector, eps: f32);
    /// `x +=` the weighted sum of what each token's experts make of its row of `y`. An expert is
    /// `down * (silu(gate * y) * (up * y))`. A token goes to the `n_used` experts for which the
    /// softmax of `router * y` is largest, of equal ones those with the lower numbers; the weights
    /// are that softmax, divided by the sum over the chosen.
    fn add_experts(
        &self,
        x: &mut Self::Tensor,
        y: &Self::Operand,
        experts: &Self::Experts,
        mixture: &mut Self::Mixture,
    );
    /// Keeps only `rows` of a tensor.
    fn keep(&self, x: &mut Self::Tensor, rows: Range<usize>);
    /// `out = x[rows]`.
    fn select(&self, out: &mut Self::Tensor, x: &Self::Tensor, rows: Range<usize>);
    /// `x = cap * tanh(x / cap)`.
    fn soft_cap(&self, x: &mut Self::Tensor, cap: f32);
    /// The first `n_rows` rows, `[n_rows, width]`.
    fn read<'t>(&self, x: &'t mut Self::Tensor, n_rows: usize) -> Result<&'t [f32]>;

    /// What chooses the largest logit of tokens `0..n_tokens`, without those of `banned`, where the
    /// logits are: nothing where the host has them at hand.
    fn chooser(&self, _n_tokens: usize, _banned: &[u32]) -> Result<Option<Self::Chooser>> {
        Ok(None)
    }
    /// At the end of a body of one token: chooses, and makes the choice the next step's token.
    fn choose(&self, _chooser: &Self::Chooser, _logits: &Self::Tensor) {}
    /// As [`step`](Self::step) of one token, where `body` ends in [`choose`](Self::choose); does
    /// not wait for it. Without a token it goes on with the one that `chooser` chose last, if that
    /// was at the position before this; says whether.
    fn step_choosing(
        &self,
        _chooser: &Self::Chooser,
        replay: &mut Self::Replay,
        token: Option<u32>,
        pos: usize,
        body: &mut dyn FnMut(),
    ) -> Result<bool> {
        match token {
            Some(token) => self.step(replay, &[token], pos, body).map(|()| true),
            None => Ok(false),
        }
    }
    /// Waits for the choice of the step at `pos`, one of the last two: nothing if no logit was
    /// finite.
    fn chosen(&self, _chooser: &Self::Chooser, _pos: usize) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Fills a tensor with rows, `[n_rows, width]`.
    fn write(&self, x: &mut Self::Tensor, rows: &[f32]) -> Result<()>;

    /// Waits for what was begun and reports what failed.
    fn finish(&self) -> Result<()>;

    /// The choice made for a matrix and how often it was launched.
    fn report(&self, matrix: &Self::Matrix) -> MatmulReport;
    /// The matrices of a mixture.
    fn matrices<'e>(&self, experts: &'e Self::Experts) -> &'e ExpertMatrices<Self::Matrix>;
}

/// Loading, apart from the rest because weights live as long as the container that they lie in.
pub(crate) trait Bind<'a>: Backend {
    /// Chooses the kernels of a matrix, which are used from `file` in place.
    fn matrix(
        &self,
        file: &'a [u8],
        weight: &TensorEntry<'a>,
        bias: Option<Vec<f32>>,
    ) -> Result<Self::Matrix>;
    /// Makes a mixture of these matrices, whose shapes are as they should be.
    fn experts(
        &self,
        matrices: ExpertMatrices<Self::Matrix>,
        shape: ExpertShape,
    ) -> Result<Self::Experts>;
    /// The values of a small tensor, for what is computed once.
    fn values(&self, file: &'a [u8], entry: &TensorEntry<'a>) -> Result<Vec<f32>>;
    /// A parameter vector of these values.
    fn vector(&self, values: Vec<f32>) -> Result<Self::Vector>;
}
