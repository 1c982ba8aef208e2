//! What a container keeps of its GGUF files besides tensors: headers, padding, bytes behind the end.

use format_spec::container::{MAX_TRAILING_BYTES, encode_source_with};
use format_spec::gguf::Gguf;

use crate::error::{Error, Result};
use crate::input::{Input, read};
use crate::io::ReadAt;

/// What to tell the user about bytes behind the tensors.
pub(crate) fn trailing_notes<R: ReadAt>(input: &Input<R>, ggufs: &[Gguf<'_>]) -> Vec<String> {
    let mut notes = Vec::new();
    for (i, (gguf, file)) in ggufs.iter().zip(input.files()).enumerate() {
        let trailing = gguf.trailing(file.len_bytes);
        let n_bytes = trailing.end.saturating_sub(trailing.start);
        let part = if ggufs.len() > 1 { format!("part {}: ", i + 1) } else { String::new() };
        if n_bytes > 0 {
            notes.push(format!(
                "{part}{n_bytes} bytes behind the last tensor are kept, but mean nothing"
            ));
        }
    }
    notes
}

/// Encodes the source section of a GGUF, reading what is neither header nor tensor.
pub(crate) fn section<R: ReadAt>(input: &Input<R>) -> Result<Vec<u8>> {
    let mut n_trailing = 0u64;
    for (gguf, file) in input.ggufs()?.iter().zip(input.files()) {
        let trailing = gguf.trailing(file.len_bytes);
        n_trailing = n_trailing.saturating_add(trailing.end.saturating_sub(trailing.start));
        if n_trailing > MAX_TRAILING_BYTES {
            return Err(Error::Format(format_spec::Error::Field {
                field: "bytes behind the last tensor".to_owned(),
                offset: trailing.start,
                expected: format!("at most {MAX_TRAILING_BYTES} bytes"),
                found: format!("{n_trailing} bytes"),
            }));
        }
    }
    let fronts: Vec<_> =
        input.files().iter().map(|file| (file.front.as_slice(), file.len_bytes)).collect();
    encode_source_with(&fronts, |i, range| match input.files().get(i) {
        Some(file) => read(&file.reader, "padding", range),
        None => Ok(Vec::new()),
    })
}
