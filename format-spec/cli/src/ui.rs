//! The two streams: the product on standard output, the talk on standard error.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value};

use crate::environment::variable;
use crate::{Color, ExitCode, Failure, GlobalArgs, Progress};

/// Whether a result object is wanted and not printed yet. Held while one is printed.
static OWED: Mutex<bool> = Mutex::new(false);

/// The result object of a command that a signal ends: the name of the exit code is all that is
/// known on the signal's thread. Nothing, if an object has been printed or is being printed.
pub(crate) fn last_word(code: ExitCode) {
    let Ok(mut owed) = OWED.try_lock() else { return };
    if std::mem::take(&mut *owed) {
        let result = format!("{}\n", serde_json::json!({"exit": code.name()}));
        // Past the lock of `io::Stdout`, whose holder may wait for a reader for ever; and not where
        // this one would have to wait too.
        let stdout = rustix::stdio::stdout();
        let mut ready = [PollFd::new(&stdout, PollFlags::OUT)];
        if poll(&mut ready, Some(&Timespec::default())).is_ok_and(|n_ready| n_ready > 0) {
            let _ = rustix::io::write(stdout, result.as_bytes());
        }
        // Until the process is gone, so that no second object follows.
        std::mem::forget(owed);
    }
}

/// What a command prints through, set up from its [`GlobalArgs`].
#[derive(Debug)]
pub struct Ui {
    global: GlobalArgs,
    colored: bool,
    result: RefCell<Map<String, Value>>,
}

impl Ui {
    /// A `Ui` that follows these flags.
    pub fn new(global: &GlobalArgs) -> Self {
        *OWED.lock().unwrap_or_else(PoisonError::into_inner) = global.json;
        Self {
            colored: stderr_colored(global.color),
            global: global.clone(),
            result: RefCell::default(),
        }
    }

    /// The flags themselves.
    pub fn global(&self) -> &GlobalArgs {
        &self.global
    }

    /// Worker threads: `-t`, or what this process can really use.
    pub fn threads(&self) -> usize {
        crate::threads(self.global.threads.map(usize::from))
    }

    /// Whether the result is wanted as JSON.
    pub fn is_json(&self) -> bool {
        self.global.json
    }

    /// Writes the product to standard output and flushes it.
    ///
    /// # Errors
    /// A [`Failure`] that is quiet when the reader went away.
    pub fn print(&self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(text.as_ref())
            .and_then(|()| stdout.flush())
            .map_err(|error| Failure::stdout(&error))
    }

    /// Puts a field into the object that `--json` prints at the end.
    pub fn set(&self, key: &str, value: impl Into<Value>) {
        self.result.borrow_mut().insert(key.to_owned(), value.into());
    }

    /// A line on standard error, unless `-q`.
    pub fn note(&self, message: fmt::Arguments<'_>) {
        if self.global.quiet == 0 {
            line(message);
        }
    }

    /// A line on standard error when `-v` was given at least `level` times.
    pub fn verbose(&self, level: u8, message: fmt::Arguments<'_>) {
        if self.global.verbose >= level {
            line(message);
        }
    }

    /// A warning: on standard error unless `-q`, and among `warnings` of the result object.
    pub fn warn(&self, message: fmt::Arguments<'_>) {
        self.warn_below(1, message);
    }

    /// A [`warn`](Self::warn) of something that will not work: one `-q` leaves it.
    pub fn warn_gravely(&self, message: fmt::Arguments<'_>) {
        self.warn_below(2, message);
    }

    fn warn_below(&self, quiet: u8, message: fmt::Arguments<'_>) {
        let mut result = self.result.borrow_mut();
        let noted = result.entry("warnings").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(noted) = noted {
            noted.push(message.to_string().into());
        }
        if self.global.quiet < quiet {
            self.labelled("warning:", "33", message);
        }
    }

    /// Progress over these stages.
    pub fn progress(&self, stages: &[&str]) -> Progress {
        Progress::new(&self.global, stages)
    }

    /// The last word: the error line and, with `--json`, the result object.
    pub(crate) fn finish(&self, outcome: Result<ExitCode, Failure>) -> ExitCode {
        let (mut code, message) = match outcome {
            Ok(code) => (code, String::new()),
            Err(failure) => (failure.code, failure.message),
        };
        if !message.is_empty() {
            self.error(format_args!("{message}"));
        }
        if self.global.json {
            let mut result = self.result.take();
            if !message.is_empty() {
                result.insert("error".to_owned(), message.into());
            }
            result.insert("exit".to_owned(), code.name().into());
            let mut owed = OWED.lock().unwrap_or_else(PoisonError::into_inner);
            *owed = false;
            if let Err(failure) = self.print(format!("{}\n", Value::Object(result)))
                && !failure.is_quiet()
            {
                self.error(format_args!("{failure}"));
                code = failure.code;
            }
        }
        code
    }

    /// A line on standard error, `-q` or not.
    pub fn always(&self, message: fmt::Arguments<'_>) {
        line(message);
    }

    /// An error on standard error, for a command that goes on after it.
    pub fn error(&self, message: fmt::Arguments<'_>) {
        self.labelled("error:", "1;31", message);
    }

    fn labelled(&self, label: &str, style: &str, message: fmt::Arguments<'_>) {
        let message = one_line(&message.to_string());
        if self.colored {
            line(format_args!("\x1b[{style}m{label}\x1b[0m {message}"));
        } else {
            line(format_args!("{label} {message}"));
        }
    }
}

/// The message with control characters escaped: they come from names in files and of files, and an
/// error is one line that does nothing to a terminal.
fn one_line(message: &str) -> String {
    let mut line = String::new();
    for c in message.chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

/// One write call a line, so that lines of several processes do not mix. Nobody can be told that
/// standard error is gone, so its errors are dropped.
pub(crate) fn line(message: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_all(format!("{message}\n").as_bytes());
}

fn stderr_colored(color: Color) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            io::stderr().is_terminal()
                && variable("NO_COLOR").is_none()
                && variable("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_in_the_result_too_however_quiet() {
        let ui = Ui::new(&GlobalArgs { quiet: 2, ..GlobalArgs::default() });
        ui.warn(format_args!("one"));
        ui.warn_gravely(format_args!("{}", "two"));
        let result = ui.result.take();
        assert_eq!(result["warnings"], serde_json::json!(["one", "two"]));
    }

    #[test]
    fn messages_stay_on_one_line() {
        assert_eq!(one_line("a\nb\x1b[1m \u{e9}: no"), "a\\nb\\u{1b}[1m \u{e9}: no");
    }
}
