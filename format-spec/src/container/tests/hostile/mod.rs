//! Containers whose hashes are right and whose content is not.

mod front;
mod objects;

use super::*;
use crate::gguf::TensorInfo;
use crate::plane::PlaneKind;
use crate::{Geometry, Layout};

const HEADER: usize = 128;
const INDEX_HEAD: usize = 112;
const OBJECT: usize = 96;
const FIELD: usize = 112;

/// Offset of a part of object record `i` in the file.
fn object_at(i: usize, part: usize) -> usize {
    HEADER + INDEX_HEAD + i * OBJECT + part
}

fn tiny() -> Vec<u8> {
    pack(&tiny_gguf(&TENSORS, b"odd"), b"vocab")
}

fn range(file: &[u8], offset_at: usize) -> Range<usize> {
    let start = u64_at(file, offset_at) as usize;
    start..start.saturating_add(u64_at(file, offset_at + 8) as usize)
}

fn u64_at(file: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(file[at..at + 8].try_into().unwrap())
}

/// Makes every hash right again.
fn reseal(file: &mut [u8]) {
    for (offset_at, digest_at) in [(HEADER, HEADER + 16), (HEADER + 48, HEADER + 64)] {
        let section = range(file, offset_at);
        if let Some(bytes) = file.get(section).filter(|bytes| !bytes.is_empty()) {
            let digest = sha256(bytes);
            file[digest_at..digest_at + 32].copy_from_slice(&digest);
        }
    }
    reseal_index(file);
}

/// Makes the hashes of index and header right again.
fn reseal_index(file: &mut [u8]) {
    if let Some(index) = file.get(range(file, 24)) {
        let digest = sha256(index);
        file[40..72].copy_from_slice(&digest);
    }
    reseal_header(file);
}

fn reseal_header(file: &mut [u8]) {
    let header_len = u32::from_le_bytes(file[12..16].try_into().unwrap()) as usize;
    if let Some(fields) = header_len.checked_sub(32).and_then(|end| file.get(..end)) {
        let digest = sha256(fields);
        file[header_len - 32..header_len].copy_from_slice(&digest);
    }
}

/// The error of a tiny container with `bytes` at `at` and right hashes.
fn patched(at: usize, bytes: &[u8]) -> String {
    let mut file = tiny();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    reseal(&mut file);
    error(&file)
}

fn error(file: &[u8]) -> String {
    Container::parse(file).unwrap_err().to_string()
}

/// The error of a container with these objects, whatever they are.
fn with_objects(gguf: &[u8], objects: Vec<PlannedObject>) -> String {
    let source = encode_source(&[gguf]).unwrap();
    let builder = Builder::lay_out(source, Vec::new(), objects).unwrap();
    let zeros = builder
        .objects()
        .iter()
        .map(|object| ObjectDigest::of(&vec![0; object.layout.len_bytes() as usize]));
    let (mut file, _) = builder.finish(&zeros.collect::<Vec<_>>()).unwrap();
    file.resize(builder.file_len() as usize, 0);
    error(&file)
}

fn planned(tensor: &str, kind: PlaneKind, quant: QuantType, shape: (u64, u64)) -> PlannedObject {
    let geometry = Geometry { n_rows: shape.0, row_len: shape.1 };
    PlannedObject {
        name: object_name(tensor, kind, geometry),
        tensor: tensor.to_owned(),
        tensor_idx: 0,
        offset: 0,
        layout: Layout::new(kind, quant, geometry).unwrap(),
    }
}

/// Right hashes over arbitrary values: an error or a container whose objects lie in the file, and
/// never a panic.
#[test]
fn no_value_of_any_byte_panics() {
    let file = tiny();
    let front = Container::parse(&file).unwrap().header().data_offset as usize;
    let patterns: [&[u8]; 6] =
        [&[0], &[0xff], &[0x80], &[0xff; 4], &[0xff; 8], &[0, 0, 0, 0, 0, 0, 0, 0x80]];
    for at in 0..front {
        for pattern in patterns.iter().filter(|pattern| at + pattern.len() <= front) {
            let mut file = file.clone();
            file[at..at + pattern.len()].copy_from_slice(pattern);
            reseal(&mut file);
            if let Ok(container) = Container::parse(&file) {
                for object in container.objects() {
                    assert_eq!(object.bytes(&file).len() as u64, object.len);
                }
            }
        }
    }
}
