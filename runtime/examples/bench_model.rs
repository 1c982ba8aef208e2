//! Speed of a whole model on one device: medians of repeated prompts and generated tokens.
//!
//! `bench_model MODEL.mpk [cpu|cuda] [auto|mmq|bf16] [N_PROMPT] [N_GENERATED] [ROUNDS]`
//!
//! One process, so that only the first of the rounds pays for what a process does once; that round
//! is printed by itself. Tokens are pseudo-random. `MINFER_MMQ_Q6K_EXP=0` leaves planes unread,
//! `MINFER_GPU_ARGMAX=0` brings the logits of every token to the host, `MINFER_GPU_WGMMA_ATTENTION=0`,
//! `MINFER_GPU_CLUSTER_ATTENTION=0`, `MINFER_GPU_KEEP_BF16=0`, `MINFER_GPU_FUSE=0` and `MINFER_GPU_RING=0` do what they do for minfer-run.
#![allow(clippy::print_stdout)] // a program for developers
#![allow(unsafe_code)] // the one mmap line

use anyhow::{Context, Result};
use format_spec::container::Container;
use runtime::{
    Choice, CudaOptions, Gemm, LoadOptions, LoadWatch, LogitsWanted, Model, Prefill, Session,
};
use std::time::Instant;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |i: usize, default: &'static str| args.get(i).map_or(default, String::as_str);
    let path = args.first().context("usage: bench_model MODEL.mpk [DEVICE] [PREFILL] ...")?;
    let (n_prompt, n_generated): (usize, usize) =
        (text(3, "512").parse()?, text(4, "128").parse()?);
    let n_rounds: usize = text(5, "5").parse()?;
    let file = std::fs::File::open(path).with_context(|| path.clone())?;
    // SAFETY: a developer's tool; nobody changes the file meanwhile.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    let container = Container::parse(&map)?;
    let exp_plane = std::env::var("MINFER_MMQ_Q6K_EXP").as_deref() != Ok("0");
    let on_device = std::env::var("MINFER_GPU_ARGMAX").as_deref() != Ok("0");
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = LoadOptions { n_threads, exp_plane, ..LoadOptions::default() };
    let prefill = match text(2, "auto") {
        "mmq" => Prefill::Mmq,
        "bf16" => Prefill::Bf16,
        _ => Prefill::Auto,
    };
    let start = Instant::now();
    let model = match text(1, "cuda") {
        "cpu" => Model::open(&map, &container, &options)?,
        _ => {
            let on = |name: &str| std::env::var(name).as_deref() != Ok("0");
            let gemm = match std::env::var("MINFER_GPU_GEMM").as_deref() {
                Ok("own") => Gemm::Own,
                Ok("cublas") => Gemm::Cublas,
                _ => Gemm::Auto,
            };
            let cuda = CudaOptions {
                prefill,
                gemm,
                argmax: on_device,
                wgmma_attention: on("MINFER_GPU_WGMMA_ATTENTION"),
                cluster_attention: on("MINFER_GPU_CLUSTER_ATTENTION"),
                keep_bf16: on("MINFER_GPU_KEEP_BF16"),
                fused: on("MINFER_GPU_FUSE"),
                ring: on("MINFER_GPU_RING"),
                ..CudaOptions::default()
            };
            Model::open_cuda(&map, &container, &options, &cuda, LoadWatch::SILENT)?
        }
    };
    println!("load {:.3} s", start.elapsed().as_secs_f64());
    let n_vocab = model.n_tokens() as u64;
    let tokens: Vec<u32> =
        (0..n_prompt as u64).map(|i| (i.wrapping_mul(2_654_435_761) % n_vocab) as u32).collect();
    let mut session = Session::new(&model, n_prompt + n_generated)?;
    let on_device = session.choose_greedily(&[])?;
    println!("tokens are chosen {}", if on_device { "on the device" } else { "here" });
    let (mut prompts, mut steps) = (Vec::new(), Vec::new());
    for round in 0..=n_rounds {
        session.truncate(0);
        let start = Instant::now();
        let mut token = argmax(session.prefill(&tokens, n_prompt, LogitsWanted::Last)?);
        let prompt = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for i in 0..n_generated {
            token = match session.decode_greedy(token, i + 1 < n_generated)? {
                Choice::Token(token) => token,
                Choice::NotFinite => anyhow::bail!("no logit is finite"),
                Choice::Open(logits) => argmax(logits),
            };
        }
        let generated = start.elapsed().as_secs_f64() / n_generated.max(1) as f64;
        if round == 0 {
            println!("first: prompt {:.2} ms, {:.3} ms a token", prompt * 1e3, generated * 1e3);
            continue;
        }
        prompts.push(prompt);
        steps.push(generated);
    }
    let (prompt, step) = (median(&mut prompts), median(&mut steps));
    println!(
        "median of {n_rounds}: prompt {n_prompt} tokens {:.2} ms = {:.0} tokens/s; {:.3} ms a token = {:.1} tokens/s at depth {n_prompt}",
        prompt * 1e3,
        n_prompt as f64 / prompt,
        step * 1e3,
        1.0 / step,
    );
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(i, _)| i as u32)
}
