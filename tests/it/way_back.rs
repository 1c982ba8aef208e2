//! `minfer-unpack` gives back the bytes that `minfer-pack` read, whatever they are.

use format_spec::container::Container;
use format_spec::{Gguf, QuantType};
use preprocess::Class;
use tests::gguf_writer::GgufBuilder;
use tests::packing::{pack, pack_parts, try_pack, unpack};
use tests::tiny_model::random_weights;

/// One list for each way in which a base can be chosen, and those that add planes.
const PLANES: [&str; 11] = [
    "none",
    "cpu-fast",
    "tile,exp,sb",
    "default",
    "cuda-fast",
    "all",
    "planar",
    "padded,planar",
    "planar,exp,dsc",
    "eb,sb",
    "bf16",
];

/// Every tensor type in shapes that end inside tiles: a vector, odd rows, three dimensions.
fn every_type(mut file: GgufBuilder) -> GgufBuilder {
    for (i, &quant) in QuantType::ALL.iter().enumerate() {
        let block = quant.block_elems() as u64;
        for (part, dims) in
            [("a", vec![3 * block]), ("b", vec![2 * block, 7]), ("c", vec![block, 3, 2])]
        {
            let name = format!("{}.{part}.weight", quant.name());
            file = file.tensor(&name, &dims, quant, &random_weights(quant, &dims, i as u64));
        }
    }
    file
}

/// Keys that mean nothing to us, empty arrays, and tokens that stand twice.
fn odd_keys() -> GgufBuilder {
    GgufBuilder::new()
        .kv_str("general.architecture", "llama")
        .kv_str("somebody.else", b"\xff not utf-8")
        .kv_f64("f64", -0.0)
        .kv_raw("bool of 2", 7, &[2])
        .kv_u32s("empty.numbers", &[])
        .kv_strs::<&str>("empty.strings", &[])
        .kv_str("tokenizer.ggml.model", "llama")
        .kv_strs("tokenizer.ggml.tokens", &["<unk>", "twice", "twice", ""])
        .kv_f32s("tokenizer.ggml.scores", &[0.0, -1.0, -1.0, -2.0])
        .kv_i32s("tokenizer.ggml.token_type", &[2, 1, 1, 1])
}

fn comes_back(what: &str, gguf: &[u8]) {
    for planes in PLANES {
        let back = unpack(&pack(gguf, planes)).unwrap_or_else(|e| panic!("{what} {planes}: {e}"));
        assert!(back == [gguf], "{what} {planes}: other bytes");
    }
}

#[test]
fn every_type_comes_back_from_any_planes() {
    comes_back("every type", &every_type(odd_keys()).build());
}

#[test]
fn odd_alignments_padding_and_trailing_bytes_come_back() {
    for alignment in [1, 8, 64, 4096] {
        comes_back("alignment", &every_type(odd_keys().alignment(alignment)).build());
    }
    let file = || every_type(odd_keys());
    comes_back("version 2", &file().version(2).build());
    comes_back("padding", &file().pad_byte(0xa5).build());
    comes_back("trailing", &file().trailing(b"\0\0signature\0\0\0").build());
    comes_back("trailing zeros", &file().trailing(&[0; 100]).build());
    comes_back("no last padding", &file().no_final_padding().build());
    comes_back("no tensors", &odd_keys().build());
    comes_back("no tensors, trailing", &odd_keys().trailing(b"x").build());
    let all = file().alignment(256).pad_byte(7).trailing(&[9; 5000]).build();
    comes_back("everything", &all);
}

/// Rows longer than a leaf, and rows that end anywhere in one.
#[test]
fn rows_across_leaves_come_back() {
    let mut file = GgufBuilder::new().kv_str("general.architecture", "llama");
    let shapes: [(QuantType, &[u64]); 5] = [
        (QuantType::F32, &[1_300_003, 3]),
        (QuantType::F32, &[5_000_001]),
        (QuantType::Q8_0, &[1_250_016, 9]),
        (QuantType::Q6_K, &[12_800, 1001]),
        (QuantType::Q4_K, &[2_560_000, 5]),
    ];
    for (i, (quant, dims)) in shapes.into_iter().enumerate() {
        // The noise of one row will do: what counts is where it lies.
        let row = random_weights(quant, &dims[..1], i as u64);
        let mut data = row.repeat(dims[1..].iter().product::<u64>() as usize);
        // Rows differ, so that one in another's place is found; low bits keep floats finite.
        let row_bytes = row.len();
        for (at, row) in data.chunks_mut(row_bytes).enumerate() {
            row[4] ^= at as u8;
        }
        file = file.tensor(&format!("t{i}"), dims, quant, &data);
    }
    let gguf = file.build();
    for planes in ["none", "planar", "tile"] {
        let back = unpack(&pack(&gguf, planes)).unwrap();
        assert!(back == [gguf.as_slice()], "{planes}: other bytes");
    }
}

