//! The header: the first bytes of the file, which say whether and how to read the rest.

use std::ops::Range;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    DATA_ALIGN, MAGIC, MAX_FRONT_BYTES, MAX_INDEX_BYTES, VERSION, field_error, hex, sha256, slice,
    to_u64,
};
use crate::sniff::looks_like;
use crate::{Error, Result};

/// Compatible feature bits that this version knows; the others are ignored.
pub const KNOWN_COMPAT: u64 = 0;

/// Incompatible feature bits that this version knows; a file with any other is refused.
pub const KNOWN_INCOMPAT: u64 = 0;

/// Largest header that is read: room for later minor versions.
const MAX_HEADER_BYTES: u64 = 4096;

/// The header as it lies in the file, without the sha256 that ends it.
///
/// Magic, version, header length and the sha256 at the end keep their places in every version, so
/// that a damaged file and a newer one can be told apart.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct HeaderRecord {
    pub(super) magic: [u8; 8],
    pub(super) version_major: U16,
    pub(super) version_minor: U16,
    pub(super) header_len: U32,
    pub(super) file_len: U64,
    pub(super) index_offset: U64,
    pub(super) index_len: U64,
    pub(super) index_sha256: [u8; 32],
    pub(super) compat: U64,
    pub(super) incompat: U64,
    pub(super) data_offset: U64,
}

/// Bytes of a digest.
pub(super) const DIGEST_BYTES: usize = 32;

/// Bytes of the header that this version writes.
pub(super) const HEADER_BYTES: usize = {
    const FIELDS: usize = size_of::<HeaderRecord>();
    assert!(FIELDS == 96, "docs/FORMAT.md gives the offsets");
    FIELDS.saturating_add(DIGEST_BYTES)
};

/// A checked header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// (major, minor).
    pub version: (u16, u16),
    /// Length of the header.
    pub header_len: u64,
    /// Length of the file.
    pub file_len: u64,
    /// Where the index lies.
    pub index: Range<u64>,
    /// sha256 of the index.
    pub index_sha256: [u8; 32],
    /// Compatible feature bits, unknown ones too.
    pub compat: u64,
    /// Incompatible feature bits, all of them known.
    pub incompat: u64,
    /// Where the data section starts; everything before it is the front.
    pub data_offset: u64,
}

impl Header {
    /// Bytes that [`parse`](Self::parse) needs at most.
    pub const MAX_BYTES: u64 = MAX_HEADER_BYTES;

    /// Reads the header from the first bytes of a file of `file_len` bytes: at least
    /// [`MAX_BYTES`](Self::MAX_BYTES) of them or all there are.
    ///
    /// # Errors
    /// If these are not the first bytes of a container, are damaged, ask for a newer reader, or
    /// say another file length.
    pub fn parse(bytes: &[u8], file_len: u64) -> Result<Self> {
        check_magic(bytes)?;
        let truncated = |end: u64| Error::Truncated {
            what: "container header".to_owned(),
            offset: 0,
            end,
            have: to_u64(bytes.len()),
        };
        let (record, _) =
            HeaderRecord::ref_from_prefix(bytes).map_err(|_| truncated(to_u64(HEADER_BYTES)))?;
        let header_len = u64::from(record.header_len.get());
        if header_len < to_u64(HEADER_BYTES) || header_len > MAX_HEADER_BYTES {
            let expected = format!("{HEADER_BYTES}..={MAX_HEADER_BYTES}");
            return Err(field_error("header_len", 12, expected, header_len));
        }
        let header = slice(bytes, 0..header_len).ok_or_else(|| truncated(header_len))?;
        check_own_hash(header)?;
        check_version(record, header_len)?;
        check_features(record)?;
        Self::checked(record, header_len, file_len)
    }

    fn checked(record: &HeaderRecord, header_len: u64, actual_len: u64) -> Result<Self> {
        let file_len = record.file_len.get();
        if actual_len < file_len {
            return Err(Error::Truncated {
                what: "container".to_owned(),
                offset: 0,
                end: file_len,
                have: actual_len,
            });
        }
        if actual_len > file_len {
            let found = format!("a file of {actual_len} bytes");
            return Err(field_error("file_len", 16, format!("{file_len} bytes"), found));
        }
        let index_offset = record.index_offset.get();
        if index_offset != header_len {
            let expected = format!("{header_len}, the end of the header");
            return Err(field_error("index_offset", 24, expected, index_offset));
        }
        let index_len = record.index_len.get();
        if index_len > MAX_INDEX_BYTES {
            return Err(field_error(
                "index_len",
                32,
                format!("at most {MAX_INDEX_BYTES}"),
                index_len,
            ));
        }
        let index = index_offset..index_offset.saturating_add(index_len);
        let data_offset = record.data_offset.get();
        if data_offset < index.end
            || data_offset > file_len
            || !data_offset.is_multiple_of(DATA_ALIGN)
        {
            let expected = format!("a multiple of {DATA_ALIGN} in {}..={file_len}", index.end);
            return Err(field_error("data_offset", 88, expected, data_offset));
        }
        check_front_len(data_offset)?;
        Ok(Self {
            version: (record.version_major.get(), record.version_minor.get()),
            header_len,
            file_len,
            index,
            index_sha256: record.index_sha256,
            compat: record.compat.get(),
            incompat: record.incompat.get(),
            data_offset,
        })
    }

