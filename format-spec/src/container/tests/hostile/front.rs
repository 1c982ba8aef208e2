//! Header, index head, source and vocabulary.

use super::*;

#[test]
fn version_rules() {
    assert_eq!(
        patched(8, &2u16.to_le_bytes()),
        "container version: 2.0 is not supported (this minfer reads 1.x; upgrade minfer)"
    );
    assert_eq!(
        patched(8, &0u16.to_le_bytes()),
        "container version: 0.0 is not supported (this minfer reads 1.x; pack the GGUF again)"
    );
    let mut newer_minor = tiny();
    newer_minor[10..12].copy_from_slice(&9u16.to_le_bytes());
    reseal(&mut newer_minor);
    assert_eq!(Container::parse(&newer_minor).unwrap().header().version, (1, 9));
}

#[test]
fn a_newer_minor_version_may_append_to_header_and_index() {
    let file = tiny();
    let container = Container::parse(&file).unwrap();
    let index = container.header().index.clone();
    let source = range(&file, HEADER);
    // 32 more bytes of header, 32 more of index; the tiny source keeps its place modulo 64.
    let mut longer = file[..HEADER - 32].to_vec();
    longer.extend([1; 32]);
    longer.extend([0; 32]);
    longer.extend(&file[HEADER..index.end as usize]);
    longer.extend([2; 32]);
    let end = longer.len().next_multiple_of(64);
    let moved = end as i64 - source.start as i64;
    longer.resize(end, 0);
    let mut rest = file[source.start..container.header().data_offset as usize].to_vec();
    let used = range(&file, HEADER + 48).end - source.start;
    rest.truncate(used);
    longer.extend(rest);
    longer.resize(longer.len().next_multiple_of(4096), 0);
    let data_moved = longer.len() as i64 - container.header().data_offset as i64;
    longer.extend(&file[container.header().data_offset as usize..]);
    let shift = |bytes: &mut [u8], at: usize, by: i64| {
        let value = u64_at(bytes, at).wrapping_add_signed(by);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    longer[10] = 1;
    longer[12] = 160;
    let more = longer.len() as i64 - file.len() as i64;
    shift(&mut longer, 16, more);
    shift(&mut longer, 24, 32);
    shift(&mut longer, 32, 32);
    shift(&mut longer, 88, data_moved);
    shift(&mut longer, 160, moved);
    shift(&mut longer, 160 + 48, moved);
    for i in 0..container.objects().len() {
        shift(&mut longer, 160 + INDEX_HEAD + i * OBJECT + 40, data_moved);
    }
    reseal_index(&mut longer);
    let read = Container::parse(&longer).unwrap();
    assert_eq!(read.header().version, (1, 1));
    assert_eq!(read.objects().len(), container.objects().len());
    // The same bytes under the minor version that we write are not to be trusted.
    longer[10] = 0;
    reseal_index(&mut longer);
    assert_eq!(error(&longer), "header_len at offset 12: expected 128 in version 1.0, found 160");
}

#[test]
fn feature_bits() {
    assert_eq!(
        patched(80, &(1u64 << 5).to_le_bytes()),
        "container: incompatible feature bit 5 is not supported \
         (this minfer does not know it; upgrade minfer)"
    );
    let mut compat = tiny();
    compat[72..80].copy_from_slice(&u64::MAX.to_le_bytes());
    reseal(&mut compat);
    assert_eq!(Container::parse(&compat).unwrap().header().compat, u64::MAX);
}

#[test]
fn header_fields() {
    let len = tiny().len();
    let cases: [(usize, u64, String); 7] = [
        (16, 1, format!("file_len at offset 16: expected 1 bytes, found a file of {len} bytes")),
        (
            16,
            u64::MAX,
            format!("container at offset 0 needs bytes 0..{}, file has {len}", u64::MAX),
        ),
        (24, 64, "index_offset at offset 24: expected 128, the end of the header, found 64".into()),
        (
            32,
            1 << 40,
            "index_len at offset 32: expected at most 67108864, found 1099511627776".into(),
        ),
        (
            88,
            0,
            format!(
                "data_offset at offset 88: expected a multiple of 4096 in 3083..={len}, found 0"
            ),
        ),
        (
            88,
            4097,
            format!(
                "data_offset at offset 88: expected a multiple of 4096 in 3083..={len}, found 4097"
            ),
        ),
        (
            88,
            1 << 62,
            format!(
                "data_offset at offset 88: expected a multiple of 4096 in 3083..={len}, found {}",
                1u64 << 62
            ),
        ),
    ];
    let index_end = Container::parse(&tiny()).unwrap().header().index.end;
    for (at, value, message) in cases {
        let message = message.replace("3083", &index_end.to_string());
        assert_eq!(patched(at, &value.to_le_bytes()), message);
    }
    for header_len in [0u32, 127, 4097, u32::MAX] {
        assert_eq!(
            patched(12, &header_len.to_le_bytes()),
            format!("header_len at offset 12: expected 128..=4096, found {header_len}")
        );
    }
    assert_eq!(
        patched(88, &8192u64.to_le_bytes()),
        "data_offset at offset 88: expected 4096, the aligned end of what precedes it, found 8192"
    );
}

#[test]
fn a_front_that_readers_would_not_hold_is_refused() {
    let parse = |data_offset: u64| {
        let bytes = Header::encode(1 << 40, 4096, [0; 32], data_offset);
        Header::parse(&bytes, 1 << 40).map(|header| header.data_offset).map_err(|e| e.to_string())
    };
    assert_eq!(parse(MAX_FRONT_BYTES), Ok(1 << 30));
    assert_eq!(
        parse(MAX_FRONT_BYTES + DATA_ALIGN).unwrap_err(),
        "data_offset at offset 88: expected at most 1073741824, found 1073745920"
    );
}

#[test]
fn counts_are_bounded_by_the_bytes() {
    for (at, name) in [(96, "n_objects"), (100, "n_fields"), (104, "n_leaves"), (108, "names_len")]
    {
        for count in [100_000, u32::MAX] {
            let found = patched(HEADER + at, &count.to_le_bytes());
            let expected = format!("{name} at offset ");
            assert!(found.starts_with(&expected), "{found}");
            assert!(found.ends_with(&format!("(the index ends), found {count}")), "{found}");
        }
    }
}

#[test]
fn counts_that_do_not_fit_each_other() {
    let file = tiny();
    let count = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    // One leaf fewer: its bytes become names, which they are not.
    let fewer_leaves = patched(HEADER + 104, &(count(HEADER + 104) - 1).to_le_bytes());
    assert!(fewer_leaves.starts_with("names at offset "), "{fewer_leaves}");
    let fewer_names = patched(HEADER + 108, &(count(HEADER + 108) - 1).to_le_bytes());
    assert!(fewer_names.ends_with("expected its end, found 1 more bytes"), "{fewer_names}");
    let shorter_name = patched(object_at(6, 0), &17u32.to_le_bytes());
    assert!(
        shorter_name.ends_with("expected c.weight__dsc6x256, found c.weight__dsc6x25"),
        "{shorter_name}"
    );
    let longer_name = patched(object_at(6, 0), &u32::MAX.to_le_bytes());
    assert!(
        longer_name.ends_with("expected at most 18 (the names end), found 4294967295"),
        "{longer_name}"
    );
    // An object fewer: its record becomes the first descriptors.
    let fewer_objects = patched(HEADER + 96, &(count(HEADER + 96) - 1).to_le_bytes());
    assert!(fewer_objects.starts_with("names at offset "), "{fewer_objects}");
}

#[test]
fn sections_lie_where_the_rules_put_them() {
    let file = tiny();
    let (source, vocab) = (u64_at(&file, HEADER), u64_at(&file, HEADER + 48));
    assert_eq!(
        patched(HEADER, &(source + 64).to_le_bytes()),
        format!("source_offset at offset 128: expected {source}, found {}", source + 64)
    );
    let room = Container::parse(&file).unwrap().header().data_offset - source;
    for len in [room + 1, u64::MAX] {
        assert_eq!(
            patched(HEADER + 8, &len.to_le_bytes()),
            format!("source_len at offset 136: expected at most {room}, found {len}")
        );
    }
    assert_eq!(
        patched(HEADER + 48, &0u64.to_le_bytes()),
        format!("vocab_offset at offset 176: expected {vocab}, found 0")
    );
    assert_eq!(
        patched(HEADER + 56, &0u64.to_le_bytes()),
        "vocab_offset at offset 176: expected 0 where there is none, \
         found an offset or a sha256 without bytes"
    );
}

#[test]
fn padding_before_the_data_is_zero() {
    let file = tiny();
    let container = Container::parse(&file).unwrap();
    for gap in container.zero_gaps().iter().filter(|gap| gap.end <= container.header().data_offset)
    {
        for at in [gap.start, gap.end - 1] {
            assert_eq!(
                patched(at as usize, &[7]),
                format!("padding at offset {at}: expected 0, found 7")
            );
        }
    }
}

#[test]
fn source_sections_are_checked() {
    let file = tiny();
    let source = range(&file, HEADER).start;
    let container = Container::parse(&file).unwrap();
    let shard = container.source().shards().next().unwrap();
    let header_at = source + 8 + 24 + 16;
    let end = range(&file, HEADER).end;
    let header_len = shard.header.len();
    let data_end = shard.gguf.data_end();
    let tail_at = shard.gguf.trailing(u64::MAX).start;
    let cases: Vec<(usize, Vec<u8>, String)> = vec![
        (
            0,
            vec![0; 4],
            format!(
                "source at offset {}: expected its end, found {} more bytes",
                source + 8,
                end - source - 8
            ),
        ),
        (
            4,
            vec![1],
            format!("reserved field of the source at offset {}: expected 0, found 1", source + 4),
        ),
        (
            8 + 20,
            vec![1],
            format!("reserved field of shard 0 at offset {}: expected 0, found 1", source + 28),
        ),
        (
            8,
            5u64.to_le_bytes().to_vec(),
            format!(
                "length of the GGUF file at offset {header_at}: expected at least {data_end}, found 5"
            ),
        ),
        // A tail of zeros takes no room: 28 KB would claim 128 GiB.
        (
            8,
            (1u64 << 37).to_le_bytes().to_vec(),
            format!(
                "length of the GGUF file at offset {header_at}: expected at most 67108864 bytes behind \
                 the last tensors, found {} bytes",
                (1u64 << 37) - tail_at
            ),
        ),
        (
            8 + 8,
            u64::MAX.to_le_bytes().to_vec(),
            format!(
                "GGUF header at offset {header_at} needs bytes {header_at}..{}, file has {end}",
                u64::MAX
            ),
        ),
        (
            8 + 8,
            (header_len as u64 + 1).to_le_bytes().to_vec(),
            format!(
                "length of the GGUF header at offset {header_at}: expected {header_len}, found {}",
                header_len + 1
            ),
        ),
        (
            8 + 24,
            0u64.to_le_bytes().to_vec(),
            format!(
                "extent of the GGUF at offset {}: expected a run outside header and tensors, in order, found 3 bytes at 0",
                end - 3
            ),
        ),
        (
            8 + 24,
            u64::MAX.to_le_bytes().to_vec(),
            format!(
                "extent of the GGUF at offset {}: expected a run outside header and tensors, in order, found 3 bytes at {}",
                end - 3,
                u64::MAX
            ),
        ),
        (48, b"GGML".to_vec(), "not a GGUF file: it starts with \"GGML\"".into()),
    ];
    for (part, bytes, message) in cases {
        assert_eq!(patched(source + part, &bytes), message);
    }
    for n in [1000, u32::MAX] {
        assert!(patched(source, &n.to_le_bytes()).contains(" needs bytes "));
        assert!(patched(source + 8 + 16, &n.to_le_bytes()).contains(" needs bytes "));
    }
}

/// The error of a source section with these extents, each one byte long.
fn with_extents(offsets: &[u64]) -> String {
    let gguf = tiny_gguf(&TENSORS, b"odd");
    let clean = encode_source(&[&gguf]).unwrap();
    let header_len = Gguf::parse(&gguf).unwrap().header_len() as usize;
    let mut section = clean[..24].to_vec();
    section.extend((offsets.len() as u64).to_le_bytes());
    for offset in offsets {
        section.extend(offset.to_le_bytes());
        section.extend(1u64.to_le_bytes());
    }
    section.extend(&clean[48..48 + header_len]);
    section.extend(vec![1; offsets.len()]);
    Source::parse(&section, 0).map_or_else(|error| error.to_string(), |_| "no error".to_owned())
}

#[test]
fn extents_lie_in_padding_and_in_order() {
    let gguf = tiny_gguf(&TENSORS, b"odd");
    let view = Gguf::parse(&gguf).unwrap();
    let [_, b, c] = view.tensors() else { panic!("three tensors") };
    let (b_end, c_end, file_end) = (b.range().end, c.range().end, gguf.len() as u64);
    assert_eq!(with_extents(&[]), "no error");
    assert_eq!(with_extents(&[b_end, b_end + 1, c_end, file_end - 1]), "no error");
    let bad: [&[u64]; 7] = [
        &[0],
        &[view.header_len() - 1],
        &[b_end - 1],
        &[c.range().start],
        &[file_end],
        &[b_end, b_end],
        &[c_end, b_end],
    ];
    for offsets in bad {
        let found = with_extents(offsets);
        let expected = format!(
            "expected a run outside header and tensors, in order, found 1 bytes at {}",
            offsets.last().unwrap()
        );
        assert!(found.ends_with(&expected), "{found}");
    }
}
