//! What each launch of a mixture of experts takes on a GPU, in the geometry of Qwen3-30B-A3B (or
//! `mixtral`): `bench_experts [qwen3|mixtral]`. Microseconds a launch, medians of several rounds of
//! many launches over weights that no cache holds.
#![allow(clippy::print_stdout)] // a program for developers
#![allow(clippy::unwrap_used)]

use format_spec::plane::PlaneKind;
use format_spec::{Geometry, Layout, QuantType};
use kernels::cuda::{
    Buffer, CudaResult, DeviceWeight, ExpertOut, ExpertTable, Gate, Gpu, MAX_GEMV_TOKENS,
    OperandRef, RoutingShape, SortedRows,
};
use std::sync::Arc;

/// Layers whose weights take turns.
const N_LAYERS: usize = 6;

struct Weight {
    _bytes: Buffer<u8>,
    weight: DeviceWeight,
}

fn weight(
    gpu: &Arc<Gpu>,
    quant: QuantType,
    kind: PlaneKind,
    n_rows: usize,
    row_len: usize,
) -> Weight {
    let geometry = Geometry { n_rows: n_rows as u64, row_len: row_len as u64 };
    let layout = Layout::new(kind, quant, geometry).unwrap();
    let bytes = gpu.alloc::<u8>(layout.len_bytes() as usize).unwrap();
    // Some number in every byte: time does not depend on it.
    gpu.fill_words(bytes.all(), 0x1234_2a19).unwrap();
    let weight = DeviceWeight::new(gpu, (&layout, bytes.all()), &[]).unwrap();
    Weight { _bytes: bytes, weight }
}

