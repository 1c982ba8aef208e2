//! Tokenizer tables for the container.

use format_spec::gguf::Gguf;
use format_spec::vocab::{BakeOptions, bake};

use crate::error::Result;

/// The baked tables of a model's tokenizer, empty if it has none, and what to tell the user.
pub(crate) fn bake_vocab(gguf: &Gguf<'_>) -> Result<(Vec<u8>, Vec<String>)> {
    Ok(match bake(gguf.metadata(), &BakeOptions::default())? {
        Some(baked) => (baked.bytes, baked.warnings),
        None => (Vec::new(), vec!["the model has no tokenizer: it runs on token ids".to_owned()]),
    })
}
