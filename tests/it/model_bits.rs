//! A token's logits are the same bits for any batch, thread count, tier, plane or history.

use format_spec::QuantType;
use format_spec::container::Container;
use kernels::Tier;
use runtime::report::MatmulReport;
use runtime::{LoadOptions, LogitsWanted, Model, Session};
use std::ops::ControlFlow;
use tests::packing::pack;
use tests::tiny_model::{N_VOCAB, tiny_mixtral, tiny_model};

/// More than a GEMM tile and more than a window, odd.
const N_TOKENS: u32 = 37;

fn ids() -> Vec<u32> {
    (0..N_TOKENS).map(|i| (i * i * 7 + i * 13 + 5) % N_VOCAB as u32).collect()
}

/// Logits of every position, as bits.
fn all_logits(session: &mut Session<'_, '_>, ids: &[u32], n_batch: usize) -> Vec<u32> {
    let mut bits = Vec::new();
    let mut sink = |position: usize, logits: &[f32]| {
        assert_eq!(bits.len(), position * logits.len(), "positions come in order");
        bits.extend(logits.iter().map(|x| x.to_bits()));
        ControlFlow::Continue(())
    };
    session.prefill(ids, n_batch, LogitsWanted::all(&mut sink)).unwrap();
    bits
}

fn check(architecture: &str, quants: &[QuantType]) {
    check_model(&format!("{architecture} {quants:?}"), &tiny_model(architecture, quants).build());
}

fn check_model(name: &str, gguf: &[u8]) {
    let mut expected: Option<Vec<u32>> = None;
    for planes in ["none", "default", "cpu-fast", "cuda-fast"] {
        let file = pack(gguf, planes);
        let container = Container::parse(&file).unwrap();
        for &tier in Tier::ALL.iter().filter(|tier| tier.available()) {
            // The scalar tier takes its time; what threads and batches do is the same code.
            let n_options = if tier == Tier::Scalar { 1 } else { 3 };
            for (n_threads, exp_plane) in
                [(2, true), (3, false), (1, true)].into_iter().take(n_options)
            {
                let options = LoadOptions { tier, n_threads, exp_plane, ..LoadOptions::default() };
                let model = Model::open(&file, &container, &options).unwrap();
                for n_batch in [64, 1, 7] {
                    let mut session = Session::new(&model, 64).unwrap();
                    let bits = all_logits(&mut session, &ids(), n_batch);
                    let finite = |&x: &u32| f32::from_bits(x).is_finite();
                    assert!(bits.iter().all(finite));
                    match &expected {
                        None => expected = Some(bits),
                        Some(expected) => assert!(
                            *expected == bits,
                            "{name}: {options:?}, batches of {n_batch}, {planes}"
                        ),
                    }
                }
            }
        }
    }
    let expected = expected.unwrap();
    histories_do_not_matter(gguf, &expected);
}

/// Decoding, going back, and the last logits alone give the bits of a prefill.
fn histories_do_not_matter(gguf: &[u8], expected: &[u32]) {
    let file = pack(gguf, "none");
    let container = Container::parse(&file).unwrap();
    let options = LoadOptions { n_threads: 2, ..LoadOptions::default() };
    let model = Model::open(&file, &container, &options).unwrap();
    let (ids, n_vocab) = (ids(), model.n_vocab());
    let at = |position: usize| &expected[position * n_vocab..][..n_vocab];
    let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let mut session = Session::new(&model, 64).unwrap();
    // Two tokens that shall leave no trace.
    assert!(session.prefill(&[3, 4], 512, LogitsWanted::None).unwrap().is_empty());
    session.truncate(0);
    assert_eq!(bits(session.prefill(&ids[..20], 8, LogitsWanted::Last).unwrap()), at(19));
    for (i, &id) in ids.iter().enumerate().skip(20) {
        assert_eq!(bits(session.decode(id).unwrap()), at(i), "decoded position {i}");
    }
    session.truncate(11);
    assert_eq!(session.n_past(), 11);
    assert_eq!(bits(session.prefill(&ids[11..30], 512, LogitsWanted::Last).unwrap()), at(29));
    let mut seen = Vec::new();
    let mut sink = |index: usize, logits: &[f32]| {
        assert_eq!(bits(logits), at(30 + index));
        seen.push(index);
        ControlFlow::Continue(())
    };
    session.prefill(&ids[30..], 3, LogitsWanted::From(4, &mut sink)).unwrap();
    assert_eq!(seen, [4, 5, 6], "only positions from the fourth on are asked for");
}

