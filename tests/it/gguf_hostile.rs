//! Malformed GGUF files: every one is refused with the exact text, and nothing panics.

use format_spec::{Gguf, QuantType};
use tests::gguf_writer::GgufBuilder;
use tests::properties::consistent;

use crate::gguf_cases::{all_cases, base, base_b, base_kvs};

/// Entries of [`many_keys`] and [`many_tensors`].
pub(crate) const MANY: usize = 1_000_000;

/// A sound file of a million keys.
pub(crate) fn many_keys() -> Vec<u8> {
    let mut builder = GgufBuilder::new();
    for i in 0..MANY {
        builder = builder.kv_u8(&format!("k{i}"), 1);
    }
    builder.build()
}

/// A sound file of a million tensors.
pub(crate) fn many_tensors() -> Vec<u8> {
    let mut builder = GgufBuilder::new();
    for i in 0..MANY {
        builder = builder.tensor(&format!("t{i}"), &[1], QuantType::F32, &[0; 4]);
    }
    builder.build()
}

#[test]
fn malformed_files_are_refused_with_the_exact_text() {
    let mut wrong = Vec::new();
    for (name, file, expected) in all_cases() {
        let found = match Gguf::parse(&file) {
            Ok(_) => "accepted".into(),
            Err(error) => error.to_string(),
        };
        if found != expected {
            wrong.push(format!("{name}\n  expected {expected}\n  found    {found}\n"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.concat());
}

#[test]
fn odd_but_sound_files_are_accepted() {
    let accepted = [
        ("HEADER_EMPTY", GgufBuilder::new()),
        ("KV_SUCCESS", base_kvs()),
        ("TENSORS_SUCCESS, DATA_SUCCESS", base()),
        ("TENSORS_CUSTOM_ALIGN, DATA_CUSTOM_ALIGN", base().alignment(1)),
        ("alignment 1 MiB", base().alignment(1 << 20)),
        ("version 2", base().version(2)),
        ("last padding missing", base().no_final_padding()),
        ("trailing bytes", base().trailing(b"signature")),
        ("bool byte 2", base().kv_raw("x", 7, &[2])),
        ("empty arrays", base().kv_strs::<&str>("x", &[]).kv_u32s("y", &[])),
        ("empty string", base().kv_str("x", "")),
        ("value is not UTF-8", base().kv_str("x", b"\xff\xfe")),
        ("a token of 100 KB", base().kv_strs("x", &["t".repeat(100_000), String::new()])),
        ("equal tokens", base().kv_strs("x", &["t", "t"])),
        ("name of 63 bytes", base_b(&"n".repeat(63), &[32], 8, 34)),
        ("key of 65535 bytes", base().kv_u32(&"k".repeat(65535), 1)),
        ("four dims", base_b("b", &[2, 1, 2, 2], 0, 32)),
        ("merged file", base().kv_u16("split.count", 0)),
        ("one file of one", base().kv_u16("split.count", 1).kv_u16("split.no", 0)),
    ];
    for (name, builder) in accepted {
        let file = builder.build();
        let gguf = Gguf::parse(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        consistent(&gguf, &file);
    }
}

fn try_file(file: &[u8]) -> bool {
    let parsed = Gguf::parse(file);
    if let Ok(gguf) = &parsed {
        consistent(gguf, file);
    }
    parsed.is_ok()
}

/// A small file with every kind of value in it.
fn rich() -> GgufBuilder {
    base()
        .kv_strs("tokens", &["<s>", "", "a"])
        .kv_f32s("scores", &[0.5, -1.0])
        .kv_bool("flag", true)
        .kv_f64("f64", 1.0)
        .kv_u32("general.alignment", 32)
        .kv_u8s("bytes", &[1, 2, 3])
}

#[test]
fn every_truncation_is_refused() {
    for builder in [base(), rich(), base().alignment(1)] {
        let file = builder.no_final_padding().build();
        assert!(try_file(&file));
        for len in 0..file.len() {
            let error = Gguf::parse(&file[..len]).expect_err(&format!("{len} bytes accepted"));
            let text = error.to_string();
            assert!(text.contains("at offset") || len == 0, "{len}: {text}");
        }
    }
}

#[test]
fn no_bit_flip_panics() {
    for builder in [base(), rich()] {
        let mut file = builder.build();
        for bit in 0..file.len() * 8 {
            file[bit / 8] ^= 1 << (bit % 8);
            try_file(&file);
            file[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn no_field_value_panics() {
    let good = rich().build();
    let header_len = rich().build_header().len();
    let mut n_accepted = 0u32;
    for at in 0..header_len - 8 {
        let old = u64::from_le_bytes(good[at..at + 8].try_into().unwrap());
        let edges = [0, 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, u64::MAX];
        let near = [old.wrapping_sub(1), old.wrapping_add(1), old.wrapping_mul(2)];
        for value in edges.into_iter().chain(near) {
            for width in [4, 8] {
                let mut file = good.clone();
                file[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
                n_accepted += u32::from(try_file(&file));
            }
        }
    }
    assert!(n_accepted > 0, "no mutation reached the checks of accepted files");
}

#[test]
fn no_retyped_pair_and_no_lost_tensor_panics() {
    for i in 0..rich().kvs_mut().len() {
        for type_id in 0..16 {
            let mut builder = rich();
            builder.kvs_mut()[i].type_id = type_id;
            try_file(&builder.build());
        }
        let mut builder = rich();
        builder.kvs_mut().remove(i);
        assert!(try_file(&builder.build()), "pair {i} removed");
    }
    for i in 0..rich().tensors_mut().len() {
        let mut removed = rich();
        removed.tensors_mut().remove(i);
        assert!(try_file(&removed.build()), "tensor {i} removed");
        let mut twice = rich();
        let copy = twice.tensors_mut()[i].clone();
        twice.tensors_mut().push(copy);
        assert!(!try_file(&twice.build()), "tensor {i} twice");
    }
}

proptest::proptest! {
    #[test]
    fn no_random_header_panics(n_tensors in 0u64..4, n_kv in 0u64..4, rest: Vec<u8>) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(n_tensors.to_le_bytes());
        file.extend(n_kv.to_le_bytes());
        file.extend(rest);
        try_file(&file);
    }

    #[test]
    fn no_few_edits_panic(edits: [(usize, u8); 4], n_edits in 1usize..=4, cut: Option<usize>) {
        let mut file = rich().build();
        for &(at, byte) in &edits[..n_edits] {
            let at = at % file.len();
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut % file.len());
        }
        try_file(&file);
    }
}
