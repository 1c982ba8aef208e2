//! Everything that is checked before a [`Container`] exists, besides its header.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::hash::{n_leaves, tree_digest};
use super::index::{FieldRecord, IndexHead, ObjectRecord, Tables};
use super::object::{Object, object_name};
use super::{
    Container, DATA_ALIGN, Header, OBJECT_ALIGN, SECTION_ALIGN, Source, TensorSlot, VERSION,
    align_up, field_error, hex, in_object, sha256, sha256_of_parts, slice, to_u64,
};
use crate::gguf::TensorInfo;
use crate::plane::PlaneKind;
use crate::quant::QuantType;
use crate::{Error, Geometry, Layout, Result};

/// Reads everything behind the header. `front`: the first bytes of the file, at least up to the
/// data section.
pub(super) fn container(header: Header, front: &[u8]) -> Result<Container<'_>> {
    let front = slice(front, 0..header.data_offset).ok_or_else(|| Error::Truncated {
        what: "front of the container".to_owned(),
        offset: 0,
        end: header.data_offset,
        have: to_u64(front.len()),
    })?;
    let index = slice(front, header.index.clone()).unwrap_or_default();
    check_hash("index", index, &header.index_sha256)?;
    let newer_minor = header.version.1 > VERSION.1;
    let tables = Tables::split(index, header.index.start, newer_minor)?;
    let sections = Sections::of(tables.head, &header)?;
    let mut zero_gaps = sections.zero_gaps(&header);
    for gap in &zero_gaps {
        let bytes = slice(front, gap.clone()).unwrap_or_default();
        if let Some(i) = bytes.iter().position(|&byte| byte != 0) {
            let at = gap.start.saturating_add(to_u64(i));
            return Err(field_error("padding", at, 0, bytes.get(i).copied().unwrap_or(0)));
        }
    }
    let source_bytes = slice(front, sections.source.clone()).unwrap_or_default();
    check_hash("source", source_bytes, &tables.head.source_sha256)?;
    let vocab = sections.vocab.clone().map(|range| slice(front, range).unwrap_or_default());
    if let Some(vocab) = vocab {
        check_hash("vocabulary", vocab, &tables.head.vocab_sha256)?;
    }
    let source = Source::parse(source_bytes, sections.source.start)?;
    let (objects, gaps) = read_objects(&tables, &header)?;
    zero_gaps.extend(gaps);
    let tensors = match_tensors(&tables, &objects, &source)?;
    let by_name = objects.iter().take(tensors.len()).enumerate();
    let by_name: HashMap<_, _> = by_name.map(|(i, base)| (base.tensor.clone(), i)).collect();
    let header_bytes = slice(front, 0..header.header_len).unwrap_or_default();
    let root = sha256_of_parts(&[header_bytes, index]);
    Ok(Container { header, root, objects, tensors, by_name, source, vocab, zero_gaps })
}

fn check_hash(what: &str, bytes: &[u8], expected: &[u8; 32]) -> Result<()> {
    let found = sha256(bytes);
    if found == *expected {
        return Ok(());
    }
    Err(Error::Hash { what: what.to_owned(), expected: hex(expected), found: hex(&found) })
}

/// Where source and vocabulary lie.
struct Sections {
    source: Range<u64>,
    vocab: Option<Range<u64>>,
}

impl Sections {
    fn of(head: &IndexHead, header: &Header) -> Result<Self> {
        let index_end = header.index.end;
        let at = |field: u64| header.index.start.saturating_add(field);
        let place = |name: &str, field: u64, offset: u64, len: u64, before: u64| {
            let expected = align_up(before, SECTION_ALIGN).unwrap_or(u64::MAX);
            if offset != expected {
                return Err(field_error(format!("{name}_offset"), at(field), expected, offset));
            }
            let end = offset.checked_add(len).filter(|&end| end <= header.data_offset);
            let end = end.ok_or_else(|| {
                let room = header.data_offset.saturating_sub(offset);
                let name = format!("{name}_len");
                field_error(name, at(field.saturating_add(8)), format!("at most {room}"), len)
            })?;
            Ok(offset..end)
        };
        let (source_offset, source_len) = (head.source_offset.get(), head.source_len.get());
        let source = place("source", 0, source_offset, source_len, index_end)?;
        let (vocab_offset, vocab_len) = (head.vocab_offset.get(), head.vocab_len.get());
        let vocab = if vocab_len > 0 {
            Some(place("vocab", 48, vocab_offset, vocab_len, source.end)?)
        } else if vocab_offset != 0 || head.vocab_sha256 != [0; 32] {
            let found = "an offset or a sha256 without bytes";
            return Err(field_error("vocab_offset", at(48), "0 where there is none", found));
        } else {
            None
        };
        let end = vocab.as_ref().map_or(source.end, |vocab| vocab.end);
        let expected = align_up(end, DATA_ALIGN).unwrap_or(u64::MAX);
        if header.data_offset != expected {
            let expected = format!("{expected}, the aligned end of what precedes it");
            return Err(field_error("data_offset", 88, expected, header.data_offset));
        }
        Ok(Self { source, vocab })
    }

