//! The way back: rebuilds the GGUF files that a container was made from, byte for byte.
//!
//! Every leaf of every base is hashed before any of its bytes are used, and used from the buffer
//! that was hashed: what is written is what the container's hashes speak of. Leaves and units do not
//! end together, so that a unit that lies in several leaves waits until all of its pieces are there.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

use format_spec::container::{Container, Object, hash_leaf};

use crate::error::{Error, Result};
use crate::input::{Input, describe, read_into, rows_layout, rows_of_units};
use crate::io::{ReadAt, WriteAt, buffer, resize};
use crate::pack::{LEAF, expect_leaf};
use crate::pipeline::{lock, run_in_order};
use crate::verify;
use crate::verify::Finding;

/// A container that is ready to be turned back into its GGUF files.
#[derive(Debug)]
pub struct Unpacker<'i, R> {
    input: &'i Input<R>,
    container: Container<'i>,
}

/// One tensor on its way back.
struct Rebuilding<'c> {
    base: &'c Object,
    out: Out<'c>,
    /// Where the tensor starts in its GGUF.
    offset: u64,
    /// Units of which some pieces are there, by number.
    pieces: Mutex<HashMap<u64, Pieces>>,
}

/// One of the outputs.
#[derive(Clone, Copy)]
struct Out<'o> {
    /// Which, from 0.
    number: usize,
    file: &'o dyn WriteAt,
}

/// A unit that lies in several leaves.
struct Pieces {
    bytes: Vec<u8>,
    n_filled: u64,
}

/// Buffers of one worker.
#[derive(Default)]
struct Scratch {
    leaf: Vec<u8>,
    rows: Vec<u8>,
}

impl<'i, R: ReadAt> Unpacker<'i, R> {
    /// Prepares the way back of `input`.
    ///
    /// # Errors
    /// If it is no container.
    pub fn new(input: &'i Input<R>) -> Result<Self> {
        let container = input.container()?.ok_or(format_spec::Error::NotThisFormat {
            wanted: "an .mpk container",
            looks_like: "it is a GGUF file already".to_owned(),
        })?;
        Ok(Self { input, container })
    }

    /// Lengths of the GGUF files, in order; at least one.
    pub fn file_lens(&self) -> Vec<u64> {
        self.container.source().shards().map(|shard| shard.file_len).collect()
    }

    /// Tensors of all files.
    pub fn n_tensors(&self) -> usize {
        self.container.tensors().len()
    }

    /// Bytes of all bases: what [`write`](Self::write) reports as progress.
    pub fn base_bytes(&self) -> u64 {
        let lens = self.container.tensors().map(|entry| entry.base.len);
        lens.fold(0, u64::saturating_add)
    }

    /// What the user should know, one sentence each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for shard in self.container.source().shards() {
            let trailing = shard.gguf.trailing(shard.file_len);
            let n_bytes = trailing.end.saturating_sub(trailing.start);
            if n_bytes > 0 {
                notes.push(format!(
                    "{n_bytes} bytes behind the last tensor are written as they were, but mean nothing"
                ));
            }
        }
        notes
    }

    /// Memory that [`write`](Self::write) uses at most for weights, with this many threads.
    pub fn working_bytes(&self, n_threads: usize) -> u64 {
        let of_base = |base: &Object| {
            let unit = base.layout.unit_bytes();
            // A leaf, the rows of it, and the unit at its end with its rows.
            base.len.min(LEAF).saturating_add(unit).saturating_mul(2)
        };
        let largest = self.container.tensors().map(|entry| of_base(entry.base)).max().unwrap_or(0);
        largest.saturating_mul(n_threads as u64)
    }

    /// Writes all files; `outs` are as long as [`file_lens`](Self::file_lens) says, and zero.
    ///
    /// `progress` is told the bytes of bases as they are used.
    ///
    /// # Errors
    /// If reading or writing fails, or the container is damaged.
    pub fn write(&self, outs: &[&dyn WriteAt], progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        let shards: Vec<_> = self.container.source().shards().collect();
        let outs: Vec<_> =
            outs.iter().enumerate().map(|(number, &file)| Out { number, file }).collect();
        let mut tensors = Vec::new();
        let mut bases = self.container.tensors().map(|entry| entry.base);
        for (shard, &out) in shards.iter().zip(&outs) {
            for (tensor, base) in shard.gguf.tensors().iter().zip(&mut bases) {
                let pieces = Mutex::default();
                tensors.push(Rebuilding { base, out, offset: tensor.range().start, pieces });
            }
        }
        let mut jobs = Vec::new();
        for tensor in &tensors {
            jobs.extend((0..tensor.base.leaves.len()).map(|leaf| (tensor, leaf)));
        }
        run_in_order(jobs.len(), Scratch::default, |scratch, i| {
            let Some(&(tensor, leaf)) = jobs.get(i) else { return Ok(()) };
            tensor.write_leaf(self.input.first(), leaf, scratch)?;
            progress(scratch.leaf.len() as u64);
            Ok(())
        })?;
        for (shard, &out) in shards.iter().zip(&outs) {
            for (offset, bytes) in &shard.extents {
                out.write(bytes, *offset, "bytes between the tensors")?;
            }
            // Last, so that an unfinished file is no GGUF.
            out.write(shard.header, 0, "header")?;
        }
        Ok(())
    }

    /// Compares the written files with the container, bit for bit: what is on disk with what its
    /// bases give once more. What guards the rebuilding itself is that whatever was packed is what
    /// comes back, which tests prove for every type, kind and shape.
    ///
    /// # Errors
    /// If reading fails.
    pub fn check<W: ReadAt>(
        &self,
        written: &Input<W>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Finding>> {
        verify::source(self.input.first(), &self.container, written, progress)
    }

    /// Bytes that [`check`](Self::check) looks at, which it reports as progress.
    pub fn check_bytes(&self) -> u64 {
        verify::source_bytes(&self.container)
    }
}

