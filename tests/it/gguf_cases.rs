//! Malformed GGUF files, each with the exact text that it is refused with.
//!
//! Names in capitals are the cases of llama.cpp's tests/test-gguf.cpp; the others are known faults
//! of GGUF readers and downloads that went wrong.

use format_spec::QuantType;
use tests::gguf_writer::GgufBuilder;

/// Offsets in the header of [`base`], to read the expected texts by.
///
/// ```text
///   0 magic, version, 8 n_tensors, 16 n_kv
///  24 key 0: 52 type, 56 value             69 key 1: 94 type, 98 value
/// 102 tensor a: 111 n_dims, 115 dims, 131 type, 135 offset
/// 143 tensor b: 152 n_dims, 156 dim, 164 type, 168 offset
/// 176 end; 192 data of a, 224 data of b, 258 its end, 288 end of file
/// ```
pub(crate) fn base() -> GgufBuilder {
    GgufBuilder::new()
        .kv_str("general.architecture", "llama")
        .kv_u32("llama.block_count", 1)
        .tensor("a", &[4, 2], QuantType::F32, &[1; 32])
        .tensor("b", &[32], QuantType::Q8_0, &[2; 34])
}

/// [`base`] without tensors; the next key stands at 102.
pub(crate) fn base_kvs() -> GgufBuilder {
    let mut builder = base();
    builder.tensors_mut().clear();
    builder
}

/// [`base`] with another tensor b.
pub(crate) fn base_b(name: &str, dims: &[u64], type_id: u32, data_len: usize) -> GgufBuilder {
    base().without_tensor("b").tensor_raw(name, dims, type_id, None, &vec![3; data_len])
}

