//! The source section: everything of the GGUF that is not tensor data, so that the file can be
//! rebuilt byte for byte.
//!
//! ```text
//! n_shards u32, reserved u32
//! n_shards x { file_len u64, header_len u64, n_extents u32, reserved u32 }
//! all shards' extents { offset u64, len u64 }
//! for each shard: the header's bytes, then the bytes of its extents
//! ```
//!
//! An extent is a run of bytes that are not all zero in alignment padding or behind the data.
//! What is neither header, tensor data nor extent is zero.

use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{MAX_TRAILING_BYTES, field_error, slice, to_u64};
use crate::gguf::Gguf;
use crate::{Error, Result};

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct SourceHead {
    pub(super) n_shards: U32,
    pub(super) reserved: U32,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ShardRecord {
    pub(super) file_len: U64,
    pub(super) header_len: U64,
    pub(super) n_extents: U32,
    pub(super) reserved: U32,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ExtentRecord {
    pub(super) offset: U64,
    pub(super) len: U64,
}

/// The GGUF files that a container was made from, without their tensor data.
#[derive(Debug, Clone)]
pub struct Source<'a> {
    first: Shard<'a>,
    more: Vec<Shard<'a>>,
    section: &'a [u8],
}

/// One GGUF file without its tensor data.
#[derive(Debug, Clone)]
pub struct Shard<'a> {
    /// Length of the file.
    pub file_len: u64,
    /// Its header, from the magic to the end of the tensor infos.
    pub header: &'a [u8],
    /// View of the header.
    pub gguf: Gguf<'a>,
    /// Bytes outside header and tensors that are not zero: where they lie in the file, in order.
    pub extents: Vec<(u64, &'a [u8])>,
}

impl<'a> Source<'a> {
    /// Reads a section that starts at `offset` in the file.
    pub(super) fn parse(section: &'a [u8], offset: u64) -> Result<Self> {
        let mut reader = Reader { rest: section, at: offset };
        let head: &SourceHead = reader.one("source head")?;
        if head.reserved != U32::ZERO {
            let at = offset.saturating_add(4);
            return Err(field_error("reserved field of the source", at, 0, head.reserved));
        }
        let records: &[ShardRecord] = reader.many("shard table", head.n_shards)?;
        let mut extent_tables = Vec::new();
        for (i, record) in records.iter().enumerate() {
            if record.reserved != U32::ZERO {
                let before = to_u64(i).saturating_mul(to_u64(size_of::<ShardRecord>()));
                let at = offset.saturating_add(8 + 20).saturating_add(before);
                let field = format!("reserved field of shard {i}");
                return Err(field_error(field, at, 0, record.reserved));
            }
            extent_tables.push(reader.many::<ExtentRecord>("extent table", record.n_extents)?);
        }
        let mut shards = Vec::new();
        let mut headers_at = Vec::new();
        let mut n_trailing = 0;
        for (record, extents) in records.iter().zip(extent_tables) {
            headers_at.push(reader.at);
            shards.push(read_shard(record, extents, &mut n_trailing, &mut reader)?);
        }
        if !reader.rest.is_empty() {
            let found = format!("{} more bytes", reader.rest.len());
            return Err(field_error("source", reader.at, "its end", found));
        }
        if shards.is_empty() {
            return Err(field_error("n_shards", offset, "at least 1", 0));
        }
        let files: Vec<_> = shards.iter().map(|shard| &shard.gguf).collect();
        Gguf::check_set(&files)
            .map_err(|(i, error)| in_source(headers_at.get(i).copied().unwrap_or(offset), error))?;
        let mut shards = shards.into_iter();
        let first =
            shards.next().ok_or_else(|| field_error("n_shards", offset, "at least 1", 0))?;
        Ok(Self { first, more: shards.collect(), section })
    }

    /// The files, in order.
    pub fn shards(&self) -> impl Iterator<Item = &Shard<'a>> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Number of files.
    pub fn n_shards(&self) -> usize {
        self.more.len().saturating_add(1)
    }

    /// Header of the first file: it has the model's metadata.
    pub fn gguf(&self) -> &Gguf<'a> {
        &self.first.gguf
    }

    /// The section's bytes, e.g. to write another container from the same source.
    pub fn section(&self) -> &'a [u8] {
        self.section
    }
}

