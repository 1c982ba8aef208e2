//! Logits of every position of a prompt given as token ids, for comparison with other programs.
//!
//! `cargo run --release -p runtime --example logits -- MODEL.mpk IDS.json OUT.f32 [N_BATCH] [N_THREADS]`
//!
//! IDS.json is a list of ids or an object with a list `ids`. OUT.f32: raw float32,
//! `[n_tokens][n_vocab]`. `MINFER_CPU` chooses the tier. With the output `-` the prompt is
//! processed for its last logits alone and 64 greedy tokens follow, to see speed.
#![allow(clippy::print_stderr)] // a program for developers
#![allow(unsafe_code)] // the one mmap line

use anyhow::{Context, Result, ensure};
use format_spec::container::Container;
use kernels::Tier;
use runtime::{LoadOptions, LogitsWanted, Model, Session};
use std::io::Write;
use std::ops::ControlFlow;
use std::time::Instant;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    ensure!(args.len() >= 3, "usage: logits MODEL.mpk IDS.json OUT.f32|- [N_BATCH] [N_THREADS]");
    let number = |i: usize, default| args.get(i).map_or(Ok(default), |arg| arg.parse::<usize>());
    let (n_batch, n_threads) = (number(3, 512)?, number(4, 2)?);
    let file = std::fs::File::open(&args[0]).with_context(|| args[0].clone())?;
    // SAFETY: a developer's tool; nobody changes the file meanwhile.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    let container = Container::parse(&map)?;
    let tier = match std::env::var("MINFER_CPU") {
        Ok(name) => Tier::parse(&name)?,
        Err(_) => Tier::detect(),
    };
    let exp_plane = std::env::var("MINFER_MMQ_Q6K_EXP").as_deref() != Ok("0");
    let start = Instant::now();
    let model = Model::open(&map, &container, &LoadOptions { tier, n_threads, exp_plane })?;
    eprintln!("loaded in {:?}, tier {}", start.elapsed(), tier.name());
    let ids = read_ids(&args[1])?;
    let mut session = Session::new(&model, ids.len() + 128)?;
    if args[2] == "-" {
        speed(&mut session, &ids, n_batch)?;
    } else {
        let mut out = std::io::BufWriter::new(std::fs::File::create(&args[2])?);
        let mut failure = None;
        let mut sink = |_: usize, logits: &[f32]| match logits
            .iter()
            .try_for_each(|x| out.write_all(&x.to_le_bytes()))
        {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        };
        let done = session.prefill(&ids, n_batch, LogitsWanted::all(&mut sink)).map(|_| ());
        failure.map_or(Ok(()), Err)?;
        done?;
        out.flush()?;
    }
    let timings = session.timings();
    let rate = |n: u64, time: std::time::Duration| n as f64 / time.as_secs_f64().max(1e-9);
    eprintln!("prefill {:.1} tok/s", rate(timings.n_prefill_tokens, timings.prefill));
    eprintln!("decode {:.1} tok/s", rate(timings.n_decode_tokens, timings.decode));
    Ok(())
}

fn speed(session: &mut Session<'_, '_>, ids: &[u32], n_batch: usize) -> Result<()> {
    let mut token = argmax(session.prefill(ids, n_batch, LogitsWanted::Last)?);
    for _ in 0..64 {
        token = argmax(session.decode(token)?);
    }
    Ok(())
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(i, _)| i as u32)
}

fn read_ids(path: &str) -> Result<Vec<u32>> {
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let list = value.get("ids").unwrap_or(&value).as_array().context("a list of ids")?;
    list.iter().map(|id| u32::try_from(id.as_u64().context("an id")?).context("an id")).collect()
}
