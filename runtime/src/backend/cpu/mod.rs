//! The CPU backend: weights are read in place, work is split over a thread pool.
//!
//! What is split how: matrix products by rows of the weight, attention by heads and tokens, the
//! rest by tokens. None of it changes a result, since every output element is computed by one
//! worker in one fixed order. With a single token everything but products and attention runs on
//! the calling thread: a few thousand elements are done before another thread has noticed.

mod cache;
mod experts;
mod pool;
mod report;

use self::cache::Cache;
use self::experts::{Experts, Mixture};
use self::pool::{Pool, Product, Queries, Rows};
use super::{Activation, AttentionStep, Backend, Bind, CacheShape, ExpertMatrices, ExpertShape};
use crate::error::{Error, Result};
use crate::report::MatmulReport;
use format_spec::container::{Object, TensorEntry};
use format_spec::model::rope::{RopeConfig, RopeStyle};
use kernels::Tier;
use kernels::cpu::ops::{self, AttentionShape, Ops, RopeParams, RopeTable};
use kernels::cpu::{Activations, Matmul, MatmulOptions, Scratch};
use kernels::view::{PlaneRef, Weight};
use std::ops::Range;
use std::sync::Mutex;

/// Tokens of one chunk where work is split by tokens.
const TOKEN_GRAIN: usize = 8;

/// Scratch of one worker.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    matmul: Scratch,
    attention: Vec<f32>,
}

/// Kernels of one tier, and the threads that run them.
pub(crate) struct Cpu<'a> {
    tier: Tier,
    ops: Ops,
    pool: Pool,
    workers: Vec<Mutex<Worker>>,
    options: MatmulOptions,
    weights: std::marker::PhantomData<&'a [u8]>,
}

/// A weight with its kernels and its bias.
pub(crate) struct Matrix<'a> {
    name: String,
    matmul: Matmul<'a>,
    bias: Option<Vec<f32>>,
}

/// `[n_tokens, width]`; the buffer keeps the size of the largest step.
pub(crate) struct Tensor {
    data: Vec<f32>,
    width: usize,
    n_tokens: usize,
}

impl Tensor {
    fn resize(&mut self, n_tokens: usize) -> &mut [f32] {
        self.n_tokens = n_tokens;
        let len = n_tokens * self.width;
        if self.data.len() < len {
            self.data.resize(len, 0.0);
        }
        &mut self.data[..len]
    }

    fn rows(&self) -> &[f32] {
        &self.data[..self.n_tokens * self.width]
    }

    fn rows_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.n_tokens * self.width]
    }

    fn tokens(&self, tokens: Range<usize>) -> &[f32] {
        &self.rows()[tokens.start * self.width..tokens.end * self.width]
    }

    fn split(&mut self) -> Rows<'_, f32> {
        let width = self.width;
        Rows::new(self.rows_mut(), width)
    }
}

/// Rows in f32 and, where quantized weights may follow, their 8-bit form.
pub(crate) struct Operand {
    activations: Activations,
    row_len: usize,
    quantize: bool,
}

impl<'a> Cpu<'a> {
    pub(crate) fn new(tier: Tier, n_threads: usize, options: MatmulOptions) -> Result<Self> {
        let kernel_error = |e: kernels::Error| Error::Tier(e.to_string());
        let pool = Pool::new(n_threads).map_err(Error::Threads)?;
        let workers = (0..pool.n_threads()).map(|_| Mutex::default()).collect();
        let ops = Ops::new(tier).map_err(kernel_error)?;
        Ok(Self { tier, ops, pool, workers, options, weights: std::marker::PhantomData })
    }

    pub(crate) fn n_threads(&self) -> usize {
        self.pool.n_threads()
    }

    pub(crate) fn tier(&self) -> Tier {
        self.tier
    }
}

/// Checks a tensor's objects against their layouts.
fn bind<'a>(file: &'a [u8], entry: &TensorEntry<'a>) -> Result<Weight<'a>> {
    let refuse = |reason: String| Error::Weight { tensor: entry.name.to_owned(), reason };
    let plane = |object: &'a Object| PlaneRef::new(&object.layout, object.bytes(file));
    let weight = || {
        let planes = entry.planes.iter().map(|&object| plane(object));
        Weight::new(plane(entry.base)?, &planes.collect::<Result<Vec<_>, _>>()?)
    };
    weight().map_err(|e| refuse(e.to_string()))
}

impl<'a> Bind<'a> for Cpu<'a> {
    fn matrix(
        &self,
        file: &'a [u8],
        entry: &TensorEntry<'a>,
        bias: Option<Vec<f32>>,
    ) -> Result<Matrix<'a>> {
        let weight = bind(file, entry)?;
        let refuse = |e: kernels::Error| Error::Weight {
            tensor: entry.name.to_owned(),
            reason: e.to_string(),
        };
        let matmul = Matmul::new(self.tier, weight, self.options).map_err(refuse)?;
        Ok(Matrix { name: entry.name.to_owned(), matmul, bias })
    }

    fn experts(
        &self,
        matrices: ExpertMatrices<Matrix<'a>>,
        shape: ExpertShape,
    ) -> Result<Experts<'a>> {
        Ok(Experts { matrices, shape })
    }

    fn values(&self, file: &'a [u8], entry: &TensorEntry<'a>) -> Result<Vec<f32>> {
        values(file, entry)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }
}

