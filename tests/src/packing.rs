//! GGUF to `.mpk` in memory, with the packer's own library.

use preprocess::{Input, Packer, PlaneSet};
use std::sync::Mutex;

/// The container that `minfer-pack` makes of `gguf` with these `--planes`.
///
/// # Panics
/// If the packer refuses the file.
pub fn pack(gguf: &[u8], planes: &str) -> Vec<u8> {
    let fail = |error: preprocess::Error| -> ! { panic!("packing a test model: {error}") };
    let planes = planes.parse::<PlaneSet>().unwrap_or_else(|error| panic!("planes: {error}"));
    let gguf = gguf.to_vec();
    let len = gguf.len() as u64;
    let input = Input::open(gguf, len).unwrap_or_else(|error| fail(error));
    let packer = Packer::new(&input, &planes).unwrap_or_else(|error| fail(error));
    let out = Mutex::new(vec![0; packer.file_len() as usize]);
    packer.write(&out, &|_| ()).unwrap_or_else(|error| fail(error));
    out.into_inner().unwrap_or_else(|error| error.into_inner())
}
