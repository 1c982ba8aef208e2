//! Comparison with the GGUF, bit for bit.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use format_spec::container::{Container, Object, Shard};
use format_spec::gguf::Gguf;

use super::Finding;
use crate::error::Result;
use crate::input::{Input, InputFile, RowSource, read, read_into};
use crate::io::ReadAt;
use crate::pipeline::{lock, run_in_order};

/// GGUF bytes that a job compares.
const CHUNK: u64 = 4 << 20;

/// Bytes that [`source()`] looks at, which it reports as progress.
pub fn source_bytes(container: &Container<'_>) -> u64 {
    let lens = container.tensors().map(|entry| entry.base.layout.gguf_bytes());
    lens.fold(0, u64::saturating_add)
}

/// Compares everything with `gguf`: length, header, padding, trailing bytes, and each tensor as it
/// is rebuilt from its base.
///
/// # Errors
/// If reading either file fails.
pub fn source<R: ReadAt>(
    reader: &dyn ReadAt,
    container: &Container<'_>,
    gguf: &Input<R>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let shards: Vec<_> = container.source().shards().collect();
    let views = gguf.ggufs()?;
    if shards.len() != views.len() {
        let (kept, found) = (shards.len(), views.len());
        let problem = format!("the model had {kept} files, the source has {found}");
        findings.push(Finding::section("source", 0..0, problem));
        return Ok(findings);
    }
    for ((shard, view), file) in shards.iter().zip(&views).zip(gguf.files()) {
        compare_front(shard, view, file, &mut findings)?;
    }
    let mut jobs: Vec<(&Object, &dyn ReadAt, u64, Range<u64>)> = Vec::new();
    for entry in container.tensors() {
        let object = entry.base;
        let layout = &object.layout;
        let found = views.iter().zip(gguf.files()).find_map(|(view, file)| {
            let tensor = view.tensor(entry.name)?;
            let geometry = (tensor.quant(), tensor.n_rows(), tensor.row_len());
            let same = (entry.quant, entry.geometry.n_rows, entry.geometry.row_len);
            (geometry == same).then_some((tensor, &file.reader))
        });
        let Some((tensor, source)) = found else {
            let problem = "the source has no such tensor of this type and shape".to_owned();
            findings.push(Finding::of(object, object.range(), problem));
            continue;
        };
        // Whole units, so that each is read once.
        let unit_rows = layout.rows_per_unit().unwrap_or(entry.geometry.n_rows).max(1);
        let rows_at_once = (CHUNK / layout.gguf_row_bytes()).max(1).next_multiple_of(unit_rows);
        let mut row = 0;
        while row < entry.geometry.n_rows {
            let end = entry.geometry.n_rows.min(row + rows_at_once);
            jobs.push((object, source, tensor.range().start, row..end));
            row = end;
        }
    }
    let found = Mutex::new(Vec::new());
    run_in_order(
        jobs.len(),
        <(Vec<u8>, Vec<u8>, Vec<u8>)>::default,
        |(scratch, rebuilt, original), i| {
            let Some((object, original_in, offset, rows)) = jobs.get(i) else { return Ok(()) };
            let row_bytes = object.layout.gguf_row_bytes();
            let (offset_in_base, layout) = (object.offset, object.layout.clone());
            let base = RowSource::Base { reader, offset: offset_in_base, layout };
            base.read_rows(&object.name, rows.clone(), scratch, rebuilt)?;
            let range = offset + rows.start * row_bytes..offset + rows.end * row_bytes;
            read_into(*original_in, &object.tensor, range.clone(), original)?;
            if let Some(at) = first_difference(rebuilt, original) {
                let row = rows.start + at / row_bytes;
                let bytes = row_in_file(object, row);
                let problem =
                    format!("row {row} differs from the source at its byte {}", range.start + at);
                lock(&found).push(Finding::of(object, bytes, problem));
            }
            progress(original.len() as u64);
            Ok(())
        },
    )?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|finding| finding.bytes.start);
    findings.extend(found);
    Ok(findings)
}

/// Where a row lies in the container, as far as it is contiguous.
fn row_in_file(object: &Object, row: u64) -> Range<u64> {
    let layout = &object.layout;
    match layout.rows_per_unit() {
        Some(n) => {
            let start = object.offset + row / n * layout.unit_bytes();
            start..start + layout.unit_bytes()
        }
        None => object.range(),
    }
}

/// Compares length, header and everything that is neither header nor tensor.
fn compare_front<R: ReadAt>(
    shard: &Shard<'_>,
    view: &Gguf<'_>,
    file: &InputFile<R>,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let mut differs = |what: &str, problem: String| {
        findings.push(Finding::section("source", 0..0, format!("{what} {problem}")));
    };
    if shard.file_len != file.len_bytes {
        let (kept, found) = (shard.file_len, file.len_bytes);
        differs("the GGUF", format!("had {kept} bytes, the source has {found}"));
    }
    if let Some(at) = first_difference(shard.header, &file.front) {
        differs("the header", format!("differs from the source at its byte {at}"));
        return Ok(());
    }
    let len = file.len_bytes.min(shard.file_len);
    for range in view.padding(len).chain(std::iter::once(view.trailing(len))) {
        let found = read(&file.reader, "padding of the source", range.clone())?;
        let mut kept = vec![0; found.len()];
        for (offset, bytes) in &shard.extents {
            let at = offset.checked_sub(range.start).and_then(|at| usize::try_from(at).ok());
            let slot = at.and_then(|at| kept.get_mut(at..)?.get_mut(..bytes.len()));
            if let Some(slot) = slot {
                slot.copy_from_slice(bytes);
            }
        }
        if let Some(at) = first_difference(&kept, &found) {
            let at = range.start + at;
            differs("the padding", format!("differs from the source at its byte {at}"));
        }
    }
    Ok(())
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<u64> {
    if a == b {
        return None;
    }
    let first = a.iter().zip(b).position(|(a, b)| a != b);
    Some(first.unwrap_or(a.len().min(b.len())) as u64)
}
