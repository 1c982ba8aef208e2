//! Writes a container: every object produced, hashed and written in one pass, on all threads.

use std::collections::HashSet;
use std::sync::Mutex;

use format_spec::container::{
    Builder, Container, LEAF_BYTES, Object, ObjectDigest, ObjectHasher, PlannedObject, TensorEntry,
    hash_leaf,
};
use format_spec::gguf::{Gguf, TensorInfo};
use format_spec::model::Blueprint;
use format_spec::plane::Layout;
use format_spec::vocab::VocabView;
use xxhash_rust::xxh3::Xxh3;

use crate::PlaneSet;
use crate::error::{Error, Result};
use crate::finite;
use crate::input::{
    Input, RowSource, describe, read_into, rows_layout, rows_of_units, units_of_bytes,
};
use crate::io::{ReadAt, WriteAt, resize};
use crate::pipeline::{InTurn, lock, run_in_order};
use crate::plan::Plan;
use crate::source::{section, trailing_notes};
use crate::template;
use crate::vocab::bake_vocab;

/// `LEAF_BYTES` as a file offset.
pub(crate) const LEAF: u64 = LEAF_BYTES as u64;

/// Rows that are read at once when a whole tensor is needed.
const READ_BYTES: u64 = 8 << 20;

/// A container that is ready to be written: its plan and its exact layout are known.
#[derive(Debug)]
pub struct Packer<'i, R> {
    input: &'i Input<R>,
    container: Option<Container<'i>>,
    builder: Builder,
    plan: Plan,
    notes: Vec<String>,
    obstacle: Option<format_spec::Error>,
    template_problem: Option<Error>,
}

/// What one object is made from.
enum Work<'c> {
    /// Copied from the input container, leaf by leaf.
    Copy(&'c Object),
    /// Produced leaf by leaf from the rows that the leaf holds.
    Rows,
    /// Produced from the whole tensor, front to back.
    Whole,
}

/// One object in the making.
struct Making<'p> {
    planned: &'p PlannedObject,
    work: Work<'p>,
    source: RowSource<'p>,
    is_base: bool,
    leaves: Mutex<Vec<[u8; 32]>>,
    xxh3: InTurn<Xxh3>,
    /// The digest of a [`Work::Whole`] object.
    digest: Mutex<Option<ObjectDigest>>,
}

/// Buffers of one worker.
#[derive(Default)]
struct Scratch {
    units: Vec<u8>,
    rows: Vec<u8>,
    out: Vec<u8>,
}