/// The values of a small tensor, `[n_rows, row_len]`.
pub(super) fn values<'a>(file: &'a [u8], entry: &TensorEntry<'a>) -> Result<Vec<f32>> {
    let weight = bind(file, entry)?;
    let mut values = vec![0.0; weight.n_rows() * weight.row_len()];
    for (row, out) in values.chunks_exact_mut(weight.row_len()).enumerate() {
        weight.dequantize_row(row, out);
    }
    Ok(values)
}

impl<'a> Backend for Cpu<'a> {
    type Matrix = Matrix<'a>;
    type Vector = Vec<f32>;
    type Tensor = Tensor;
    type Operand = Operand;
    type Rotation = RopeTable;
    type Cache = Cache;
    type Replay = ();
    type Chooser = std::convert::Infallible;
    type Experts = Experts<'a>;
    type Mixture = Mixture;

    fn tensor(&self, width: usize) -> Tensor {
        Tensor { data: Vec::new(), width, n_tokens: 0 }
    }

    fn operand(&self, row_len: usize) -> Result<Operand> {
        let activations = Activations::new(self.tier).map_err(|e| Error::Tier(e.to_string()))?;
        // Rows of another length cannot meet a quantized weight: its blocks would not fit.
        Ok(Operand { activations, row_len, quantize: row_len.is_multiple_of(32) })
    }

    fn rotation(&self, rope: &RopeConfig) -> RopeTable {
        RopeTable::new(&RopeParams {
            style: match rope.style {
                RopeStyle::Norm => ops::RopeStyle::Normal,
                RopeStyle::Neox => ops::RopeStyle::Neox,
            },
            n_rot: rope.n_rot,
            freq_base: rope.freq_base,
            freq_scale: rope.freq_scale,
            attn_factor: rope.attn_factor,
            freq_factors: rope.freq_factors.clone(),
        })
    }

    fn cache(&self, shape: CacheShape) -> Result<Cache> {
        Ok(Cache::new(shape))
    }

    fn mixture(&self, shape: ExpertShape) -> Result<Mixture> {
        Mixture::new(self, shape)
    }

    fn reserve(&self, cache: &mut Cache, n_positions: usize) -> Result<()> {
        cache.reserve(n_positions)
    }

    fn cache_bytes(&self, cache: &Cache) -> u64 {
        cache.n_bytes()
    }

    fn rotate_to(&self, rotation: &mut RopeTable, n_positions: usize) {
        rotation.extend(n_positions);
    }

    fn step(
        &self,
        _replay: &mut (),
        _tokens: &[u32],
        _first_pos: usize,
        body: &mut dyn FnMut(),
    ) -> Result<()> {
        body();
        Ok(())
    }

    fn embed(&self, out: &mut Tensor, table: &Matrix<'a>, tokens: &[u32], scale: f32) {
        let weight = table.matmul.weight();
        let width = out.width;
        self.pool.split(&Rows::new(out.resize(tokens.len()), width), TOKEN_GRAIN, |range, part| {
            for (&token, row) in tokens[range].iter().zip(part.chunks_exact_mut(width)) {
                weight.dequantize_row(token as usize, row);
                if scale != 1.0 {
                    self.ops.scale(row, scale);
                }
            }
        });
    }

    fn norm(&self, out: &mut Operand, x: &Tensor, gain: &Vec<f32>, eps: f32) {
        out.activations.resize(x.n_tokens, out.row_len);
        self.pool.fill(&mut out.activations, out.quantize, |tokens, rows| {
            self.ops.rmsnorm(rows, x.tokens(tokens), gain, eps);
        });
    }

