//! Tiny models, packed in memory, and what the tests do with them.

use format_spec::QuantType;
use format_spec::container::Container;
use runtime::report::MatmulReport;
use runtime::{CudaOptions, LoadOptions, LoadWatch, LogitsWanted, Model, Prefill, Session};
use std::ops::ControlFlow;
use tests::packing::pack;
use tests::tiny_model::{N_VOCAB, tiny_model};

/// q4_K and q6_K in turn, as in a Q4_K_M file.
pub(crate) fn packed(planes: &str) -> Vec<u8> {
    pack(&tiny_model("qwen2", &[QuantType::Q4_K, QuantType::Q6_K]).build(), planes)
}

pub(crate) fn options(prefill: Prefill) -> CudaOptions {
    CudaOptions { prefill, ..CudaOptions::default() }
}

/// Calls `test` with the model of a container on the GPU.
pub(crate) fn on_gpu(
    file: &[u8],
    cuda: &CudaOptions,
    exp_plane: bool,
    test: impl FnOnce(&Model<'_>),
) {
    let container = Container::parse(file).unwrap();
    let common = LoadOptions { n_threads: 2, exp_plane, ..LoadOptions::default() };
    test(&Model::open_cuda(file, &container, &common, cuda, LoadWatch::SILENT).unwrap());
}

/// Token ids that look random.
pub(crate) fn ids(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i * 7 + i * 13 + 5) % N_VOCAB as u32).collect()
}

/// The row of a matrix.
pub(crate) fn row(model: &Model<'_>, name: &str) -> MatmulReport {
    model.explain().into_iter().find(|row| row.name == name).unwrap()
}

/// Greedy choice on the host: `n` tokens after `first`.
pub(crate) fn on_host(session: &mut Session<'_, '_>, first: u32, n: usize) -> Vec<u32> {
    let mut tokens = vec![first];
    for _ in 0..n {
        let logits = session.decode(tokens[tokens.len() - 1]).unwrap();
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        tokens.push(logits.iter().position(|&logit| logit == best).unwrap() as u32);
    }
    tokens
}

/// Logits of every position.
pub(crate) fn all_logits(model: &Model<'_>, n_tokens: u32, n_batch: usize) -> Vec<f32> {
    let mut session = Session::new(model, 256).unwrap();
    let mut logits = Vec::new();
    let mut sink = |_: usize, row: &[f32]| {
        logits.extend_from_slice(row);
        ControlFlow::Continue(())
    };
    session.prefill(&ids(n_tokens), n_batch, LogitsWanted::all(&mut sink)).unwrap();
    logits
}

/// Mean KL divergence of two sets of logits.
pub(crate) fn divergence(p: &[f32], q: &[f32], n_vocab: usize) -> f64 {
    let log_probs = |row: &[f32]| -> Vec<f64> {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
        row.iter().map(|&x| f64::from(x - max) - sum.ln()).collect()
    };
    let rows = p.chunks_exact(n_vocab).zip(q.chunks_exact(n_vocab));
    let n = p.len() / n_vocab;
    let sums = rows.map(|(p, q)| {
        let (p, q) = (log_probs(p), log_probs(q));
        p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>()
    });
    sums.sum::<f64>() / n as f64
}
