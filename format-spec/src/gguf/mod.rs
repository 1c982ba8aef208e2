//! GGUF, versions 2 and 3: a view over untrusted bytes.
//!
//! Everything that the header promises is checked before a view exists: counts against the bytes
//! that remain, names, types, shapes, and every tensor's place against the length of the file.
//! Nothing is allocated by a count from the file, and nothing here panics.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]

mod cursor;
mod metadata;
mod tensor_info;
mod value;

use std::collections::HashMap;
use std::ops::Range;

pub use metadata::Metadata;
pub use tensor_info::TensorInfo;
pub use value::{Array, ArrayIter, Value, ValueType};

use crate::sniff::looks_like;
use crate::{Error, Result};
use cursor::{Cursor, to_u64};
use tensor_info::align_up;

/// First bytes of a GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// Alignment of the data section when the file does not give one.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Largest alignment accepted. Real files use 32; a huge one serves only to make a file of zeros.
pub const MAX_ALIGNMENT: u64 = 1 << 20;

const SPLIT_COUNT: &str = "split.count";
const SPLIT_NO: &str = "split.no";
const SPLIT_TENSORS: &str = "split.tensors.count";

/// Which part of a model that is split over several files a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Number of the part, from 0, below `n_parts`: `split.no`.
    pub part: u64,
    /// Number of parts, at least 2: `split.count`.
    pub n_parts: u64,
    /// Tensors of all parts, if the file says: `split.tensors.count`.
    pub n_tensors: Option<u64>,
}

/// A GGUF file, or its header alone.
#[derive(Debug, Clone)]
pub struct Gguf<'a> {
    version: u32,
    alignment: u64,
    metadata: Metadata<'a>,
    tensors: Vec<TensorInfo<'a>>,
    /// Indices of `tensors`, sorted by name.
    by_name: Vec<usize>,
    header_len: u64,
    data_offset: u64,
    data_end: u64,
    bytes: &'a [u8],
}

