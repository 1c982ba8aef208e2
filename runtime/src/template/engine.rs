//! The Jinja engine, set up as transformers sets up jinja2 and kept within bounds.
//!
//! Templates come with models, from anywhere. The engine's fuel bounds the work and the memory of
//! most of what a template can do. What it does not bound is how deep the engine recurses into
//! what a template nests (expressions while it compiles, values while it drops them) and how long
//! it prints a value that holds another many times over. So a template runs on a thread of its
//! own, with a stack that its source and its fuel cannot exhaust, and is given up after
//! [`PATIENCE`]; such a thread goes on until the process ends, which is for the caller to hasten.

use std::sync::mpsc;
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, ErrorKind};

use super::clock::Clock;
use super::{Input, RenderOptions, TemplateError, json, python};

/// Longest text that a single value is printed as.
pub(super) const MAX_VALUE_BYTES: usize = 16 << 20;

/// Work that any template may do: one unit is an instruction or 64 bytes. The templates of public
/// models take some hundred units a message.
const BASE_FUEL: u64 = 1_000_000;

/// Work for each value of the input.
const FUEL_PER_VALUE: u64 = 500;

/// Work for each byte of the input.
const FUEL_PER_BYTE: u64 = 1;

/// How deep macros may nest.
const MAX_DEPTH: usize = 64;

/// Stack that the engine needs at least.
const BASE_STACK_BYTES: u64 = 8 << 20;

/// Stack that a byte of source can cost: at most 530 bytes a level were measured, and no operator
/// has less than a byte.
const STACK_BYTES_PER_SOURCE_BYTE: u64 = 1024;

/// Stack that a unit of fuel can cost: at most 470 bytes a level were measured, and a level takes
/// about ten units to build.
const STACK_BYTES_PER_FUEL: u64 = 96;

/// How long a template may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Compiles `source` and throws the result away.
pub(super) fn check(source: &str) -> Result<(), TemplateError> {
    let owned = source.to_owned();
    on_own_thread(source.len(), 0, move || {
        let environment = environment(Clock::default())?;
        environment.template_from_str(&owned).map(|_| ()).map_err(error)
    })
}

/// Renders `source`.
pub(super) fn render(
    source: &str,
    input: &Input,
    options: &RenderOptions,
) -> Result<String, TemplateError> {
    let size = json::size(&input.messages).and(json::size(&input.tools));
    let fuel = BASE_FUEL
        .saturating_add(size.n_values.saturating_mul(FUEL_PER_VALUE))
        .saturating_add(size.n_bytes.saturating_mul(FUEL_PER_BYTE));
    let (owned, input, options) = (source.to_owned(), input.clone(), options.clone());
    on_own_thread(source.len(), fuel, move || {
        let mut environment = environment(options.clock)?;
        environment.set_fuel(Some(fuel));
        let template = environment.template_from_str(&owned).map_err(error)?;
        template.render(context(&input, &options)).map_err(error)
    })
}

/// The variables of a template.
fn context(input: &Input, options: &RenderOptions) -> Value {
    let mut context: Vec<(&str, Value)> = vec![
        ("messages", to_value(&input.messages)),
        ("add_generation_prompt", options.add_generation_prompt.into()),
        ("bos_token", options.bos_token.as_str().into()),
        ("eos_token", options.eos_token.as_str().into()),
    ];
    if !input.tools.is_empty() {
        context.push(("tools", to_value(&input.tools)));
    }
    context.extend(input.args.iter().map(|(key, value)| (key.as_str(), to_value(value))));
    Value::from_pairs(context)
}

pub(super) fn to_value(value: impl serde::Serialize) -> Value {
    Value::from(Serde(value))
}

/// Runs `work` within [`PATIENCE`], on a thread with stack enough for source and fuel.
fn on_own_thread<T: Send + 'static>(
    n_source_bytes: usize,
    fuel: u64,
    work: impl FnOnce() -> Result<T, TemplateError> + Send + 'static,
) -> Result<T, TemplateError> {
    let stack_bytes = BASE_STACK_BYTES
        .saturating_add((n_source_bytes as u64).saturating_mul(STACK_BYTES_PER_SOURCE_BYTE))
        .saturating_add(fuel.saturating_mul(STACK_BYTES_PER_FUEL));
    let stack_bytes = usize::try_from(stack_bytes).map_err(|_| TemplateError::TooMuch("space"))?;
    let (sender, receiver) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("template".into()).stack_size(stack_bytes);
    // Pages of the stack are taken only when they are touched.
    let thread = thread.spawn(move || {
        // Nobody listens any more if it took too long.
        let _ = sender.send(work());
    });
    let thread = thread.map_err(|_| TemplateError::TooMuch("space"))?;
    match receiver.recv_timeout(PATIENCE) {
        Ok(result) => {
            // The thread has nothing left to do but to end.
            let _ = thread.join();
            result
        }
        Err(mpsc::RecvTimeoutError::Timeout) => Err(TemplateError::TooMuch("time")),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(TemplateError::Failed("the template engine gave up".into()))
        }
    }
}

/// Jinja as transformers sets it up.
fn environment<'s>(clock: Clock) -> Result<Environment<'s>, TemplateError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(error)?);
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_formatter(python::format);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", python::string);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |format: &str| clock.strftime(format));
    Ok(environment)
}

/// Stands before the message of an error that [`raise_exception`] made.
const REFUSED: &str = "\u{0}refused\u{0}";

fn raise_exception(message: Value) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("{REFUSED}{message}")))
}

/// An error of the engine, the causes that matter in words of ours.
fn error(error: minijinja::Error) -> TemplateError {
    // The engine wraps an error at each macro it passes; the innermost says what happened.
    let mut innermost = &error;
    while let Some(source) = std::error::Error::source(innermost) {
        match source.downcast_ref::<minijinja::Error>() {
            Some(source) => innermost = source,
            None => break,
        }
    }
    if let Some(message) = innermost.detail().and_then(|detail| detail.strip_prefix(REFUSED)) {
        return TemplateError::Refused(message.to_owned());
    }
    match innermost.kind() {
        ErrorKind::OutOfFuel => TemplateError::TooMuch("work"),
        ErrorKind::SyntaxError => TemplateError::Syntax(shortened(innermost)),
        _ => TemplateError::Failed(shortened(innermost)),
    }
}

/// The message of an error, which may quote values of the template, at a bearable length.
fn shortened(error: &minijinja::Error) -> String {
    const LONGEST: usize = 500;
    let message = error.to_string();
    match message.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}...", &message[..at]),
        None => message,
    }
}
