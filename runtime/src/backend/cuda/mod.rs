//! The GPU backend: weights in one arena on the device, everything launched in order on one stream.
//!
//! A step of few tokens multiplies 8-bit activations with the quantized blocks (GEMV). A step of
//! many has two families: int8 tensor-core products that read blocks or planes (MMQ), and bf16
//! products, from the `bf16` plane or from a matrix dequantized into scratch, in cuBLASLt where it
//! is found.
//! The launches of a one-token step are recorded and repeated: positions and tokens are in device
//! memory, so that a recording serves every position.
//!
//! Operations do not return errors; the first failure is kept, what follows is left out, and the
//! step ([`Backend::step`]) reports it.

mod cache;
mod report;
mod tensor;
mod weights;

use self::cache::Cache;
use self::tensor::{Epoch, Forms, Operand, Tensor, grow};
use self::weights::{Arena, Used};
use super::{Activation, AttentionStep, Backend, Bind, CacheShape, cpu};
use crate::error::{Error, Result};
use crate::model::rope::{RopeConfig, RopeStyle};
use crate::open::{CudaOptions, Prefill};
use crate::report::MatmulReport;
use format_spec::container::{Container, TensorEntry};
use format_spec::{Geometry, PlaneKind};
use kernels::cuda::{
    AttentionArgs, Blas, Buffer, CudaError, CudaResult, DeviceInfo, DeviceWeight, Gate, GemvOut,
    Gpu, HostBuffer, MAX_GEMV_TOKENS, OperandRef, Recording, RopeTable, RotaryArgs, Span,
};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Positions of the smallest table of angles.
const MIN_ANGLES: usize = 4096;

/// Tokens up to which a step reads quantized weights even where bf16 products are the rule:
/// writing a dense copy would cost more than it saves.
const MAX_SMALL_TOKENS: usize = 64;

/// Tokens of the products that are tried while the weights arrive: the usual batch and a long one.
const WARM_UP_TOKENS: [usize; 2] = [512, 4096];
/// Taller matrices (embeddings) are no shapes of a prompt's products.
const MAX_WARM_UP_ROWS: u64 = 1 << 16;

/// How steps of many tokens multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Mmq,
    Bf16,
}

/// A weight on the device, its bias, and how often each path ran.
pub(crate) struct Matrix {
    name: String,
    weight: DeviceWeight,
    bias: Option<Buffer<f32>>,
    /// Kind of the base.
    base: PlaneKind,
    /// Kinds that the container has for it, whether they are on the device or not.
    kinds: Vec<PlaneKind>,
    n_gemv: Arc<AtomicU64>,
    n_gemm: AtomicU64,
    n_mmq: AtomicU64,
}

/// Angles of a run of positions.
pub(crate) struct Rotation {
    steps: Vec<f64>,
    factor: f64,
    neox: bool,
    table: Option<RopeTable>,
}

/// The recorded launches of a one-token step.
#[derive(Default)]
pub(crate) struct Replay {
    recording: Option<Recording>,
    /// Counters of the products in it.
    counters: Vec<Arc<AtomicU64>>,
    /// The epoch that the recording, or the last step before it, belongs to.
    epoch: Option<u64>,
}

/// Buffers that steps share.
#[derive(Default)]
struct Shared {
    /// The step's first position, then its tokens.
    step: Option<Buffer<u32>>,
    /// A matrix in bf16.
    dense: Option<Buffer<half::bf16>>,
    part_out: Option<Buffer<f32>>,
    part_ml: Option<Buffer<[f32; 2]>>,
}

/// One device.
pub(crate) struct Cuda {
    gpu: Arc<Gpu>,
    blas: Option<Blas>,
    family: Family,
    options: CudaOptions,
    /// `exp` and `dsc` may be read.
    exp_plane: bool,
    /// Plain floats among the matrices, which no int8 product reads.
    has_floats: AtomicBool,
    arena: Arena,
    epoch: Epoch,
    shared: Mutex<Shared>,
    /// Held for a step: sessions take turns.
    turn: Mutex<()>,
    /// First position of the step under way.
    first_pos: AtomicUsize,
    failure: Mutex<Option<CudaError>>,
    /// While launches are recorded: the counters of the products among them.
    recorded: Mutex<Option<Vec<Arc<AtomicU64>>>>,
}

