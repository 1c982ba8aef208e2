//! `--show-prompt`: what the template renders.

use crate::prompt::Prompt;
use crate::setup::Job;
use cli::{ExitCode, Failure};

/// Prints the prompt exactly as rendered, not a byte more: before BOS is settled, with no newline.
///
/// # Errors
/// What the template reports; standard output.
pub(super) fn run(job: &Job<'_, '_>, prompt: Prompt) -> Result<ExitCode, Failure> {
    let text = job.render(prompt)?;
    if job.ui.is_json() {
        job.ui.set("prompt", text);
    } else {
        job.ui.print(text)?;
    }
    Ok(ExitCode::Ok)
}
