//! The tensor directory.

use std::ops::Range;

use super::cursor::Cursor;
use super::metadata::{check_count, check_name};
use crate::quant::{describe_ggml_type, supported_names};
use crate::{Error, QuantType, Result};

/// Longest tensor name: ggml keeps 64 bytes with a NUL.
const MAX_NAME_BYTES: usize = 63;

/// Most dimensions of a tensor.
const MAX_DIMS: u32 = 4;

/// Fewest bytes of a tensor info: name length, one byte of name, `n_dims`, one dimension, type,
/// offset.
const MIN_INFO_BYTES: u64 = 33;

/// Where a tensor lies and what shape and type it has. Sizes are proved not to overflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    name: &'a str,
    quant: QuantType,
    n_dims: usize,
    dims: [u64; 4],
    offset: u64,
    /// Start of the data section, so that `range` is absolute.
    data_offset: u64,
    n_rows: u64,
    n_bytes: u64,
    /// Where the name and the offset field stand in the file.
    name_offset: u64,
    offset_field: u64,
}

impl<'a> TensorInfo<'a> {
    /// Name, e.g. `blk.0.ffn_down.weight`.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Type of the weights.
    pub fn quant(&self) -> QuantType {
        self.quant
    }

    /// Dimensions, innermost first: one to four, none of them 0.
    pub fn dims(&self) -> &[u64] {
        self.dims.get(..self.n_dims).unwrap_or(&self.dims)
    }

    /// Elements a row: the innermost dimension, a multiple of the type's block.
    pub fn row_len(&self) -> u64 {
        let [row_len, ..] = self.dims;
        row_len
    }

    /// Rows: all outer dimensions multiplied (1 for a vector).
    pub fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Elements.
    pub fn n_elems(&self) -> u64 {
        // Fits: `read` proved it.
        self.n_rows.saturating_mul(self.row_len())
    }

    /// Bytes of the data, without padding behind it.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Offset of the data from the start of the data section.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the data in the file.
    pub fn range(&self) -> Range<u64> {
        // Fits: `place` proved it.
        let start = self.data_offset.saturating_add(self.offset);
        start..start.saturating_add(self.n_bytes)
    }

    /// Where the name stands in the file.
    pub(super) fn name_offset(&self) -> u64 {
        self.name_offset
    }

    fn read(cursor: &mut Cursor<'a>, i: u64) -> Result<Self> {
        let name_offset = cursor.offset();
        let name = cursor.string(format_args!("name of tensor {i}"))?;
        let name = check_name(name, MAX_NAME_BYTES).map_err(|(expected, found)| Error::Field {
            field: format!("name of tensor {i}"),
            offset: name_offset,
            expected,
            found,
        })?;
        let shape_offset = cursor.offset();
        let (n_dims, dims) = read_dims(cursor, name)?;
        let type_offset = cursor.offset();
        let id = cursor.u32(format_args!("type of tensor {name}"))?;
        let quant = QuantType::from_ggml_id(id).ok_or_else(|| Error::Unsupported {
            what: format!("type of tensor {name} at offset {type_offset}"),
            found: describe_ggml_type(id),
            supported: format!("supported: {}", supported_names()),
        })?;
        let (n_rows, n_bytes) = size_of_data(name, quant, dims, shape_offset)?;
        let offset_field = cursor.offset();
        let offset = cursor.u64(format_args!("offset of tensor {name}"))?;
        Ok(Self {
            name,
            quant,
            n_dims,
            dims,
            offset,
            data_offset: 0,
            n_rows,
            n_bytes,
            name_offset,
            offset_field,
        })
    }
}

fn read_dims(cursor: &mut Cursor<'_>, name: &str) -> Result<(usize, [u64; 4])> {
    let offset = cursor.offset();
    let n_dims = cursor.u32(format_args!("n_dims of tensor {name}"))?;
    let n = usize::try_from(n_dims).ok().filter(|_| (1..=MAX_DIMS).contains(&n_dims));
    let Some(n) = n else {
        return Err(Error::Field {
            field: format!("n_dims of tensor {name}"),
            offset,
            expected: format!("1..={MAX_DIMS}"),
            found: n_dims.to_string(),
        });
    };
    let mut dims = [1; 4];
    for (i, dim) in dims.iter_mut().take(n).enumerate() {
        let offset = cursor.offset();
        *dim = cursor.u64(format_args!("dimension {i} of tensor {name}"))?;
        // ggml keeps dimensions as i64.
        if *dim == 0 || i64::try_from(*dim).is_err() {
            return Err(Error::Field {
                field: format!("dimension {i} of tensor {name}"),
                offset,
                expected: format!("1..={}", i64::MAX),
                found: dim.to_string(),
            });
        }
    }
    Ok((n, dims))
}