impl<'a> Gguf<'a> {
    /// Reads a whole file and checks that every tensor lies in it.
    ///
    /// The padding behind the last tensor may be missing; bytes behind it are no error either
    /// (see [`trailing`](Self::trailing)).
    ///
    /// # Errors
    /// If the header is malformed or not supported, or a tensor reaches past the end.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let gguf = Self::parse_header(bytes)?;
        gguf.check_extents(to_u64(bytes.len()))?;
        Ok(gguf)
    }

    /// Checks that every tensor lies in a file of `file_len` bytes.
    ///
    /// # Errors
    /// Naming the first tensor that does not.
    pub fn check_extents(&self, file_len: u64) -> Result<()> {
        let outside = self.tensors.iter().find(|tensor| tensor.range().end > file_len);
        outside.map_or(Ok(()), |tensor| {
            let range = tensor.range();
            Err(Error::Truncated {
                what: format!("tensor {}", tensor.name()),
                offset: range.start,
                end: range.end,
                have: file_len,
            })
        })
    }

    /// Reads a header: from the magic to the end of the tensor infos. `header` may go on behind
    /// that. The data is not looked at and need not be there.
    ///
    /// # Errors
    /// If the header is malformed or not supported, or is that of one part of a model.
    pub fn parse_header(header: &'a [u8]) -> Result<Self> {
        let gguf = Self::parse_part_header(header)?;
        gguf.check_whole()?;
        Ok(gguf)
    }

    /// Reads a header that may be that of one part of a model that is split over several files
    /// (see [`split`](Self::split)).
    ///
    /// # Errors
    /// If the header is malformed or not supported.
    pub fn parse_part_header(header: &'a [u8]) -> Result<Self> {
        let mut cursor = Cursor::new(header);
        let version = read_version(&mut cursor)?;
        let n_tensors_offset = cursor.offset();
        let n_tensors = cursor.u64(format_args!("n_tensors"))?;
        let n_kv_offset = cursor.offset();
        let n_kv = cursor.u64(format_args!("n_kv"))?;
        let metadata = Metadata::read(&mut cursor, n_kv, n_kv_offset)?;
        let alignment = read_alignment(&metadata)?;
        read_split(&metadata)?;
        let mut tensors = tensor_info::read_all(&mut cursor, n_tensors, n_tensors_offset)?;
        let by_name = tensor_info::sort_by_name(&tensors)?;
        let header_len = cursor.offset();
        // A header that was read is far shorter than u64::MAX - MAX_ALIGNMENT.
        let data_offset = align_up(header_len, alignment).unwrap_or(u64::MAX);
        let data_end = tensor_info::place(&mut tensors, data_offset, alignment)?;
        Ok(Self {
            version,
            alignment,
            metadata,
            tensors,
            by_name,
            header_len,
            data_offset,
            data_end,
            bytes: header,
        })
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of the data section and of every tensor in it: a power of two.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Which part of a model this is, if it is split over several files.
    pub fn split(&self) -> Option<Split> {
        // Read once when the header was, so that it is no error.
        read_split(&self.metadata).ok().flatten()
    }

    /// Refuses one part of a model.
    fn check_whole(&self) -> Result<()> {
        let Some(Split { part, n_parts, .. }) = self.split() else { return Ok(()) };
        let offset = self.metadata.value_offset(SPLIT_COUNT).unwrap_or(0);
        Err(Error::Unsupported {
            what: format!("key {SPLIT_COUNT} at offset {offset}"),
            found: format!("part {} of a model split over {n_parts} files", part.saturating_add(1)),
            supported: "the parts are found by their names, NAME-00001-of-0000N.gguf, side by \
                        side; cat is no merge"
                .into(),
        })
    }

    /// Checks that these files are all parts of one model, in order.
    ///
    /// # Errors
    /// If one file alone is a part, or a file of several is another part than its place says, or
    /// they do not hold as many tensors as they say; with the position of the file.
    pub fn check_set(files: &[&Self]) -> Result<(), (usize, Error)> {
        if let [one] = files {
            return one.check_whole().map_err(|error| (0, error));
        }
        let mut names = HashMap::new();
        for (i, file) in files.iter().enumerate() {
            for tensor in &file.tensors {
                if let Some(other) = names.insert(tensor.name(), i) {
                    let field = format!("name of a tensor of part {}", i.saturating_add(1));
                    let expected = "every name once".to_owned();
                    let found = format!(
                        "{}, the name of a tensor of part {}",
                        tensor.name(),
                        usize::saturating_add(other, 1)
                    );
                    let offset = tensor.name_offset();
                    return Err((i, Error::Field { field, offset, expected, found }));
                }
            }
        }
        let n_files = to_u64(files.len());
        let error = |i: usize, key: &str, expected: String, found: String| {
            let field = format!("key {key} of part {}", i.saturating_add(1));
            let metadata = files.get(i).map(|file| &file.metadata);
            let offset = metadata.and_then(|metadata| metadata.value_offset(key)).unwrap_or(0);
            (i, Error::Field { field, offset, expected, found })
        };
        let mut said = Vec::new();
        for (i, file) in files.iter().enumerate() {
            let Some(split) = file.split() else {
                let found = "a file that is no part of a model".to_owned();
                return Err(error(i, SPLIT_COUNT, n_files.to_string(), found));
            };
            if split.n_parts != n_files {
                let found = split.n_parts.to_string();
                return Err(error(i, SPLIT_COUNT, n_files.to_string(), found));
            }
            if split.part != to_u64(i) {
                return Err(error(i, SPLIT_NO, i.to_string(), split.part.to_string()));
            }
            said.extend(split.n_tensors.map(|n| (i, n)));
        }
        let n_tensors =
            files.iter().fold(0u64, |n, file| n.saturating_add(to_u64(file.tensors.len())));
        if let Some(&(i, n)) = said.iter().find(|(_, n)| *n != n_tensors) {
            let expected = format!("{n_tensors}, the tensors of all parts");
            return Err(error(i, SPLIT_TENSORS, expected, n.to_string()));
        }
        Ok(())
    }

    /// Keys and values.
    pub fn metadata(&self) -> &Metadata<'a> {
        &self.metadata
    }

    /// Tensors in file order, which is also the order of their data.
    pub fn tensors(&self) -> &[TensorInfo<'a>] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo<'a>> {
        let name_of = |i: usize| self.tensors.get(i).map_or("", TensorInfo::name);
        let at = self.by_name.binary_search_by(|&i| name_of(i).cmp(name)).ok()?;
        self.by_name.get(at).and_then(|&i| self.tensors.get(i))
    }

    /// Bytes from the magic to the end of the tensor infos.
    pub fn header_len(&self) -> u64 {
        self.header_len
    }

    /// Start of the data section: `header_len` rounded up to the alignment.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// End of the last tensor, without padding behind it; `data_offset` if there is none.
    pub fn data_end(&self) -> u64 {
        self.data_end
    }

    /// The bytes of `tensor`; empty if this is a view of a header alone.
    pub fn data(&self, tensor: &TensorInfo<'_>) -> &'a [u8] {
        let range = tensor.range();
        let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        range.and_then(|(start, end)| self.bytes.get(start..end)).unwrap_or_default()
    }

    /// The alignment padding of a file of `file_len` bytes, in order: before the data section,
    /// then behind each tensor. Empty ranges are left out.
    pub fn padding(&self, file_len: u64) -> impl Iterator<Item = Range<u64>> {
        let starts = std::iter::once(self.header_len);
        let ends = self.tensors.iter().map(|tensor| tensor.range().end);
        let alignment = self.alignment;
        starts
            .chain(ends)
            .map(move |start| {
                start..align_up(start, alignment).map_or(file_len, |end| end.min(file_len))
            })
            .filter(|range| range.start < range.end)
    }

    /// The bytes of a file of `file_len` bytes that belong to nothing: whatever follows the
    /// padding behind the last tensor. Empty in a proper file.
    pub fn trailing(&self, file_len: u64) -> Range<u64> {
        let end = align_up(self.data_end, self.alignment).unwrap_or(file_len).min(file_len);
        end..file_len
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32> {
    let whole = cursor.clone().take(cursor.remaining(), format_args!("file"))?;
    // A short file that starts as GGUF does is a truncated one; anything else is not GGUF.
    let start = whole.get(..MAGIC.len().min(whole.len())).unwrap_or(whole);
    if start.is_empty() || !MAGIC.starts_with(start) {
        return Err(Error::NotThisFormat { wanted: "a GGUF file", looks_like: looks_like(whole) });
    }
    cursor.array::<4>(format_args!("magic"))?;
    let offset = cursor.offset();
    let version = cursor.u32(format_args!("version"))?;
    let found = match version {
        2 | 3 => return Ok(version),
        // Versions are small; a big-endian file has its version in the other half.
        _ if version != 0 && version & 0xffff == 0 => {
            return Err(Error::Unsupported {
                what: format!("version at offset {offset}"),
                found: format!("{version:#010x} (endianness? a big-endian file)"),
                supported: "supported: little-endian GGUF 2 and 3".into(),
            });
        }
        _ => version.to_string(),
    };
    Err(Error::Unsupported {
        what: format!("version at offset {offset}"),
        found,
        supported: "supported: GGUF 2 and 3".into(),
    })
}

fn read_alignment(metadata: &Metadata<'_>) -> Result<u64> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(n)) if n.is_power_of_two() && u64::from(n) <= MAX_ALIGNMENT => {
            Ok(n.into())
        }
        Some(_) => Err(metadata.error(KEY, format!("a u32 power of two, at most {MAX_ALIGNMENT}"))),
    }
}

/// Which part of a model split over several files a file with this metadata is.
fn read_split(metadata: &Metadata<'_>) -> Result<Option<Split>> {
    // A merged file keeps the key with 0.
    let Some(n_parts @ 2..) = metadata.u64(SPLIT_COUNT)? else { return Ok(None) };
    let part = metadata.u64(SPLIT_NO)?.unwrap_or(0);
    if part >= n_parts {
        return Err(
            metadata.error(SPLIT_NO, format!("below {n_parts}, the value of {SPLIT_COUNT}"))
        );
    }
    Ok(Some(Split { part, n_parts, n_tensors: metadata.u64(SPLIT_TENSORS)? }))
}
