//! Tiny containers: built, read back, damaged.
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]

mod damage;
mod format_md;
mod hostile;

use super::*;
use crate::plane::PlaneKind;

/// A tensor of a tiny GGUF: name, ggml type, dimensions (innermost first), bytes of data.
struct TinyTensor(&'static str, u32, &'static [u64], usize);

const TENSORS: [TinyTensor; 3] = [
    TinyTensor("a.weight", 14, &[512, 3], 3 * 2 * 210),
    TinyTensor("b.bias", 0, &[5], 20),
    TinyTensor("c.weight", 14, &[256, 2, 3], 6 * 210),
];

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A GGUF of these tensors with one key, reproducible data and `trailing` bytes behind it.
fn tiny_gguf(tensors: &[TinyTensor], trailing: &[u8]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(1u64.to_le_bytes());
    file.extend(string("general.architecture"));
    file.extend(8u32.to_le_bytes());
    file.extend(string("llama"));
    let mut offset = 0u64;
    for TinyTensor(name, quant, dims, n_bytes) in tensors {
        file.extend(string(name));
        file.extend((dims.len() as u32).to_le_bytes());
        file.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        file.extend(quant.to_le_bytes());
        file.extend(offset.to_le_bytes());
        offset = (offset + *n_bytes as u64).next_multiple_of(32);
    }
    for TinyTensor(_, _, _, n_bytes) in tensors {
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend((0..*n_bytes).map(|i| (i * i / 7 + i) as u8));
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(trailing);
    file
}

/// Plans a container with `padded`, `exp` and `dsc`, as far as they exist for each tensor.
fn plan(gguf: &[u8], vocab: &[u8]) -> Builder {
    let source = encode_source(&[gguf]).unwrap();
    let all = |info: &crate::gguf::TensorInfo<'_>| {
        let kinds = [PlaneKind::Padded, PlaneKind::Exp, PlaneKind::Dsc];
        kinds.into_iter().filter(|kind| kind.applies_to(info.quant())).collect()
    };
    Builder::new(source, vocab.to_vec(), all).unwrap()
}

/// Packs a GGUF with these planes.
fn pack(gguf: &[u8], vocab: &[u8]) -> Vec<u8> {
    let builder = plan(gguf, vocab);
    let view = Gguf::parse(gguf).unwrap();
    let mut file = vec![0; builder.file_len() as usize];
    let mut digests = Vec::new();
    for object in builder.objects() {
        let tensor = view.tensor(&object.tensor).unwrap();
        let range = object.range();
        let out = &mut file[range.start as usize..range.end as usize];
        object.layout.write_units(view.data(tensor), 0..object.layout.n_units(), out).unwrap();
        digests.push(ObjectDigest::of(out));
    }
    let (front, root) = builder.finish(&digests).unwrap();
    file[..front.len()].copy_from_slice(&front);
    assert_eq!(Container::parse(&file).unwrap().root(), root);
    file
}

/// Rebuilds the GGUF from a container.
fn unpack(file: &[u8]) -> Vec<u8> {
    let container = Container::parse(file).unwrap();
    let shard = container.source().shards().next().unwrap();
    let mut gguf = vec![0; shard.file_len as usize];
    gguf[..shard.header.len()].copy_from_slice(shard.header);
    for (offset, bytes) in &shard.extents {
        gguf[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    for info in shard.gguf.tensors() {
        let base = container.tensor(info.name()).unwrap().base;
        let range = info.range();
        let out = &mut gguf[range.start as usize..range.end as usize];
        base.layout.restore_units(base.bytes(file), out).unwrap();
    }
    gguf
}

#[test]
fn a_container_gives_its_gguf_back() {
    for trailing in [&b""[..], b"\0\0\0", b"\0odd\0trailing\0"] {
        let mut gguf = tiny_gguf(&TENSORS, trailing);
        assert_eq!(unpack(&pack(&gguf, b"vocab")), gguf);
        // Padding between tensors that is not zero is kept as well.
        let view = Gguf::parse(&gguf).unwrap();
        let padding = view.tensors()[1].range().end as usize;
        gguf[padding + 3] = 7;
        assert_eq!(unpack(&pack(&gguf, b"")), gguf);
    }
}

#[test]
fn objects_lie_in_canonical_order_and_cover_the_file() {
    let file = pack(&tiny_gguf(&TENSORS, b""), b"vocab");
    let container = Container::parse(&file).unwrap();
    let names: Vec<_> = container.objects().iter().map(|object| object.name.as_str()).collect();
    let expected = [
        "a.weight__padded3x512",
        "b.bias__padded1x5",
        "c.weight__padded6x256",
        "a.weight__exp3x512",
        "c.weight__exp6x256",
        "a.weight__dsc3x512",
        "c.weight__dsc6x256",
    ];
    assert_eq!(names, expected);
    let entry = container.tensor("c.weight").unwrap();
    assert_eq!(entry.base.name, "c.weight__padded6x256");
    assert_eq!(entry.planes.len(), 2);
    let objects = container.objects().iter().map(Object::range);
    let source = container.source().section().len() as u64;
    let header = container.header();
    let total = header.index.end
        + source
        + 5
        + objects.map(|range| range.end - range.start).sum::<u64>()
        + container.zero_gaps().iter().map(|range| range.end - range.start).sum::<u64>();
    assert_eq!(total, file.len() as u64);
}

#[test]
fn a_hundred_thousand_tensors_are_no_problem() {
    // Each with padding behind it that is not zero, so that there are as many extents.
    const N: usize = 100_000;
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend((N as u64).to_le_bytes());
    header.extend(0u64.to_le_bytes());
    for i in 0..N {
        header.extend(string(&format!("t{i:06}")));
        header.extend(1u32.to_le_bytes());
        header.extend(1u64.to_le_bytes());
        header.extend(0u32.to_le_bytes());
        header.extend((i as u64 * 32).to_le_bytes());
    }
    let mut gguf = header;
    gguf.resize(gguf.len().next_multiple_of(32), 0);
    for i in 0..N as u32 {
        gguf.extend(i.to_le_bytes());
        gguf.extend([7; 28]);
    }
    let file = pack(&gguf, b"");
    let container = Container::parse(&file).unwrap();
    assert_eq!(container.tensors().len(), N);
    let last = container.tensor("t099999").unwrap();
    assert_eq!(last.base.bytes(&file)[..4], 99_999u32.to_le_bytes());
    assert_eq!(container.source().gguf().tensors().len(), N);
    let shard = container.source().shards().next().unwrap();
    assert_eq!(shard.extents.len(), N);
}