impl<'i, R: ReadAt> Packer<'i, R> {
    /// Plans the container that `input` becomes with these planes. Reads no tensor data.
    ///
    /// # Errors
    /// If the tokenizer cannot be used, or the container would become too large.
    pub fn new(input: &'i Input<R>, planes: &PlaneSet) -> Result<Self> {
        let container = input.container()?;
        let gguf = input.gguf()?;
        let source = match &container {
            Some(container) => container.source().section().to_vec(),
            None => section(input)?,
        };
        let (vocab, mut notes) = bake_vocab(&gguf)?;
        let ggufs = input.ggufs()?;
        if container.is_none() {
            notes.extend(trailing_notes(input, &ggufs));
        }
        let template_problem = match vocab.is_empty() {
            true => None,
            false => {
                VocabView::new(&vocab)?.chat_template().and_then(|it| template::check(it).err())
            }
        };
        let plan = Plan::of_files(&ggufs.iter().collect::<Vec<_>>(), planes)?;
        // The builder asks tensor by tensor, in the order in which they are planned.
        let mut planned = plan.tensors.iter();
        let kinds = |_: &TensorInfo<'_>| {
            let layouts = planned.next().map_or(&[][..], |tensor| &tensor.layouts);
            layouts.iter().map(Layout::kind).collect()
        };
        let builder = Builder::new(source, vocab, kinds)?;
        let obstacle = Blueprint::of_files(&ggufs.iter().collect::<Vec<_>>()).err();
        Ok(Self { input, container, builder, plan, notes, obstacle, template_problem })
    }

    /// Which tensor gets which objects.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the user should know about the model, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Why the runtime of this version cannot run the model, if it cannot. The container is sound all
    /// the same: a later version may know the architecture.
    pub fn obstacle(&self) -> Option<&format_spec::Error> {
        self.obstacle.as_ref()
    }

    /// What is wrong with the model's chat template, if the runtime cannot read it. Without it the
    /// model runs.
    pub fn template_problem(&self) -> Option<&Error> {
        self.template_problem.as_ref()
    }

    /// Bytes of the finished file.
    pub fn file_len(&self) -> u64 {
        self.builder.file_len()
    }

    /// Bytes of header, index, source and tokenizer tables.
    pub fn front_len(&self) -> u64 {
        self.builder.data_offset()
    }

    /// Bytes of all objects: what [`write`](Self::write) reports as progress.
    pub fn object_bytes(&self) -> u64 {
        let lens = self.builder.objects().iter().map(|object| object.layout.len_bytes());
        lens.fold(0, u64::saturating_add)
    }

    /// Memory that [`write`](Self::write) uses at most for weights, with this many threads.
    pub fn working_bytes(&self, n_threads: usize) -> u64 {
        let mut largest_leaf = 0;
        let mut whole: Vec<u64> = Vec::new();
        for object in self.builder.objects() {
            let layout = &object.layout;
            let leaf = layout.len_bytes().min(LEAF);
            if layout.rows_per_unit().is_some() {
                let unit = layout.unit_bytes();
                largest_leaf = largest_leaf.max((leaf + 2 * unit).saturating_mul(3));
            } else {
                whole.push(layout.gguf_bytes() + layout.unit_bytes().max(leaf));
            }
        }
        whole.sort_unstable_by(|a, b| b.cmp(a));
        let threads = n_threads as u64;
        let whole = whole.iter().take(n_threads).fold(0u64, |sum, n| sum.saturating_add(*n));
        whole.saturating_add(largest_leaf.saturating_mul(threads))
    }

    /// Writes the whole file to `out`, which is as long as [`file_len`](Self::file_len) and zero.
    /// The header comes last, so that an unfinished file is no container. Returns the root.
    ///
    /// `progress` is told the bytes of objects as they are written.
    ///
    /// # Errors
    /// If reading or writing fails, a scale is not finite, or an input container is damaged.
    pub fn write(&self, out: &dyn WriteAt, progress: &(dyn Fn(u64) + Sync)) -> Result<[u8; 32]> {
        let ggufs = self.input.ggufs()?;
        let sources = self.sources(&ggufs);
        let objects = self.builder.objects().iter();
        let making: Vec<Making<'_>> =
            objects.filter_map(|planned| self.making(planned, &sources)).collect();
        self.check_sources(&making)?;
        let mut jobs = Vec::new();
        for object in &making {
            let n_jobs = match object.work {
                Work::Whole => 1,
                _ => object.planned.layout.len_bytes().div_ceil(LEAF),
            };
            jobs.extend((0..n_jobs).map(|leaf| (object, leaf)));
        }
        run_in_order(jobs.len(), Scratch::default, |scratch, i| {
            let Some(&(object, leaf)) = jobs.get(i) else { return Ok(()) };
            match object.work {
                Work::Whole => self.write_whole(object, out, scratch, progress),
                _ => self.write_leaf(object, leaf, out, scratch, progress),
            }
        })?;
        let digests: Vec<_> = making.into_iter().map(Making::digest).collect();
        let (front, root) = self.builder.finish(&digests)?;
        let (header, rest) = front.split_at(front.len().min(HEADER_WRITE));
        write_at(out, rest, header.len() as u64, "index")?;
        write_at(out, header, 0, "header")?;
        Ok(root)
    }

    /// Checks the bases of an input container that are read but not copied: what is copied is
    /// checked on the way, and wrong bytes must not get right hashes.
    fn check_sources(&self, making: &[Making<'_>]) -> Result<()> {
        let Some(container) = &self.container else { return Ok(()) };
        let mut copied = HashSet::new();
        let mut read = HashSet::new();
        for object in making {
            match object.work {
                Work::Copy(from) => copied.insert(from.name.as_str()),
                _ => read.insert(object.planned.tensor.as_str()),
            };
        }
        let mut jobs = Vec::new();
        for TensorEntry { name, base, .. } in container.tensors() {
            if read.contains(name) && !copied.contains(base.name.as_str()) {
                jobs.extend((0..base.leaves.len()).map(|leaf| (base, leaf)));
            }
        }
        run_in_order(jobs.len(), Vec::new, |buf, i| {
            let Some(&(base, leaf)) = jobs.get(i) else { return Ok(()) };
            let start = leaf as u64 * LEAF;
            let range = start..base.len.min(start + LEAF);
            let in_file = base.offset + range.start..base.offset + range.end;
            read_into(self.input.first(), &base.name, in_file, buf)?;
            expect_leaf(base, leaf, &hash_leaf(buf))
        })
    }

    /// Where the rows of each tensor come from, in the order of the source.
    fn sources(&self, ggufs: &[Gguf<'_>]) -> Vec<RowSource<'_>> {
        if let Some(container) = &self.container {
            let bases = container.tensors().map(|entry| RowSource::Base {
                reader: self.input.first(),
                offset: entry.base.offset,
                layout: entry.base.layout.clone(),
            });
            return bases.collect();
        }
        let files = ggufs.iter().zip(self.input.files());
        let tensors = files.flat_map(|(gguf, file)| {
            gguf.tensors().iter().map(|tensor| RowSource::Gguf {
                reader: &file.reader,
                offset: tensor.range().start,
                // Rows are equal: the header's reader proved it.
                row_bytes: tensor.n_bytes() / tensor.n_rows().max(1),
            })
        });
        tensors.collect()
    }

    /// `None` if there is no such tensor, which the builder rules out.
    fn making<'p>(
        &'p self,
        planned: &'p PlannedObject,
        sources: &[RowSource<'p>],
    ) -> Option<Making<'p>> {
        let entry = self.container.as_ref().and_then(|c| c.tensor(&planned.tensor));
        let existing = entry.as_ref().and_then(|entry| {
            let mut objects = std::iter::once(entry.base).chain(entry.planes.iter().copied());
            objects.find(|object| object.kind == planned.layout.kind())
        });
        let work = match existing {
            Some(object) => Work::Copy(object),
            None if planned.layout.rows_per_unit().is_some() => Work::Rows,
            None => Work::Whole,
        };
        let n_leaves = planned.layout.len_bytes().div_ceil(LEAF);
        Some(Making {
            planned,
            work,
            source: sources.get(planned.tensor_idx)?.clone(),
            is_base: planned.layout.kind().is_base(),
            leaves: Mutex::new(vec![[0; 32]; usize::try_from(n_leaves).unwrap_or(0)]),
            xxh3: InTurn::new(Xxh3::new()),
            digest: Mutex::new(None),
        })
    }

    fn write_leaf(
        &self,
        object: &Making<'_>,
        leaf: u64,
        out: &dyn WriteAt,
        scratch: &mut Scratch,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let i = usize::try_from(leaf).unwrap_or(usize::MAX);
        let turn = object.xxh3.turn(i);
        let layout = &object.planned.layout;
        let start = leaf * LEAF;
        let range = start..layout.len_bytes().min(start + LEAF);
        let bytes = match object.work {
            Work::Copy(from) => {
                let range = from.offset + range.start..from.offset + range.end;
                read_into(self.input.first(), &from.name, range, &mut scratch.out)?;
                scratch.out.as_slice()
            }
            _ => self.produce(object, range.clone(), scratch)?,
        };
        let digest = hash_leaf(bytes);
        if let Work::Copy(from) = object.work {
            expect_leaf(from, i, &digest)?;
        }
        write_at(out, bytes, object.planned.offset + range.start, &object.planned.name)?;
        if let Some(slot) = lock(&object.leaves).get_mut(i) {
            *slot = digest;
        }
        turn.take(|xxh3| xxh3.update(bytes));
        progress(bytes.len() as u64);
        Ok(())
    }

    /// Produces a range of an object's bytes from the rows that it holds.
    fn produce<'s>(
        &self,
        object: &Making<'_>,
        range: std::ops::Range<u64>,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8]> {
        let PlannedObject { layout, tensor, .. } = object.planned;
        let units = units_of_bytes(layout, &range);
        let rows = rows_of_units(layout, &units);
        let Scratch { units: unit_bytes, rows: row_bytes, out } = scratch;
        object.source.read_rows(tensor, rows.clone(), unit_bytes, row_bytes)?;
        let part = rows_layout(layout, &rows)?;
        resize(out, part.len_bytes())
            .map_err(|source| Error::Read { what: tensor.clone(), source })?;
        part.write_units(row_bytes, 0..part.n_units(), out)?;
        if object.is_base {
            finite::check(layout, tensor, (rows.start, row_bytes), out)?;
        }
        let skipped = units.start * layout.unit_bytes();
        let cut = |at: u64| usize::try_from(at - skipped).unwrap_or(usize::MAX);
        Ok(out.get(cut(range.start)..cut(range.end)).unwrap_or_default())
    }

    /// Produces an object that needs all rows at once, unit by unit.
    fn write_whole(
        &self,
        object: &Making<'_>,
        out: &dyn WriteAt,
        scratch: &mut Scratch,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let PlannedObject { layout, tensor, offset, name, .. } = object.planned;
        let gguf = self.whole_tensor(object, scratch)?;
        let units_at_once = (LEAF / layout.unit_bytes()).max(1);
        let mut hasher = ObjectHasher::new();
        let mut first = 0;
        while first < layout.n_units() {
            let units = first..layout.n_units().min(first + units_at_once);
            let n_bytes = (units.end - units.start) * layout.unit_bytes();
            resize(&mut scratch.out, n_bytes)
                .map_err(|source| Error::Read { what: tensor.clone(), source })?;
            layout.write_units(&gguf, units.clone(), &mut scratch.out)?;
            hasher.update(&scratch.out);
            write_at(out, &scratch.out, offset + first * layout.unit_bytes(), name)?;
            progress(n_bytes);
            first = units.end;
        }
        *lock(&object.digest) = Some(hasher.finish());
        Ok(())
    }

    fn whole_tensor(&self, object: &Making<'_>, scratch: &mut Scratch) -> Result<Vec<u8>> {
        let PlannedObject { layout, tensor, .. } = object.planned;
        let out_of_memory = |source| Error::Read { what: tensor.clone(), source };
        let n_rows = layout.geometry().n_rows;
        let rows_at_once = (READ_BYTES / layout.gguf_row_bytes()).max(1);
        let mut gguf = Vec::new();
        gguf.try_reserve_exact(usize::try_from(layout.gguf_bytes()).unwrap_or(usize::MAX))
            .map_err(|_| out_of_memory(std::io::ErrorKind::OutOfMemory.into()))?;
        let mut row = 0;
        while row < n_rows {
            let rows = row..n_rows.min(row + rows_at_once);
            row = rows.end;
            let Scratch { units, rows: bytes, .. } = scratch;
            object.source.read_rows(tensor, rows, units, bytes)?;
            gguf.extend_from_slice(bytes);
        }
        Ok(gguf)
    }
}

