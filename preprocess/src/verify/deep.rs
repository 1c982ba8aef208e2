//! Planes against their bases, weight by weight, through the fields alone.
//!
//! A hash proves that bytes are those that were written, not that they were right. Here every
//! plane is compared with what its base says, by code that did not write it.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use format_spec::container::{Container, Object};
use format_spec::plane::{Mismatch, find_mismatch};

use super::Finding;
use crate::error::Result;
use crate::input::{read, rows_layout, units_of_rows};
use crate::io::ReadAt;
use crate::pipeline::{lock, run_in_order};
use crate::vocab::bake_vocab;

/// Rows that a job compares.
const ROWS: u64 = 64;

/// Weights times planes that [`deep()`] looks at, as bytes of its progress.
pub fn deep_bytes(container: &Container<'_>) -> u64 {
    let lens = container.tensors().flat_map(|entry| {
        let lens: Vec<u64> = entry.planes.iter().map(|plane| plane.len).collect();
        lens
    });
    lens.fold(0, u64::saturating_add)
}

/// Memory that [`deep()`] needs at most for weights: a plane whose rows do not lie together is
/// read as a whole, with its base.
pub fn deep_memory_bytes(container: &Container<'_>) -> u64 {
    let mut most = 0;
    for entry in container.tensors() {
        for plane in &entry.planes {
            if entry.base.layout.rows_per_unit().zip(plane.layout.rows_per_unit()).is_none() {
                most = most.max(entry.base.len.saturating_add(plane.len));
            }
        }
    }
    most
}

/// Recomputes every plane and the tokenizer tables.
///
/// # Errors
/// If reading fails, or a tensor with planes does not fit in memory.
pub fn deep(
    reader: &dyn ReadAt,
    container: &Container<'_>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let (vocab, _) = bake_vocab(container.gguf())?;
    if container.vocab_bytes().unwrap_or_default() != vocab {
        let problem = "the tables differ from those baked from the source's keys".to_owned();
        findings.push(Finding::section("tokenizer", 0..0, problem));
    }
    for entry in container.tensors() {
        for plane in &entry.planes {
            let found = compare(reader, entry.base, plane)?;
            findings.extend(found);
            progress(plane.len);
        }
    }
    Ok(findings)
}

/// The first mismatch of a plane, if any.
fn compare(reader: &dyn ReadAt, base: &Object, plane: &Object) -> Result<Option<Finding>> {
    let n_rows = base.geometry.n_rows;
    // A plane whose rows do not lie together is read once, as a whole.
    let by_rows = base.layout.rows_per_unit().zip(plane.layout.rows_per_unit());
    let whole = match by_rows {
        Some(_) => None,
        None => Some((read_object(reader, base)?, read_object(reader, plane)?)),
    };
    let unit_rows = by_rows.map_or(1, |(a, b)| a.max(b)).max(1);
    let rows_at_once = ROWS.next_multiple_of(unit_rows);
    let first: Mutex<Option<Mismatch>> = Mutex::new(None);
    let n_jobs = usize::try_from(n_rows.div_ceil(rows_at_once)).unwrap_or(usize::MAX);
    run_in_order(
        n_jobs,
        || (),
        |(), job| {
            let start = job as u64 * rows_at_once;
            let rows = start..n_rows.min(start + rows_at_once);
            let found = match &whole {
                Some((base_bytes, plane_bytes)) => {
                    find_mismatch((&base.layout, base_bytes), (&plane.layout, plane_bytes), rows)
                }
                None => compare_rows(reader, base, plane, rows)?,
            };
            if let Some(found) = found {
                let mut first = lock(&first);
                if first.as_ref().is_none_or(|first| found.row < first.row) {
                    *first = Some(found);
                }
            }
            Ok(())
        },
    )?;
    let first = first.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(first.map(|Mismatch { part, row, k, byte, expected, found }| {
        let at = plane.offset + byte;
        let base = base.kind.name();
        let problem = format!(
            "{part} of row {row}, element {k} is {found}, computed from {base} it is {expected}"
        );
        Finding::of(plane, at..at + 1, problem)
    }))
}

fn read_object(reader: &dyn ReadAt, object: &Object) -> Result<Vec<u8>> {
    read(reader, &object.name, object.range())
}

/// Compares some rows of two objects whose units are groups of rows.
fn compare_rows(
    reader: &dyn ReadAt,
    base: &Object,
    plane: &Object,
    rows: Range<u64>,
) -> Result<Option<Mismatch>> {
    let part = |object: &Object| {
        let units = units_of_rows(&object.layout, &rows);
        let first_byte = units.start * object.layout.unit_bytes();
        let range =
            object.offset + first_byte..object.offset + units.end * object.layout.unit_bytes();
        let bytes = read(reader, &object.name, range)?;
        Ok::<_, crate::Error>((rows_layout(&object.layout, &rows)?, bytes, first_byte))
    };
    let (base_layout, base_bytes, _) = part(base)?;
    let (plane_layout, plane_bytes, first_byte) = part(plane)?;
    let n_rows = rows.end - rows.start;
    let found =
        find_mismatch((&base_layout, &base_bytes), (&plane_layout, &plane_bytes), 0..n_rows);
    Ok(found.map(|found| Mismatch {
        row: rows.start + found.row,
        byte: first_byte + found.byte,
        ..found
    }))
}
