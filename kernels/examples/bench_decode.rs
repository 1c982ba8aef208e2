//! What one decoded token takes on a GPU, launch by launch and as the chain of a model of 7B geometry
//! (28 layers, every other one with q6_K in v and down): `bench_decode [attention] [DEPTH...]`. Medians of
//! several rounds over the weights of eight layers in turn, so that no cache holds them. `attention`: that
//! alone, and the chains that differ in it.
#![allow(clippy::print_stdout)] // a program for developers
#![allow(clippy::unwrap_used)]

use format_spec::plane::PlaneKind;
use format_spec::{Geometry, Layout, QuantType};
use kernels::cuda::{
    AttentionArgs, Buffer, CudaResult, DeviceWeight, FreshRows, Gate, GemvOut, Gpu, OperandRef,
    RingGate, RingSource, RopeTable, RotaryArgs,
};
use std::sync::Arc;

/// Layers whose weights take turns, and those of a model.
const N_WEIGHTS: usize = 8;
const N_LAYER: usize = 28;
const N_EMBD: usize = 3584;
const N_KV: usize = 512;
const N_FF: usize = 18944;
const N_VOCAB: usize = 152_064;
const HEAD_DIM: usize = 128;
const N_CTX: usize = 4096;

struct Weight {
    _bytes: Buffer<u8>,
    weight: DeviceWeight,
}

impl Weight {
    /// Numbers that look random, as small as those of a trained model.
    fn new(
        gpu: &Arc<Gpu>,
        quant: QuantType,
        kind: PlaneKind,
        n_rows: usize,
        row_len: usize,
    ) -> Self {
        let geometry = Geometry { n_rows: n_rows as u64, row_len: row_len as u64 };
        let layout = Layout::new(kind, quant, geometry).unwrap();
        let bytes = gpu.alloc::<u8>(layout.len_bytes() as usize).unwrap();
        let host = synthetic(quant, n_rows.min(256), row_len, kind);
        let mut at = 0;
        while at < bytes.len() {
            let n = host.len().min(bytes.len() - at);
            gpu.write(bytes.span(at..at + n), &host[..n]).unwrap();
            at += n;
        }
        let weight = DeviceWeight::new(gpu, (&layout, bytes.all()), &[]).unwrap();
        Self { _bytes: bytes, weight }
    }

    fn n_bytes(&self) -> usize {
        self._bytes.len()
    }
}

/// An object of `n_rows` rows of random blocks whose factors are small.
fn synthetic(quant: QuantType, n_rows: usize, row_len: usize, kind: PlaneKind) -> Vec<u8> {
    let (block, places): (usize, &[usize]) = match quant {
        QuantType::Q4_K => (144, &[0, 2]),
        _ => (210, &[208]),
    };
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ row_len as u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut gguf: Vec<u8> = (0..n_rows * row_len / 256 * block).map(|_| next() as u8).collect();
    for one in gguf.chunks_exact_mut(block) {
        for &place in places {
            let d = half::f16::from_f32(1e-4 * (1.0 + (next() % 64) as f32 / 64.0));
            one[place..place + 2].copy_from_slice(&d.to_le_bytes());
        }
    }
    let geometry = Geometry { n_rows: n_rows as u64, row_len: row_len as u64 };
    let layout = Layout::new(kind, quant, geometry).unwrap();
    let mut object = vec![0; layout.len_bytes() as usize];
    layout.write_units(&gguf, 0..layout.n_units(), &mut object).unwrap();
    object
}

struct Layer {
    q: Weight,
    k: Weight,
    v: Weight,
    o: Weight,
    gate: Weight,
    up: Weight,
    down: Weight,
    k_cache: Buffer<half::f16>,
    v_cache: Buffer<half::f16>,
}

/// Activations in f32 and int8.
struct Forms {
    f32: Buffer<f32>,
    q: Buffer<i8>,
    ds: Buffer<[f32; 2]>,
}

impl Forms {
    fn new(gpu: &Arc<Gpu>, n: usize) -> Self {
        let values: Vec<f32> = (0..n).map(|i| (i * 7919 % 1009) as f32 / 1000.0 - 0.5).collect();
        let forms = Self {
            f32: gpu.upload(&values).unwrap(),
            q: gpu.alloc(n).unwrap(),
            ds: gpu.alloc(n / 32).unwrap(),
        };
        let int8 = OperandRef { f32: None, ..forms.get() };
        gpu.convert(&int8, forms.f32.all()).unwrap();
        forms
    }

