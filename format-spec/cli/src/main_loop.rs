//! From `main` to exit code: arguments, completions, errors, panics.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::panic::{self, AssertUnwindSafe};

use clap::{ColorChoice, CommandFactory, FromArgMatches};
use serde_json::json;

use crate::ui::line;
use crate::{ExitCode, Failure, GlobalArgs, Ui, environment};

/// Runs a command: parses the arguments, calls `body`, and turns whatever happens, a panic
/// included, into at most one error line and an exit code.
///
/// `globals` finds the flattened [`GlobalArgs`] in the command's arguments.
pub fn run<A: CommandFactory + FromArgMatches>(
    globals: fn(&A) -> &GlobalArgs,
    body: impl FnOnce(A, &Ui) -> Result<ExitCode, Failure>,
) -> std::process::ExitCode {
    run_renaming(&[], globals, body)
}

/// As [`run`], for a command with names of its own for some flags: each first of a pair, of one dash
/// and several letters, stands for the second. A flag of two dashes may have `_` for `-`.
pub fn run_renaming<A: CommandFactory + FromArgMatches>(
    names: &[(&str, &str)],
    globals: fn(&A) -> &GlobalArgs,
    body: impl FnOnce(A, &Ui) -> Result<ExitCode, Failure>,
) -> std::process::ExitCode {
    install_panic_line();
    let mut argv = std::env::args_os().collect();
    if !names.is_empty() {
        argv = with_long_names(argv, names);
        argv = with_dashes(argv);
    }
    run_args(argv, globals, body).into()
}

fn run_args<A: CommandFactory + FromArgMatches>(
    argv: Vec<OsString>,
    globals: fn(&A) -> &GlobalArgs,
    body: impl FnOnce(A, &Ui) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let args = match parse::<A>(argv) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let ui = Ui::new(globals(&args));
    // Nothing that a panic left half done is looked at again: the process ends.
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| body(args, &ui)));
    match outcome {
        Ok(outcome) => ui.finish(outcome),
        // The hook has printed its line already; what is left is the result object.
        Err(_) => {
            ui.set("error", "internal error");
            ui.finish(Ok(ExitCode::Failed))
        }
    }
}

/// llama.cpp's flags of one dash and several letters, which clap would take for `-n` with a value.
const LONG_NAMES: [(&str, &str); 2] = [("-ngl", "--gpu-layers"), ("-fa", "--flash-attn")];

fn with_long_names(mut argv: Vec<OsString>, names: &[(&str, &str)]) -> Vec<OsString> {
    for arg in argv.iter_mut().take_while(|arg| *arg != "--") {
        if let Some((_, long)) = names.iter().find(|(short, _)| arg == short) {
            *arg = (*long).into();
        }
    }
    argv
}

/// `--n_gen` is `--n-gen`, as in llama-bench; what follows `=` stays.
fn with_dashes(mut argv: Vec<OsString>) -> Vec<OsString> {
    for arg in argv.iter_mut().take_while(|arg| *arg != "--") {
        let Some(text) = arg.to_str().filter(|text| text.starts_with("--")) else { continue };
        let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
        *arg = format!("{}{value}", name.replace('_', "-")).into();
    }
    argv
}

/// Parses the command line; `Err` holds the code to end with, everything having been printed.
fn parse<A: CommandFactory + FromArgMatches>(argv: Vec<OsString>) -> Result<A, ExitCode> {
    let argv = with_long_names(argv, &LONG_NAMES);
    let fresh = || environment::without_empty(A::command().color(color_choice(&argv)));
    let mut command = fresh();
    let name = command.get_name().to_owned();
    let json = argv.iter().skip(1).take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    // Completions first: no other argument has to be there for them.
    let matches = command
        .try_get_matches_from_mut(&argv)
        .map_err(|error| environment::blame(error, fresh, &argv));
    if let Ok(matches) = &matches
        && let Ok(Some(shell)) = matches.try_get_one::<clap_complete::Shell>("completions")
    {
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut command, name, &mut script);
        return Err(match write_stdout(&script) {
            Ok(()) => ExitCode::Ok,
            Err(failure) => say(&failure),
        });
    }
    matches.and_then(|matches| A::from_arg_matches(&matches)).map_err(|error| {
        let is_usage = error.use_stderr();
        let written = error.print();
        if is_usage && json {
            // What went wrong without clap's layout of several lines.
            let rendered = error.render().to_string();
            let first = rendered.lines().next().unwrap_or_default();
            let message = first.strip_prefix("error: ").unwrap_or(first);
            let result = json!({"error": message, "exit": ExitCode::Usage.name()});
            if let Err(failure) = write_stdout(format!("{result}\n").as_bytes()) {
                return say(&failure);
            }
        }
        match written {
            _ if is_usage => ExitCode::Usage,
            Ok(()) => ExitCode::Ok,
            Err(error) => say(&Failure::stdout(&error)),
        }
    })
}