impl Making<'_> {
    fn digest(self) -> ObjectDigest {
        let whole = self.digest.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        whole.unwrap_or_else(|| {
            let leaves =
                self.leaves.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            // Every turn was taken, or `write` had returned the error that kept one from it.
            let xxh3 = self.xxh3.finish(leaves.len()).map_or(0, |xxh3| xxh3.digest());
            ObjectDigest::from_leaves(leaves, xxh3)
        })
    }
}

/// Compares a leaf of an input container with its index.
pub(crate) fn expect_leaf(object: &Object, leaf: usize, digest: &[u8; 32]) -> Result<()> {
    if object.leaves.get(leaf) == Some(digest) {
        return Ok(());
    }
    let start = leaf as u64 * LEAF;
    Err(Error::Damaged {
        object: object.name.clone(),
        start: object.offset + start,
        end: object.offset + object.len.min(start + LEAF),
    })
}

/// What is written last: the page that makes the file a container.
const HEADER_WRITE: usize = 4096;

fn write_at(out: &dyn WriteAt, bytes: &[u8], offset: u64, what: &str) -> Result<()> {
    out.write_all_at(bytes, offset).map_err(|source| Error::Write {
        output: 0,
        what: describe(what, &(offset..offset + bytes.len() as u64)),
        source,
    })
}
