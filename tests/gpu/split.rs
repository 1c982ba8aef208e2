//! Models split between CPU and GPU.

use crate::Test;
use crate::model::{all_logits, divergence, on_gpu, on_host, options, packed};
use format_spec::QuantType;
use format_spec::container::Container;
use runtime::{Choice, CudaOptions, GpuLayers, LoadOptions, LoadWatch, Model, Prefill, Session};
use tests::packing::pack;
use tests::tiny_model::tiny_model;

pub(crate) const TESTS: &[Test] = &[
    ("a_split_model_says_the_same", a_split_model_says_the_same),
    ("auto_takes_as_many_layers_as_fit", auto_takes_as_many_layers_as_fit),
    ("greedy_choice_behind_the_cpu", greedy_choice_behind_the_cpu),
];

const N_LAYER: usize = 7;
const N_TOKENS: u32 = 37;

fn a_split_model_says_the_same() {
    for architecture in ["qwen2", "gemma3"] {
        let gguf = tiny_model(architecture, &[QuantType::Q4_K, QuantType::Q6_K]).build();
        let file = pack(&gguf, "default");
        let container = Container::parse(&file).unwrap();
        let cpu = Model::open(&file, &container, &LoadOptions::default()).unwrap();
        let expected = all_logits(&cpu, N_TOKENS, 64);
        let mut whole = 0.0;
        for n in [N_LAYER, N_LAYER - 1, 3, 1] {
            let cuda = CudaOptions { layers: GpuLayers::Last(n), ..options(Prefill::Mmq) };
            on_gpu(&file, &cuda, true, |model| {
                assert_eq!(model.gpu_layers(), Some(N_LAYER - n..N_LAYER));
                assert_eq!(model.explain().len(), 7 * N_LAYER + 1, "each matrix once");
                for n_batch in [64, 5, 1] {
                    let found = all_logits(model, N_TOKENS, n_batch);
                    assert!(found.iter().all(|logit| logit.is_finite()));
                    let kl = divergence(&expected, &found, cpu.n_vocab());
                    println!("  {architecture}, {n} layers, -b {n_batch}: mean KL {kl:.6}");
                    if n == N_LAYER {
                        whole = f64::max(whole, kl);
                    }
                    // Fewer layers on the GPU, no more difference from the CPU.
                    assert!(kl <= 1.5 * whole + 1e-6, "{kl} with {n} layers, {whole} with all");
                }
            });
        }
        assert!(whole < 0.05, "{architecture}: {whole}");
    }
}

fn auto_takes_as_many_layers_as_fit() {
    let file = packed("default");
    let container = Container::parse(&file).unwrap();
    let open = |layers, max_bytes| {
        let cuda = CudaOptions { layers, max_bytes, ..options(Prefill::Mmq) };
        Model::open_cuda(&file, &container, &LoadOptions::default(), &cuda, LoadWatch::SILENT)
    };
    let needs: Vec<u64> = (1..=N_LAYER)
        .map(|n| open(GpuLayers::Last(n), 0).unwrap().gpu_plan().unwrap().need_bytes())
        .collect();
    assert!(needs.windows(2).all(|pair| pair[0] < pair[1]), "{needs:?}");
    for (n, &need) in (1..).zip(&needs) {
        for max in [need, need + 1] {
            let model = open(GpuLayers::Auto, max).unwrap();
            assert_eq!(model.gpu_layers(), Some(N_LAYER - n..N_LAYER), "{max} bytes");
            assert!(all_logits(&model, N_TOKENS, 16).iter().all(|logit| logit.is_finite()));
        }
    }
    assert!(open(GpuLayers::Auto, needs[0] - 1).is_err(), "not even one layer fits");
    assert!(open(GpuLayers::All, needs[N_LAYER - 1] - 1).is_err(), "all, or nothing");
    assert_eq!(open(GpuLayers::Auto, 0).unwrap().gpu_layers(), Some(0..N_LAYER));
}

fn greedy_choice_behind_the_cpu() {
    let cuda = CudaOptions { layers: GpuLayers::Last(3), ..options(Prefill::Mmq) };
    on_gpu(&packed("default"), &cuda, true, |model| {
        let expected = on_host(&mut Session::new(model, 64).unwrap(), 3, 30);
        let mut session = Session::new(model, 64).unwrap();
        assert!(session.choose_greedily(&[]).unwrap());
        let mut tokens = vec![3];
        for _ in 0..30 {
            match session.decode_greedy(tokens[tokens.len() - 1], true).unwrap() {
                Choice::Token(token) => tokens.push(token),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(tokens, expected);
        assert_eq!(model.gpu_choice().unwrap().n_launches, 30, "no step is begun ahead");
    });
}