impl Cuda {
    /// Opens the device and puts the container's objects on it.
    pub(crate) fn open(
        options: CudaOptions,
        exp_plane: bool,
        file: &[u8],
        container: &Container<'_>,
        n_threads: usize,
    ) -> Result<Self> {
        let gpu = Gpu::open(options.ordinal, options.chained)?;
        let family = match options.prefill {
            Prefill::Mmq => Family::Mmq,
            Prefill::Bf16 => Family::Bf16,
            // int8 tensor cores outrun bf16 ones on consumer parts alone.
            Prefill::Auto => match gpu.info().compute {
                (8, 0) | (9 | 10, _) if Blas::is_here() => Family::Bf16,
                _ => Family::Mmq,
            },
        };
        let int8 = family == Family::Mmq;
        let used = Used { bf16: !int8, int8, exp: int8 && exp_plane };
        let need = weights::arena_bytes(container, used);
        let (free, _) = gpu.memory()?;
        if need > free {
            return Err(Error::DeviceMemory { what: "weights", need, free });
        }
        let shapes = product_shapes(container);
        let find = || -> CudaResult<Option<Blas>> {
            let blas = if int8 { None } else { Blas::find(&gpu)? };
            if let Some(blas) = &blas {
                WARM_UP_TOKENS.iter().try_for_each(|&n| blas.warm_up(&shapes, n))?;
            }
            Ok(blas)
        };
        // The library takes as long to get ready as the weights to arrive.
        let (blas, arena) = std::thread::scope(|scope| {
            let blas = scope.spawn(find);
            let arena = Arena::load(&gpu, file, container, used, n_threads);
            (blas.join().unwrap_or(Ok(None)), arena)
        });
        let (blas, arena) = (blas?, arena?);
        Ok(Self {
            blas,
            family,
            options,
            exp_plane,
            has_floats: AtomicBool::new(false),
            arena,
            gpu,
            epoch: Epoch::default(),
            shared: Mutex::default(),
            turn: Mutex::default(),
            first_pos: AtomicUsize::new(0),
            failure: Mutex::default(),
            recorded: Mutex::default(),
        })
    }

    /// What the device says about itself.
    pub(crate) fn info(&self) -> &DeviceInfo {
        self.gpu.info()
    }

    /// Bytes of objects that were sent to the device.
    pub(crate) fn uploaded_bytes(&self) -> u64 {
        self.arena.n_bytes()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation unless one has failed.
    fn attempt(&self, op: impl FnOnce() -> CudaResult<()>) {
        let failed = |slot: &Mutex<Option<CudaError>>| {
            slot.lock().unwrap_or_else(PoisonError::into_inner).is_some()
        };
        if failed(&self.failure) {
            return;
        }
        if let Err(e) = op() {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
        }
    }

    /// The first failure since the last call.
    fn outcome(&self) -> CudaResult<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }

    /// Bytes of device memory that are free.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        Ok(self.gpu.memory()?.0)
    }

    /// Whether a step of many tokens multiplies quantized matrices in int8.
    fn is_int8(&self, n_tokens: usize) -> bool {
        let small = self.options.prefill == Prefill::Auto && n_tokens <= MAX_SMALL_TOKENS;
        self.family == Family::Mmq || small
    }

    /// The forms that products with `n_tokens` tokens read.
    fn forms(&self, n_tokens: usize) -> Forms {
        if n_tokens <= MAX_GEMV_TOKENS {
            return Forms { f32: true, bf16: false, int8: true };
        }
        let int8 = self.is_int8(n_tokens);
        Forms { f32: false, bf16: !int8 || self.has_floats.load(Ordering::Relaxed), int8 }
    }

    fn prepare(&self, out: &mut Operand, n_tokens: usize) -> CudaResult<()> {
        out.resize(&self.gpu, &self.epoch, n_tokens, self.forms(n_tokens))
    }

    /// Puts position and tokens where kernels look for them.
    fn place_step(&self, tokens: &[u32], first_pos: usize) -> CudaResult<()> {
        let mut words = Vec::with_capacity(1 + tokens.len());
        words.push(u32::try_from(first_pos).unwrap_or(u32::MAX));
        words.extend_from_slice(tokens);
        self.first_pos.store(first_pos, Ordering::Relaxed);
        let mut shared = self.shared();
        grow(&self.gpu, &self.epoch, &mut shared.step, words.len())?;
        match &shared.step {
            Some(step) => self.gpu.write(step.all(), &words),
            None => Ok(()),
        }
    }

    /// Calls `op` with the step's position and tokens on the device.
    fn with_step(&self, op: impl FnOnce(Span<'_, u32>, Span<'_, u32>) -> CudaResult<()>) {
        self.attempt(|| match &self.shared().step {
            Some(step) => op(step.span(0..1), step.span(1..step.len())),
            None => Ok(()),
        });
    }

    /// Counts a product, or remembers to count it whenever the recording runs.
    fn count(&self, counter: &Arc<AtomicU64>) {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *recorded {
            Some(counters) => counters.push(Arc::clone(counter)),
            None => {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn set_recorded(&self, value: Option<Vec<Arc<AtomicU64>>>) -> Vec<Arc<AtomicU64>> {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *recorded, value).unwrap_or_default()
    }

    /// `outs = matrices * x` for few tokens: matrices of one type share a launch.
    fn multiply_few(&self, outs: &[(&Tensor, &Matrix)], x: &Operand, add: bool) -> CudaResult<()> {
        let mut rest = outs;
        while let Some(((_, first), _)) = rest.split_first() {
            let same = |(_, matrix): &&(&Tensor, &Matrix)| {
                let (a, b) = (&matrix.weight, &first.weight);
                a.quant() == b.quant() && a.few_kind() == b.few_kind()
            };
            let n = rest.iter().take(3).take_while(same).count();
            let (now, later) = rest.split_at(n);
            let launch: Vec<GemvOut<'_>> = now
                .iter()
                .map(|(out, matrix)| GemvOut {
                    weight: &matrix.weight,
                    y: out.rows(),
                    bias: matrix.bias.as_ref().map(Buffer::all),
                    add,
                })
                .collect();
            self.gpu.gemv(&launch, &x.get(), x.n_tokens)?;
            for (_, matrix) in now {
                self.count(&matrix.n_gemv);
            }
            rest = later;
        }
        Ok(())
    }

    /// `out = matrix * x` for many tokens.
    fn multiply_many(&self, out: &Tensor, m: &Matrix, x: &Operand, add: bool) -> CudaResult<()> {
        let kernel = if self.is_int8(x.n_tokens) { m.weight.mmq(x.n_tokens) } else { None };
        let bias = m.bias.as_ref().map(Buffer::all);
        if let Some(kernel) = kernel {
            m.n_mmq.fetch_add(1, Ordering::Relaxed);
            let out = GemvOut { weight: &m.weight, y: out.rows(), bias, add };
            return self.gpu.mmq(kernel, &out, &x.get(), x.n_tokens);
        }
        m.n_gemm.fetch_add(1, Ordering::Relaxed);
        if let Some(plane) = m.weight.bf16() {
            return self.multiply_dense(out, plane, m, x, add);
        }
        let (n_rows, row_len) = (m.weight.n_rows(), m.weight.row_len());
        let mut shared = self.shared();
        grow(&self.gpu, &self.epoch, &mut shared.dense, n_rows * row_len)?;
        let Some(dense) = &shared.dense else { return Ok(()) };
        self.gpu.dequantize(dense.all(), &m.weight)?;
        self.multiply_dense(out, (dense.all(), row_len), m, x, add)
    }

    /// `out = w * x` with the weights of `m` in bf16, rows as many elements apart as `w` says.
    fn multiply_dense(
        &self,
        out: &Tensor,
        w: (Span<'_, half::bf16>, usize),
        m: &Matrix,
        x: &Operand,
        add: bool,
    ) -> CudaResult<()> {
        let Some(x_bf16) = x.get().bf16 else { return Ok(()) };
        let shape = (x.n_tokens, m.weight.n_rows(), m.weight.row_len());
        let bias = m.bias.as_ref().map(Buffer::all);
        match &self.blas {
            Some(blas) => blas.gemm(out.rows(), w, x_bf16, bias, shape, add),
            None => self.gpu.gemm_bf16(out.rows(), w, x_bf16, bias, shape, add),
        }
    }

    fn multiply(&self, outs: &[(&Tensor, &Matrix)], x: &Operand, add: bool) -> CudaResult<()> {
        if x.n_tokens <= MAX_GEMV_TOKENS {
            return self.multiply_few(outs, x, add);
        }
        outs.iter().try_for_each(|(out, matrix)| self.multiply_many(out, matrix, x, add))
    }

    /// Attention of many queries. Its kernel writes f32 and bf16; int8 is made from f32.
    fn attend_many(&self, out: &mut Operand, args: &AttentionArgs<'_>) -> CudaResult<()> {
        let forms = self.forms(args.n_tokens);
        if !forms.int8 {
            return self.gpu.attention_prefill(&out.get(), args);
        }
        let with_f32 = Forms { f32: true, ..forms };
        out.resize(&self.gpu, &self.epoch, args.n_tokens, with_f32)?;
        let all = out.get();
        let first = OperandRef { int8: None, ..all };
        self.gpu.attention_prefill(&first, args)?;
        let second = OperandRef { int8: all.int8, ..OperandRef::default() };
        let n = args.n_tokens * out.row_len;
        match all.f32 {
            Some(values) => self.gpu.convert(&second, values.span(0..n)),
            None => Ok(()),
        }
    }

    /// One token: recorded at the second step in a row that moves no buffer.
    fn step_once(&self, replay: &mut Replay, body: &mut dyn FnMut()) -> CudaResult<()> {
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

/// The shapes, (rows, row length), of a container's matrices, each once.
fn product_shapes(container: &Container<'_>) -> Vec<(usize, usize)> {
    let matrices = container.tensors().map(|entry| entry.geometry).filter(|geometry| {
        (2..=MAX_WARM_UP_ROWS).contains(&geometry.n_rows) && geometry.row_len.is_multiple_of(32)
    });
    let shape =
        |g: Geometry| Some((usize::try_from(g.n_rows).ok()?, usize::try_from(g.row_len).ok()?));
    let mut shapes: Vec<_> = matrices.filter_map(shape).collect();
    shapes.sort_unstable();
    shapes.dedup();
    shapes
}

impl<'a> Bind<'a> for Cuda {
    fn matrix(
        &self,
        _file: &'a [u8],
        entry: &TensorEntry<'a>,
        bias: Option<Vec<f32>>,
    ) -> Result<Matrix> {
        let base = (&entry.base.layout, self.arena.object(entry.base)?);
        let here = entry.planes.iter().filter(|plane| self.arena.has(plane));
        let planes = here
            .map(|plane| Ok((&plane.layout, self.arena.object(plane)?)))
            .collect::<Result<Vec<_>>>()?;
        let weight = DeviceWeight::new(&self.gpu, base, &planes).map_err(|e| {
            let e = CudaError::Weight(format!("tensor {}: {e}", entry.name));
            Error::Device(e)
        })?;
        if entry.quant.is_float() {
            self.has_floats.store(true, Ordering::Relaxed);
        }
        let kinds = entry.planes.iter().map(|plane| plane.kind).collect();
        Ok(Matrix {
            name: entry.name.to_owned(),
            weight,
            bias: bias.map(|bias| self.gpu.upload(&bias)).transpose()?,
            base: entry.base.kind,
            kinds,
            n_gemv: Arc::default(),
            n_gemm: AtomicU64::new(0),
            n_mmq: AtomicU64::new(0),
        })
    }

    fn values(&self, file: &'a [u8], entry: &TensorEntry<'a>) -> Result<Vec<f32>> {
        cpu::values(file, entry)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Buffer<f32>> {
        Ok(self.gpu.upload(&values)?)
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
        if Gpu::attends(shape.head_dim) {
            return Ok(Cache::new(shape));
        }
        let dim = shape.head_dim;
        let why = format!("attention heads of {dim} elements (64, 80, 96, 128 and 256 are)");
        Err(Error::Device(CudaError::Weight(format!("not supported on a GPU: {why}"))))
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
        if tokens.len() == 1 && self.options.graphs {
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
        let Some(table) = &rotation.table else { return };
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
        let Some(table) = &rotation.table else { return };
        let (head_dim, n_tokens) = (cache.shape().head_dim, q.n_tokens);
        self.with_step(|first_pos, _| {
            let args = RotaryArgs { table, first_pos, head_dim, n_tokens };
            self.gpu.rope_store(q.rows(), cache.layer(layer), (k.rows(), v.rows()), &args)
        });
    }

    fn attention(&self, out: &mut Operand, q: &Tensor, cache: &Cache, step: AttentionStep) {
        let CacheShape { n_head_kv, head_dim, .. } = cache.shape();
        let (k, v) = cache.layer(step.layer);
        let (n_tokens, n_head) = (q.n_tokens, q.width / head_dim);
        let shift = step.first_pos - self.first_pos.load(Ordering::Relaxed);
        self.attempt(|| {
            self.prepare(out, n_tokens)?;
            let mut shared = self.shared();
            let shared = &mut *shared;
            let Some(at) = &shared.step else { return Ok(()) };
            let args = AttentionArgs {
                q: q.rows(),
                k,
                v,
                first_pos: at.span(0..1),
                shift,
                n_tokens,
                n_head,
                n_head_kv,
                head_dim,
                window: step.window,
                scale: step.scale,
                soft_cap: None,
            };
            if n_tokens > MAX_GEMV_TOKENS {
                return self.attend_many(out, &args);
            }
            let n_parts = self.gpu.attention_parts(n_head, n_head_kv);
            let slots = MAX_GEMV_TOKENS * n_head * n_parts;
            grow(&self.gpu, &self.epoch, &mut shared.part_ml, slots)?;
            grow(&self.gpu, &self.epoch, &mut shared.part_out, slots * head_dim)?;
            let (Some(part_out), Some(part_ml)) = (&shared.part_out, &shared.part_ml) else {
                return Ok(());
            };
            let parts = (part_out.all(), part_ml.all());
            self.gpu.attention_decode(&out.get(), &args, parts, n_parts)
        });
    }

    fn gate(&self, out: &mut Operand, gate: &Tensor, up: &Tensor, activation: Activation) {
        let kind = match activation {
            Activation::Silu => Gate::Silu,
            Activation::GeluTanh => Gate::GeluTanh,
        };
        self.attempt(|| {
            self.prepare(out, gate.n_tokens)?;
            self.gpu.gate(&out.get(), gate.rows(), up.rows(), kind)
        });
    }

    fn add(&self, x: &mut Tensor, y: &Tensor) {
        self.attempt(|| self.gpu.add(x.rows(), y.rows()));
    }

    fn add_normed(&self, x: &mut Tensor, y: &mut Tensor, gain: &Buffer<f32>, eps: f32) {
        self.attempt(|| self.gpu.add_rmsnorm(x.rows(), y.rows(), gain.all(), x.n_tokens, eps));
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

    fn finish(&self) -> Result<()> {
        self.outcome()?;
        Ok(self.gpu.synchronize()?)
    }

    fn report(&self, matrix: &Matrix) -> MatmulReport {
        report::matmul(self, matrix)
    }
}
