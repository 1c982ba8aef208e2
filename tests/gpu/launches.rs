//! Which object each product reads, with which kernel, and that it ran as often as it had to.

use crate::model::{all_logits, divergence, ids, on_gpu, options, packed, row};
use crate::{Test, skip};
use format_spec::QuantType;
use runtime::report::MatmulReport;
use runtime::{CudaOptions, Gemm, LogitsWanted, Model, Prefill, Session};
use std::path::PathBuf;
use std::process::Command;
use tests::packing::pack;
use tests::tiny_model::{HEAD_DIM, N_HEAD, N_HEAD_KV, N_VOCAB, tiny_model};

pub(crate) const TESTS: &[Test] = &[
    ("mmq_reads_the_planes", mmq_reads_the_planes),
    ("exp_switched_off_is_off", exp_switched_off_is_off),
    ("bf16_reads_its_plane", bf16_reads_its_plane),
    ("bf16_products_are_whose_they_are_said_to_be", bf16_products_are_whose_they_are_said_to_be),
    ("prompt_attention_is_counted", prompt_attention_is_counted),
    ("decode_attention_is_fused", decode_attention_is_fused),
    ("decode_attention_is_one_launch", decode_attention_is_one_launch),
    ("decode_reads_through_the_ring", decode_reads_through_the_ring),
    ("a_plane_without_its_partner_is_a_fallback", a_plane_without_its_partner_is_a_fallback),
    ("strict_ends_with_6", strict_ends_with_6),
];

/// Layers of the tiny model.
const N_LAYER: usize = 7;
const N_PROMPT: u32 = 160;
const N_BATCH: usize = 80;
const N_STEPS: u64 = 9;

/// Two batches of a prompt, and steps of one token: the first as it is, then recorded ones.
fn run(model: &Model<'_>) {
    let mut session = Session::new(model, 256).unwrap();
    let logits = session.prefill(&ids(N_PROMPT), N_BATCH, LogitsWanted::Last).unwrap();
    assert!(logits.iter().all(|logit| logit.is_finite()));
    for id in ids(N_STEPS as u32) {
        session.decode(id).unwrap();
    }
}

/// Asserts the launches of each product: in the last layer only the wanted row goes through what
/// follows keys and values.
fn check_launches(rows: &[MatmulReport]) {
    assert_eq!(rows.len(), 7 * N_LAYER + 1);
    for row in rows {
        let is_last = row.name.starts_with(&format!("blk.{}.", N_LAYER - 1));
        let of_wanted_rows = ["attn_output", "ffn"].iter().any(|part| row.name.contains(part));
        let expected = match row.name.starts_with("blk.") {
            true if is_last && of_wanted_rows => (0, 1 + N_STEPS),
            true => (2, N_STEPS),
            false => (0, 1 + N_STEPS),
        };
        let found = (row.prefill.n_launches, row.decode.n_launches);
        assert_eq!(found, expected, "{}: prefill, decode", row.name);
    }
}

/// Asserts label, kernel and object of every layer's rows of a type.
fn check_labels(rows: &[MatmulReport], quant: &str, label: &str, kernel: &str, reads: &str) {
    let mut n = 0;
    for row in rows.iter().filter(|row| row.quant == quant && row.name.starts_with("blk.")) {
        let k = &row.prefill;
        assert_eq!((&*k.label, &*k.reads), (label, reads), "{}: {}", row.name, k.reason);
        assert!(k.kernel.starts_with(kernel), "{}: {}", row.name, k.kernel);
        n += 1;
    }
    assert!(n > 10, "{n} matrices of type {quant}");
}

fn mmq_reads_the_planes() {
    for (planes, q6_k, q4_k) in [
        ("none", ("padded", "padded"), ("padded", "padded")),
        ("padded,exp", ("exp", "exp"), ("padded", "padded")),
        ("default", ("exp", "exp"), ("padded", "padded")),
        ("padded,exp,dsc,eb,sb", ("exp", "exp"), ("eb", "eb")),
    ] {
        on_gpu(&packed(planes), &options(Prefill::Mmq), true, |model| {
            run(model);
            let rows = model.explain();
            check_launches(&rows);
            check_labels(&rows, "q6_K", q6_k.0, "mmq_q6_k", q6_k.1);
            // The narrow kernel serves where the plane's has too few blocks; it reads the base.
            if q4_k.0 == "padded" {
                check_labels(&rows, "q4_K", q4_k.0, "mmq_q4_k", q4_k.1);
            }
        });
    }
}

