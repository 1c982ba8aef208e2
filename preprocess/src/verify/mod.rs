//! The verifier: structure, hashes, source, planes.
//!
//! [`open`] is the quick level: nothing of what it returns can point outside the file. [`hashes()`],
//! [`source()`] and [`deep()`] each look at data and return what they found wrong; only not being able
//! to look is an error.

mod deep;
mod hashes;
mod source;

use std::ops::Range;

use format_spec::container::{Container, Header};
use format_spec::vocab::VocabView;

use crate::error::Result;
use crate::input::read;
use crate::io::ReadAt;

pub use deep::{deep, deep_bytes, deep_memory_bytes};
pub use hashes::{gaps, hashes, hashes_bytes};
pub use source::{source, source_bytes};

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The tensor, or the section, that it is in.
    pub tensor: String,
    /// Plane kind and geometry of the object, e.g. `exp3584x18944`; empty for sections.
    pub object: String,
    /// Where, in the file that is verified.
    pub bytes: Range<u64>,
    /// What is wrong, with what was expected and found.
    pub problem: String,
}

impl Finding {
    fn of(object: &format_spec::container::Object, bytes: Range<u64>, problem: String) -> Self {
        let kind = object.name.strip_prefix(&object.tensor).unwrap_or(&object.name);
        Self {
            tensor: object.tensor.clone(),
            object: kind.trim_start_matches('_').to_owned(),
            bytes,
            problem,
        }
    }

    fn section(name: &str, bytes: Range<u64>, problem: String) -> Self {
        Self { tensor: name.to_owned(), object: String::new(), bytes, problem }
    }
}

/// Reads everything before the data section, for [`Container::parse_front`].
///
/// # Errors
/// If the header is not to be trusted, or reading fails.
pub fn read_front(reader: &dyn ReadAt, len_bytes: u64) -> Result<Vec<u8>> {
    let start = read(reader, "header", 0..len_bytes.min(Header::MAX_BYTES))?;
    let header = Header::parse(&start, len_bytes)?;
    read(reader, "index", 0..header.data_offset)
}

/// The quick level: checks everything but the data.
///
/// # Errors
/// If header, index, source or tokenizer tables cannot be trusted.
pub fn open(front: &[u8], len_bytes: u64) -> Result<Container<'_>> {
    let container = Container::parse_front(front, len_bytes)?;
    if let Some(vocab) = container.vocab_bytes() {
        VocabView::new(vocab)?;
    }
    Ok(container)
}