fn read_shard<'a>(
    record: &ShardRecord,
    extents: &[ExtentRecord],
    n_trailing: &mut u64,
    reader: &mut Reader<'a>,
) -> Result<Shard<'a>> {
    let header_at = reader.at;
    let header = reader.bytes("GGUF header", record.header_len.get())?;
    let gguf = Gguf::parse_part_header(header).map_err(|error| in_source(header_at, error))?;
    if gguf.header_len() != to_u64(header.len()) {
        let expected = gguf.header_len();
        return Err(field_error("length of the GGUF header", header_at, expected, header.len()));
    }
    let file_len = record.file_len.get();
    if file_len < gguf.data_end() || (gguf.tensors().is_empty() && file_len < gguf.header_len()) {
        let expected = format!("at least {}", gguf.data_end());
        return Err(field_error("length of the GGUF file", header_at, expected, file_len));
    }
    let trailing = gguf.trailing(file_len);
    *n_trailing = n_trailing.saturating_add(trailing.end.saturating_sub(trailing.start));
    if *n_trailing > MAX_TRAILING_BYTES {
        let expected = format!("at most {MAX_TRAILING_BYTES} bytes behind the last tensors");
        let found = format!("{n_trailing} bytes");
        return Err(field_error("length of the GGUF file", header_at, expected, found));
    }
    let extents = read_extents(&gguf, file_len, extents, reader)?;
    Ok(Shard { file_len, header, gguf, extents })
}

fn read_extents<'a>(
    gguf: &Gguf<'_>,
    file_len: u64,
    extents: &[ExtentRecord],
    reader: &mut Reader<'a>,
) -> Result<Vec<(u64, &'a [u8])>> {
    // Both are in order, so that one pass matches them however many there are.
    let mut free = free_ranges(gguf, file_len).peekable();
    let mut literals = Vec::new();
    let mut last_end = 0;
    for extent in extents {
        let start = extent.offset.get();
        while free.next_if(|range| range.end <= start).is_some() {}
        let room = free.peek().cloned().unwrap_or_default();
        let end = start.checked_add(extent.len.get());
        let allowed = |end| room.start <= start && last_end <= start && start < end;
        let Some(end) = end.filter(|&end| allowed(end) && end <= room.end) else {
            let found = format!("{} bytes at {start}", extent.len);
            let expected = "a run outside header and tensors, in order";
            return Err(field_error("extent of the GGUF", reader.at, expected, found));
        };
        last_end = end;
        literals.push((start, reader.bytes("extent of the GGUF", extent.len.get())?));
    }
    Ok(literals)
}

/// The ranges of a GGUF file that are neither header nor tensor data.
fn free_ranges(gguf: &Gguf<'_>, file_len: u64) -> impl Iterator<Item = Range<u64>> {
    let trailing = gguf.trailing(file_len);
    gguf.padding(file_len).chain(std::iter::once(trailing)).filter(|range| !range.is_empty())
}

/// An error of the GGUF reader, with offsets in the container's file.
fn in_source(header_at: u64, error: Error) -> Error {
    match error {
        Error::Field { field, offset, expected, found } => Error::Field {
            field: format!("source: {field}"),
            offset: header_at.saturating_add(offset),
            expected,
            found,
        },
        Error::Truncated { what, offset, end, have } => Error::Truncated {
            what: format!("source: {what}"),
            offset: header_at.saturating_add(offset),
            end: header_at.saturating_add(end),
            have: header_at.saturating_add(have),
        },
        other => other,
    }
}