    /// The padding before the data section.
    fn zero_gaps(&self, header: &Header) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut end = header.index.end;
        for section in std::iter::once(&self.source).chain(&self.vocab) {
            push_gap(&mut gaps, end..section.start);
            end = section.end;
        }
        push_gap(&mut gaps, end..header.data_offset);
        gaps
    }
}

fn push_gap(gaps: &mut Vec<Range<u64>>, gap: Range<u64>) {
    if !gap.is_empty() {
        gaps.push(gap);
    }
}

/// Reads the object table; also returns the gaps of the data section.
fn read_objects(tables: &Tables<'_>, header: &Header) -> Result<(Vec<Object>, Vec<Range<u64>>)> {
    let mut objects = Vec::new();
    let mut gaps = Vec::new();
    let mut names = tables.names;
    let mut leaves = tables.leaves;
    let mut end = header.data_offset;
    for (i, record) in tables.objects.iter().enumerate() {
        let record_bytes = to_u64(i).saturating_mul(to_u64(size_of::<ObjectRecord>()));
        let at = tables.objects_offset.saturating_add(record_bytes);
        let name_len = usize::try_from(record.name_len.get()).unwrap_or(usize::MAX);
        let Some((name, more_names)) = names.split_at_checked(name_len) else {
            let expected = format!("at most {} (the names end)", names.len());
            return Err(field_error(format!("name_len of object {i}"), at, expected, name_len));
        };
        names = more_names;
        let object = read_object(tables, record, at, name, &mut leaves)?;
        let expected = align_up(end, OBJECT_ALIGN).unwrap_or(u64::MAX);
        if object.offset != expected {
            let at = at.saturating_add(40);
            let expected = format!("{expected}, the aligned end of what precedes it");
            return Err(field_error(
                format!("offset of object {name}"),
                at,
                expected,
                object.offset,
            ));
        }
        let object_end = object.offset.checked_add(object.len);
        let Some(object_end) = object_end.filter(|&end| end <= header.file_len) else {
            return Err(Error::Truncated {
                what: format!("object {name}"),
                offset: object.offset,
                end: object.offset.saturating_add(object.len),
                have: header.file_len,
            });
        };
        push_gap(&mut gaps, end..object.offset);
        end = object_end;
        objects.push(object);
    }
    if !names.is_empty() {
        let at = tables.names_offset;
        let found = format!("{} bytes of no object", names.len());
        return Err(field_error("names", at, "the names of the objects", found));
    }
    if !leaves.is_empty() {
        let at = header.index.start.saturating_add(104);
        let expected = tables.leaves.len().saturating_sub(leaves.len());
        return Err(field_error("n_leaves", at, expected, tables.leaves.len()));
    }
    let expected = align_up(end, DATA_ALIGN).unwrap_or(u64::MAX);
    if header.file_len != expected {
        let expected = format!("{expected}, the aligned end of the last object");
        return Err(field_error("file_len", 16, expected, header.file_len));
    }
    push_gap(&mut gaps, end..header.file_len);
    Ok((objects, gaps))
}

fn read_object(
    tables: &Tables<'_>,
    record: &ObjectRecord,
    at: u64,
    name: &str,
    leaves: &mut &[[u8; 32]],
) -> Result<Object> {
    let field = |what: &str| format!("{what} of object {name}");
    let tensor_len = usize::try_from(record.tensor_name_len.get()).unwrap_or(usize::MAX);
    let Some(tensor) = name.get(..tensor_len) else {
        let expected = format!("at most {}", name.len());
        return Err(field_error(
            field("tensor_name_len"),
            at.saturating_add(4),
            expected,
            tensor_len,
        ));
    };
    let kind = PlaneKind::from_id(record.kind.get()).map_err(|error| in_object(name, at, error))?;
    let quant = QuantType::from_ggml_id(record.quant.get()).ok_or_else(|| Error::Unsupported {
        what: field("type"),
        found: format!("ggml type {}", record.quant),
        supported: "upgrade minfer".to_owned(),
    })?;
    if record.reserved.get() != 0 {
        let at = at.saturating_add(20);
        return Err(field_error(field("reserved field"), at, 0, record.reserved));
    }
    let geometry = Geometry { n_rows: record.n_rows.get(), row_len: record.row_len.get() };
    let layout = Layout::new(kind, quant, geometry)
        .map_err(|error| in_object(name, at.saturating_add(24), error))?;
    let expected_name = object_name(tensor, kind, geometry);
    if name != expected_name {
        return Err(field_error("name of an object", at, expected_name, name));
    }
    let len = record.len.get();
    if len != layout.len_bytes() {
        let at = at.saturating_add(48);
        return Err(field_error(field("length"), at, layout.len_bytes(), len));
    }
    check_fields(tables, record, at, name, &layout)?;
    let n = usize::try_from(n_leaves(len)).unwrap_or(usize::MAX);
    let Some((own, others)) = leaves.split_at_checked(n) else {
        let expected = format!("{n} leaf digests");
        return Err(field_error(field("leaves"), at, expected, format!("{} left", leaves.len())));
    };
    *leaves = others;
    let tree = tree_digest(own);
    if tree != record.sha256 {
        let [expected, found] = [&record.sha256, &tree].map(|digest| hex(digest));
        return Err(Error::Hash { what: field("leaf digests"), expected, found });
    }
    Ok(Object {
        name: name.to_owned(),
        tensor: tensor.to_owned(),
        kind,
        quant,
        geometry,
        offset: record.offset.get(),
        len,
        sha256: record.sha256,
        xxh3: record.xxh3.get(),
        leaves: own.to_vec(),
        layout,
    })
}

