//! Every hash and every padding byte, on all threads.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use format_spec::container::{Container, Object, hash_leaf, hex};
use xxhash_rust::xxh3::Xxh3;

use super::Finding;
use crate::error::Result;
use crate::input::{read, read_into};
use crate::io::ReadAt;
use crate::pack::LEAF;
use crate::pipeline::{InTurn, lock, run_in_order};

/// Bytes that [`hashes()`] looks at, which it reports as progress.
pub fn hashes_bytes(container: &Container<'_>) -> u64 {
    container.objects().iter().map(|object| object.len).fold(0, u64::saturating_add)
}

/// Checks that everything between the objects is zero.
///
/// # Errors
/// If reading fails.
pub fn gaps(reader: &dyn ReadAt, container: &Container<'_>) -> Result<Vec<Finding>> {
    let data_offset = container.header().data_offset;
    let mut findings = Vec::new();
    // Those before the data section were checked when the container was opened.
    for gap in container.zero_gaps().iter().filter(|gap| gap.start >= data_offset) {
        let bytes = read(reader, "padding", gap.clone())?;
        if let Some(i) = bytes.iter().position(|&byte| byte != 0) {
            let at = gap.start + i as u64;
            let problem = "padding between objects is not zero".to_owned();
            findings.push(Finding::section("padding", at..at + 1, problem));
        }
    }
    Ok(findings)
}

struct Checking<'c> {
    object: &'c Object,
    xxh3: InTurn<Xxh3>,
}

/// Checks sha256 of every leaf, xxh3 of every object, and the padding inside objects.
///
/// # Errors
/// If reading fails; a file that has become shorter is `UnexpectedEof`.
pub fn hashes(
    reader: &dyn ReadAt,
    container: &Container<'_>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Finding>> {
    let checking: Vec<_> = container
        .objects()
        .iter()
        .map(|object| Checking { object, xxh3: InTurn::new(Xxh3::new()) })
        .collect();
    let mut jobs = Vec::new();
    for (i, object) in container.objects().iter().enumerate() {
        jobs.extend((0..object.leaves.len()).map(|leaf| (i, leaf)));
    }
    let findings = Mutex::new(Vec::new());
    run_in_order(jobs.len(), Vec::new, |buf, job| {
        let Some(&(i, leaf)) = jobs.get(job) else { return Ok(()) };
        let Some(checking) = checking.get(i) else { return Ok(()) };
        let turn = checking.xxh3.turn(leaf);
        let found = check_leaf(reader, checking.object, leaf, buf)?;
        if !found.is_empty() {
            lock(&findings).extend(found.into_iter().map(|finding| (i, finding)));
        }
        turn.take(|xxh3| xxh3.update(buf));
        progress(buf.len() as u64);
        Ok(())
    })?;
    let mut findings = findings.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (i, Checking { object, xxh3 }) in checking.into_iter().enumerate() {
        let found = xxh3.finish(object.leaves.len()).map_or(0, |xxh3| xxh3.digest());
        // Damage that a leaf has named already is not named twice.
        if found != object.xxh3 && !findings.iter().any(|(at, _)| *at == i) {
            let problem = format!("xxh3 is {found:016x}, index says {:016x}", object.xxh3);
            findings.push((i, Finding::of(object, object.range(), problem)));
        }
    }
    findings.sort_by_key(|(_, finding)| finding.bytes.start);
    Ok(findings.into_iter().map(|(_, finding)| finding).collect())
}

/// Reads one leaf into `buf` and checks it.
fn check_leaf(
    reader: &dyn ReadAt,
    object: &Object,
    leaf: usize,
    buf: &mut Vec<u8>,
) -> Result<Vec<Finding>> {
    let start = leaf as u64 * LEAF;
    let in_object = start..object.len.min(start + LEAF);
    let in_file = |range: Range<u64>| object.offset + range.start..object.offset + range.end;
    read_into(reader, &object.name, in_file(in_object.clone()), buf)?;
    let mut findings = Vec::new();
    let digest = hash_leaf(buf);
    if let Some(expected) = object.leaves.get(leaf).filter(|expected| **expected != digest) {
        let (found, expected) = (hex(&digest), hex(expected));
        let problem = format!("leaf {leaf}: sha256 is {found}, index says {expected}");
        findings.push(Finding::of(object, in_file(in_object), problem));
    } else if let Some(at) = object.layout.padding().first_nonzero(start, buf) {
        let problem = "padding inside the object is not zero".to_owned();
        findings.push(Finding::of(object, in_file(at..at + 1), problem));
    }
    Ok(findings)
}
