//! The container of version 1.0 that is never regenerated (tests/golden/container).

#![allow(clippy::unwrap_used)] // what fails here fails the test

use std::path::PathBuf;

use format_spec::container::{Builder, ObjectDigest, encode_source, hex};
use format_spec::{Container, Gguf, PlaneKind, QuantType};

fn golden(name: &str) -> Vec<u8> {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/container").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn version_1_0_stays_readable() {
    let file = golden("v1.0.mpk");
    let container = Container::parse(&file).unwrap();
    assert_eq!(container.header().version, (1, 0));
    assert_eq!(
        hex(&container.root()),
        "9d4369ff1af410b20bb631c64c9c41f5abc366341baaeadc2bdd14a3b246d9b0"
    );
    let name = container.gguf().metadata().str("general.name").unwrap();
    assert_eq!(name, Some("fixture"));
    assert_eq!(container.vocab_bytes(), None);
    let experts = container.tensor("experts.weight").unwrap();
    assert_eq!((experts.quant, experts.geometry.n_rows), (QuantType::Q6_K, 6));
    let kinds: Vec<_> = experts.planes.iter().map(|plane| plane.kind).collect();
    assert_eq!(kinds, [PlaneKind::Exp, PlaneKind::Dsc]);
    for object in container.objects() {
        let bytes = object.bytes(&file);
        assert_eq!(ObjectDigest::of(bytes), object.digest(), "{}", object.name);
        assert_eq!(object.layout.padding().first_nonzero(0, bytes), None, "{}", object.name);
    }
}

#[test]
fn the_container_of_tiles_stays_readable() {
    let file = golden("v1.0-tile.mpk");
    let container = Container::parse(&file).unwrap();
    assert_eq!(
        hex(&container.root()),
        "55bfdac5f676bca148917a8d894daefc2d5f6f8c066256bcae8a6c1d39897b6c"
    );
    for object in container.objects() {
        let bytes = object.bytes(&file);
        let kind = if object.quant == QuantType::F32 { PlaneKind::Padded } else { PlaneKind::Tile };
        assert_eq!(object.kind, kind, "{}", object.name);
        assert_eq!(ObjectDigest::of(bytes), object.digest(), "{}", object.name);
        assert_eq!(object.layout.padding().first_nonzero(0, bytes), None, "{}", object.name);
    }
}

#[test]
fn containers_of_version_1_0_give_their_gguf_back() {
    for name in ["v1.0.mpk", "v1.0-tile.mpk"] {
        gives_its_gguf_back(&golden(name));
    }
}

fn gives_its_gguf_back(file: &[u8]) {
    let expected = golden("v1.0.gguf");
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
    // Odd padding and odd bytes at the end are in the extents.
    assert_eq!(shard.extents.len(), 2);
    assert!(gguf == expected);
}

/// Bytes differ only with a new version: a change here needs one.
#[test]
fn the_same_input_still_gives_the_bytes_of_version_1_0() {
    let default = [PlaneKind::Padded, PlaneKind::Exp, PlaneKind::Dsc];
    assert!(
        packed(&|quant| { default.into_iter().filter(|kind| kind.applies_to(quant)).collect() })
            == golden("v1.0.mpk")
    );
    assert!(
        packed(&|quant| {
            let tile = PlaneKind::Tile.applies_to(quant);
            vec![if tile { PlaneKind::Tile } else { PlaneKind::Padded }]
        }) == golden("v1.0-tile.mpk")
    );
}

/// The container of the golden GGUF with these objects for each type.
fn packed(kinds: &dyn Fn(QuantType) -> Vec<PlaneKind>) -> Vec<u8> {
    let gguf = golden("v1.0.gguf");
    let builder =
        Builder::new(encode_source(&[&gguf]).unwrap(), Vec::new(), |info| kinds(info.quant()))
            .unwrap();
    let view = Gguf::parse(&gguf).unwrap();
    let mut file = vec![0; builder.file_len() as usize];
    let mut digests = Vec::new();
    for object in builder.objects() {
        let tensor = view.data(view.tensor(&object.tensor).unwrap());
        let range = object.range();
        let out = &mut file[range.start as usize..range.end as usize];
        object.layout.write_units(tensor, 0..object.layout.n_units(), out).unwrap();
        digests.push(ObjectDigest::of(out));
    }
    let (front, _) = builder.finish(&digests).unwrap();
    file[..front.len()].copy_from_slice(&front);
    file
}
