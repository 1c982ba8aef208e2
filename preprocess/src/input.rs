//! The input: a GGUF in one file or several, or a container whose planes are to change. Headers are
//! read; the data stays where it is until a job asks for some rows.

use std::ops::Range;

use format_spec::container::{Container, Header, MAGIC};
use format_spec::gguf::{Gguf, Split};
use format_spec::plane::{Geometry, Layout};

use crate::error::{Error, Result};
use crate::io::{ReadAt, buffer, resize};

/// Longest GGUF header that is read. A vocabulary of 256k tokens takes about 10 MiB.
const MAX_GGUF_HEADER_BYTES: u64 = 256 << 20;

/// An input whose headers have been read: a container, a GGUF, or all parts of a split one.
#[derive(Debug)]
pub struct Input<R> {
    files: Vec<InputFile<R>>,
    is_container: bool,
}

/// One file of an input.
#[derive(Debug)]
pub(crate) struct InputFile<R> {
    pub(crate) reader: R,
    pub(crate) len_bytes: u64,
    /// A GGUF's header, or a container up to its data section.
    pub(crate) front: Vec<u8>,
}

/// Which part of a split GGUF a file is, by its own header; `None` for anything else, and for what
/// cannot be read (opening it as an input says why).
pub fn part_of(reader: &dyn ReadAt, len_bytes: u64) -> Option<Split> {
    let header = read_gguf_header(reader, len_bytes).ok()?;
    Gguf::parse_part_header(&header).ok()?.split()
}

impl<R: ReadAt> Input<R> {
    /// Reads the header of a file of `len_bytes` bytes, whichever of the two it is.
    ///
    /// # Errors
    /// If it is neither, or its header cannot be used, or it is truncated.
    pub fn open(reader: R, len_bytes: u64) -> Result<Self> {
        let start = read(&reader, "the first bytes", 0..len_bytes.min(Header::MAX_BYTES))?;
        if !start.starts_with(MAGIC.get(..4).unwrap_or(&MAGIC)) {
            return Self::open_parts(vec![(reader, len_bytes)]).map_err(|(_, error)| error);
        }
        let header = Header::parse(&start, len_bytes)?;
        let front = read(&reader, "the index", 0..header.data_offset)?;
        let files = vec![InputFile { reader, len_bytes, front }];
        let input = Self { files, is_container: true };
        input.container()?;
        Ok(input)
    }

    /// As [`open`](Self::open), where a container is wanted: what is neither is called none.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_container(reader: R, len_bytes: u64) -> Result<Self> {
        let start = read(&reader, "the first bytes", 0..len_bytes.min(Header::MAX_BYTES))?;
        if !start.starts_with(b"GGUF") {
            // A GGUF is opened, so that the caller can say more of it.
            Header::parse(&start, len_bytes)?;
        }
        Self::open(reader, len_bytes)
    }

    /// Reads the headers of all parts of a GGUF (reader and length of each), in order.
    ///
    /// # Errors
    /// As [`open`](Self::open), or if they are not the parts of one model; with the position of the
    /// file that is at fault.
    pub fn open_parts(parts: Vec<(R, u64)>) -> Result<Self, (usize, Error)> {
        let mut files = Vec::new();
        for (i, (reader, len_bytes)) in parts.into_iter().enumerate() {
            let front = read_gguf_header(&reader, len_bytes).map_err(|error| (i, error))?;
            files.push(InputFile { reader, len_bytes, front });
        }
        let input = Self { files, is_container: false };
        let ggufs = input.ggufs().map_err(|error| (0, error))?;
        Gguf::check_set(&ggufs.iter().collect::<Vec<_>>())
            .map_err(|(i, error)| (i, error.into()))?;
        for (i, (gguf, file)) in ggufs.iter().zip(&input.files).enumerate() {
            gguf.check_extents(file.len_bytes).map_err(|error| (i, error.into()))?;
        }
        drop(ggufs);
        Ok(input)
    }

    /// Length of all its files.
    pub fn len_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.len_bytes))
    }

    /// The container, if it is one.
    ///
    /// # Errors
    /// None after [`open`](Self::open) succeeded.
    pub fn container(&self) -> Result<Option<Container<'_>>> {
        match self.files.first() {
            Some(file) if self.is_container => {
                Ok(Some(Container::parse_front(&file.front, file.len_bytes)?))
            }
            _ => Ok(None),
        }
    }

    /// The headers of the GGUF files: the input itself, or what the container was made from. At
    /// least one.
    ///
    /// # Errors
    /// None after [`open`](Self::open) succeeded.
    pub fn ggufs(&self) -> Result<Vec<Gguf<'_>>> {
        match self.container()? {
            Some(container) => {
                Ok(container.source().shards().map(|shard| shard.gguf.clone()).collect())
            }
            None => {
                let headers = self.files.iter().map(|file| Gguf::parse_part_header(&file.front));
                Ok(headers.collect::<Result<Vec<_>, _>>()?)
            }
        }
    }

    /// The header of the first GGUF, which has the model's metadata.
    ///
    /// # Errors
    /// None after [`open`](Self::open) succeeded.
    pub fn gguf(&self) -> Result<Gguf<'_>> {
        match self.container()? {
            Some(container) => Ok(container.gguf().clone()),
            None => {
                let front = self.files.first().map_or(&[][..], |file| &file.front);
                Ok(Gguf::parse_part_header(front)?)
            }
        }
    }

    /// What its files are read through, in order.
    pub fn readers(&self) -> Vec<&R> {
        self.files.iter().map(|file| &file.reader).collect()
    }

    /// Its files, at least one.
    pub(crate) fn files(&self) -> &[InputFile<R>] {
        &self.files
    }

    /// Reads from the container, or the first file.
    pub(crate) fn first(&self) -> &dyn ReadAt {
        match self.files.first() {
            Some(file) => &file.reader,
            // `open` made at least one; reading from nothing is an error, not a panic.
            None => const { &Vec::new() },
        }
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
        let error = match Gguf::parse_part_header(&header) {
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

/// Where the GGUF bytes of a tensor come from.
#[derive(Clone)]
pub(crate) enum RowSource<'r> {
    /// They start here in this GGUF.
    Gguf { reader: &'r dyn ReadAt, offset: u64, row_bytes: u64 },
    /// They are rebuilt from the base object at this offset of a container.
    Base { reader: &'r dyn ReadAt, offset: u64, layout: Layout },
}

impl RowSource<'_> {
    /// Reads GGUF rows of a tensor into `out`; `scratch` is used again and again.
    pub(crate) fn read_rows(
        &self,
        tensor: &str,
        rows: Range<u64>,
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        match self {
            Self::Gguf { reader, offset, row_bytes } => {
                // Both ends lie in the file: the header reader proved it.
                let range = offset + rows.start * row_bytes..offset + rows.end * row_bytes;
                read_into(*reader, tensor, range, out)
            }
            Self::Base { reader, offset, layout } => {
                let units = units_of_rows(layout, &rows);
                let range = offset + units.start * layout.unit_bytes()
                    ..offset + units.end * layout.unit_bytes();
                read_into(*reader, tensor, range, scratch)?;
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