/// Encodes the source section of these GGUF files (whole files, in order).
///
/// # Errors
/// If one of them is not a GGUF.
pub fn encode_source(files: &[&[u8]]) -> Result<Vec<u8>> {
    let mut parts = Vec::new();
    for file in files {
        let gguf = Gguf::parse_part_header(file)?;
        gguf.check_extents(to_u64(file.len()))?;
        let header_len = gguf.header_len();
        let header = slice(file, 0..header_len).unwrap_or_default();
        parts.push((header, to_u64(file.len())));
    }
    encode_source_with(&parts, |i, range| {
        let bytes = files.get(i).and_then(|file| slice(file, range));
        Ok(bytes.unwrap_or_default().to_vec())
    })
}

/// Encodes the source section of GGUF files that are not in memory.
///
/// `files`: each one's header (from the magic to the end of the tensor infos) and length. `read`
/// reads a range of the file with this position; it is asked for what is neither header nor tensor.
///
/// # Errors
/// If one of the headers is none, or `read` fails.
pub fn encode_source_with<E: From<Error>>(
    files: &[(&[u8], u64)],
    mut read: impl FnMut(usize, Range<u64>) -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, E> {
    let count = |n: usize, what: &str| {
        u32::try_from(n).map(U32::new).map_err(|_| field_error(what, 0, "at most 2^32 - 1", n))
    };
    let head = SourceHead { n_shards: count(files.len(), "n_shards")?, reserved: U32::ZERO };
    let mut shards = head.as_bytes().to_vec();
    let mut extents = Vec::new();
    let mut blob = Vec::new();
    for (i, &(header, file_len)) in files.iter().enumerate() {
        let gguf = Gguf::parse_part_header(header)?;
        blob.extend_from_slice(header);
        let mut n_extents: usize = 0;
        for range in free_ranges(&gguf, file_len) {
            let bytes = read(i, range.clone())?;
            let Some(first) = bytes.iter().position(|&byte| byte != 0) else { continue };
            let run = bytes.get(first..).unwrap_or_default();
            let zeros_behind = run.iter().rev().take_while(|&&byte| byte == 0).count();
            let run = run.get(..run.len().saturating_sub(zeros_behind)).unwrap_or_default();
            let record = ExtentRecord {
                offset: U64::new(range.start.saturating_add(to_u64(first))),
                len: U64::new(to_u64(run.len())),
            };
            extents.extend_from_slice(record.as_bytes());
            blob.extend_from_slice(run);
            n_extents = n_extents.saturating_add(1);
        }
        let record = ShardRecord {
            file_len: U64::new(file_len),
            header_len: U64::new(to_u64(header.len())),
            n_extents: count(n_extents, "n_extents")?,
            reserved: U32::ZERO,
        };
        shards.extend_from_slice(record.as_bytes());
    }
    Ok([shards, extents, blob].concat())
}

/// Takes records and bytes from the front of a section.
struct Reader<'a> {
    rest: &'a [u8],
    /// Offset of `rest` in the file.
    at: u64,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, what: &str, n_bytes: u64) -> Result<&'a [u8]> {
        let split = usize::try_from(n_bytes).ok().and_then(|n| self.rest.split_at_checked(n));
        let (now, later) = split.ok_or_else(|| Error::Truncated {
            what: what.to_owned(),
            offset: self.at,
            end: self.at.saturating_add(n_bytes),
            have: self.at.saturating_add(to_u64(self.rest.len())),
        })?;
        self.rest = later;
        self.at = self.at.saturating_add(n_bytes);
        Ok(now)
    }

    fn many<T>(&mut self, what: &str, n: U32) -> Result<&'a [T]>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        let n_bytes = u64::from(n.get()).saturating_mul(to_u64(size_of::<T>()));
        let at = self.at;
        let bytes = self.bytes(what, n_bytes)?;
        <[T]>::ref_from_bytes(bytes)
            .map_err(|_| field_error(what, at, "whole records", format!("{n_bytes} bytes")))
    }

    fn one<T>(&mut self, what: &str) -> Result<&'a T>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        let at = self.at;
        let bytes = self.bytes(what, to_u64(size_of::<T>()))?;
        T::ref_from_bytes(bytes).map_err(|_| field_error(what, at, "a whole record", "less"))
    }
}
