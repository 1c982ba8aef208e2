//! GGUF to `.mpk` and back in memory, with the packer's own library.

use preprocess::{Error, Input, Packer, PlaneSet, Unpacker, WriteAt};
use std::sync::Mutex;

/// The container that `minfer-pack` makes of `gguf` with these `--planes`.
///
/// # Panics
/// If the packer refuses the file.
pub fn pack(gguf: &[u8], planes: &str) -> Vec<u8> {
    pack_parts(&[gguf.to_vec()], planes)
}

/// The container that `minfer-pack` makes of a model in these files.
///
/// # Panics
/// If the packer refuses them.
pub fn pack_parts(ggufs: &[Vec<u8>], planes: &str) -> Vec<u8> {
    try_pack(ggufs, planes).unwrap_or_else(|error| panic!("packing a test model: {error}"))
}

/// As [`pack_parts`], but may fail.
///
/// # Errors
/// As the packer.
///
/// # Panics
/// If `planes` is no list of planes.
pub fn try_pack(ggufs: &[Vec<u8>], planes: &str) -> Result<Vec<u8>, Error> {
    let planes = planes.parse::<PlaneSet>().unwrap_or_else(|error| panic!("planes: {error}"));
    let parts = ggufs.iter().map(|gguf| (gguf.clone(), gguf.len() as u64)).collect();
    let input = Input::open_parts(parts).map_err(|(_, error)| error)?;
    let packer = Packer::new(&input, &planes)?;
    let out = Mutex::new(vec![0; packer.file_len() as usize]);
    packer.write(&out, &|_| ())?;
    Ok(out.into_inner().unwrap_or_else(|error| error.into_inner()))
}

/// The GGUF files that `minfer-unpack` makes of a container.
///
/// # Errors
/// As the unpacker.
pub fn unpack(container: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let input = Input::open(container.to_vec(), container.len() as u64)?;
    let unpacker = Unpacker::new(&input)?;
    let lens = unpacker.file_lens().into_iter();
    let outs: Vec<_> = lens.map(|len| Mutex::new(vec![0; len as usize])).collect();
    let refs: Vec<_> = outs.iter().map(|out| out as &dyn WriteAt).collect();
    unpacker.write(&refs, &|_| ())?;
    Ok(outs
        .into_iter()
        .map(|out| out.into_inner().unwrap_or_else(|error| error.into_inner()))
        .collect())
}
