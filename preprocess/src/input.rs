//! The input: a GGUF, or a container whose planes are to change. Its header is read; its data
//! stays where it is until a job asks for some rows.

use std::ops::Range;

use format_spec::container::{Container, Header, MAGIC};
use format_spec::gguf::Gguf;
use format_spec::plane::{Geometry, Layout};

use crate::error::{Error, Result};
use crate::io::{ReadAt, buffer, resize};

/// Longest GGUF header that is read. A vocabulary of 256k tokens takes about 10 MiB.
const MAX_GGUF_HEADER_BYTES: u64 = 256 << 20;

/// An input whose header has been read.
#[derive(Debug)]
pub struct Input<R> {
    reader: R,
    len_bytes: u64,
    is_container: bool,
    /// A GGUF's header, or a container up to its data section.
    front: Vec<u8>,
}

impl<R: ReadAt> Input<R> {
    /// Reads the header of a file of `len_bytes` bytes, whichever of the two it is.
    ///
    /// # Errors
    /// If it is neither, or its header cannot be used, or it is truncated.
    pub fn open(reader: R, len_bytes: u64) -> Result<Self> {
        let start = read(&reader, "the first bytes", 0..len_bytes.min(Header::MAX_BYTES))?;
        let is_container = start.starts_with(MAGIC.get(..4).unwrap_or(&MAGIC));
        let front = if is_container {
            let header = Header::parse(&start, len_bytes)?;
            read(&reader, "the index", 0..header.data_offset)?
        } else {
            read_gguf_header(&reader, len_bytes)?
        };
        let input = Self { reader, len_bytes, is_container, front };
        if let Some(container) = input.container()? {
            drop(container);
        } else {
            check_extents(&input.gguf()?, len_bytes)?;
        }
        Ok(input)
    }

    /// Length of the file.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The container, if it is one.
    ///
    /// # Errors
    /// None after [`open`](Self::open) succeeded.
    pub fn container(&self) -> Result<Option<Container<'_>>> {
        if !self.is_container {
            return Ok(None);
        }
        Ok(Some(Container::parse_front(&self.front, self.len_bytes)?))
    }

    /// The header of the GGUF: the input itself, or the one that the container was made from.
    ///
    /// # Errors
    /// None after [`open`](Self::open) succeeded.
    pub fn gguf(&self) -> Result<Gguf<'_>> {
        match self.container()? {
            Some(container) => Ok(container.gguf().clone()),
            None => Ok(Gguf::parse_header(&self.front)?),
        }
    }

    /// The bytes of the GGUF's header, if the input is a GGUF.
    pub(crate) fn front(&self) -> &[u8] {
        &self.front
    }

    pub(crate) fn reader(&self) -> &R {
        &self.reader
    }
}

/// Reads a range into a new buffer.
pub(crate) fn read(reader: &dyn ReadAt, what: &str, range: Range<u64>) -> Result<Vec<u8>> {
    let fail = |source| Error::Read { what: describe(what, &range), source };
    let mut buf = buffer(range.end.saturating_sub(range.start)).map_err(fail)?;
    reader.read_exact_at(&mut buf, range.start).map_err(fail)?;
    Ok(buf)
}

/// Reads a range into a buffer that is used again and again.
pub(crate) fn read_into(
    reader: &dyn ReadAt,
    what: &str,
    range: Range<u64>,
    buf: &mut Vec<u8>,
) -> Result<()> {
    let fail = |source| Error::Read { what: describe(what, &range), source };
    resize(buf, range.end.saturating_sub(range.start)).map_err(fail)?;
    reader.read_exact_at(buf, range.start).map_err(fail)
}

pub(crate) fn describe(what: &str, range: &Range<u64>) -> String {
    format!("{what} (bytes {}..{})", range.start, range.end)
}

/// Reads a GGUF's header, whose length is known only at its end.
fn read_gguf_header(reader: &dyn ReadAt, len_bytes: u64) -> Result<Vec<u8>> {
    let mut n_bytes = len_bytes.min(1 << 20);
    loop {
        let mut header = read(reader, "the header", 0..n_bytes)?;
        let error = match Gguf::parse_header(&header) {
            Ok(gguf) => {
                let header_len = usize::try_from(gguf.header_len()).unwrap_or(usize::MAX);
                header.truncate(header_len);
                return Ok(header);
            }
            Err(error) => error,
        };
        use format_spec::Error::{Field, Truncated};
        // Counts are checked against the bytes that are there: more bytes may cure those too.
        if n_bytes == len_bytes || !matches!(error, Truncated { .. } | Field { .. }) {
            return Err(error.into());
        }
        if n_bytes >= MAX_GGUF_HEADER_BYTES {
            return Err(Error::Format(Field {
                field: "header".to_owned(),
                offset: 0,
                expected: format!("at most {MAX_GGUF_HEADER_BYTES} bytes"),
                found: format!("more ({error})"),
            }));
        }
        n_bytes = len_bytes.min(n_bytes.saturating_mul(8)).min(MAX_GGUF_HEADER_BYTES);
    }
}

