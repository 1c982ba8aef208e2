//! The index as it lies in the file: a head, then objects, field descriptors, leaf digests and
//! names, one table after the other without gaps.

use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{field_error, to_u64};
use crate::plane::Field;
use crate::{Error, Result};

/// Start of the index: the sections before the data, and the sizes of the tables that follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct IndexHead {
    pub(super) source_offset: U64,
    pub(super) source_len: U64,
    pub(super) source_sha256: [u8; 32],
    pub(super) vocab_offset: U64,
    pub(super) vocab_len: U64,
    pub(super) vocab_sha256: [u8; 32],
    pub(super) n_objects: U32,
    pub(super) n_fields: U32,
    pub(super) n_leaves: U32,
    pub(super) names_len: U32,
}

/// One object. Its name and its leaves follow those of the object before it in their tables.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ObjectRecord {
    pub(super) name_len: U32,
    pub(super) tensor_name_len: U32,
    pub(super) kind: U16,
    pub(super) n_fields: U16,
    pub(super) quant: U32,
    pub(super) first_field: U32,
    pub(super) reserved: U32,
    pub(super) n_rows: U64,
    pub(super) row_len: U64,
    pub(super) offset: U64,
    pub(super) len: U64,
    pub(super) xxh3: U64,
    pub(super) sha256: [u8; 32],
}

/// One field descriptor.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(super) struct FieldRecord {
    pub(super) name: u8,
    pub(super) encoding: u8,
    pub(super) bits: u8,
    pub(super) shift: u8,
    pub(super) bias: I32,
    pub(super) base: U64,
    pub(super) rows_per_group: U32,
    pub(super) k_per_group: U32,
    pub(super) row_group_stride: U64,
    pub(super) k_group_stride: U64,
    pub(super) bytes: U32,
    pub(super) reserved: U32,
    pub(super) row_bits: [U32; 8],
    pub(super) k_bits: [U32; 8],
}

const _: () = assert!(size_of::<IndexHead>() == 112);
const _: () = assert!(size_of::<ObjectRecord>() == 96);
const _: () = assert!(size_of::<FieldRecord>() == 112);

impl FieldRecord {
    pub(super) fn of(field: &Field) -> Self {
        Self {
            name: field.name.id(),
            encoding: field.encoding.id(),
            bits: field.bits,
            shift: field.shift,
            bias: I32::new(field.bias),
            base: U64::new(field.base),
            rows_per_group: U32::new(field.rows_per_group),
            k_per_group: U32::new(field.k_per_group),
            row_group_stride: U64::new(field.row_group_stride),
            k_group_stride: U64::new(field.k_group_stride),
            bytes: U32::new(field.bytes),
            reserved: U32::ZERO,
            row_bits: field.row_bits.map(U32::new),
            k_bits: field.k_bits.map(U32::new),
        }
    }
}

/// The index cut into its tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables<'a> {
    pub(super) head: &'a IndexHead,
    pub(super) objects: &'a [ObjectRecord],
    pub(super) fields: &'a [FieldRecord],
    pub(super) leaves: &'a [[u8; DIGEST]],
    pub(super) names: &'a str,
    /// Where the object table starts in the file.
    pub(super) objects_offset: u64,
    /// Where the field table starts in the file.
    pub(super) fields_offset: u64,
    /// Where the names start in the file.
    pub(super) names_offset: u64,
}

const DIGEST: usize = 32;

impl<'a> Tables<'a> {
    /// Cuts `index`, which starts at `offset` in the file. Every count is bounded by the bytes
    /// that are there. Bytes behind the last table are allowed if `open_ended`.
    pub(super) fn split(index: &'a [u8], offset: u64, open_ended: bool) -> Result<Self> {
        let at = |rest: &[u8]| {
            let done = index.len().saturating_sub(rest.len());
            offset.saturating_add(to_u64(done))
        };
        let (head, rest) = IndexHead::ref_from_prefix(index).map_err(|_| Error::Truncated {
            what: "index head".to_owned(),
            offset,
            end: offset.saturating_add(to_u64(size_of::<IndexHead>())),
            have: offset.saturating_add(to_u64(index.len())),
        })?;
        let objects_offset = at(rest);
        let (objects, rest) = table(rest, "n_objects", head.n_objects, objects_offset)?;
        let fields_offset = at(rest);
        let (fields, rest) = table(rest, "n_fields", head.n_fields, fields_offset)?;
        let (leaves, rest) = table(rest, "n_leaves", head.n_leaves, at(rest))?;
        let names_offset = at(rest);
        let (names, rest) = table::<u8>(rest, "names_len", head.names_len, names_offset)?;
        let names = std::str::from_utf8(names).map_err(|error| {
            let at = names_offset.saturating_add(to_u64(error.valid_up_to()));
            field_error("names", at, "UTF-8", "other bytes")
        })?;
        if !rest.is_empty() && !open_ended {
            let found = format!("{} more bytes", rest.len());
            return Err(field_error("index", at(rest), "its end", found));
        }
        Ok(Self {
            head,
            objects,
            fields,
            leaves,
            names,
            objects_offset,
            fields_offset,
            names_offset,
        })
    }
}

/// The first `count` records of `bytes`, and what follows.
fn table<'a, T>(
    bytes: &'a [u8],
    count_name: &str,
    count: U32,
    offset: u64,
) -> Result<(&'a [T], &'a [u8])>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let n = usize::try_from(count.get()).unwrap_or(usize::MAX);
    <[T]>::ref_from_prefix_with_elems(bytes, n).map_err(|_| {
        let room = bytes.len().checked_div(size_of::<T>()).unwrap_or(0);
        field_error(count_name, offset, format!("at most {room} (the index ends)"), count)
    })
}
