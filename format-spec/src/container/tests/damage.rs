//! Damage by accident: flipped bits, missing or additional bytes, other files.

use super::*;

fn tiny() -> Vec<u8> {
    pack(&tiny_gguf(&TENSORS, b"odd"), b"vocab")
}

fn error(file: &[u8]) -> String {
    Container::parse(file).unwrap_err().to_string()
}

#[test]
fn every_flipped_bit_before_the_data_is_found() {
    let mut file = tiny();
    let front = Container::parse(&file).unwrap().header().data_offset as usize;
    for at in 0..front {
        for bit in 0..8 {
            file[at] ^= 1 << bit;
            assert!(Container::parse(&file).is_err(), "bit {bit} of byte {at}");
            file[at] ^= 1 << bit;
        }
    }
}

#[test]
fn every_truncation_is_found() {
    let file = tiny();
    for len in 0..file.len() {
        let found = error(&file[..len]);
        if len >= 128 {
            let expected =
                format!("container at offset 0 needs bytes 0..{}, file has {len}", file.len());
            assert_eq!(found, expected);
        }
    }
    assert_eq!(
        error(&file[..100]),
        "container header at offset 0 needs bytes 0..128, file has 100"
    );
    assert_eq!(error(&[]), "not an .mpk container: the file is empty");
}

#[test]
fn every_extension_is_found() {
    let file = tiny();
    for (more, byte) in [(1, 0), (1, 1), (4096, 0)] {
        let longer = [&file[..], &vec![byte; more]].concat();
        let expected = format!(
            "file_len at offset 16: expected {} bytes, found a file of {} bytes",
            file.len(),
            longer.len()
        );
        assert_eq!(error(&longer), expected);
    }
}

#[test]
fn other_files_are_told_apart() {
    assert_eq!(
        error(&tiny_gguf(&TENSORS, b"")),
        "not an .mpk container: looks like a GGUF file (minfer-pack turns it into an .mpk container)"
    );
    let mut text_mode = tiny();
    text_mode.remove(4);
    assert_eq!(
        error(&text_mode),
        "not an .mpk container: its first 8 bytes are damaged (a transfer in text mode?)"
    );
    assert_eq!(
        error(&[0; 4096]),
        "not an .mpk container: it starts with zeros (an unfinished download?)"
    );
}

#[test]
fn damage_names_its_section() {
    let file = tiny();
    let container = Container::parse(&file).unwrap();
    let header = container.header().clone();
    let source = file.windows(4).position(|window| window == b"GGUF").unwrap();
    let vocab = file.windows(5).position(|window| window == b"vocab").unwrap();
    let cases = [
        (20, "container header: sha256 is "),
        (header.index.start as usize + 1, "index: sha256 is "),
        (source, "source: sha256 is "),
        (vocab, "vocabulary: sha256 is "),
        (vocab + 5, "padding at offset "),
    ];
    for (at, message) in cases {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        let found = error(&damaged);
        assert!(found.starts_with(message), "{found} instead of {message}");
    }
    // The data section is the verifier's business.
    let mut damaged = file.clone();
    damaged[header.data_offset as usize] ^= 1;
    let damaged_container = Container::parse(&damaged).unwrap();
    let object = &damaged_container.objects()[0];
    assert_ne!(ObjectDigest::of(object.bytes(&damaged)), object.digest());
    assert_eq!(ObjectDigest::of(container.objects()[0].bytes(&file)), object.digest());
}

#[test]
fn digests_do_not_depend_on_the_pieces() {
    let object: Vec<u8> = (0..LEAF_BYTES * 2 + 12345).map(|i| (i * 7 / 3) as u8).collect();
    let expected = ObjectDigest::of(&object);
    assert_eq!(expected.leaves.len(), 3);
    let leaves: Vec<_> = object.chunks(LEAF_BYTES).map(hash_leaf).collect();
    assert_eq!(
        expected,
        ObjectDigest::from_leaves(leaves.clone(), xxhash_rust::xxh3::xxh3_64(&object))
    );
    assert_eq!(expected.sha256, sha256(leaves.as_flattened()));
    for piece in [1000, LEAF_BYTES - 1, LEAF_BYTES, LEAF_BYTES + 1] {
        let mut hasher = ObjectHasher::new();
        object.chunks(piece).for_each(|piece| hasher.update(piece));
        assert_eq!(hasher.finish(), expected);
    }
    // sha256 of nothing, of "abc": FIPS 180 examples.
    assert_eq!(hex(&sha256(b""))[..16], *"e3b0c44298fc1c14");
    assert_eq!(hex(&sha256(b"abc"))[..16], *"ba7816bf8f01cfea");
}