/// Checks that every tensor lies in the file, before anything is written.
fn check_extents(gguf: &Gguf<'_>, len_bytes: u64) -> Result<()> {
    for tensor in gguf.tensors() {
        let range = tensor.range();
        if range.end > len_bytes {
            return Err(Error::Format(format_spec::Error::Truncated {
                what: format!("tensor {}", tensor.name()),
                offset: range.start,
                end: range.end,
                have: len_bytes,
            }));
        }
    }
    Ok(())
}

/// Where the GGUF bytes of a tensor come from.
#[derive(Debug, Clone)]
pub(crate) enum RowSource {
    /// They start here in the GGUF.
    Gguf { offset: u64, row_bytes: u64 },
    /// They are rebuilt from this base object at this offset.
    Base { offset: u64, layout: Layout },
}

impl RowSource {
    /// Reads GGUF rows of a tensor into `out`; `scratch` is used again and again.
    pub(crate) fn read_rows(
        &self,
        reader: &dyn ReadAt,
        tensor: &str,
        rows: Range<u64>,
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        match self {
            Self::Gguf { offset, row_bytes } => {
                // Both ends lie in the file: the header reader proved it.
                let range = offset + rows.start * row_bytes..offset + rows.end * row_bytes;
                read_into(reader, tensor, range, out)
            }
            Self::Base { offset, layout } => {
                let units = units_of_rows(layout, &rows);
                let range = offset + units.start * layout.unit_bytes()
                    ..offset + units.end * layout.unit_bytes();
                read_into(reader, tensor, range, scratch)?;
                let part = rows_layout(layout, &rows_of_units(layout, &units))?;
                let row_bytes = layout.gguf_row_bytes();
                let n_bytes = part.geometry().n_rows * row_bytes;
                let out_of_memory = |source| Error::Read { what: tensor.to_owned(), source };
                resize(out, n_bytes).map_err(out_of_memory)?;
                part.restore_units(scratch, out)?;
                // A unit may hold rows around the ones that were asked for.
                let before = (rows.start - rows_of_units(layout, &units).start) * row_bytes;
                let n_bytes = (rows.end - rows.start) * row_bytes;
                out.drain(..usize::try_from(before).unwrap_or(0));
                out.truncate(usize::try_from(n_bytes).unwrap_or(usize::MAX));
                Ok(())
            }
        }
    }
}

/// The layout of some rows alone. Where units are groups of rows, its object is exactly the bytes
/// of these units in the whole object.
pub(crate) fn rows_layout(layout: &Layout, rows: &Range<u64>) -> Result<Layout> {
    let geometry = Geometry { n_rows: rows.end.saturating_sub(rows.start), ..layout.geometry() };
    Ok(Layout::new(layout.kind(), layout.quant(), geometry)?)
}

/// The units that hold these rows; all units where they are no groups of rows.
pub(crate) fn units_of_rows(layout: &Layout, rows: &Range<u64>) -> Range<u64> {
    match layout.rows_per_unit() {
        Some(n) => rows.start / n..rows.end.div_ceil(n).min(layout.n_units()),
        None => 0..layout.n_units(),
    }
}

/// The rows that these units hold; all rows where units are no groups of rows.
pub(crate) fn rows_of_units(layout: &Layout, units: &Range<u64>) -> Range<u64> {
    let n_rows = layout.geometry().n_rows;
    match layout.rows_per_unit() {
        Some(n) => units.start * n..(units.end.saturating_mul(n)).min(n_rows),
        None => 0..n_rows,
    }
}

/// The units that a range of the object's bytes touches.
pub(crate) fn units_of_bytes(layout: &Layout, bytes: &Range<u64>) -> Range<u64> {
    bytes.start / layout.unit_bytes()..bytes.end.div_ceil(layout.unit_bytes())
}