    fn get(&self) -> OperandRef<'_> {
        let int8 = Some((self.q.all(), self.ds.all()));
        OperandRef { f32: Some(self.f32.all()), bf16: None, int8 }
    }
}

struct Bench {
    gpu: Arc<Gpu>,
    layers: Vec<Layer>,
    head: Weight,
    gain: Buffer<f32>,
    bias: Buffer<f32>,
    table: RopeTable,
    at: Buffer<u32>,
    x: Buffer<f32>,
    qkv: [Buffer<f32>; 3],
    both: [Buffer<f32>; 2],
    logits: Buffer<f32>,
    normed: Forms,
    attended: Forms,
    gated: Forms,
    n_done: Buffer<u32>,
    part_out: Buffer<f32>,
    part_ml: Buffer<[f32; 2]>,
}

/// Which launches a layer is made of.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Way {
    /// As before there were rings.
    Plain,
    /// The same launches with products from the ring.
    Ring,
    /// Norms in the products that follow, q, k and v in one launch.
    Norm,
    /// Also the gate behind gate and up.
    Gated,
    /// Also attention that rotates and stores.
    Fresh,
    /// Also attention in one launch, by clusters of so many blocks.
    Cluster(u32),
}

fn out<'b>(weight: &'b Weight, y: &'b Buffer<f32>, bias: Option<&'b Buffer<f32>>) -> GemvOut<'b> {
    GemvOut { weight: &weight.weight, y: y.all(), bias: bias.map(Buffer::all), add: false }
}

impl Bench {
    fn new(gpu: &Arc<Gpu>, kind: PlaneKind) -> Self {
        let planar = |quant, rows, len| Weight::new(gpu, quant, kind, rows, len);
        let layer = |i: usize| {
            let other = if i.is_multiple_of(2) { QuantType::Q6_K } else { QuantType::Q4_K };
            let q4 = QuantType::Q4_K;
            Layer {
                q: planar(q4, N_EMBD, N_EMBD),
                k: planar(q4, N_KV, N_EMBD),
                v: planar(other, N_KV, N_EMBD),
                o: planar(q4, N_EMBD, N_EMBD),
                gate: planar(q4, N_FF, N_EMBD),
                up: planar(q4, N_FF, N_EMBD),
                down: planar(other, N_EMBD, N_FF),
                k_cache: gpu.upload(&vec![half::f16::from_f32(0.01); N_CTX * N_KV]).unwrap(),
                v_cache: gpu.upload(&vec![half::f16::from_f32(0.02); N_CTX * N_KV]).unwrap(),
            }
        };
        let steps: Vec<f64> = (0..64).map(|i| 1e6f64.powf(-f64::from(i) / 64.0)).collect();
        let parts = gpu.attention_parts(N_EMBD / HEAD_DIM, N_KV / HEAD_DIM) * N_EMBD / HEAD_DIM;
        let f32s = |n: usize| gpu.upload(&vec![0.5f32; n]).unwrap();
        Self {
            layers: (0..N_WEIGHTS).map(layer).collect(),
            head: planar(QuantType::Q6_K, N_VOCAB, N_EMBD),
            gain: f32s(N_EMBD),
            bias: f32s(N_EMBD),
            table: gpu.rope_table(&steps, N_CTX, 1.0, true).unwrap(),
            at: gpu.upload(&[100, 1]).unwrap(),
            x: f32s(N_EMBD),
            qkv: [f32s(N_EMBD), f32s(N_KV), f32s(N_KV)],
            both: [f32s(N_FF), f32s(N_FF)],
            logits: f32s(N_VOCAB),
            normed: Forms::new(gpu, N_EMBD),
            attended: Forms::new(gpu, N_EMBD),
            gated: Forms::new(gpu, N_FF),
            n_done: gpu.upload(&vec![0; N_FF / 32]).unwrap(),
            part_out: f32s(parts * HEAD_DIM),
            part_ml: gpu.upload(&vec![[0.0; 2]; parts]).unwrap(),
            gpu: Arc::clone(gpu),
        }
    }

    fn multiply(&self, way: Way, outs: &[GemvOut<'_>], x: &Forms) -> CudaResult<()> {
        match way {
            Way::Plain => self.gpu.gemv(outs, &x.get(), 1),
            _ => self.gpu.ring(outs, &RingSource::Operand(x.get()), None),
        }
    }

    fn qkv<'b>(&'b self, layer: &'b Layer) -> [GemvOut<'b>; 3] {
        let bias = Some(&self.bias);
        let [q, k, v] = &self.qkv;
        [out(&layer.q, q, bias), out(&layer.k, k, bias), out(&layer.v, v, bias)]
    }