/// A file and the exact error that it gives.
pub(crate) type Case = (&'static str, Vec<u8>, String);

fn case(name: &'static str, file: impl Into<Vec<u8>>, error: impl Into<String>) -> Case {
    (name, file.into(), error.into())
}

fn built(name: &'static str, builder: GgufBuilder, error: impl Into<String>) -> Case {
    case(name, builder.build(), error)
}

const ALL_TYPES: &str =
    "supported: f32, f16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_K, q3_K, q4_K, q5_K, q6_K, bf16";

fn header_cases() -> Vec<Case> {
    let too_many = |field: &str, at: u32, most: u32, rest: u32, n: u64| {
        format!(
            "{field} at offset {at}: expected at most {most} (all that the remaining {rest} bytes can hold), found {n}"
        )
    };
    let version =
        |v: &str| format!("version at offset 4: {v} is not supported (supported: GGUF 2 and 3)");
    vec![
        built(
            "HEADER_BAD_MAGIC",
            base().magic(*b"FUGG"),
            "not a GGUF file: looks like a GGUF magic in reverse (endianness?)",
        ),
        built("HEADER_BAD_VERSION_0", base().version(0), version("0")),
        built("HEADER_BAD_VERSION_1", base().version(1), version("1")),
        built("HEADER_BAD_VERSION_FUTURE", base().version(4), version("4")),
        built(
            "big-endian version 3",
            base().version(3u32.swap_bytes()),
            "version at offset 4: 0x03000000 (endianness? a big-endian file) is not supported (supported: little-endian GGUF 2 and 3)",
        ),
        built(
            "HEADER_BAD_N_TENSORS",
            base().n_tensors(u64::MAX),
            // The tensor infos and the data are what remains once the keys are read.
            too_many("n_tensors", 8, 5, 186, u64::MAX),
        ),
        built("HEADER_BAD_N_KV", base().n_kv(u64::MAX), too_many("n_kv", 16, 18, 264, u64::MAX)),
        built(
            "n_tensors times the size of an info wraps",
            base().n_tensors(u64::MAX / 72 + 1),
            too_many("n_tensors", 8, 5, 186, u64::MAX / 72 + 1),
        ),
        built(
            "n_kv 0x555555555555555a (CVE-2024-25664)",
            base().n_kv(0x555555555555555a),
            too_many("n_kv", 16, 18, 264, 0x555555555555555a),
        ),
        built("n_kv 2^40", base().n_kv(1 << 40), too_many("n_kv", 16, 18, 264, 1 << 40)),
        built(
            "n_kv 5e8 (ferrox #24)",
            {
                let mut empty = GgufBuilder::new().n_kv(500_000_000);
                empty.tensors_mut().clear();
                empty
            },
            too_many("n_kv", 16, 0, 8, 500_000_000),
        ),
        case("4-byte file", *b"GGUF", "version at offset 4 needs bytes 4..8, file has 4"),
        case("3-byte file", *b"GGU", "magic at offset 0 needs bytes 0..4, file has 3"),
        case(
            "magic and version only",
            *b"GGUF\x03\0\0\0",
            "n_tensors at offset 8 needs bytes 8..16, file has 8",
        ),
    ]
}

fn other_format_cases() -> Vec<Case> {
    let not = |looks_like: &str| format!("not a GGUF file: {looks_like}");
    let safetensors = [&80u64.to_le_bytes()[..], br#"{"weight":{"dtype":"F32"}}"#].concat();
    vec![
        case("empty file", [], not("the file is empty")),
        case(
            "HTML page",
            *b"<!DOCTYPE html>\n<html><head><title>404</title>",
            not("looks like an HTML page (a failed download?)"),
        ),
        case(
            "HTML page after blank lines",
            *b"\n\n  <html lang=en>",
            not("looks like an HTML page (a failed download?)"),
        ),
        case(
            "git-lfs pointer",
            *b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n",
            not("looks like a git-lfs pointer (fetch the file itself: git lfs pull)"),
        ),
        case(
            "zip",
            *b"PK\x03\x04\x14\0\0\0",
            not("looks like a zip archive (a PyTorch checkpoint or a wheel?)"),
        ),
        case(
            "safetensors",
            safetensors,
            not("looks like a safetensors file (convert it to GGUF first)"),
        ),
        case(
            "mpk container",
            *b"\x89MPK\r\n\x1a\n\x01\0\0\0",
            not("looks like an .mpk container (it is packed already)"),
        ),
        case("gzip", *b"\x1f\x8b\x08\0", not("looks like gzip data (decompress it first)")),
        case("ggjt", *b"tjgg\x03\0\0\0", not("looks like a GGML file from before GGUF (convert it with llama.cpp's tools)")),
        case("zeros", [0; 64], not("it starts with zeros (an unfinished download?)")),
        case("JSON", *b"{\"error\":\"Repository not found\"}", not("looks like JSON (an error message instead of the file?)")),
        case("anything", *b"\x01ab\xffcdef", not(r#"it starts with "\x01ab\xff""#)),
    ]
}

fn key_cases() -> Vec<Case> {
    let key = |what: &str| format!("key {what}");
    vec![
        case(
            "KV_BAD_KEY_SIZE",
            {
                let mut file = base().build();
                file[24..32].fill(0xff);
                file
            },
            key("0 at offset 32 needs bytes 32..18446744073709551615, file has 288"),
        ),
        built(
            "KV_EMPTY_KEY",
            base_kvs().kv_u32("", 1),
            key("2 at offset 102: expected a name, found an empty string"),
        ),
        built(
            "KV_BAD_TYPE",
            base_kvs().kv_raw("x", 13, &[0; 16]),
            "value type of key x at offset 111: expected a value type 0..=12, found 13",
        ),
        built(
            "KV_BAD_TYPE (99)",
            base_kvs().kv_raw("x", 99, &[0; 16]),
            "value type of key x at offset 111: expected a value type 0..=12, found 99",
        ),
        built(
            "KV_BAD_TYPE (-1)",
            base_kvs().kv_raw("x", u32::MAX, &[0; 16]),
            "value type of key x at offset 111: expected a value type 0..=12, found 4294967295",
        ),
        built(
            "KV_DUPLICATE_KEY",
            base_kvs().kv_u32("x", 1).kv_u32("y", 1).kv_f32("x", 1.0),
            key(
                "x at offset 136: expected every key once, found the key again, first at offset 102",
            ),
        ),
        built(
            "NUL in a key",
            base_kvs().kv_str("general.architecture\0x", "qwen2"),
            key(r#"2 at offset 102: expected no NUL, found "general.architecture\0x""#),
        ),
        built(
            "key is not UTF-8",
            base_kvs().kv_raw(b"a\xffb", 4, &[0; 4]),
            key("2 at offset 102: expected UTF-8, found \"a\u{fffd}b\""),
        ),
        built(
            "key of 65536 bytes",
            base_kvs().kv_u32(&"k".repeat(65536), 1),
            key("2 at offset 102: expected at most 65535 bytes, found 65536 bytes"),
        ),
        case(
            "file ends in a value",
            &base().build()[..100],
            "value of key llama.block_count at offset 98 needs bytes 98..102, file has 100",
        ),
        case(
            "file ends in a string",
            &base().build()[..66],
            "value of key general.architecture at offset 64 needs bytes 64..69, file has 66",
        ),
    ]
}

fn array_cases() -> Vec<Case> {
    let elem = |found: &str| {
        format!(
            "element type of value of key x at offset 115: expected a value type 0..=8 or 10..=12, found {found}"
        )
    };
    // Key x at 102, its type at 111, element type at 115, count at 119, elements at 127; the file
    // is padded with zeros up to a multiple of 32.
    let count = |elems: u32, rest: u32, n: u64| {
        format!(
            "element count of value of key x at offset 119: expected at most {elems} (all that the remaining {rest} bytes can hold), found {n}"
        )
    };
    let array = |elem_type, n, elems: &[u8]| base_kvs().kv_array_raw("x", elem_type, n, elems);
    let mut nested = Vec::new();
    for _ in 0..100_000 {
        nested.extend(9u32.to_le_bytes());
        nested.extend(1u64.to_le_bytes());
    }
    vec![
        built("KV_BAD_TYPE in an array", array(13, 1, &[0; 8]), elem("13")),
        built("array type 99", array(99, 1, &[0; 8]), elem("99")),
        built("array of arrays", array(9, 1, &[0; 12]), elem("9 (array: arrays do not nest)")),
        built(
            "arrays nested 100000 deep",
            array(9, 1, &nested),
            elem("9 (array: arrays do not nest)"),
        ),
        built("array count 2^63", array(0, 1 << 63, &[0; 33]), count(33, 33, 1 << 63)),
        built(
            "u32 count wraps to 4",
            array(4, (1 << 62) + 1, &[0; 33]),
            count(8, 33, (1 << 62) + 1),
        ),
        built("u64 count 2^61 wraps to 0", array(10, 1 << 61, &[0; 33]), count(4, 33, 1 << 61)),
        built("string count 2^60", array(8, 1 << 60, &[0; 33]), count(4, 33, 1 << 60)),
        built("string count 2^64-1", array(8, u64::MAX, &[0; 33]), count(4, 33, u64::MAX)),
        built("string count 2^29", array(8, 1 << 29, &[0; 33]), count(4, 33, 1 << 29)),
        built(
            "string length 1 GiB - 1 in a small file",
            base_kvs().kv_raw("x", 8, &((1u64 << 30) - 1).to_le_bytes()),
            "value of key x at offset 123 needs bytes 123..1073741946, file has 128",
        ),
        built(
            "string length 2^63",
            base_kvs().kv_raw("x", 8, &(1u64 << 63).to_le_bytes()),
            "value of key x at offset 123 needs bytes 123..9223372036854775931, file has 128",
        ),
        built(
            "token length 2^64-1",
            array(8, 2, &[&1u64.to_le_bytes()[..], b"t", &[0xff; 8]].concat()),
            "element 1 of value of key x at offset 144 needs bytes 144..18446744073709551615, file has 160",
        ),
        built(
            "token length 2^40",
            array(8, 1, &(1u64 << 40).to_le_bytes()),
            "element 0 of value of key x at offset 135 needs bytes 135..1099511627911, file has 160",
        ),
    ]
}

fn alignment_cases() -> Vec<Case> {
    let key = "general.alignment"; // 8 + 17 bytes from 102, type at 127, value at 131
    let error = |found: &str| {
        format!(
            "key {key} at offset 131: expected a u32 power of two, at most 1048576, found {found}"
        )
    };
    let with = |align: u32| base_kvs().kv_u32(key, align);
    vec![
        built("KV_BAD_ALIGN", with(13), error("u32 13")),
        built("KV_WRONG_TYPE_ALIGN", base_kvs().kv_i32(key, 32), error("i32 32")),
        built("alignment as u64", base_kvs().kv_u64(key, 32), error("u64 32")),
        built("alignment as array", base_kvs().kv_u32s(key, &[32]), error("array of 1 u32")),
        built("alignment 0", with(0), error("u32 0")),
        built("alignment 3", with(3), error("u32 3")),
        built("alignment 2^31", with(1 << 31), error("u32 2147483648")),
        built("alignment 2 MiB", with(2 << 20), error("u32 2097152")),
        built("TENSORS_BAD_ALIGN", base().alignment(13), error("u32 13")),
        built("DATA_BAD_ALIGN", base().alignment(13).trailing(&[0; 64]), error("u32 13")),
    ]
}

fn name_and_shape_cases() -> Vec<Case> {
    let name = |what: &str| format!("name of tensor 1 at offset 143: expected {what}");
    let f32_b = |dims: &[u64]| base_b("b", dims, 0, 34);
    let shape = |expected: &str, found: &str| {
        format!("shape of tensor b at offset 152: expected {expected}, found {found}")
    };
    let too_big = "at most 9223372036854775807 elements and bytes";
    let n_dims = |n: u32| format!("n_dims of tensor b at offset 152: expected 1..=4, found {n}");
    let dim = |i: u64, found: u64| {
        let at = 156 + 8 * i;
        format!(
            "dimension {i} of tensor b at offset {at}: expected 1..=9223372036854775807, found {found}"
        )
    };
    let with_n_dims = |n: u32| {
        let mut file = base().build();
        file[152..156].copy_from_slice(&n.to_le_bytes());
        file
    };
    vec![
        built(
            "TENSORS_BAD_NAME_SIZE",
            base_b(&"n".repeat(64), &[32], 8, 34),
            name("at most 63 bytes, found 64 bytes"),
        ),
        case(
            "tensor name length 2^64-1",
            {
                let mut file = base().build();
                file[143..151].fill(0xff);
                file
            },
            "name of tensor 1 at offset 151 needs bytes 151..18446744073709551615, file has 288",
        ),
        built("empty tensor name", base_b("", &[32], 8, 34), name("a name, found an empty string")),
        built(
            "NUL in a tensor name",
            base_b("b\0c", &[32], 8, 34),
            name(r#"no NUL, found "b\0c""#),
        ),
        built(
            "TENSORS_DUPLICATE_NAME",
            base_b("a", &[32], 8, 34),
            name("every name once, found a, the name of tensor 0"),
        ),
        case("TENSORS_BAD_N_DIMS", with_n_dims(5), n_dims(5)),
        case("n_dims 8", with_n_dims(8), n_dims(8)),
        case("n_dims 2^32-1", with_n_dims(u32::MAX), n_dims(u32::MAX)),
        case("n_dims 0", with_n_dims(0), n_dims(0)),
        built("TENSORS_BAD_SHAPE", f32_b(&[u64::MAX]), dim(0, u64::MAX)),
        // llama.cpp takes this one; a model has no use for a tensor without elements.
        built("TENSORS_ZERO_DIM", f32_b(&[4, 0]), dim(1, 0)),
        built("dims {0}", f32_b(&[0]), dim(0, 0)),
        built("dims {0, big}", f32_b(&[0, 1 << 62]), dim(0, 0)),
        built("dims {big, 0, big}", f32_b(&[1 << 62, 0, 1 << 62]), dim(1, 0)),
        built(
            "TENSORS_NE_TOO_BIG",
            f32_b(&[4 * 0x7fffffff, 4 * 0x7fffffff]),
            shape(too_big, "f32 [8589934588, 8589934588, 1, 1]"),
        ),
        built(
            "TENSORS_NBYTES_TOO_BIG",
            f32_b(&[0x7fffffff, 0x7fffffff]),
            shape(too_big, "f32 [2147483647, 2147483647, 1, 1]"),
        ),
        built(
            "TENSORS_NBYTES_PAD_WRAP",
            f32_b(&[4, (1 << 30) - 1, (1 << 30) + 1]),
            shape(too_big, "f32 [4, 1073741823, 1073741825, 1]"),
        ),
        built(
            "[INT64_MAX, 2] (llama.cpp #27203)",
            base_b("b", &[i64::MAX as u64, 2], 1, 34),
            shape(too_big, "f16 [9223372036854775807, 2, 1, 1]"),
        ),
        built("[2^64-1, 2] (zackshen/gguf #15)", f32_b(&[u64::MAX, 2]), dim(0, u64::MAX)),
        built(
            "two dims of 2^40 (candle #3533)",
            f32_b(&[1 << 40, 1 << 40]),
            shape(too_big, "f32 [1099511627776, 1099511627776, 1, 1]"),
        ),
        built(
            "q6_K row of 32",
            base_b("b", &[32], 14, 34),
            shape("rows of whole blocks of 256 elements", "q6_K [32, 1, 1, 1]"),
        ),
        built("q6_K row of 0", base_b("b", &[0], 14, 34), dim(0, 0)),
    ]
}

fn type_cases() -> Vec<Case> {
    let refused = |what: &str| {
        format!("type of tensor b at offset 164: {what} is not supported ({ALL_TYPES})")
    };
    let with = |id: u32| base_b("b", &[256], id, 34);
    let mut cases = vec![
        built("TENSORS_BAD_TYPE", with(43), refused("ggml type 43 (unknown)")),
        built("type -1", with(u32::MAX), refused("ggml type -1 (unknown)")),
        built("type 1000", with(1000), refused("ggml type 1000 (unknown)")),
        built("type 4", with(4), refused("q4_2 (ggml type 4, removed from GGUF)")),
        built("type 33", with(33), refused("q4_0_8_8 (ggml type 33, removed from GGUF)")),
        built("type 38", with(38), refused("iq4_nl_8_8 (ggml type 38, removed from GGUF)")),
    ];
    for (id, name) in
        [(9, "q8_1"), (15, "q8_K"), (23, "iq4_xs"), (24, "i8"), (35, "tq2_0"), (39, "mxfp4")]
    {
        cases.push(built("known type", with(id), refused(&format!("{name} (ggml type {id})"))));
    }
    cases
}

fn offset_cases() -> Vec<Case> {
    let wrong = |found: u64| {
        format!(
            "offset of tensor b at offset 168: expected 32 (the end of tensor a, aligned to 32), found {found}"
        )
    };
    let b_at = |offset: u64| {
        let mut builder = base();
        builder.tensors_mut()[1].offset = Some(offset);
        builder
    };
    let mut a_at_32 = base();
    a_at_32.tensors_mut()[0].offset = Some(32);
    let huge = i64::MAX as u64 - 63;
    let huge_pair = GgufBuilder::new()
        .tensor_raw("h", &[huge / 4], 0, Some(0), &[0; 32])
        .tensor_raw("i", &[huge / 4], 0, Some(huge), &[0; 32])
        .tensor_raw("j", &[huge / 4], 0, Some(huge * 2), &[0; 32]);
    vec![
        built("TENSORS_BAD_OFFSET", b_at(u64::MAX), wrong(u64::MAX)),
        built("offset 2^64-64 wraps back inside", b_at(u64::MAX - 63), wrong(u64::MAX - 63)),
        built("two tensors at one offset", b_at(0), wrong(0)),
        built("hole between tensors", b_at(64), wrong(64)),
        built("unaligned offset", b_at(36), wrong(36)),
        built("tensors too tight", b_at(31), wrong(31)),
        built(
            "first tensor not at 0",
            a_at_32,
            "offset of tensor a at offset 135: expected 0 (the first tensor), found 32",
        ),
        built(
            "TENSORS_INCONSISTENT_ALIGN",
            base_b("b", &[32], 8, 34).layout_alignment(1).tensor(
                "c",
                &[1],
                QuantType::F32,
                &[0; 4],
            ),
            "offset of tensor c at offset 201: expected 96 (the end of tensor b, aligned to 32), found 66",
        ),
        built(
            "DATA_INCONSISTENT_ALIGN",
            base_b("b", &[32], 8, 34)
                .layout_alignment(1)
                .tensor("c", &[1], QuantType::F32, &[0; 4])
                .trailing(&[0; 4096]),
            "offset of tensor c at offset 201: expected 96 (the end of tensor b, aligned to 32), found 66",
        ),
        built(
            "sizes sum past 2^64 (CVE-2025-53630)",
            huge_pair,
            "sizes of tensors up to i at offset 82: expected a sum below 2^64, found a greater one",
        ),
    ]
}

fn data_cases() -> Vec<Case> {
    let truncated =
        |have: usize| format!("tensor b at offset 224 needs bytes 224..258, file has {have}");
    let file = base().build();
    let i8_pair = GgufBuilder::new()
        .tensor_raw("h", &[0x7fff_ffff_ffff_ffc0], 24, None, &[0; 32])
        .tensor_raw("i", &[0x7fff_ffff_ffff_ffc0], 24, None, &[0; 32]);
    let exabyte = base_b("b", &[1 << 20, 1 << 38], 0, 34);
    vec![
        case("DATA_NOT_ENOUGH_DATA", &file[..257], truncated(257)),
        case(
            "ends inside the first tensor",
            &file[..200],
            "tensor a at offset 192 needs bytes 192..224, file has 200",
        ),
        case(
            "no data section",
            &file[..176],
            "tensor a at offset 192 needs bytes 192..224, file has 176",
        ),
        built(
            "DATA_MEM_SIZE_OVERFLOW",
            i8_pair,
            format!(
                "type of tensor h at offset 45: i8 (ggml type 24) is not supported ({ALL_TYPES})"
            ),
        ),
        built(
            "DATA_MEM_SIZE_OVERFLOW with f16",
            GgufBuilder::new()
                .tensor_raw("h", &[0x3fff_ffff_ffff_ffe0], 1, None, &[0; 32])
                .tensor_raw(
                    "i",
                    &[0x3fff_ffff_ffff_ffe0],
                    1,
                    Some(0x7fff_ffff_ffff_ffc0),
                    &[0; 32],
                ),
            "tensor h at offset 96 needs bytes 96..9223372036854775840, file has 160",
        ),
        built(
            "an exabyte of shape in a small file",
            exabyte,
            "tensor b at offset 224 needs bytes 224..1152921504606847200, file has 288",
        ),
        // One bad tensor among good ones fails the file, whatever its place.
        built(
            "bad tensor before a good one",
            GgufBuilder::new()
                .tensor("a", &[4], QuantType::F32, &[0; 16])
                .tensor_raw("b", &[1 << 40], 0, None, &[0; 32])
                .tensor("c", &[4], QuantType::F32, &[0; 16]),
            "offset of tensor c at offset 115: expected 4398046511136 (the end of tensor b, aligned to 32), found 64",
        ),
    ]
}

fn split_cases() -> Vec<Case> {
    let split = |no: u16, count: u16| base().kv_u16("split.no", no).kv_u16("split.count", count);
    let refused = |part: u32, count: u32| {
        format!(
            "key split.count at offset 147: part {part} of a model split over {count} files is not supported (the parts are found by their names, NAME-00001-of-0000N.gguf, side by side; cat is no merge)"
        )
    };
    vec![
        built("first of two", split(0, 2), refused(1, 2)),
        built("last of 65535", split(65534, 65535), refused(65535, 65535)),
        case(
            "two shards joined with cat",
            [split(0, 2).build(), split(1, 2).build()].concat(),
            refused(1, 2),
        ),
        built(
            "split.count of another type",
            base_kvs().kv_str("split.count", "two"),
            "key split.count at offset 125: expected an integer that fits u64, found str \"two\"",
        ),
    ]
}

pub(crate) fn all_cases() -> Vec<Case> {
    [
        header_cases(),
        other_format_cases(),
        key_cases(),
        array_cases(),
        alignment_cases(),
        name_and_shape_cases(),
        type_cases(),
        offset_cases(),
        data_cases(),
        split_cases(),
    ]
    .concat()
}