fn exp_switched_off_is_off() {
    on_gpu(&packed("default"), &options(Prefill::Mmq), false, |model| {
        run(model);
        let rows = model.explain();
        check_launches(&rows);
        check_labels(&rows, "q6_K", "off", "mmq_q6_k", "padded");
        check_labels(&rows, "q4_K", "padded", "mmq_q4_k", "padded");
    });
}

fn bf16_reads_its_plane() {
    for (planes, label, kernel) in [
        ("cuda-fast", "bf16", ""),
        ("default", "padded", "dequant_"),
        ("planar", "planar", "dequant_planar_"),
    ] {
        on_gpu(&packed(planes), &options(Prefill::Bf16), true, |model| {
            run(model);
            let rows = model.explain();
            check_launches(&rows);
            for quant in ["q4_K", "q6_K"] {
                check_labels(&rows, quant, label, kernel, label);
            }
            let few = if planes == "default" { "padded" } else { "planar" };
            assert!(rows.iter().all(|row| row.decode.label == few), "decode from {few}");
        });
    }
}

fn prompt_attention_is_counted() {
    let hopper = kernels::cuda::probe(0).unwrap().compute == (9, 0);
    // In the last layer the wanted row alone attends, by the kernel of few queries.
    let n = 2 * (N_LAYER as u64 - 1);
    let mut logits = Vec::new();
    for on in [true, false] {
        let options = CudaOptions { wgmma_attention: on, ..options(Prefill::Bf16) };
        on_gpu(&packed("default"), &options, true, |model| {
            run(model);
            let by = model.gpu_attention().unwrap();
            let expected = if on && hopper { (n, 0) } else { (0, n) };
            assert_eq!((by.on, (by.n_wgmma, by.n_plain)), (on, expected));
            logits.push(all_logits(model, N_PROMPT, N_BATCH));
        });
    }
    let apart = divergence(&logits[0], &logits[1], N_VOCAB as usize);
    assert!(apart < 1e-4, "{apart} between the two kernels");
}

fn bf16_products_are_whose_they_are_said_to_be() {
    let hopper = runtime::probe_gpu(0).unwrap().compute == (9, 0);
    for planes in ["default", "cuda-fast"] {
        let file = packed(planes);
        let mut all = Vec::new();
        for gemm in [Gemm::Auto, Gemm::Own, Gemm::Cublas] {
            let options = CudaOptions { gemm, ..options(Prefill::Bf16) };
            on_gpu(&file, &options, true, |model| {
                run(model);
                let by = model.gpu_gemm().unwrap();
                // In the last layer one row alone goes beyond keys and values. On Hopper q, k and v
                // share a launch, and gate and up do.
                let apart = 2 * (7 * (N_LAYER as u64 - 1) + 3);
                let shared = 2 * (4 * (N_LAYER as u64 - 1) + 1);
                let expected = match by.kernel {
                    "gemm_sm90" => (shared, 0, 0),
                    "cublaslt_bf16" => (0, apart, 0),
                    _ => (0, 0, apart),
                };
                assert_eq!((by.n_sm90, by.n_cublas, by.n_mma), expected, "{gemm:?}: {by:?}");
                if hopper && gemm != Gemm::Cublas {
                    assert_eq!(by.kernel, "gemm_sm90", "{gemm:?}");
                }
                let rows = model.explain();
                check_launches(&rows);
                for row in rows.iter().filter(|row| row.name.starts_with("blk.")) {
                    assert!(row.prefill.kernel.ends_with(by.kernel), "{}", row.prefill.kernel);
                }
                all.push(all_logits(model, N_PROMPT, N_BATCH));
            });
        }
        for other in &all[1..] {
            let kl = divergence(&all[0], other, all[0].len() / N_PROMPT as usize);
            assert!(kl <= 1e-5, "{planes}: mean KL {kl}");
        }
    }
}