impl Rebuilding<'_> {
    /// Reads and checks one leaf, and writes the rows that are whole with it.
    fn write_leaf(&self, reader: &dyn ReadAt, leaf: usize, scratch: &mut Scratch) -> Result<()> {
        let start = leaf as u64 * LEAF;
        let bytes = start..self.base.len.min(start + LEAF);
        let in_file = self.base.offset + bytes.start..self.base.offset + bytes.end;
        let Scratch { leaf: buf, rows } = scratch;
        read_into(reader, &self.base.name, in_file, buf)?;
        expect_leaf(self.base, leaf, &hash_leaf(buf))?;
        let unit_bytes = self.base.layout.unit_bytes();
        let whole = bytes.start.div_ceil(unit_bytes)..bytes.end / unit_bytes;
        let part = |range: Range<u64>| {
            let at = |at: u64| usize::try_from(at - bytes.start).unwrap_or(usize::MAX);
            buf.get(at(range.start)..at(range.end)).unwrap_or_default()
        };
        if whole.start >= whole.end {
            // No unit is whole in this leaf: it holds pieces of one or two.
            let edge = (bytes.start / unit_bytes + 1).saturating_mul(unit_bytes).min(bytes.end);
            self.add_piece(bytes.start, part(bytes.start..edge), rows)?;
            return self.add_piece(edge, part(edge..bytes.end), rows);
        }
        let first = whole.start * unit_bytes;
        let last = whole.end * unit_bytes;
        self.add_piece(bytes.start, part(bytes.start..first), rows)?;
        self.write_units(whole, part(first..last), rows)?;
        self.add_piece(last, part(last..bytes.end), rows)
    }

    /// Adds bytes of one unit that start at `at` in the object; writes it once it is whole.
    fn add_piece(&self, at: u64, piece: &[u8], rows: &mut Vec<u8>) -> Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        let unit_bytes = self.base.layout.unit_bytes();
        let unit = at / unit_bytes;
        let no_memory = |source| Error::Read { what: self.base.name.clone(), source };
        let whole = {
            let mut pieces = lock(&self.pieces);
            let mut there = match pieces.remove(&unit) {
                Some(there) => there,
                None => Pieces { bytes: buffer(unit_bytes).map_err(no_memory)?, n_filled: 0 },
            };
            let start = usize::try_from(at % unit_bytes).unwrap_or(usize::MAX);
            if let Some(slot) = there.bytes.get_mut(start..).and_then(|s| s.get_mut(..piece.len()))
            {
                slot.copy_from_slice(piece);
            }
            there.n_filled += piece.len() as u64;
            if there.n_filled < unit_bytes {
                pieces.insert(unit, there);
                return Ok(());
            }
            there.bytes
        };
        self.write_units(unit..unit + 1, &whole, rows)
    }

    /// Rebuilds the rows of whole units and writes them.
    fn write_units(&self, units: Range<u64>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let layout = &self.base.layout;
        let rows = rows_of_units(layout, &units);
        let part = rows_layout(layout, &rows)?;
        resize(out, part.gguf_bytes())
            .map_err(|source| Error::Read { what: self.base.name.clone(), source })?;
        part.restore_units(bytes, out)?;
        let offset = self.offset + rows.start * layout.gguf_row_bytes();
        self.out.write(out, offset, &self.base.tensor)
    }
}

impl Out<'_> {
    fn write(&self, bytes: &[u8], offset: u64, what: &str) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|source| Error::Write {
            output: self.number,
            what: describe(what, &(offset..offset + bytes.len() as u64)),
            source,
        })
    }
}
