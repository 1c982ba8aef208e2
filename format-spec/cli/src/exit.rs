//! Exit codes, and the one kind of error that a command ends with.

use std::fmt;
use std::io;
use std::path::Path;

/// How a command ended. The numbers are a promise to scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Done.
    Ok = 0,
    /// The check or the work failed: an object whose hash differs, a generation that failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The input is not usable: not GGUF or `.mpk`, truncated, newer, unsupported, header not to
    /// be trusted.
    Input = 3,
    /// I/O: missing file, permission, full disk, existing output, a file that shrinks.
    Io = 4,
    /// Does not fit in memory.
    Memory = 5,
    /// The device, or under `--strict` a matrix that is slower than it could be.
    Device = 6,
    /// Ended by SIGHUP.
    HungUp = 129,
    /// Interrupted by SIGINT.
    Interrupted = 130,
    /// Ended by SIGQUIT.
    Quit = 131,
    /// Ended by SIGTERM.
    Terminated = 143,
}

impl ExitCode {
    /// Every code, in numeric order.
    pub const ALL: &'static [Self] = &[
        Self::Ok,
        Self::Failed,
        Self::Usage,
        Self::Input,
        Self::Io,
        Self::Memory,
        Self::Device,
        Self::HungUp,
        Self::Interrupted,
        Self::Quit,
        Self::Terminated,
    ];

    /// The number that the process ends with.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The name under `"exit"` in `--json` output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::Input => "input",
            Self::Io => "io",
            Self::Memory => "memory",
            Self::Device => "device",
            Self::HungUp => "hung_up",
            Self::Interrupted => "interrupted",
            Self::Quit => "quit",
            Self::Terminated => "terminated",
        }
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.code())
    }
}

/// Why a command ends early: the code and the one line that the user reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub code: ExitCode,
    /// One line, lower case, no final dot, naming file, field and offset where there are any.
    /// Empty: end without a word (the reader of standard output went away).
    pub message: String,
}

impl Failure {
    /// A failure with any code.
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The check or the work failed (1).
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Failed, message)
    }

    /// Wrong use of the command line (2).
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, message)
    }

    /// The input is not usable (3).
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Input, message)
    }

    /// I/O (4), or memory (5) when the system is out of it: `doing` says what was tried, e.g.
    /// `cannot open`.
    pub fn io(path: &Path, doing: &str, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::OutOfMemory => ExitCode::Memory,
            _ => ExitCode::Io,
        };
        Self::new(code, format!("{}: {doing}: {error}", path.display()))
    }

    /// What `format_spec` found wrong with the bytes of the file at `path` (3).
    pub fn format(path: &Path, error: &format_spec::Error) -> Self {
        Self::input(format!("{}: {error}", path.display()))
    }

    /// The reader of standard output went away: end quietly, successfully.
    pub fn broken_pipe() -> Self {
        Self::new(ExitCode::Ok, String::new())
    }

    /// Writing to standard output failed: quiet for a closed pipe, an I/O failure otherwise.
    pub fn stdout(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::broken_pipe(),
            _ => Self::new(ExitCode::Io, format!("standard output: cannot write: {error}")),
        }
    }

    /// Whether this ends the command without a word.
    pub fn is_quiet(&self) -> bool {
        self.message.is_empty()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Keeps the [`Failure`] that a chain of contexts ends in; anything else is failed work (1).
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let message = format!("{error:#}");
        if let Some(failure) = error.downcast_ref::<Self>() {
            let message = if failure.is_quiet() { String::new() } else { message };
            return Self { code: failure.code, message };
        }
        for cause in error.chain() {
            if let Some(failure) = cause.downcast_ref::<Self>() {
                return Self { code: failure.code, message };
            }
            if cause.downcast_ref::<format_spec::Error>().is_some() {
                return Self { code: ExitCode::Input, message };
            }
            if let Some(io) = cause.downcast_ref::<io::Error>() {
                return match io.kind() {
                    io::ErrorKind::BrokenPipe => Self::broken_pipe(),
                    io::ErrorKind::OutOfMemory => Self { code: ExitCode::Memory, message },
                    _ => Self { code: ExitCode::Io, message },
                };
            }
        }
        Self { code: ExitCode::Failed, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_the_promised_ones() {
        let all: Vec<_> = ExitCode::ALL.iter().map(|c| (c.code(), c.name())).collect();
        assert_eq!(
            all,
            [
                (0, "ok"),
                (1, "failed"),
                (2, "usage"),
                (3, "input"),
                (4, "io"),
                (5, "memory"),
                (6, "device"),
                (129, "hung_up"),
                (130, "interrupted"),
                (131, "quit"),
                (143, "terminated"),
            ]
        );
    }

    #[test]
    fn a_failure_survives_context() {
        let inner = Failure::new(ExitCode::Device, "no device");
        let error = anyhow::Error::new(inner).context("loading");
        let outer = Failure::from(error);
        assert_eq!(outer.code, ExitCode::Device);
        assert_eq!(outer.message, "loading: no device");
    }

    #[test]
    fn io_and_format_errors_find_their_codes() {
        let io = anyhow::Error::new(io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(Failure::from(io).code, ExitCode::Io);
        let pipe = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(Failure::from(pipe), Failure::broken_pipe());
        let memory = anyhow::Error::new(io::Error::from(io::ErrorKind::OutOfMemory));
        assert_eq!(Failure::from(memory).code, ExitCode::Memory);
        let format = format_spec::Error::NotThisFormat {
            wanted: "a GGUF file",
            looks_like: "looks like HTML".to_owned(),
        };
        assert_eq!(Failure::from(anyhow::Error::new(format)).code, ExitCode::Input);
    }
}