/// With a window of one a token sees itself alone, and rotation does not matter to it: wherever it
/// stands, its logits are those of a sequence of one.
#[test]
fn a_window_of_one_leaves_a_token_alone() {
    let logits = |window: Option<u32>| {
        let mut gguf = tiny_model("llama", &[QuantType::Q8_0, QuantType::Q4_K]);
        if let Some(window) = window {
            gguf = gguf.kv_u32("llama.attention.sliding_window", window);
        }
        let file = pack(&gguf.build(), "none");
        let container = Container::parse(&file).unwrap();
        let model = Model::open(&file, &container, &LoadOptions::default()).unwrap();
        let together = all_logits(&mut Session::new(&model, 64).unwrap(), &ids(), 16);
        let mut alone = Vec::new();
        for id in ids() {
            alone.extend(all_logits(&mut Session::new(&model, 1).unwrap(), &[id], 1));
        }
        (together, alone)
    };
    let (together, alone) = logits(Some(1));
    assert!(together == alone);
    let (together, alone) = logits(None);
    assert!(together != alone, "without a window the past matters");
    assert!(logits(Some(0)).0 == together, "a window of zero is none");
}

/// The table of kernels says what ran, and what ran is what the table says.
#[test]
fn planes_are_read_where_the_report_says_so() {
    let gguf = tiny_model("qwen2", &[QuantType::Q6_K, QuantType::Q4_K]).build();
    for (planes, exp_plane, label, reads) in [
        ("default", true, "exp", "exp"),
        ("default", false, "off", "padded"),
        ("none", true, "padded", "padded"),
        ("cpu-fast", true, "tile", "tile"),
    ] {
        let file = pack(&gguf, planes);
        let container = Container::parse(&file).unwrap();
        let options = LoadOptions { n_threads: 2, exp_plane, ..LoadOptions::default() };
        let model = Model::open(&file, &container, &options).unwrap();
        let mut session = Session::new(&model, 64).unwrap();
        session.prefill(&ids()[..32], 16, LogitsWanted::Last).unwrap();
        session.decode(1).unwrap();
        let rows = model.explain();
        // Seven matrices a layer and the output, which the embedding serves as.
        assert_eq!(rows.len(), 7 * 7 + 1);
        for row in &rows {
            // `exp` is for q6_K, `tile` for every matrix.
            let read = row.quant == "q6_K" || reads == "tile";
            let expected = if read { (label, reads) } else { ("padded", "padded") };
            assert_eq!(row.decode.reads, if reads == "tile" { "tile" } else { "padded" });
            let found = (row.prefill.label.as_str(), row.prefill.reads.as_str());
            assert_eq!(found, expected, "{row:?}");
            // The last layer computes only wanted rows behind its keys and values, and so the
            // output: one row, as in decoding.
            let few = row.name == "token_embd.weight"
                || row.name.starts_with("blk.6.")
                    && !["q", "k", "v"]
                        .iter()
                        .any(|part| row.name == format!("blk.6.attn_{part}.weight"));
            let expected = if few { (0, 2) } else { (2, 1) };
            assert_eq!((row.prefill.n_launches, row.decode.n_launches), expected, "{row:?}");
        }
        assert!(rows.iter().any(|row| row.quant == "q6_K" && row.prefill.n_launches == 2));
    }
}

/// What `--strict` refuses on a CPU, of every kind of container.
#[test]
fn what_falls_short_is_what_nobody_asked_for() {
    let gguf = tiny_model("qwen2", &[QuantType::Q6_K, QuantType::Q4_K]).build();
    // Whether some matrix falls short in prefill and in decode, and whether some is slow.
    for (planes, tile_units, expected) in [
        ("default", true, (false, false, false)),
        ("none", true, (false, false, false)),
        ("cpu-fast", true, (false, false, false)),
        ("all", true, (false, false, false)),
        ("padded,bf16", true, (false, false, false)),
        ("padded,dsc", true, (true, false, false)),
        ("cuda-fast", true, (true, true, true)),
        // Prefill reads the planes, decode rebuilds rows.
        ("planar,exp,dsc", true, (true, true, true)),
        ("cpu-fast", false, (false, false, true)),
    ] {
        let file = pack(&gguf, planes);
        let container = Container::parse(&file).unwrap();
        let options = LoadOptions { tile_units, ..LoadOptions::default() };
        let rows = Model::open(&file, &container, &options).unwrap().explain();
        let some = |wanted: fn(&MatmulReport) -> bool| rows.iter().any(wanted);
        let found = (
            some(|row| row.prefill.falls_short()),
            some(|row| row.decode.falls_short()),
            some(|row| row.prefill.is_slow || row.decode.is_slow),
        );
        assert_eq!(found, expected, "{planes}, kernels for tile: {tile_units}");
        let exp = rows.iter().filter(|row| row.prefill.label == "exp");
        assert!(exp.into_iter().all(|row| !row.prefill.is_slow), "{planes}");
    }
}