#[test]
fn a_damaged_container_does_not_come_back() {
    let gguf = every_type(odd_keys()).build();
    for planes in ["none", "planar", "tile"] {
        let mut file = pack(&gguf, planes);
        let container = Container::parse(&file).unwrap();
        let bases: Vec<_> =
            container.tensors().map(|t| (t.base.name.clone(), t.base.range())).collect();
        for (name, range) in bases {
            for at in [range.start, (range.start + range.end) / 2, range.end - 1] {
                file[at as usize] ^= 0x10;
                let error = unpack(&file).expect_err(&name);
                assert_eq!(error.class(), Class::Failed, "{error}");
                assert!(error.to_string().starts_with(&name), "{error}");
                file[at as usize] ^= 0x10;
            }
        }
    }
}

/// The tensors of `whole` over several parts, as llama-gguf-split writes them: the metadata in the
/// first, which may be without tensors.
fn split(n_parts: u16, first_has_tensors: bool) -> Vec<Vec<u8>> {
    let mut whole = every_type(odd_keys());
    let tensors = whole.tensors_mut().clone();
    let mut parts: Vec<_> = (0..n_parts)
        .map(|i| {
            let file = if i == 0 { odd_keys() } else { GgufBuilder::new() };
            file.kv_u16("split.no", i)
                .kv_u16("split.count", n_parts)
                .kv_i32("split.tensors.count", tensors.len() as i32)
        })
        .collect();
    let n_with_tensors = parts.len() - usize::from(!first_has_tensors);
    let first = parts.len() - n_with_tensors;
    for (i, tensor) in tensors.iter().enumerate() {
        parts[first + i * n_with_tensors / tensors.len()].tensors_mut().push(tensor.clone());
    }
    parts.into_iter().map(|part| part.trailing(b"end").build()).collect()
}

#[test]
fn the_parts_of_a_split_model_come_back() {
    let whole = every_type(odd_keys()).build();
    for (n_parts, first_has_tensors) in [(2, true), (3, false), (39, true)] {
        let parts = split(n_parts, first_has_tensors);
        for planes in PLANES {
            let file = pack_parts(&parts, planes);
            assert!(unpack(&file).unwrap() == parts, "{n_parts} parts, {planes}");
            // The weights are those of the model in one file.
            let of_one = pack(&whole, planes);
            let (a, b) = (Container::parse(&file).unwrap(), Container::parse(&of_one).unwrap());
            let hashes = |c: &Container<'_>| -> Vec<_> {
                c.objects().iter().map(|o| (o.name.clone(), o.sha256)).collect()
            };
            assert_eq!(hashes(&a), hashes(&b));
        }
    }
}

#[test]
fn parts_that_are_no_set_are_refused() {
    let parts = split(3, true);
    let refused = |parts: &[Vec<u8>]| {
        let error = try_pack(parts, "none").expect_err("no set");
        assert_eq!(error.class(), Class::Input, "{error}");
        let text = error.to_string();
        // Where the key stands says nothing about the rule.
        let at = text.find(" at offset ").unwrap();
        let rest = text[at..].find(':').unwrap();
        format!("{}{}", &text[..at], &text[at + rest..])
    };
    let with = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut parts = parts.clone();
        change(&mut parts);
        refused(&parts)
    };
    assert_eq!(
        refused(&parts[..1]),
        "key split.count: part 1 of a model split over 3 files is not supported (the parts are \
         found by their names, NAME-00001-of-0000N.gguf, side by side; cat is no merge)"
    );
    assert_eq!(refused(&parts[..2]), "key split.count of part 1: expected 2, found 3");
    assert_eq!(with(&|parts| parts.swap(0, 1)), "key split.no of part 1: expected 0, found 1");
    assert_eq!(
        with(&|parts| parts[2] =
            every_type(GgufBuilder::new()).without_tensor("f32.a.weight").build()),
        "name of a tensor of part 3: expected every name once, found f32.b.weight, the name of a \
         tensor of part 1"
    );
    assert_eq!(
        with(&|parts| parts[2] = GgufBuilder::new().build()),
        "key split.count of part 3: expected 3, found a file that is no part of a model"
    );
    let lacks = GgufBuilder::new()
        .kv_u16("split.no", 2)
        .kv_u16("split.count", 3)
        .kv_i32("split.tensors.count", 39)
        .build();
    assert_eq!(
        with(&|parts| parts[2] = lacks.clone()),
        "key split.tensors.count of part 1: expected 26, the tensors of all parts, found 39"
    );
    let wrong = odd_keys().kv_u16("split.no", 3).kv_u16("split.count", 3).build();
    assert!(Gguf::parse(&wrong).is_err());
    assert_eq!(
        refused(&[wrong]),
        "key split.no: expected below 3, the value of split.count, found u16 3"
    );
    // The same part twice: one of them is in a place that is not its own.
    assert_eq!(
        with(&|parts| parts[1] = parts[0].clone()),
        "name of a tensor of part 2: expected every name once, found f32.a.weight, the name of a \
         tensor of part 1"
    );
}
