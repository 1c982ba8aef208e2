//! Computes a container's exact layout before any data is written, and encodes its front when the
//! hashes are known.

use std::collections::HashMap;
use std::ops::Range;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::hash::n_leaves;
use super::header::{HEADER_BYTES, check_front_len};
use super::index::{FieldRecord, IndexHead, ObjectRecord};
use super::object::object_name;
use super::{
    DATA_ALIGN, Header, MAX_INDEX_BYTES, OBJECT_ALIGN, ObjectDigest, SECTION_ALIGN, Source,
    align_up, field_error, in_object, sha256, to_u64,
};
use crate::gguf::TensorInfo;
use crate::plane::PlaneKind;
use crate::{Error, Geometry, Layout, Result};

/// An object that will be written.
#[derive(Debug, Clone)]
pub struct PlannedObject {
    /// `{tensor}__{kind}{n_rows}x{row_len}`.
    pub name: String,
    /// Name of the tensor.
    pub tensor: String,
    /// Position of the tensor among all tensors of the source.
    pub tensor_idx: usize,
    /// Start in the file.
    pub offset: u64,
    /// Where everything lies in the object; says its kind and its length.
    pub layout: Layout,
}

impl PlannedObject {
    /// Where the object will lie in the file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.layout.len_bytes())
    }
}

/// A container whose layout is fixed, before its data exists.
#[derive(Debug, Clone)]
pub struct Builder {
    source: Vec<u8>,
    vocab: Vec<u8>,
    objects: Vec<PlannedObject>,
    /// Descriptors; objects that share all of theirs share the records.
    fields: Vec<FieldRecord>,
    /// First descriptor of each object.
    first_fields: Vec<usize>,
    index_len: u64,
    source_offset: u64,
    vocab_offset: u64,
    data_offset: u64,
    file_len: u64,
}