    fn linear<const N: usize>(&self, mut outs: [(&mut Tensor, &Matrix<'a>); N], x: &Operand) {
        let n_tokens = x.activations.n_tokens();
        for (out, _) in &mut outs {
            out.resize(n_tokens);
        }
        let mut products = outs.each_mut().map(|(out, matrix)| Product {
            out: out.rows_mut(),
            matmul: &matrix.matmul,
            rows: 0..matrix.matmul.weight().n_rows(),
            x: &x.activations,
        });
        self.pool.multiply(&mut products, &self.workers);
        for (out, matrix) in &mut outs {
            if let Some(bias) = &matrix.bias {
                self.pool.split(&out.split(), TOKEN_GRAIN, |_, part| {
                    self.ops.add_bias(part, bias);
                });
            }
        }
    }

    fn norm_heads(&self, x: &mut Tensor, gain: &Vec<f32>, eps: f32) {
        self.pool.split(&x.split(), TOKEN_GRAIN, |_, part| {
            self.ops.rmsnorm_in_place(part, gain, eps);
        });
    }

    fn rotate(&self, x: &mut Tensor, rotation: &RopeTable, head_dim: usize, first_pos: usize) {
        let n_head = x.width / head_dim;
        self.pool.split(&x.split(), TOKEN_GRAIN, |tokens, part| {
            self.ops.rope(part, n_head, head_dim, rotation, first_pos + tokens.start);
        });
    }

    fn store(&self, cache: &mut Cache, layer: usize, first_pos: usize, k: &Tensor, v: &Tensor) {
        let (shape, k_cache, v_cache) = cache.layer_mut(layer);
        let (row_len, head_dim) = (k.width, shape.head_dim);
        let (k, v) = (k.rows(), v.rows());
        if k.len() == row_len {
            return self.ops.append_kv(k_cache, v_cache, &shape, k, v, first_pos);
        }
        // Heads, not tokens: sixteen positions of K share a cache line, heads share nothing.
        let head_elems = shape.head_elems();
        self.pool.split(&Rows::new(k_cache, head_elems), 1, |heads, part| {
            self.ops.append_k(part, &k[heads.start * head_dim..], row_len, head_dim, first_pos);
        });
        self.pool.split(&Rows::new(v_cache, head_elems), 1, |heads, part| {
            self.ops.append_v(part, &v[heads.start * head_dim..], row_len, head_dim, first_pos);
        });
    }

    fn rotate_and_store(
        &self,
        cache: &mut Cache,
        layer: usize,
        first_pos: usize,
        (q, k, v): (&mut Tensor, &mut Tensor, &Tensor),
        rotation: &RopeTable,
    ) {
        let head_dim = cache.head_dim();
        self.rotate(q, rotation, head_dim, first_pos);
        self.rotate(k, rotation, head_dim, first_pos);
        self.store(cache, layer, first_pos, k, v);
    }

    fn attention(&self, out: &mut Operand, q: &Tensor, cache: &Cache, step: AttentionStep) {
        let kv = cache.layer(step.layer);
        let n_head = q.width / kv.shape.head_dim;
        let AttentionStep { scale, window, first_pos, .. } = step;
        let shape = AttentionShape { n_head, scale, window, soft_cap: None };
        out.activations.resize(q.n_tokens, out.row_len);
        let (ops, kv, shape) = (&self.ops, &kv, &shape);
        let queries = Queries { ops, q: q.rows(), kv, shape, pos0: first_pos };
        self.pool.attend(&mut out.activations, &queries, &self.workers);
        if out.quantize {
            self.pool.quantize(&mut out.activations);
        }
    }

    fn gate(&self, out: &mut Operand, gate: &Tensor, up: &Tensor, activation: Activation) {
        out.activations.resize(gate.n_tokens, out.row_len);
        self.pool.fill(&mut out.activations, out.quantize, |tokens, rows| {
            rows.copy_from_slice(gate.tokens(tokens.clone()));
            match activation {
                Activation::Silu => self.ops.silu_mul(rows, up.tokens(tokens)),
                Activation::GeluTanh => self.ops.gelu_tanh_mul(rows, up.tokens(tokens)),
            }
        });
    }

    fn add(&self, x: &mut Tensor, y: &Tensor) {
        self.pool.split(&x.split(), TOKEN_GRAIN, |tokens, part| {
            self.ops.add(part, y.tokens(tokens));
        });
    }

    fn add_normed(&self, x: &mut Tensor, y: &mut Tensor, gain: &Vec<f32>, eps: f32) {
        self.pool.split2(&x.split(), &y.split(), TOKEN_GRAIN, |_, x, y| {
            self.ops.rmsnorm_in_place(y, gain, eps);
            self.ops.add(x, y);
        });
    }

    fn add_experts(
        &self,
        x: &mut Tensor,
        y: &Operand,
        experts: &Experts<'a>,
        mixture: &mut Mixture,
    ) {
        mixture.add(self, x, y, experts);
    }

    fn keep(&self, x: &mut Tensor, rows: Range<usize>) {
        let width = x.width;
        x.data.copy_within(rows.start * width..rows.end * width, 0);
        x.n_tokens = rows.len();
    }

    fn select(&self, out: &mut Tensor, x: &Tensor, rows: Range<usize>) {
        out.resize(rows.len()).copy_from_slice(x.tokens(rows));
    }

    fn soft_cap(&self, x: &mut Tensor, cap: f32) {
        self.pool.split(&x.split(), 1, |_, part| self.ops.soft_cap(part, cap));
    }

    fn read<'t>(&self, x: &'t mut Tensor, n_rows: usize) -> Result<&'t [f32]> {
        Ok(x.tokens(0..n_rows))
    }

    fn write(&self, x: &mut Tensor, rows: &[f32]) -> Result<()> {
        x.resize(rows.len() / x.width).copy_from_slice(rows);
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }

    fn report(&self, matrix: &Matrix<'a>) -> MatmulReport {
        report::matmul(&matrix.name, &matrix.matmul)
    }

    fn matrices<'e>(&self, experts: &'e Experts<'a>) -> &'e ExpertMatrices<Matrix<'a>> {
        &experts.matrices
    }
}
