//! Variables that stand in for flags: empty ones are unset, and a bad value is the variable's fault.

use clap::Command;
use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::{OsStr, OsString};

/// The variable's value, if it is set and not empty.
pub fn variable(name: impl AsRef<OsStr>) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The command without the variables that are set to nothing, which clap would take for a value.
pub(crate) fn without_empty(command: Command) -> Command {
    command.mut_args(|arg| match arg.get_env() {
        Some(name) if std::env::var_os(name).is_some_and(|value| value.is_empty()) => {
            arg.env(Resettable::Reset)
        }
        _ => arg,
    })
}

/// Names the variable in an error about a value that came from one, where clap names the flag.
/// `command` makes one that has not parsed yet.
pub(crate) fn blame(
    mut error: clap::Error,
    command: impl Fn() -> Command,
    argv: &[OsString],
) -> clap::Error {
    if error.kind() == ErrorKind::InvalidUtf8 {
        return not_text(command(), argv).unwrap_or(error);
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let mut built = command();
    built.build();
    let arg = built.get_arguments().find(|arg| arg.to_string() == *flag);
    let Some((id, name)) = arg.and_then(|arg| Some((arg.get_id().clone(), arg.get_env()?))) else {
        return error;
    };
    let name = name.to_string_lossy().into_owned();
    // The error of a value on the command line is the same without the variable.
    let without = command().mut_arg(id, |arg| arg.env(Resettable::Reset));
    let without = without.try_get_matches_from(argv);
    if without.err().is_none_or(|without| without.to_string() != error.to_string()) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(name));
    }
    error
}

/// The error of a variable whose value is no UTF-8, of which clap says no name. Nothing, if the command
/// line is not any better.
fn not_text(mut command: Command, argv: &[OsString]) -> Option<clap::Error> {
    let is_text = |name: &OsStr| variable(name).is_none_or(|value| value.to_str().is_some());
    let names = command.get_arguments().filter_map(|arg| arg.get_env());
    let names: Vec<OsString> =
        names.filter(|name| !is_text(name)).map(OsStr::to_os_string).collect();
    for name in names {
        command = command.mut_args(|arg| match arg.get_env() {
            Some(of) if of == name => arg.env(Resettable::Reset),
            _ => arg,
        });
        let rest = command.clone().try_get_matches_from(argv);
        if rest.err().is_none_or(|error| error.kind() != ErrorKind::InvalidUtf8) {
            let message = format!("the value of '{}' is not valid UTF-8", name.display());
            return Some(command.error(ErrorKind::InvalidUtf8, message));
        }
    }
    None
}