impl Builder {
    /// Plans a container.
    ///
    /// `source`: a section from [`encode_source`](super::encode_source) or another container;
    /// `vocab`: baked tokenizer tables, empty for none; `kinds`: which planes a tensor gets, in any
    /// order, at least one of them a base.
    ///
    /// # Errors
    /// If the source is malformed, a tensor gets no base or a plane that does not exist for its
    /// type, or a section becomes too large.
    pub fn new(
        source: Vec<u8>,
        vocab: Vec<u8>,
        mut kinds: impl FnMut(&TensorInfo<'_>) -> Vec<PlaneKind>,
    ) -> Result<Self> {
        let view = Source::parse(&source, 0)?;
        let mut planned = Vec::new();
        let infos = view.shards().flat_map(|shard| shard.gguf.tensors());
        for (tensor_idx, info) in infos.enumerate() {
            plan_tensor(tensor_idx, info, kinds(info), &mut planned)?;
        }
        // Bases first, then kind by kind; the sort is stable, so tensors keep their order.
        planned.sort_by_key(|(is_base, object)| match is_base {
            true => None,
            false => Some(object.layout.kind()),
        });
        let objects = planned.into_iter().map(|(_, object)| object).collect();
        Self::lay_out(source, vocab, objects)
    }

    pub(super) fn lay_out(
        source: Vec<u8>,
        vocab: Vec<u8>,
        objects: Vec<PlannedObject>,
    ) -> Result<Self> {
        let (fields, first_fields) = share_fields(&objects);
        let mut builder = Self {
            source,
            vocab,
            objects,
            fields,
            first_fields,
            index_len: 0,
            source_offset: 0,
            vocab_offset: 0,
            data_offset: 0,
            file_len: 0,
        };
        let too_large = || field_error("container", 0, "a file below 2^63 bytes", "more");
        builder.index_len = builder.compute_index_len().ok_or_else(too_large)?;
        if builder.index_len > MAX_INDEX_BYTES {
            let expected = format!("at most {MAX_INDEX_BYTES}");
            return Err(field_error("index_len", 32, expected, builder.index_len));
        }
        builder.place().ok_or_else(too_large)?;
        check_front_len(builder.data_offset)?;
        Ok(builder)
    }

    fn compute_index_len(&self) -> Option<u64> {
        let mut leaves = 0u64;
        let mut names = 0u64;
        for object in &self.objects {
            leaves = leaves.checked_add(n_leaves(object.layout.len_bytes()))?;
            names = names.checked_add(to_u64(object.name.len()))?;
        }
        let table = |n: u64, record: usize| n.checked_mul(to_u64(record));
        to_u64(size_of::<IndexHead>())
            .checked_add(table(to_u64(self.objects.len()), size_of::<ObjectRecord>())?)?
            .checked_add(table(to_u64(self.fields.len()), size_of::<FieldRecord>())?)?
            .checked_add(table(leaves, size_of::<[u8; 32]>())?)?
            .checked_add(names)
    }

    /// Gives every section and object its place; `None` if the file becomes too large.
    fn place(&mut self) -> Option<()> {
        let mut end = to_u64(HEADER_BYTES).checked_add(self.index_len)?;
        self.source_offset = align_up(end, SECTION_ALIGN)?;
        end = self.source_offset.checked_add(to_u64(self.source.len()))?;
        if !self.vocab.is_empty() {
            self.vocab_offset = align_up(end, SECTION_ALIGN)?;
            end = self.vocab_offset.checked_add(to_u64(self.vocab.len()))?;
        }
        self.data_offset = align_up(end, DATA_ALIGN)?;
        end = self.data_offset;
        for object in &mut self.objects {
            object.offset = align_up(end, OBJECT_ALIGN)?;
            end = object.offset.checked_add(object.layout.len_bytes())?;
        }
        self.file_len = align_up(end, DATA_ALIGN)?;
        i64::try_from(self.file_len).is_ok().then_some(())
    }

    /// The objects in file order.
    pub fn objects(&self) -> &[PlannedObject] {
        &self.objects
    }

    /// Length of the file.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Start of the data section: the length of the bytes that [`finish`](Self::finish) gives.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Length of the source section.
    pub fn source_len(&self) -> u64 {
        to_u64(self.source.len())
    }

    /// Length of the vocabulary section; 0 if there is none.
    pub fn vocab_len(&self) -> u64 {
        to_u64(self.vocab.len())
    }

    /// Ranges of the data section that belong to no object; they must be written as zeros (or
    /// left as holes).
    pub fn data_gaps(&self) -> Vec<Range<u64>> {
        let mut end = self.data_offset;
        let mut gaps = Vec::new();
        for object in &self.objects {
            let range = object.range();
            gaps.push(end..range.start);
            end = range.end;
        }
        gaps.push(end..self.file_len);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    /// The bytes of the file up to the data section, and the container's root: header, index,
    /// source and vocabulary. `digests`: the hashes of the objects, in order.
    ///
    /// # Errors
    /// If there is not one digest an object, or it has the wrong number of leaves.
    pub fn finish(&self, digests: &[ObjectDigest]) -> Result<(Vec<u8>, [u8; 32])> {
        if digests.len() != self.objects.len() {
            return Err(field_error("digests", 0, self.objects.len(), digests.len()));
        }
        let index = self.encode_index(digests)?;
        let header =
            Header::encode(self.file_len, self.index_len, sha256(&index), self.data_offset);
        let mut front = [header, index].concat();
        let root = sha256(&front);
        let sections = [(self.source_offset, &self.source), (self.vocab_offset, &self.vocab)];
        for (offset, bytes) in sections.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
            pad_to(&mut front, offset);
            front.extend_from_slice(bytes);
        }
        pad_to(&mut front, self.data_offset);
        Ok((front, root))
    }

    fn encode_index(&self, digests: &[ObjectDigest]) -> Result<Vec<u8>> {
        let mut objects = Vec::new();
        let mut leaves = Vec::new();
        let mut names = Vec::new();
        let rows = self.objects.iter().zip(&self.first_fields).zip(digests);
        for ((object, &first_field), digest) in rows {
            let layout = &object.layout;
            let expected = n_leaves(layout.len_bytes());
            if to_u64(digest.leaves.len()) != expected {
                let field = format!("leaves of object {}", object.name);
                return Err(field_error(field, 0, expected, digest.leaves.len()));
            }
            let record = ObjectRecord {
                name_len: count("name_len", object.name.len())?,
                tensor_name_len: count("tensor_name_len", object.tensor.len())?,
                kind: U16::new(layout.kind().id()),
                n_fields: U16::new(u16::try_from(layout.fields().len()).unwrap_or(u16::MAX)),
                quant: U32::new(layout.quant().ggml_id()),
                first_field: count("first_field", first_field)?,
                reserved: U32::ZERO,
                n_rows: U64::new(layout.geometry().n_rows),
                row_len: U64::new(layout.geometry().row_len),
                offset: U64::new(object.offset),
                len: U64::new(layout.len_bytes()),
                xxh3: U64::new(digest.xxh3),
                sha256: digest.sha256,
            };
            objects.extend_from_slice(record.as_bytes());
            leaves.extend_from_slice(digest.leaves.as_flattened());
            names.extend_from_slice(object.name.as_bytes());
        }
        let has_vocab = !self.vocab.is_empty();
        let head = IndexHead {
            source_offset: U64::new(self.source_offset),
            source_len: U64::new(self.source_len()),
            source_sha256: sha256(&self.source),
            vocab_offset: U64::new(self.vocab_offset),
            vocab_len: U64::new(self.vocab_len()),
            vocab_sha256: if has_vocab { sha256(&self.vocab) } else { [0; 32] },
            n_objects: count("n_objects", self.objects.len())?,
            n_fields: count("n_fields", self.fields.len())?,
            n_leaves: count("n_leaves", digests.iter().map(|digest| digest.leaves.len()).sum())?,
            names_len: count("names_len", names.len())?,
        };
        Ok([head.as_bytes(), &objects, self.fields.as_bytes(), &leaves, &names].concat())
    }
}

fn count(what: &str, n: usize) -> Result<U32> {
    u32::try_from(n).map(U32::new).map_err(|_| field_error(what, 0, "at most 2^32 - 1", n))
}

fn pad_to(bytes: &mut Vec<u8>, offset: u64) {
    // Offsets of the front lie in memory, so that they fit.
    bytes.resize(usize::try_from(offset).unwrap_or(bytes.len()).max(bytes.len()), 0);
}

/// Plans the objects of one tensor: `(is the base, object)`.
fn plan_tensor(
    tensor_idx: usize,
    info: &TensorInfo<'_>,
    mut kinds: Vec<PlaneKind>,
    planned: &mut Vec<(bool, PlannedObject)>,
) -> Result<()> {
    kinds.sort();
    kinds.dedup();
    let Some(base) = kinds.iter().copied().find(|kind| kind.is_base()) else {
        return Err(Error::Field {
            field: format!("planes of tensor {}", info.name()),
            offset: 0,
            expected: "at least one base".to_owned(),
            found: kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(","),
        });
    };
    let geometry = Geometry { n_rows: info.n_rows(), row_len: info.row_len() };
    for kind in kinds {
        let name = object_name(info.name(), kind, geometry);
        let layout = Layout::new(kind, info.quant(), geometry)
            .map_err(|error| in_object(&name, 0, error))?;
        let tensor = info.name().to_owned();
        planned.push((kind == base, PlannedObject { name, tensor, tensor_idx, offset: 0, layout }));
    }
    Ok(())
}

/// The descriptor table, and where each object's descriptors start in it.
fn share_fields(objects: &[PlannedObject]) -> (Vec<FieldRecord>, Vec<usize>) {
    let mut table: Vec<FieldRecord> = Vec::new();
    let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut first_fields = Vec::new();
    for object in objects {
        let records: Vec<_> = object.layout.fields().iter().map(FieldRecord::of).collect();
        let first = *known.entry(records.as_bytes().to_vec()).or_insert_with(|| {
            let first = table.len();
            table.extend_from_slice(&records);
            first
        });
        first_fields.push(first);
    }
    (table, first_fields)
}
