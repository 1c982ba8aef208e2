//! GGUF reader against the test writer: what well-formed files give.

use format_spec::gguf::{Value, ValueType};
use format_spec::{Gguf, QuantType};
use tests::gguf_writer::GgufBuilder;

fn every_value() -> GgufBuilder {
    GgufBuilder::new()
        .kv_str("general.architecture", "llama")
        .kv_u8("u8", 200)
        .kv_i8("i8", -100)
        .kv_u16("u16", 60000)
        .kv_i16("i16", -30000)
        .kv_u32("u32", 4_000_000_000)
        .kv_i32("i32", -2_000_000_000)
        .kv_f32("f32", 1.5)
        .kv_bool("bool", true)
        .kv_raw("bool.two", 7, &[2])
        .kv_u64("u64", u64::MAX)
        .kv_i64("i64", i64::MIN)
        .kv_f64("f64", -0.25)
        .kv_str("bytes", b"\xff\x00")
        .kv_strs("strs", &["a", "", "ccc"])
        .kv_f32s("f32s", &[0.5, -1.0])
        .kv_i32s("i32s", &[3, -1])
        .kv_bools("bools", &[true, false])
        .kv_strs::<&str>("empty", &[])
}

#[test]
fn every_value_type_reads_back() {
    let bytes = every_value().build();
    let gguf = Gguf::parse(&bytes).unwrap();
    let m = gguf.metadata();
    assert_eq!(m.iter().next().unwrap().0, "general.architecture");
    assert_eq!(m.iter().last().unwrap().0, "empty");
    assert_eq!(m.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(m.get("u8"), Some(&Value::U8(200)));
    assert_eq!(m.get("i8"), Some(&Value::I8(-100)));
    assert_eq!(m.get("u16"), Some(&Value::U16(60000)));
    assert_eq!(m.get("i16"), Some(&Value::I16(-30000)));
    assert_eq!(m.get("u32"), Some(&Value::U32(4_000_000_000)));
    assert_eq!(m.get("i32"), Some(&Value::I32(-2_000_000_000)));
    assert_eq!(m.get("f32"), Some(&Value::F32(1.5)));
    assert_eq!(m.get("bool"), Some(&Value::Bool(true)));
    assert_eq!(m.get("bool.two"), Some(&Value::Bool(true)));
    assert_eq!(m.get("u64"), Some(&Value::U64(u64::MAX)));
    assert_eq!(m.get("i64"), Some(&Value::I64(i64::MIN)));
    assert_eq!(m.get("f64"), Some(&Value::F64(-0.25)));
    assert_eq!(m.get("bytes"), Some(&Value::Str(b"\xff\x00")));
    let strs: Vec<&[u8]> = m.strs("strs").unwrap().unwrap().collect();
    assert_eq!(strs, [&b"a"[..], b"", b"ccc"]);
    assert_eq!(m.f32s("f32s").unwrap().unwrap().collect::<Vec<_>>(), [0.5, -1.0]);
    assert_eq!(m.ints("i32s").unwrap().unwrap().collect::<Vec<_>>(), [3, -1]);
    let bools = m.array("bools").unwrap().unwrap();
    assert_eq!(bools.iter_bool().unwrap().collect::<Vec<_>>(), [true, false]);
    let empty = m.array("empty").unwrap().unwrap();
    assert_eq!((empty.len(), empty.elem_type()), (0, ValueType::Str));
    assert_eq!(m.get("absent"), None);
}

#[test]
fn getters_convert_what_fits_and_name_what_does_not() {
    let bytes = every_value().build();
    let gguf = Gguf::parse(&bytes).unwrap();
    let m = gguf.metadata();
    assert_eq!(m.u32("u8").unwrap(), Some(200));
    assert_eq!(m.u64("u32").unwrap(), Some(4_000_000_000));
    assert_eq!(m.f32("f64").unwrap(), Some(-0.25));
    assert_eq!(m.u32("absent").unwrap(), None);
    let error = |e: format_spec::Error| e.to_string();
    // Header 24 bytes, first pair 8 + 20 + 4 + 8 + 5, then 8 + 2 + 4 + 1 ("u8"), then 8 + 2 + 4.
    assert_eq!(
        error(m.u32("i8").unwrap_err()),
        "key i8 at offset 98: expected an integer that fits u32, found i8 -100"
    );
    assert!(error(m.u32("u64").unwrap_err()).ends_with("found u64 18446744073709551615"));
    assert!(error(m.u64("f32").unwrap_err()).ends_with("found f32 1.5"));
    assert!(error(m.f32("u8").unwrap_err()).contains("expected a float, found u8 200"));
    assert!(error(m.bool("u8").unwrap_err()).contains("expected a bool, found u8 200"));
    assert!(error(m.str("bytes").unwrap_err()).contains("expected a UTF-8 string, found str"));
    assert!(error(m.array("u8").unwrap_err()).contains("expected an array, found u8 200"));
    let e = m.strs("f32s").map(|_| ()).unwrap_err();
    assert!(error(e).contains("expected an array of str, found array of 2 f32"));
}

#[test]
fn tensors_lie_where_the_writer_put_them() {
    for alignment in [None, Some(1), Some(8), Some(4096)] {
        let data: Vec<u8> = (0..=255).collect();
        let mut builder = GgufBuilder::new()
            .tensor("a", &[3], QuantType::F32, &data[..12])
            .tensor("b", &[32, 2, 3], QuantType::Q4_0, &data[..108])
            .tensor("c", &[2, 1, 2, 5], QuantType::F16, &data[100..140]);
        if let Some(alignment) = alignment {
            builder = builder.alignment(alignment);
        }
        for version in [2, 3] {
            let bytes = builder.clone().version(version).build();
            let gguf = Gguf::parse(&bytes).unwrap();
            assert_eq!(gguf.version(), version);
            assert_eq!(gguf.alignment(), u64::from(alignment.unwrap_or(32)));
            assert_eq!(gguf.header_len(), builder.build_header().len() as u64);
            let b = gguf.tensor("b").unwrap();
            assert_eq!((b.quant(), b.dims()), (QuantType::Q4_0, &[32u64, 2, 3][..]));
            assert_eq!((b.row_len(), b.n_rows(), b.n_elems(), b.n_bytes()), (32, 6, 192, 108));
            assert_eq!(gguf.data(b), &data[..108]);
            assert_eq!(gguf.data(gguf.tensor("a").unwrap()), &data[..12]);
            assert_eq!(gguf.data(gguf.tensor("c").unwrap()), &data[100..140]);
            assert!(gguf.tensor("d").is_none());
            let names: Vec<&str> = gguf.tensors().iter().map(|t| t.name()).collect();
            assert_eq!(names, ["a", "b", "c"]);
        }
    }
}

#[test]
fn header_alone_reads_and_has_no_data() {
    let builder = GgufBuilder::new().tensor("a", &[3], QuantType::F32, &[1; 12]);
    let header = builder.build_header();
    let gguf = Gguf::parse_header(&header).unwrap();
    assert_eq!(gguf.header_len(), header.len() as u64);
    assert_eq!(gguf.tensors()[0].range(), gguf.data_offset()..gguf.data_offset() + 12);
    assert!(gguf.data(&gguf.tensors()[0]).is_empty());
}

#[test]
fn padding_and_trailing_bytes_are_reported() {
    let builder = GgufBuilder::new()
        .pad_byte(0xee)
        .tensor("a", &[3], QuantType::F32, &[1; 12])
        .tensor("b", &[8], QuantType::F32, &[1; 32])
        .tensor("c", &[1], QuantType::F32, &[1; 4]);
    for (bytes, n_trailing) in [
        (builder.build(), 0),
        (builder.clone().trailing(&[7; 5]).build(), 5),
        (builder.clone().no_final_padding().build(), 0),
    ] {
        let gguf = Gguf::parse(&bytes).unwrap();
        let file_len = bytes.len() as u64;
        let trailing = gguf.trailing(file_len);
        assert_eq!(trailing.end - trailing.start, n_trailing);
        // Header, padding, tensors and trailing bytes account for every byte once.
        let mut covered = gguf.header_len() + n_trailing;
        for range in gguf.padding(file_len) {
            covered += range.end - range.start;
            assert!(bytes[range.start as usize..range.end as usize].iter().all(|&b| b == 0xee));
        }
        covered += gguf.tensors().iter().map(|t| t.n_bytes()).sum::<u64>();
        assert_eq!(covered, file_len);
    }
}

/// What golden/make_gguf_files.py puts into every file.
fn golden_tensors(builder: GgufBuilder) -> GgufBuilder {
    let a: Vec<u8> = [1.5f32, -2.0, 0.25].iter().flat_map(|v| v.to_le_bytes()).collect();
    let b: Vec<u8> = (0..12u8).flat_map(|v| half::f16::from(v).to_le_bytes()).collect();
    let bytes_of = |n: usize| (0..n).map(|i| (i % 251) as u8).collect::<Vec<u8>>();
    builder
        .tensor("a.weight", &[3], QuantType::F32, &a)
        .tensor("b.weight", &[2, 3, 2], QuantType::F16, &b)
        .tensor("c.weight", &[512, 3], QuantType::Q6_K, &bytes_of(1260))
        .tensor("d.weight", &[32, 5], QuantType::Q4_0, &bytes_of(90))
}

/// What golden/make_gguf_files.py puts into every_value.gguf.
fn golden_values() -> GgufBuilder {
    GgufBuilder::new()
        .kv_str("general.architecture", "llama")
        .kv_u8("t.u8", 200)
        .kv_i8("t.i8", -100)
        .kv_u16("t.u16", 60000)
        .kv_i16("t.i16", -30000)
        .kv_u32("t.u32", 4_000_000_000)
        .kv_i32("t.i32", -2_000_000_000)
        .kv_f32("t.f32", 0.1)
        .kv_u64("t.u64", u64::MAX)
        .kv_i64("t.i64", i64::MIN)
        .kv_f64("t.f64", 0.1)
        .kv_bool("t.bool", true)
        .kv_str("t.str", "žluťoučký 🐎")
        .kv_strs("t.strs", &["<s>", "▁a", "b"])
        .kv_f32s("t.f32s", &[0.5, -1.0])
        .kv_i32s("t.i32s", &[3, -1, 2])
        .kv_u8s("t.u8s", &[1, 2, 255])
        .kv_bools("t.bools", &[true, false])
}

#[test]
fn the_writer_gives_the_bytes_of_gguf_py() {
    let align_128 = GgufBuilder::new().kv_str("general.architecture", "llama").alignment(128);
    for (name, builder) in [("every_value", golden_values()), ("align_128", align_128)] {
        let path = format!("{}/golden/gguf/{name}.gguf", env!("CARGO_MANIFEST_DIR"));
        let golden = std::fs::read(&path).unwrap();
        assert!(golden_tensors(builder).build() == golden, "{name}");
    }
}

#[test]
fn files_of_gguf_py_are_read_as_gguf_py_reads_them() {
    // Offsets as gguf.GGUFReader gives them for these files.
    for (name, alignment, data_offset, starts) in EXPECTED {
        let path = format!("{}/golden/gguf/{name}.gguf", env!("CARGO_MANIFEST_DIR"));
        let golden = std::fs::read(&path).unwrap();
        let gguf = Gguf::parse(&golden).unwrap();
        assert_eq!((gguf.alignment(), gguf.data_offset()), (alignment, data_offset), "{name}");
        let found: Vec<u64> = gguf.tensors().iter().map(|t| t.range().start).collect();
        assert_eq!(found, starts, "{name}");
        assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("llama"));
        let shapes: Vec<_> = gguf.tensors().iter().map(|t| (t.quant(), t.dims())).collect();
        let expected: [(QuantType, &[u64]); 4] = [
            (QuantType::F32, &[3]),
            (QuantType::F16, &[2, 3, 2]),
            (QuantType::Q6_K, &[512, 3]),
            (QuantType::Q4_0, &[32, 5]),
        ];
        assert_eq!(shapes, expected, "{name}");
    }
}

/// File, alignment, start of the data section, starts of the tensors.
const EXPECTED: [(&str, u64, u64, [u64; 4]); 2] = [
    ("every_value", 32, 768, [768, 800, 832, 2112]),
    ("align_128", 128, 384, [384, 512, 640, 1920]),
];
