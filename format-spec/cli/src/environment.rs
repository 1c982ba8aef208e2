//! Variables that stand in for flags: empty ones are unset, and a bad value is the variable's fault.

use clap::Command;
use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
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