/// `--color` has to hold for the help text too, so it is looked for before clap parses.
fn color_choice(argv: &[OsString]) -> ColorChoice {
    let mut choice = ColorChoice::Auto;
    let mut args = argv.iter().skip(1).take_while(|arg| *arg != "--");
    while let Some(arg) = args.next() {
        let value = match arg.to_str() {
            Some("--color") => args.next().and_then(|value| value.to_str()),
            Some(arg) => arg.strip_prefix("--color="),
            None => None,
        };
        match value {
            Some("always") => choice = ColorChoice::Always,
            Some("never") => choice = ColorChoice::Never,
            Some("auto") => choice = ColorChoice::Auto,
            _ => {}
        }
    }
    choice
}

fn write_stdout(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| Failure::stdout(&error))
}

fn say(failure: &Failure) -> ExitCode {
    if !failure.is_quiet() {
        line(format_args!("error: {failure}"));
    }
    failure.code
}

/// A panic is a bug of ours: one line that says so and where, no backtrace noise unless asked for.
fn install_panic_line() {
    let default_hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if environment::variable("RUST_BACKTRACE").is_some_and(|value| value != "0") {
            default_hook(info);
            return;
        }
        let payload = info.payload();
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("unknown");
        let message = message.replace('\n', " ");
        let place = info.location().map(|l| format!(" at {l}")).unwrap_or_default();
        line(format_args!(
            "error: internal error: {message}{place}; this is a bug in minfer, please report it"
        ));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Args {
        #[command(flatten)]
        global: GlobalArgs,
        input: std::path::PathBuf,
    }

    fn argv(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn llama_cpps_names_become_long_ones() {
        let names =
            |argv: &[&str]| with_long_names(argv.iter().map(OsString::from).collect(), &LONG_NAMES);
        assert_eq!(names(&["x", "-ngl", "20"]), ["x", "--gpu-layers", "20"]);
        assert_eq!(names(&["x", "-fa", "on"]), ["x", "--flash-attn", "on"]);
        assert_eq!(names(&["x", "--", "-ngl"]), ["x", "--", "-ngl"]);
        let dashes = |argv: &[&str]| with_dashes(argv.iter().map(OsString::from).collect());
        assert_eq!(
            dashes(&["x", "--n_gen", "a_b", "--m_x=a_b"]),
            ["x", "--n-gen", "a_b", "--m-x=a_b"]
        );
        assert_eq!(dashes(&["x", "--", "--n_gen"]), ["x", "--", "--n_gen"]);
    }

    #[test]
    fn global_flags_parse() {
        let args: Args =
            parse(argv("x file -t 3 -vv --json --progress json --color never")).expect("parses");
        assert_eq!(args.global.threads, Some(3));
        assert_eq!(args.global.verbose, 2);
        assert!(args.global.json);
        assert_eq!(args.global.progress, crate::ProgressMode::Json);
        assert_eq!(args.input.to_str(), Some("file"));
    }

    #[test]
    fn wrong_use_is_code_two_and_completions_need_no_input() {
        assert_eq!(parse::<Args>(argv("x")).expect_err("no input"), ExitCode::Usage);
        assert_eq!(parse::<Args>(argv("x f -t 0")).expect_err("threads"), ExitCode::Usage);
        assert_eq!(parse::<Args>(argv("x f -q -v")).expect_err("conflict"), ExitCode::Usage);
        assert_eq!(parse::<Args>(argv("x --completions bash")).expect_err("exit"), ExitCode::Ok);
    }

    #[test]
    fn whatever_the_body_does_ends_in_a_code() {
        type Body = fn(Args, &Ui) -> Result<ExitCode, Failure>;
        let cases: [(Body, ExitCode); 4] = [
            (|_, _| Ok(ExitCode::Ok), ExitCode::Ok),
            (|_, _| Err(Failure::input("no")), ExitCode::Input),
            (|_, _| Err(Failure::broken_pipe()), ExitCode::Ok),
            (|_, _| panic!("a bug"), ExitCode::Failed),
        ];
        for (body, code) in cases {
            assert_eq!(run_args(argv("x file"), |args: &Args| &args.global, body), code);
        }
        let usage = run_args(argv("x"), |args: &Args| &args.global, |_, _| Ok(ExitCode::Ok));
        assert_eq!(usage, ExitCode::Usage);
    }

    #[test]
    fn the_command_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn color_is_found_before_parsing() {
        assert_eq!(color_choice(&argv("x --color=never -h")), ColorChoice::Never);
        assert_eq!(color_choice(&argv("x --color always")), ColorChoice::Always);
        assert_eq!(color_choice(&argv("x -- --color always")), ColorChoice::Auto);
    }
}