    fn add<'b>(&'b self, weight: &'b Weight) -> GemvOut<'b> {
        GemvOut { add: true, ..out(weight, &self.x, None) }
    }

    fn norm(&self) -> RingSource<'_> {
        RingSource::Norm { x: self.x.all(), gain: self.gain.all(), eps: 1e-6 }
    }

    fn attention(&self, way: Way, layer: &Layer) -> CudaResult<()> {
        let gpu = &self.gpu;
        let [q, k, v] = &self.qkv;
        let caches = (layer.k_cache.all(), layer.v_cache.all());
        let first_pos = self.at.span(0..1);
        let table = &self.table;
        let fresh = FreshRows { k: k.all(), v: v.all(), table, norms: None };
        let fresh = (way >= Way::Fresh).then_some(&fresh);
        if fresh.is_none() {
            let rotary = RotaryArgs { table, first_pos, head_dim: HEAD_DIM, n_tokens: 1 };
            gpu.rope_store(q.all(), caches, (k.all(), v.all()), &rotary)?;
        }
        let args = AttentionArgs {
            q: q.all(),
            k: caches.0,
            v: caches.1,
            first_pos,
            shift: 0,
            n_tokens: 1,
            n_head: N_EMBD / HEAD_DIM,
            n_head_kv: N_KV / HEAD_DIM,
            head_dim: HEAD_DIM,
            window: None,
            scale: 0.088,
            soft_cap: None,
        };
        let n_parts = gpu.attention_parts(args.n_head, args.n_head_kv);
        let parts = (self.part_out.all(), self.part_ml.all());
        let to = OperandRef { f32: None, ..self.attended.get() };
        match (way, fresh) {
            (Way::Cluster(n), Some(fresh)) => gpu.attention_cluster(&to, &args, fresh, (n, true)),
            _ => gpu.attention_decode(&to, &args, parts, n_parts, fresh),
        }
    }

    fn layer(&self, way: Way, layer: &Layer, attends: bool) -> CudaResult<()> {
        let gpu = &self.gpu;
        let (qkv, [gate, up]) = (self.qkv(layer), &self.both);
        let pair = [out(&layer.gate, gate, None), out(&layer.up, up, None)];
        let to = OperandRef { f32: None, ..self.normed.get() };
        if matches!(way, Way::Plain | Way::Ring) {
            gpu.rmsnorm(&to, self.x.all(), self.gain.all(), 1, 1e-6)?;
        }
        match way {
            Way::Plain if layer.v.weight.quant() != QuantType::Q4_K => {
                self.multiply(way, &qkv[..2], &self.normed)?;
                self.multiply(way, &qkv[2..], &self.normed)?;
            }
            Way::Plain | Way::Ring => self.multiply(way, &qkv, &self.normed)?,
            _ => gpu.ring(&qkv, &self.norm(), None)?,
        }
        if attends {
            self.attention(way, layer)?;
        }
        self.multiply(way, &[self.add(&layer.o)], &self.attended)?;
        if matches!(way, Way::Plain | Way::Ring) {
            gpu.rmsnorm(&to, self.x.all(), self.gain.all(), 1, 1e-6)?;
            self.multiply(way, &pair, &self.normed)?;
        }
        if way == Way::Norm {
            gpu.ring(&pair, &self.norm(), None)?;
        }
        if way >= Way::Gated {
            let (out, n_done) = (self.gated.get(), self.n_done.all());
            gpu.ring(&pair, &self.norm(), Some(&RingGate { out, n_done, kind: Gate::Silu }))?;
        } else {
            let to = OperandRef { f32: None, ..self.gated.get() };
            gpu.gate(&to, gate.all(), up.all(), Gate::Silu)?;
        }
        self.multiply(way, &[self.add(&layer.down)], &self.gated)
    }

    /// Microseconds of what `body` launches, medians of `n` repetitions.
    fn time(&self, n: usize, body: impl Fn() -> CudaResult<()>) -> f64 {
        let recording = self.gpu.record(body).unwrap();
        recording.launch().unwrap();
        let mut rounds: Vec<f64> =
            (0..n).map(|_| self.gpu.time(|| recording.launch()).unwrap() * 1e6).collect();
        rounds.sort_by(f64::total_cmp);
        rounds[n / 2]
    }

    /// Microseconds of a token's layers, without attention the second time.
    fn chain(&self, way: Way) -> String {
        let [all, without] = [true, false].map(|attends| {
            self.time(15, || {
                let one = |i| self.layer(way, &self.layers[i % N_WEIGHTS], attends);
                (0..N_LAYER).try_for_each(one)
            })
        });
        format!("{way:?} {all:.0} ({without:.0})")
    }

    /// One product alone, over the layers.
    fn alone(&self, name: &str, way: Way, n_bytes: usize, one: impl Fn(&Layer) -> CudaResult<()>) {
        let us = self.time(9, || (0..64).try_for_each(|i| one(&self.layers[i % N_WEIGHTS]))) / 64.0;
        println!("  {name:<24} {way:?}: {us:7.2} us, {:5.2} TB/s", n_bytes as f64 / us / 1e6);
    }

    fn products(&self, way: Way) {
        let one = |layer: &Layer| {
            let [q, k, _] = self.qkv(layer);
            self.multiply(way, &[q, k], &self.normed)
        };
        let l = &self.layers[1];
        self.alone("q, k (q4_K)", way, l.q.n_bytes() + l.k.n_bytes(), one);
        self.alone("output (q4_K)", way, l.o.n_bytes(), |l| {
            self.multiply(way, &[self.add(&l.o)], &self.attended)
        });
        self.alone("gate, up (q4_K)", way, 2 * l.gate.n_bytes(), |l| {
            let pair = [out(&l.gate, &self.both[0], None), out(&l.up, &self.both[1], None)];
            self.multiply(way, &pair, &self.normed)
        });
        let n = (self.layers[0].down.n_bytes() + self.layers[1].down.n_bytes()) / 2;
        self.alone("down (q4_K, q6_K)", way, n, |l| {
            self.multiply(way, &[self.add(&l.down)], &self.gated)
        });
        let us = self
            .time(9, || self.multiply(way, &[out(&self.head, &self.logits, None)], &self.normed));
        let n = self.head.n_bytes() as f64;
        println!("  head (q6_K)              {way:?}: {us:7.2} us, {:5.2} TB/s", n / us / 1e6);
    }

    /// What a way leaves in the residual stream, from the same start.
    fn result(&self, way: Way) -> Vec<f32> {
        let start: Vec<f32> = (0..N_EMBD).map(|i| (i * 31 % 97) as f32 / 97.0 - 0.5).collect();
        self.gpu.write(self.x.all(), &start).unwrap();
        (0..2).try_for_each(|i| self.layer(way, &self.layers[i], true)).unwrap();
        let mut x = vec![0.0; N_EMBD];
        self.gpu.read(&mut x, self.x.all()).unwrap();
        x
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let depths: Vec<u32> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let depths = if depths.is_empty() { vec![100, 3325] } else { depths };
    let chained = std::env::var("CHAIN").as_deref() != Ok("0");
    let attention_alone = args.iter().any(|arg| arg == "attention");
    let gpu = Gpu::open(0, chained).unwrap();
    let cluster =
        gpu.attention_cluster_blocks(N_EMBD / HEAD_DIM, N_KV / HEAD_DIM, HEAD_DIM).unwrap();
    let mut ways = vec![Way::Plain, Way::Ring, Way::Norm, Way::Gated, Way::Fresh];
    ways.extend(cluster.map(Way::Cluster));
    // Attention reads no weights.
    let kinds = [PlaneKind::Planar, PlaneKind::Padded];
    for kind in kinds.into_iter().take(if attention_alone { 1 } else { 2 }) {
        println!("{}", kind.name());
        let bench = Bench::new(&gpu, kind);
        let plain = bench.result(Way::Plain);
        for &way in &ways[1..] {
            let x = bench.result(way);
            let off = x.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
            let top = plain.iter().map(|v| v.abs()).fold(0.0f32, f32::max);
            println!("{way:?}: off by {off:e} at most of {top}");
        }
        if !attention_alone {
            [Way::Plain, Way::Ring].into_iter().for_each(|way| bench.products(way));
        }
        let is_timed = |way: &Way| *way >= Way::Fresh || !attention_alone && *way != Way::Ring;
        let timed: Vec<Way> = ways.iter().copied().filter(is_timed).collect();
        for &depth in &depths {
            gpu.write(bench.at.all(), &[depth, 1]).unwrap();
            for &way in timed.iter().filter(|way| **way >= Way::Fresh) {
                let n_bytes = 4 * (depth as usize + 1) * N_KV;
                bench.alone("attention", way, n_bytes, |layer| bench.attention(way, layer));
            }
            for round in 0..3 {
                let us: Vec<String> = timed.iter().map(|&way| bench.chain(way)).collect();
                println!("depth {depth}, round {round}, us: {}", us.join(", "));
            }
        }
    }
}