    /// The bytes of a header that this version writes; the hash at the end is computed here.
    pub(super) fn encode(
        file_len: u64,
        index_len: u64,
        index_sha256: [u8; 32],
        data_offset: u64,
    ) -> Vec<u8> {
        let record = HeaderRecord {
            magic: MAGIC,
            version_major: U16::new(VERSION.0),
            version_minor: U16::new(VERSION.1),
            header_len: U32::new(u32::try_from(HEADER_BYTES).unwrap_or(u32::MAX)),
            file_len: U64::new(file_len),
            index_offset: U64::new(to_u64(HEADER_BYTES)),
            index_len: U64::new(index_len),
            index_sha256,
            compat: U64::new(KNOWN_COMPAT),
            incompat: U64::new(KNOWN_INCOMPAT),
            data_offset: U64::new(data_offset),
        };
        let mut bytes = record.as_bytes().to_vec();
        bytes.extend(sha256(&bytes));
        bytes
    }
}

/// Refuses a front that readers would not hold in memory.
pub(super) fn check_front_len(data_offset: u64) -> Result<()> {
    if data_offset > MAX_FRONT_BYTES {
        let expected = format!("at most {MAX_FRONT_BYTES}");
        return Err(field_error("data_offset", 88, expected, data_offset));
    }
    Ok(())
}

fn check_magic(bytes: &[u8]) -> Result<()> {
    // A short file that starts as a container does is a truncated one; anything else is none.
    let start = bytes.get(..MAGIC.len().min(bytes.len())).unwrap_or(bytes);
    if !start.is_empty() && MAGIC.starts_with(start) {
        return Ok(());
    }
    let looks_like = match bytes.get(1..4) {
        Some(b"MPK") => "its first 8 bytes are damaged (a transfer in text mode?)".to_owned(),
        _ => looks_like(bytes),
    };
    Err(Error::NotThisFormat { wanted: "an .mpk container", looks_like })
}

fn check_own_hash(header: &[u8]) -> Result<()> {
    let Some((fields, digest)) = header.split_last_chunk::<DIGEST_BYTES>() else {
        return Err(field_error(
            "header_len",
            12,
            format!("at least {HEADER_BYTES}"),
            header.len(),
        ));
    };
    let found = sha256(fields);
    if found != *digest {
        return Err(Error::Hash {
            what: "container header".to_owned(),
            expected: hex(digest),
            found: hex(&found),
        });
    }
    Ok(())
}

fn check_version(record: &HeaderRecord, header_len: u64) -> Result<()> {
    let (major, minor) = (record.version_major.get(), record.version_minor.get());
    if major > VERSION.0 {
        return Err(Error::Unsupported {
            what: "container version".to_owned(),
            found: format!("{major}.{minor}"),
            supported: format!("this minfer reads {}.x; upgrade minfer", VERSION.0),
        });
    }
    if major < VERSION.0 {
        return Err(Error::Unsupported {
            what: "container version".to_owned(),
            found: format!("{major}.{minor}"),
            supported: format!("this minfer reads {}.x; pack the GGUF again", VERSION.0),
        });
    }
    if minor <= VERSION.1 && header_len != to_u64(HEADER_BYTES) {
        let expected = format!("{HEADER_BYTES} in version {major}.{minor}");
        return Err(field_error("header_len", 12, expected, header_len));
    }
    Ok(())
}

fn check_features(record: &HeaderRecord) -> Result<()> {
    let unknown = record.incompat.get() & !KNOWN_INCOMPAT;
    if unknown != 0 {
        return Err(Error::Unsupported {
            what: "container".to_owned(),
            found: format!("incompatible feature bit {}", unknown.trailing_zeros()),
            supported: "this minfer does not know it; upgrade minfer".to_owned(),
        });
    }
    Ok(())
}
