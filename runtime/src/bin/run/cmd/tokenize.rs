//! `--tokenize`: the ids of a text.

use super::text_of;
use crate::prompt::Prompt;
use crate::setup::Job;
use cli::{ExitCode, Failure};

/// Prints the token ids of the text itself. Control tokens written out in it stay text; special
/// tokens are added as the vocabulary says, unless `--no-bos`. An empty text has no ids.
///
/// # Errors
/// Wrong use; standard output.
pub(super) fn run(job: &Job<'_, '_>, prompt: &Prompt) -> Result<ExitCode, Failure> {
    let text = text_of(prompt, "--tokenize")?;
    let tokenizer = job.tokenizer()?;
    let add_special = !job.args.prompt.no_bos;
    let ids = if text.is_empty() { Vec::new() } else { tokenizer.encode(text, false, add_special) };
    for &id in &ids {
        let piece = String::from_utf8_lossy(tokenizer.piece(id));
        job.ui.verbose(1, format_args!("{id:>7} {piece:?}"));
    }
    if job.ui.is_json() {
        job.ui.set("n_tokens", ids.len());
        job.ui.set("token_ids", ids);
    } else {
        job.ui.print(format!("{}\n", serde_json::Value::from(ids)))?;
    }
    Ok(ExitCode::Ok)
}