/// Checks the stored descriptors against those of the layout.
fn check_fields(
    tables: &Tables<'_>,
    record: &ObjectRecord,
    at: u64,
    name: &str,
    layout: &Layout,
) -> Result<()> {
    let first = usize::try_from(record.first_field.get()).unwrap_or(usize::MAX);
    let n_fields = usize::from(record.n_fields.get());
    let stored = first.checked_add(n_fields).and_then(|end| tables.fields.get(first..end));
    let Some(stored) = stored else {
        let expected = format!("descriptors inside 0..{}", tables.fields.len());
        let found = format!("{n_fields} from {first}");
        let field = format!("fields of object {name}");
        return Err(field_error(field, at.saturating_add(16), expected, found));
    };
    if n_fields != layout.fields().len() {
        let field = format!("number of fields of object {name}");
        return Err(field_error(field, at.saturating_add(10), layout.fields().len(), n_fields));
    }
    for (i, (field, found)) in layout.fields().iter().zip(stored).enumerate() {
        let expected = FieldRecord::of(field);
        if *found != expected {
            let record_bytes = to_u64(size_of::<FieldRecord>());
            let i = to_u64(first.saturating_add(i));
            let at = tables.fields_offset.saturating_add(i.saturating_mul(record_bytes));
            let field = format!("field {} of object {name}", field.name.name());
            return Err(field_error(field, at, "the layout's descriptor", "another one"));
        }
    }
    Ok(())
}

/// Checks that every tensor of the source has its base, in order, and that everything else is a
/// plane of one of them.
fn match_tensors(
    tables: &Tables<'_>,
    objects: &[Object],
    source: &Source<'_>,
) -> Result<Vec<TensorSlot>> {
    let at = tables.objects_offset;
    let infos: Vec<_> = source.shards().flat_map(|shard| shard.gguf.tensors()).collect();
    let mut names = HashSet::new();
    if let Some(twice) = objects.iter().find(|object| !names.insert(object.name.as_str())) {
        let found = format!("{}, twice", twice.name);
        return Err(field_error("name of an object", at, "every name once", found));
    }
    let mut slots = Vec::new();
    let mut by_name = HashMap::new();
    for (i, info) in infos.iter().enumerate() {
        let object = objects.get(i).filter(|object| object.tensor == info.name());
        let Some(base) = object.filter(|object| object.kind.is_base()) else {
            let found = objects.get(i).map_or("no object", |object| &object.name);
            let expected = format!("the base of tensor {}", info.name());
            return Err(field_error(format!("object {i}"), at, expected, found));
        };
        check_tensor(base, info, at)?;
        if by_name.insert(info.name(), i).is_some() {
            let found = format!("{}, twice", info.name());
            return Err(field_error("name of a tensor", at, "every name once", found));
        }
        slots.push(TensorSlot { base: i, planes: Vec::new() });
    }
    let mut last = None;
    for (i, object) in objects.iter().enumerate().skip(infos.len()) {
        let tensor = by_name.get(object.tensor.as_str()).copied();
        let slot_and_info = tensor.and_then(|t| slots.get_mut(t).zip(infos.get(t)));
        let Some((slot, info)) = slot_and_info else {
            let found = object.name.as_str();
            return Err(field_error(format!("object {i}"), at, "a tensor of the source", found));
        };
        check_tensor(object, info, at)?;
        let base_kind = objects.get(slot.base).map(|base| base.kind);
        if object.kind.is_base() && Some(object.kind) < base_kind {
            let expected = format!("no base before {}", object.kind.name());
            return Err(field_error(format!("object {i}"), at, expected, object.name.as_str()));
        }
        let place = Some((object.kind, tensor));
        if place <= last {
            let expected = "planes kind by kind, in tensor order";
            return Err(field_error(format!("object {i}"), at, expected, object.name.as_str()));
        }
        last = place;
        slot.planes.push(i);
    }
    Ok(slots)
}

/// Checks an object against its tensor in the source header.
fn check_tensor(object: &Object, info: &TensorInfo<'_>, at: u64) -> Result<()> {
    let describe = |quant: QuantType, n_rows: u64, row_len: u64| {
        format!("{} {n_rows} x {row_len}", quant.name())
    };
    let expected = describe(info.quant(), info.n_rows(), info.row_len());
    let found = describe(object.quant, object.geometry.n_rows, object.geometry.row_len);
    if expected != found {
        let field = format!("shape of object {}", object.name);
        return Err(field_error(field, at, format!("{expected} as in the source"), found));
    }
    Ok(())
}