/// One token's attention makes its queries and key itself, in every layer; switched off, other launches
/// do, and the logits keep their bits.
fn decode_attention_is_fused() {
    for arch in ["qwen2", "llama", "qwen3", "gemma3"] {
        let file = pack(&tiny_model(arch, &[QuantType::Q4_K, QuantType::Q6_K]).build(), "planar");
        let mut logits = Vec::new();
        let n = N_LAYER as u64 * N_STEPS;
        for fused in [true, false] {
            // The ring fuses norms too, whose sums it makes in another order, and clusters have another order.
            let apart =
                CudaOptions { ring: false, cluster_attention: false, ..options(Prefill::Mmq) };
            let options = CudaOptions { fused, ..apart };
            on_gpu(&file, &options, true, |model| {
                let mut session = Session::new(model, 256).unwrap();
                session.prefill(&ids(40), 40, LogitsWanted::Last).unwrap();
                let before = model.gpu_attention().unwrap();
                let mut rows = Vec::new();
                for id in ids(N_STEPS as u32) {
                    rows.extend(session.decode(id).unwrap().iter().map(|v| v.to_bits()));
                }
                let by = model.gpu_attention().unwrap();
                assert_eq!(by.fused, fused);
                let found = (by.n_fresh - before.n_fresh, by.n_few - before.n_few);
                assert_eq!(found, if fused { (n, 0) } else { (0, n) }, "{arch}");
                assert_eq!((by.cluster, by.n_cluster), (false, 0), "{arch}");
                check_few_launches(&model.explain());
                logits.push(rows);
            });
        }
        assert!(logits[0] == logits[1], "{arch}: logits of fused launches");
    }
}

/// One token's attention is one launch of clusters, in every layer; switched off, two launches do the same.
/// Bits are those of the run before, and of launches one by one.
fn decode_attention_is_one_launch() {
    let n = N_LAYER as u64 * N_STEPS;
    let clusters = kernels::cuda::Gpu::open(0, true).unwrap();
    let [n_head, n_head_kv, head_dim] = [N_HEAD, N_HEAD_KV, HEAD_DIM].map(|n| n as usize);
    let clusters =
        clusters.attention_cluster_blocks(n_head, n_head_kv, head_dim).unwrap().is_some();
    for arch in ["qwen2", "llama", "qwen3", "gemma3"] {
        let file = pack(&tiny_model(arch, &[QuantType::Q4_K, QuantType::Q6_K]).build(), "planar");
        let run = |cluster_attention: bool, chained: bool| {
            let options = CudaOptions { cluster_attention, chained, ..options(Prefill::Mmq) };
            let mut rows: Vec<f32> = Vec::new();
            on_gpu(&file, &options, true, |model| {
                let mut session = Session::new(model, 256).unwrap();
                session.prefill(&ids(40), 40, LogitsWanted::None).unwrap();
                let before = model.gpu_attention().unwrap();
                for id in ids(N_STEPS as u32) {
                    rows.extend_from_slice(session.decode(id).unwrap());
                }
                let by = model.gpu_attention().unwrap();
                assert_eq!(by.cluster, cluster_attention);
                let found = [
                    by.n_cluster - before.n_cluster,
                    by.n_fresh - before.n_fresh,
                    by.n_few - before.n_few,
                ];
                let expected = if cluster_attention && clusters { [n, 0, 0] } else { [0, n, 0] };
                assert_eq!(found, expected, "{arch}");
            });
            rows
        };
        let by_cluster = [run(true, true), run(true, true), run(true, false)];
        let bits = |rows: &[f32]| rows.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert!(bits(&by_cluster[0]) == bits(&by_cluster[1]), "{arch}: bits of two runs");
        assert!(
            bits(&by_cluster[0]) == bits(&by_cluster[2]),
            "{arch}: bits of launches one by one"
        );
        let twin = run(false, true);
        let apart = divergence(&twin, &by_cluster[0], twin.len() / N_STEPS as usize);
        assert!(apart < 1e-4, "{arch}: {apart} between clusters and two launches");
    }
}