/// Rows and bytes of a tensor, if both, the element count and any stride fit.
fn size_of_data(name: &str, quant: QuantType, dims: [u64; 4], offset: u64) -> Result<(u64, u64)> {
    let [row_len, outer @ ..] = dims;
    let error = |expected: String| Error::Field {
        field: format!("shape of tensor {name}"),
        offset,
        expected,
        found: format!("{} {dims:?}", quant.name()),
    };
    if quant.n_blocks(row_len).is_none() {
        let block = quant.block_elems();
        return Err(error(format!("rows of whole blocks of {block} elements")));
    }
    let fits = |n: u64| i64::try_from(n).is_ok();
    let n_rows = outer.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
    let sizes = n_rows.and_then(|n_rows| {
        let n_elems = n_rows.checked_mul(row_len)?;
        let n_bytes = n_rows.checked_mul(quant.checked_row_bytes(row_len)?)?;
        (fits(n_elems) && fits(n_bytes)).then_some((n_rows, n_bytes))
    });
    sizes.ok_or_else(|| error(format!("at most {} elements and bytes", i64::MAX)))
}

/// Reads `n_tensors` infos; `n_tensors_offset` is where the count itself stands.
pub(super) fn read_all<'a>(
    cursor: &mut Cursor<'a>,
    n_tensors: u64,
    n_tensors_offset: u64,
) -> Result<Vec<TensorInfo<'a>>> {
    check_count("n_tensors", n_tensors, n_tensors_offset, cursor, MIN_INFO_BYTES)?;
    let mut infos = Vec::new();
    for i in 0..n_tensors {
        infos.push(TensorInfo::read(cursor, i)?);
    }
    Ok(infos)
}

/// Checks that every tensor starts where the padded one before it ends, and notes where the data
/// section starts. Returns the end of the last tensor in the file.
pub(super) fn place(infos: &mut [TensorInfo<'_>], data_offset: u64, alignment: u64) -> Result<u64> {
    let mut expected = 0u64;
    let mut end = data_offset;
    let mut before: Option<&str> = None;
    for info in infos.iter_mut() {
        if info.offset != expected {
            return Err(Error::Field {
                field: format!("offset of tensor {}", info.name),
                offset: info.offset_field,
                expected: match before {
                    None => "0 (the first tensor)".into(),
                    Some(name) => {
                        format!("{expected} (the end of tensor {name}, aligned to {alignment})")
                    }
                },
                found: info.offset.to_string(),
            });
        }
        let next = expected.checked_add(info.n_bytes).and_then(|n| align_up(n, alignment));
        let fits = next.and_then(|next| data_offset.checked_add(next));
        let (Some(next), Some(_)) = (next, fits) else {
            return Err(Error::Field {
                field: format!("sizes of tensors up to {}", info.name),
                offset: info.offset_field,
                expected: "a sum below 2^64".into(),
                found: "a greater one".into(),
            });
        };
        info.data_offset = data_offset;
        end = info.range().end;
        expected = next;
        before = Some(info.name);
    }
    Ok(end)
}

/// `n` rounded up to a multiple of `alignment`, a power of two.
pub(super) fn align_up(n: u64, alignment: u64) -> Option<u64> {
    n.checked_next_multiple_of(alignment)
}

/// Refuses a tensor name that stands twice. Returns the indices of `infos` sorted by name.
pub(super) fn sort_by_name(infos: &[TensorInfo<'_>]) -> Result<Vec<usize>> {
    let name_of = |i: usize| infos.get(i).map_or("", |info| info.name);
    let mut by_name: Vec<usize> = (0..infos.len()).collect();
    by_name.sort_by_key(|&i| name_of(i));
    let duplicate = by_name
        .iter()
        .zip(by_name.iter().skip(1))
        .filter(|&(&a, &b)| name_of(a) == name_of(b))
        .map(|(&first, &second)| (second, first))
        .min();
    match duplicate {
        None => Ok(by_name),
        Some((second, first)) => Err(Error::Field {
            field: format!("name of tensor {second}"),
            offset: infos.get(second).map_or(0, |info| info.name_offset),
            expected: "every name once".into(),
            found: format!("{}, the name of tensor {first}", name_of(second)),
        }),
    }
}
