//! The operations that models are made of, on the GPU: what each launches.

use super::bind::Matrix;
use super::cache::Cache;
use super::choice::Chooser;
use super::moe::{Experts, Mixture};
use super::step::Replay;
use super::tensor::{Operand, Tensor, absent};
use super::{Cuda, MIN_ANGLES, Rotation, open, report};
use crate::backend::{Activation, AttentionStep, Backend, CacheShape, ExpertMatrices, ExpertShape};
use crate::error::{Error, Result};
use crate::report::MatmulReport;
use format_spec::model::rope::{RopeConfig, RopeStyle};
use kernels::cuda::{Buffer, CudaError, Gate, HostBuffer, MAX_GEMV_TOKENS, RopeTable, RotaryArgs};
use std::ops::Range;
use std::sync::PoisonError;

fn kind_of(activation: Activation) -> Gate {
    match activation {
        Activation::Silu => Gate::Silu,
        Activation::GeluTanh => Gate::GeluTanh,
    }
}

impl Backend for Cuda {
    type Matrix = Matrix;
    type Vector = Buffer<f32>;
    type Tensor = Tensor;
    type Operand = Operand;
    type Rotation = Rotation;
    type Cache = Cache;
    type Replay = Replay;
    type Chooser = Chooser;
    type Experts = Experts;
    type Mixture = Mixture;

    fn tensor(&self, width: usize) -> Tensor {
        Tensor::new(width)
    }

    fn operand(&self, row_len: usize) -> Result<Operand> {
        if row_len.is_multiple_of(32) {
            return Ok(Operand::new(row_len));
        }
        let why = format!("a row of {row_len} elements: a GPU needs multiples of 32");
        Err(Error::Device(CudaError::Weight(why)))
    }

    fn rotation(&self, rope: &RopeConfig) -> Rotation {
        let factor_of = |i: usize| rope.freq_factors.get(i).map_or(1.0, |&f| f64::from(f));
        let step = |i: usize| {
            let exponent = -2.0 * i as f64 / rope.n_rot as f64;
            rope.freq_scale * rope.freq_base.powf(exponent) / factor_of(i)
        };
        Rotation {
            steps: (0..rope.n_rot / 2).map(step).collect(),
            factor: rope.attn_factor,
            neox: rope.style == RopeStyle::Neox,
            table: None,
        }
    }

    fn cache(&self, shape: CacheShape) -> Result<Cache> {
        open::check_heads(shape.head_dim)?;
        Ok(Cache::new(shape))
    }

    fn mixture(&self, shape: ExpertShape) -> Result<Mixture> {
        Mixture::new(self, shape)
    }

    fn reserve(&self, cache: &mut Cache, n_positions: usize) -> Result<()> {
        cache.reserve(&self.gpu, &self.epoch, n_positions)
    }

    fn cache_bytes(&self, cache: &Cache) -> u64 {
        cache.n_bytes()
    }

    fn rotate_to(&self, rotation: &mut Rotation, n_positions: usize) {
        let n_now = rotation.table.as_ref().map_or(0, RopeTable::n_positions);
        if n_positions <= n_now {
            return;
        }
        self.attempt(|| {
            let n = n_positions.max(MIN_ANGLES).max(2 * n_now);
            self.epoch.advance();
            let table = self.gpu.rope_table(&rotation.steps, n, rotation.factor, rotation.neox)?;
            // Attention of one token reads it without waiting for the launches before it.
            self.gpu.synchronize()?;
            rotation.table = Some(table);
            Ok(())
        });
    }