#[test]
fn llama_bits_depend_on_nothing_else() {
    check("llama", &[QuantType::Q4_1, QuantType::Q6_K, QuantType::Q8_0, QuantType::Q2_K]);
}

#[test]
fn qwen2_bits_depend_on_nothing_else() {
    check("qwen2", &[QuantType::Q4_K, QuantType::Q6_K, QuantType::Q5_0, QuantType::F16]);
}

#[test]
fn gemma3_bits_depend_on_nothing_else() {
    check("gemma3", &[QuantType::Q5_0, QuantType::Q4_K, QuantType::Q8_0, QuantType::Q6_K]);
}

#[test]
fn qwen3_bits_depend_on_nothing_else() {
    check("qwen3", &[QuantType::Q4_K, QuantType::Q8_0, QuantType::Q6_K]);
}

/// Which tokens share an expert depends on the batch, what an expert makes of a token does not.
#[test]
fn qwen3moe_bits_depend_on_nothing_else() {
    check("qwen3moe", &[QuantType::Q4_K, QuantType::Q6_K, QuantType::Q8_0, QuantType::F16]);
}

#[test]
fn mixtral_bits_depend_on_nothing_else() {
    let quants = [QuantType::Q6_K, QuantType::Q4_0, QuantType::Q5_K];
    check_model("mixtral", &tiny_mixtral(&quants, false).build());
}

#[test]
fn experts_in_tensors_of_their_own_give_the_bits_of_stacks() {
    let logits = |split| {
        let file = pack(&tiny_mixtral(&[QuantType::Q4_K], split).build(), "default");
        let container = Container::parse(&file).unwrap();
        let options = LoadOptions { n_threads: 2, ..LoadOptions::default() };
        let model = Model::open(&file, &container, &options).unwrap();
        let mut session = Session::new(&model, 64).unwrap();
        let bits = all_logits(&mut session, &ids(), 16);
        // Embedding serves as output; four matrices of attention; router and experts.
        let n_rows = if split { 7 * (4 + 1 + 3 * 5) + 1 } else { 7 * (4 + 1 + 3) + 1 };
        assert_eq!(model.explain().len(), n_rows);
        bits
    };
    assert!(logits(false) == logits(true));
}

/// An expert's product counts like any other: by the tokens that it has.
#[test]
fn experts_are_counted_and_read_their_planes() {
    let gguf = tiny_model("qwen3moe", &[QuantType::Q6_K]).build();
    let file = pack(&gguf, "default");
    let container = Container::parse(&file).unwrap();
    let model = Model::open(&file, &container, &LoadOptions::default()).unwrap();
    let mut session = Session::new(&model, 256).unwrap();
    let n_tokens = 200;
    let tokens: Vec<u32> = (0..n_tokens).map(|i| i * 31 % N_VOCAB as u32).collect();
    session.prefill(&tokens, 512, LogitsWanted::Last).unwrap();
    session.decode(1).unwrap();
    for row in model.explain().iter().filter(|row| row.name.contains("_exps")) {
        assert_eq!(row.prefill.label, "exp", "{row:?}");
        let (many, few) = (row.prefill.n_launches, row.decode.n_launches);
        if row.name.starts_with("blk.6.") {
            assert_eq!((many, few), (0, 2 + 2), "one wanted token and one decoded: {row:?}");
        } else {
            assert!((2..=5).contains(&many), "no more experts than there are: {row:?}");
            assert!((2..=2 + 5 - many).contains(&few), "two experts a token: {row:?}");
        }
    }
}

#[test]
fn every_other_quant_type_runs() {
    check("llama", &[QuantType::Q3_K, QuantType::Q5_K, QuantType::Q4_0, QuantType::BF16]);
    check("qwen2", &[QuantType::Q5_1, QuantType::F32]);
}
