//! The `.mpk` container: header, index, source, vocabulary, data.
//!
//! [`Container::parse`] checks everything that can be checked without reading the data: what it
//! returns can be trusted to lie inside the file, without overlap, at the strides that
//! [`Layout`](crate::Layout) says, and to be about the tensors of the GGUF it was made from. Hashes are checked as
//! well, but a right hash proves nothing about a hostile file, so that every other check stands on
//! its own. Nothing is allocated by a count from the file, and nothing here panics.
//!
//! `docs/FORMAT.md` is the normative description.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]

mod builder;
mod check;
mod hash;
mod header;
mod index;
mod object;
mod source;

use std::collections::HashMap;
use std::ops::Range;

pub use builder::{Builder, PlannedObject};
use hash::sha256_of_parts;
pub use hash::{LEAF_BYTES, ObjectDigest, ObjectHasher, hash_leaf, hex, sha256};
pub use header::{Header, KNOWN_COMPAT, KNOWN_INCOMPAT};
pub use object::{Object, object_name};
pub use source::{Shard, Source, encode_source, encode_source_with};

use crate::gguf::Gguf;
use crate::quant::QuantType;
use crate::{Error, Geometry, Result};

/// First bytes of a container. The high bit and the line ends show a transfer as text.
pub const MAGIC: [u8; 8] = *b"\x89MPK\r\n\x1a\n";

/// Version that this code writes: (major, minor).
pub const VERSION: (u16, u16) = (1, 0);

/// Objects start on multiples of this.
pub const OBJECT_ALIGN: u64 = 256;

/// The data section and the end of the file lie on multiples of this.
pub const DATA_ALIGN: u64 = 4096;

/// Source and vocabulary start on multiples of this.
pub const SECTION_ALIGN: u64 = 64;

/// Largest index that is read.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Largest front (all that precedes the data section) that is read. Readers hold it in memory, and
/// a sparse file can claim any length; the largest vocabularies take some tens of MiB.
pub const MAX_FRONT_BYTES: u64 = 1 << 30;

/// Most bytes behind the last tensors of all GGUF files together: more than that is another file, not
/// a tail. Zeros among them take no room in a container, so that a small one could claim any length.
pub const MAX_TRAILING_BYTES: u64 = 64 << 20;

/// A checked view over a container.
#[derive(Debug, Clone)]
pub struct Container<'a> {
    header: Header,
    root: [u8; 32],
    objects: Vec<Object>,
    tensors: Vec<TensorSlot>,
    /// Positions in `tensors`.
    by_name: HashMap<String, usize>,
    source: Source<'a>,
    vocab: Option<&'a [u8]>,
    zero_gaps: Vec<Range<u64>>,
}

/// The objects of one tensor, as positions in the object table.
#[derive(Debug, Clone)]
struct TensorSlot {
    base: usize,
    planes: Vec<usize>,
}

/// A tensor with everything the container holds of it.
#[derive(Debug, Clone)]
pub struct TensorEntry<'c> {
    /// Name in the GGUF.
    pub name: &'c str,
    /// Type of its weights.
    pub quant: QuantType,
    /// Its shape; outer dimensions are multiplied into rows.
    pub geometry: Geometry,
    /// The lossless object.
    pub base: &'c Object,
    /// The other objects, in order of kind.
    pub planes: Vec<&'c Object>,
}

impl<'a> Container<'a> {
    /// Reads a container that is in memory as a whole. The data section is not looked at.
    ///
    /// # Errors
    /// If header, index, source or vocabulary cannot be trusted, or the file has another length
    /// than its header says.
    pub fn parse(file: &'a [u8]) -> Result<Self> {
        Self::parse_front(file, to_u64(file.len()))
    }

    /// Reads a container of which only the front is in memory: at least
    /// [`Header::data_offset`] bytes.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_front(front: &'a [u8], file_len: u64) -> Result<Self> {
        let header = Header::parse(front, file_len)?;
        check::container(header, front)
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// sha256 of header and index; identifies the container.
    pub fn root(&self) -> [u8; 32] {
        self.root
    }

    /// All objects in file order: the bases in tensor order, then planes kind by kind.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// All tensors in the GGUF's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorEntry<'_>> {
        self.tensors.iter().filter_map(|slot| self.entry(slot)).collect::<Vec<_>>().into_iter()
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<TensorEntry<'_>> {
        self.by_name.get(name).and_then(|&i| self.tensors.get(i)).and_then(|slot| self.entry(slot))
    }

    fn entry(&self, slot: &TensorSlot) -> Option<TensorEntry<'_>> {
        let base = self.objects.get(slot.base)?;
        Some(TensorEntry {
            name: &base.tensor,
            quant: base.quant,
            geometry: base.geometry,
            base,
            planes: slot.planes.iter().filter_map(|&i| self.objects.get(i)).collect(),
        })
    }

    /// Everything of the GGUF that is not tensor data.
    pub fn source(&self) -> &Source<'a> {
        &self.source
    }

    /// The header of the (first) GGUF.
    pub fn gguf(&self) -> &Gguf<'a> {
        self.source.gguf()
    }

    /// The baked tokenizer tables, if the GGUF had a tokenizer.
    pub fn vocab_bytes(&self) -> Option<&'a [u8]> {
        self.vocab
    }

    /// The ranges of the file that belong to nothing and must be zero; together with header, index,
    /// source, vocabulary and objects they are the whole file. Those before the data section have
    /// been checked; the others are the verifier's.
    pub fn zero_gaps(&self) -> &[Range<u64>] {
        &self.zero_gaps
    }
}

/// `usize` as the `u64` of offsets; no supported target has a wider `usize`.
fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// `n` rounded up to a multiple of `align`.
fn align_up(n: u64, align: u64) -> Option<u64> {
    n.checked_next_multiple_of(align)
}

/// The bytes of `range`, if they are there.
fn slice(bytes: &[u8], range: Range<u64>) -> Option<&[u8]> {
    let start = usize::try_from(range.start).ok()?;
    let end = usize::try_from(range.end).ok()?;
    bytes.get(start..end)
}

/// [`Error::Field`] with less noise at the call.
fn field_error(
    field: impl Into<String>,
    offset: u64,
    expected: impl ToString,
    found: impl ToString,
) -> Error {
    Error::Field {
        field: field.into(),
        offset,
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// The same layout error, with the object it is about.
fn in_object(object: &str, offset: u64, error: Error) -> Error {
    match error {
        Error::Field { field, expected, found, .. } => {
            Error::Field { field: format!("object {object}: {field}"), offset, expected, found }
        }
        Error::Unsupported { what, found, supported } => {
            Error::Unsupported { what: format!("object {object}: {what}"), found, supported }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