/// Microseconds of a launch.
fn time(gpu: &Arc<Gpu>, what: &str, launch: impl Fn(usize) -> CudaResult<()>) {
    let mut rounds: Vec<f64> = (0..9)
        .map(|_| {
            let recording =
                gpu.record(|| (0..10 * N_LAYERS).try_for_each(|i| launch(i % N_LAYERS)));
            let recording = recording.unwrap();
            let seconds = gpu.time(|| recording.launch()).unwrap();
            seconds / (10 * N_LAYERS) as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what:<34} {:8.2} us", rounds[rounds.len() / 2] * 1e6);
}

/// Activations in f32 and int8.
struct Forms {
    f32: Buffer<f32>,
    q: Buffer<i8>,
    ds: Buffer<[f32; 2]>,
}

impl Forms {
    fn new(gpu: &Arc<Gpu>, values: &[f32]) -> Self {
        let forms = Self {
            f32: gpu.upload(values).unwrap(),
            q: gpu.alloc(values.len()).unwrap(),
            ds: gpu.alloc(values.len() / 32).unwrap(),
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

/// The matrices of all layers.
struct Experts {
    shape: RoutingShape,
    n_embd: usize,
    n_ff: usize,
    kind: PlaneKind,
    routers: Vec<Weight>,
    gates: Vec<(Weight, ExpertTable)>,
    ups: Vec<(Weight, ExpertTable)>,
    downs: Vec<(Weight, ExpertTable)>,
}

impl Experts {
    fn new(
        gpu: &Arc<Gpu>,
        shape: RoutingShape,
        n_embd: usize,
        n_ff: usize,
        kind: PlaneKind,
    ) -> Self {
        let table = |n_rows: usize, row_len: usize| {
            let one = |_| {
                let w = weight(gpu, QuantType::Q4_K, kind, shape.n_expert * n_rows, row_len);
                let table = ExpertTable::new(gpu, &[&w.weight], shape.n_expert).unwrap();
                (w, table)
            };
            (0..N_LAYERS).map(one).collect::<Vec<_>>()
        };
        let router = |_| weight(gpu, QuantType::F32, PlaneKind::Padded, shape.n_expert, n_embd);
        let routers = (0..N_LAYERS).map(router).collect();
        let (gates, ups, downs) = (table(n_ff, n_embd), table(n_ff, n_embd), table(n_embd, n_ff));
        Self { shape, n_embd, n_ff, kind, routers, gates, ups, downs }
    }

    fn bench(&self, gpu: &Arc<Gpu>, n_tokens: usize) {
        let Self { shape, n_embd, n_ff, .. } = *self;
        let n_pairs = shape.n_pairs(n_tokens);
        let numbers =
            |n: usize| (0..n).map(|i| (i * 7919 % 1009) as f32 / 100.0).collect::<Vec<_>>();
        let (x, rows) = (Forms::new(gpu, &numbers(n_tokens * n_embd)), numbers(n_pairs * n_embd));
        let (rows, gated) = (Forms::new(gpu, &rows), Forms::new(gpu, &numbers(n_pairs * n_ff)));
        let logits = gpu.upload(&numbers(n_tokens * shape.n_expert)).unwrap();
        let affinities = gpu.upload(&numbers(n_tokens * shape.n_expert)).unwrap();
        let choices = gpu.alloc::<[u32; 2]>(n_pairs).unwrap();
        let words = gpu.alloc::<u32>(shape.n_sorted_words(n_tokens)).unwrap();
        let sorted = SortedRows::new(shape, n_tokens, words.all());
        let [gate, up] = [(); 2].map(|()| gpu.alloc::<f32>(n_pairs * n_ff).unwrap());
        let out = gpu.alloc::<f32>(n_pairs * n_embd).unwrap();
        println!("-- {}, {n_tokens} tokens", self.kind.name());
        time(gpu, "router", |i| {
            let router = &self.routers[i].weight;
            gpu.router_logits(affinities.all(), router, x.f32.all(), n_tokens)
        });
        time(gpu, "route", |_| gpu.route(choices.all(), logits.all(), shape, n_tokens));
        let first = |i: usize| {
            [(&self.gates, &gate), (&self.ups, &up)]
                .map(|(w, y)| ExpertOut { table: &w[i].1, y: y.all() })
        };
        let down = |i: usize| ExpertOut { table: &self.downs[i].1, y: out.all() };
        let many = n_tokens > MAX_GEMV_TOKENS;
        if many {
            let to = OperandRef { f32: None, ..rows.get() };
            time(gpu, "sort, tiles", |_| gpu.sort_by_expert(&sorted, choices.all()));
            time(gpu, "gather", |_| gpu.gather_rows(&to, &x.get(), &sorted, n_embd));
            if self.kind == PlaneKind::Padded {
                time(gpu, "gate and up, int8", |i| {
                    first(i).iter().try_for_each(|out| gpu.mmq_experts(out, &rows.get(), &sorted))
                });
                time(gpu, "down, int8", |i| gpu.mmq_experts(&down(i), &gated.get(), &sorted));
            }
        } else {
            let pairs = |repeat| (n_pairs, repeat);
            time(gpu, "gate, up", |i| {
                gpu.gemv_experts(&first(i), &x.get(), choices.all(), pairs(shape.n_used))
            });
            time(gpu, "down", |i| {
                gpu.gemv_experts(&[down(i)], &gated.get(), choices.all(), pairs(1))
            });
        }
        time(gpu, "gated", |_| gpu.gate(&gated.get(), gate.all(), up.all(), Gate::Silu));
        let place = many.then(|| sorted.place());
        time(gpu, "add", |_| {
            let tokens = (n_tokens, shape.n_used);
            gpu.add_experts(x.f32.all(), out.all(), choices.all(), place, tokens)
        });
    }
}

fn main() {
    let mixtral = std::env::args().nth(1).is_some_and(|arg| arg == "mixtral");
    let (n_expert, n_used, n_embd, n_ff) =
        if mixtral { (8, 2, 4096, 14336) } else { (128, 8, 2048, 768) };
    let gpu = Gpu::open(0, true).unwrap();
    println!("{n_expert} experts, {n_used} a token, {n_embd} wide, {n_ff} inside, of q4_K");
    for kind in [PlaneKind::Padded, PlaneKind::Planar] {
        let experts = Experts::new(&gpu, RoutingShape { n_expert, n_used }, n_embd, n_ff, kind);
        [1, 512, 2048].into_iter().for_each(|n_tokens| experts.bench(&gpu, n_tokens));
    }
}
