//! The line editor of a chat and its history file.

use cli::{ExitCode, Failure, Ui};
use rustix::termios::{QueueSelector, tcflush};
use rustyline::config::{Behavior, Config};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

/// Lines kept.
const MAX_LINES: usize = 1000;

/// A line editor that remembers.
pub(crate) struct Editor<'u> {
    inner: rustyline::Editor<(), FileHistory>,
    path: Option<PathBuf>,
    ui: &'u Ui,
}

impl<'u> Editor<'u> {
    /// Sets the terminal up and reads the history, if there is one.
    ///
    /// # Errors
    /// I/O, if the terminal cannot be used.
    pub(crate) fn open(ui: &'u Ui) -> Result<Self, Failure> {
        let broken =
            |e: ReadlineError| Failure::new(ExitCode::Io, format!("cannot use the terminal: {e}"));
        // The prompt belongs on the terminal even when standard output is a file.
        let config = Config::builder()
            .behavior(Behavior::PreferTerm)
            .max_history_size(MAX_LINES)
            .map_err(broken)?
            .build();
        let mut inner = rustyline::Editor::with_config(config).map_err(broken)?;
        let path = path(|name| cli::variable(name));
        if let Some(path) = path.as_deref().filter(|path| path.exists())
            && let Err(e) = inner.load_history(path)
        {
            ui.warn(format_args!("{}: cannot read the history: {e}", path.display()));
        }
        Ok(Self { inner, path, ui })
    }

    /// Reads a line and remembers it at once: nothing is lost when the chat ends abruptly.
    ///
    /// # Errors
    /// End of input, interruption, or what the terminal reports.
    pub(crate) fn read(&mut self, prompt: &str) -> Result<String, ReadlineError> {
        let line = self.inner.readline(prompt).inspect_err(|e| {
            if is_not_text(e) {
                // The rest of a paste is no message of its own. If this fails it becomes one.
                let _ = tcflush(rustix::stdio::stdin(), QueueSelector::IFlush);
            }
        })?;
        if !line.trim().is_empty() && self.inner.add_history_entry(line.as_str())? {
            self.save();
        }
        Ok(line)
    }

    fn save(&mut self) {
        let Some(path) = &self.path else { return };
        let folder = path.parent().map(|folder| {
            // What people ask a model is nobody else's business.
            DirBuilder::new().recursive(true).mode(0o700).create(folder)
        });
        let saved = match folder {
            Some(Err(e)) => Err(ReadlineError::Io(e)),
            _ => self.inner.append_history(path),
        };
        if let Err(e) = saved {
            self.ui.warn(format_args!("{}: cannot save the history: {e}", path.display()));
            self.path = None;
        }
    }
}

/// Whether what was typed is no UTF-8. The terminal itself is as good as before.
pub(crate) fn is_not_text(error: &ReadlineError) -> bool {
    matches!(error, ReadlineError::Io(e) if e.kind() == io::ErrorKind::InvalidData)
}

/// `$XDG_STATE_HOME/minfer/history`, by default below `~/.local/state`.
fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").and_then(absolute).or_else(|| {
        let home = variable("HOME").and_then(absolute)?;
        Some(home.join(".local/state"))
    })?;
    Some(state.join("minfer/history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_lies_where_xdg_says() {
        let with = |state: &str, home: &str| {
            path(|name| Some(OsString::from(if name == "HOME" { home } else { state })))
        };
        assert_eq!(with("/s", "/h"), Some(PathBuf::from("/s/minfer/history")));
        // A relative XDG path is to be ignored.
        assert_eq!(with("s", "/h"), Some(PathBuf::from("/h/.local/state/minfer/history")));
        assert_eq!(with("", ""), None);
    }
}