    fn step(
        &self,
        replay: &mut Replay,
        tokens: &[u32],
        first_pos: usize,
        body: &mut dyn FnMut(),
    ) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.place_step(tokens, first_pos)?;
        if tokens.len() == 1 {
            return Ok(self.step_once(replay, body)?);
        }
        body();
        Ok(self.outcome()?)
    }

    fn embed(&self, out: &mut Tensor, table: &Matrix, tokens: &[u32], scale: f32) {
        self.attempt(|| out.resize(&self.gpu, &self.epoch, tokens.len()));
        self.with_step(|_, ids| {
            self.gpu.embed(out.rows(), &table.weight, ids, tokens.len(), scale)
        });
    }

    fn norm(&self, out: &mut Operand, x: &Tensor, gain: &Buffer<f32>, eps: f32) {
        self.attempt(|| {
            self.prepare(out, x.n_tokens)?;
            self.gpu.rmsnorm(&out.get(), x.rows(), gain.all(), x.n_tokens, eps)
        });
    }

    fn linear<const N: usize>(&self, mut outs: [(&mut Tensor, &Matrix); N], x: &Operand) {
        self.attempt(|| {
            for (out, _) in &mut outs {
                out.resize(&self.gpu, &self.epoch, x.n_tokens)?;
            }
            let outs = outs.each_ref().map(|(out, matrix)| (&**out, *matrix));
            self.multiply(&outs, x, false)
        });
    }

    fn linear_add(&self, x: &mut Tensor, _delta: &mut Tensor, matrix: &Matrix, y: &Operand) {
        self.attempt(|| self.multiply(&[(&*x, matrix)], y, true));
    }

    fn norm_heads(&self, x: &mut Tensor, gain: &Buffer<f32>, eps: f32) {
        self.attempt(|| self.gpu.rmsnorm_heads(x.rows(), gain.all(), eps));
    }

    fn rotate(&self, x: &mut Tensor, rotation: &Rotation, head_dim: usize, _first_pos: usize) {
        let Some(table) = &rotation.table else { return self.attempt(|| Err(absent("angles"))) };
        let n_tokens = x.n_tokens;
        self.with_step(|first_pos, _| {
            self.gpu.rope(x.rows(), &RotaryArgs { table, first_pos, head_dim, n_tokens })
        });
    }

    fn store(&self, cache: &mut Cache, layer: usize, _first_pos: usize, k: &Tensor, v: &Tensor) {
        self.with_step(|first_pos, _| {
            self.gpu.store(cache.layer(layer), (k.rows(), v.rows()), first_pos, k.n_tokens)
        });
    }

    fn rotate_and_store(
        &self,
        cache: &mut Cache,
        layer: usize,
        _first_pos: usize,
        (q, k, v): (&mut Tensor, &mut Tensor, &Tensor),
        rotation: &Rotation,
    ) {
        let Some(table) = &rotation.table else { return self.attempt(|| Err(absent("angles"))) };
        let (head_dim, n_tokens) = (cache.shape().head_dim, q.n_tokens);
        self.with_step(|first_pos, _| {
            let args = RotaryArgs { table, first_pos, head_dim, n_tokens };
            self.gpu.rope_store(q.rows(), cache.layer(layer), (k.rows(), v.rows()), &args)
        });
    }

    fn attention(&self, out: &mut Operand, q: &Tensor, cache: &Cache, step: AttentionStep) {
        self.attempt(|| {
            if q.n_tokens <= MAX_GEMV_TOKENS {
                return self.attend_few(out, q, cache, step, None);
            }
            self.prepare(out, q.n_tokens)?;
            let shared = self.shared();
            let at = shared.step.as_ref().ok_or_else(|| absent("step"))?;
            self.attend_many(out, &self.attention_args(q, cache, step, at.span(0..1)))
        });
    }

    fn attend_alone(
        &self,
        out: &mut Operand,
        cache: &mut Cache,
        qkv: (&Tensor, &Tensor, &Tensor),
        rotation: &Rotation,
        norms: Option<(&Buffer<f32>, &Buffer<f32>, f32)>,
        step: AttentionStep,
    ) -> bool {
        if !self.options.fused {
            return false;
        }
        let norms = norms.map(|(q, k, eps)| (q.all(), k.all(), eps));
        self.attempt(|| self.attend_fresh(out, cache, qkv, rotation, norms, step));
        true
    }

    fn gate(&self, out: &mut Operand, gate: &Tensor, up: &Tensor, activation: Activation) {
        self.attempt(|| {
            self.prepare(out, gate.n_tokens)?;
            self.gpu.gate(&out.get(), gate.rows(), up.rows(), kind_of(activation))
        });
    }

    fn norm_linear<const N: usize>(
        &self,
        mut outs: [(&mut Tensor, &Matrix); N],
        normed: &mut Operand,
        x: &Tensor,
        gain: &Buffer<f32>,
        eps: f32,
    ) {
        let mut is_done = false;
        self.attempt(|| {
            for (out, _) in &mut outs {
                out.resize(&self.gpu, &self.epoch, x.n_tokens)?;
            }
            let outs = outs.each_ref().map(|(out, matrix)| (&**out, *matrix));
            is_done = self.norm_and_multiply(&outs, (x, gain, eps))?;
            Ok(())
        });
        if !is_done {
            self.norm(normed, x, gain, eps);
            self.linear(outs, normed);
        }
    }

    fn norm_gated(
        &self,
        out: &mut Operand,
        [gate, up]: [(&mut Tensor, &Matrix); 2],
        normed: &mut Operand,
        (x, gain, eps): (&Tensor, &Buffer<f32>, f32),
        activation: Activation,
    ) {
        let mut is_done = false;
        let pair = [(&*gate.0, gate.1), (&*up.0, up.1)];
        self.attempt(|| {
            is_done = self.norm_and_gate(out, &pair, (x, gain, eps), kind_of(activation))?;
            Ok(())
        });
        if is_done {
            return;
        }
        self.norm(normed, x, gain, eps);
        self.attempt(|| {
            is_done = self.gate_dense(out, [gate.1, up.1], normed, kind_of(activation))?;
            Ok(())
        });
        if !is_done {
            self.linear([(&mut *gate.0, gate.1), (&mut *up.0, up.1)], normed);
            self.gate(out, gate.0, up.0, activation);
        }
    }

    fn add(&self, x: &mut Tensor, y: &Tensor) {
        self.attempt(|| self.gpu.add(x.rows(), y.rows()));
    }

    fn add_normed(&self, x: &mut Tensor, y: &mut Tensor, gain: &Buffer<f32>, eps: f32) {
        self.attempt(|| self.gpu.add_rmsnorm(x.rows(), y.rows(), gain.all(), x.n_tokens, eps));
    }

    fn add_experts(&self, x: &mut Tensor, y: &Operand, experts: &Experts, mixture: &mut Mixture) {
        self.attempt(|| mixture.add(self, x, y, experts));
    }

    fn keep(&self, x: &mut Tensor, rows: Range<usize>) {
        x.keep(rows.start, rows.len());
    }

    fn select(&self, out: &mut Tensor, x: &Tensor, rows: Range<usize>) {
        self.attempt(|| {
            out.resize(&self.gpu, &self.epoch, rows.len())?;
            self.gpu.copy(out.rows(), x.some_rows(rows.start, rows.len()))
        });
    }

    fn soft_cap(&self, x: &mut Tensor, cap: f32) {
        self.attempt(|| self.gpu.soft_cap(x.rows(), cap));
    }

    fn read<'t>(&self, x: &'t mut Tensor, n_rows: usize) -> Result<&'t [f32]> {
        self.outcome()?;
        let n = n_rows * x.width;
        if x.host.as_ref().is_none_or(|host| host.get().len() < n) {
            x.host = None;
            x.host = Some(HostBuffer::new(&self.gpu, n)?);
        }
        let Some(mut host) = x.host.take() else { return Ok(&[]) };
        let read = self.gpu.read(&mut host.get_mut()[..n], x.some_rows(0, n_rows));
        let host = x.host.insert(host);
        read?;
        Ok(&host.get()[..n])
    }

    fn write(&self, x: &mut Tensor, rows: &[f32]) -> Result<()> {
        x.resize(&self.gpu, &self.epoch, rows.len() / x.width)?;
        Ok(self.gpu.write(x.rows(), rows)?)
    }

    fn chooser(&self, n_tokens: usize, banned: &[u32]) -> Result<Option<Chooser>> {
        let on = self.options.argmax;
        Ok(on.then(|| Chooser::new(&self.gpu, n_tokens, banned)).transpose()?)
    }

    fn choose(&self, chooser: &Chooser, logits: &Tensor) {
        self.launch_choice(chooser, logits);
    }

    fn step_choosing(
        &self,
        chooser: &Chooser,
        replay: &mut Replay,
        token: Option<u32>,
        pos: usize,
        body: &mut dyn FnMut(),
    ) -> Result<bool> {
        Ok(self.step_with_choice(chooser, replay, token, pos, body)?)
    }

    fn chosen(&self, chooser: &Chooser, pos: usize) -> Result<Option<u32>> {
        Ok(chooser.chosen(pos)?)
    }

    fn finish(&self) -> Result<()> {
        self.outcome()?;
        Ok(self.gpu.synchronize()?)
    }

    fn report(&self, matrix: &Matrix) -> MatmulReport {
        report::matmul(self, matrix)
    }

    fn matrices<'e>(&self, experts: &'e Experts) -> &'e ExpertMatrices<Matrix> {
        &experts.matrices
    }
}