/// One token's products read weights through the ring, in four launches a layer; switched off, others do and
/// say the same. Bits are those of the run before.
fn decode_reads_through_the_ring() {
    let hopper = kernels::cuda::probe(0).unwrap().compute == (9, 0);
    let all = (4 * N_LAYER as u64 + 1) * N_STEPS;
    for arch in ["qwen2", "llama", "qwen3", "gemma3"] {
        // Gate and up have one type in some layers, and are a pair there.
        let quants = [QuantType::Q4_K, QuantType::Q6_K, QuantType::Q6_K];
        let model = tiny_model(arch, &quants).build();
        for planes in ["planar", "default"] {
            let file = pack(&model, planes);
            let what = format!("{arch}, {planes}");
            let run = |ring: bool, chained: bool, fused: bool| {
                let options = CudaOptions { ring, chained, fused, ..options(Prefill::Mmq) };
                let mut rows: Vec<f32> = Vec::new();
                on_gpu(&file, &options, true, |model| {
                    let mut session = Session::new(model, 256).unwrap();
                    session.prefill(&ids(40), 40, LogitsWanted::None).unwrap();
                    let before = model.gpu_ring().unwrap();
                    for id in ids(N_STEPS as u32) {
                        rows.extend_from_slice(session.decode(id).unwrap());
                    }
                    let by = model.gpu_ring().unwrap();
                    let found = (by.n_ring - before.n_ring, by.n_plain - before.n_plain);
                    assert_eq!(by.on, ring);
                    // The norm before q, k and v, that of a pair, and the last one.
                    let normed = (N_LAYER as u64 + n_pairs(model) + 1) * N_STEPS;
                    let n_fused = if ring && hopper && fused { normed } else { 0 };
                    assert_eq!(by.n_fused - before.n_fused, n_fused, "{what}");
                    if ring && hopper {
                        assert_eq!(found, (all, 0), "{what}");
                    } else {
                        assert!(found.0 == 0 && found.1 >= all, "{what}: {found:?}");
                    }
                    check_few_launches(&model.explain());
                    let kernel = row(model, "blk.0.ffn_down.weight").decode.kernel;
                    assert_eq!(kernel.starts_with("gemv_ring_"), ring && hopper, "{kernel}");
                });
                rows
            };
            let rings = [run(true, true, true), run(true, false, true), run(true, true, true)];
            let bits = |rows: &[f32]| rows.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert!(bits(&rings[0]) == bits(&rings[2]), "{what}: bits of two runs");
            assert!(bits(&rings[0]) == bits(&rings[1]), "{what}: bits of launches one by one");
            let n_vocab = rings[0].len() / N_STEPS as usize;
            for (twin, of) in
                [(run(false, true, true), "gemv"), (run(true, true, false), "norms apart")]
            {
                let apart = divergence(&twin, &rings[0], n_vocab);
                assert!(apart < 1e-4, "{what}: {apart} between the ring and {of}");
            }
        }
    }
}

/// Layers whose gate and up are of one type: some, not all.
fn n_pairs(model: &Model<'_>) -> u64 {
    let quant = |layer, part| row(model, &format!("blk.{layer}.ffn_{part}.weight")).quant;
    let n = (0..N_LAYER).filter(|&layer| quant(layer, "gate") == quant(layer, "up")).count();
    assert!(n > 0 && n < N_LAYER, "{n} pairs in {N_LAYER} layers");
    n as u64
}

/// Every matrix of a layer was multiplied once a step.
fn check_few_launches(rows: &[MatmulReport]) {
    for row in rows.iter().filter(|row| row.name.starts_with("blk.0.")) {
        assert_eq!(row.decode.n_launches, N_STEPS, "{}", row.name);
    }
}

fn a_plane_without_its_partner_is_a_fallback() {
    on_gpu(&packed("padded,dsc"), &options(Prefill::Mmq), true, |model| {
        let k = row(model, "blk.0.attn_k.weight").prefill;
        let other = row(model, "blk.0.attn_q.weight").prefill;
        let labels = [&*k.label, &*other.label];
        assert!(labels.contains(&"fallback!") && labels.contains(&"padded"), "{labels:?}");
    });
}

/// The command: beside this program, where a build puts it, or in `MINFER_RUN`.
fn minfer_run() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("MINFER_RUN") {
        return Some(path.into());
    }
    let here = std::env::current_exe().ok()?;
    let folders = here.ancestors().skip(1).take(2);
    folders.map(|folder| folder.join("minfer-run")).find(|path| path.exists())
}

fn strict_ends_with_6() {
    let Some(program) = minfer_run() else {
        return skip("no minfer-run beside this program (MINFER_RUN names it)");
    };
    let folder = std::env::temp_dir().join(format!("minfer-gpu-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (model, prompt) = (folder.join("m.mpk"), folder.join("ids.json"));
    std::fs::write(&prompt, format!("{:?}", ids(20))).unwrap();
    let run = |planes: &str, flags: &[&str]| {
        std::fs::write(&model, packed(planes)).unwrap();
        let mut command = Command::new(&program);
        command.arg(&model).arg("--ids").arg(&prompt).args(["--json", "-n", "3", "--temp", "0"]);
        command.args(["--device", "cuda", "--prefill", "mmq"]).args(flags);
        let done = command.output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (code, said) = run("padded,dsc", &["--strict"]);
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("do not use the fast path"), "{said}");
    let (code, said) = run("padded,dsc", &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("do not use the fast path"), "said once, loudly: {said}");
    let (code, said) = run("default", &["--strict"]);
    assert_eq!(code, Some(0), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}
