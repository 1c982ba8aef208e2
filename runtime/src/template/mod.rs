//! Chat templates: a list of messages to the text that a model was trained on.
//!
//! Templates are Jinja, written for Python's jinja2 as transformers sets it up; they come with the
//! model, so that both they and the messages are input from outside. A template's work, and with
//! it its output, is bounded by fuel, and it has nothing of the host to reach for.
//!
//! # Text from outside stays text
//!
//! A message may hold the string of a control token, e.g. `<|im_end|>`. It must reach the model as
//! text, or whoever writes a message can end it and speak for somebody else. The rendered text
//! alone does not say where such a string comes from, so [`Template::render`] renders again with
//! a marker, a character that occurs nowhere else, put into the strings of the messages; where
//! markers come out, the text is not the template's own. See `guard.rs` for how, and for what is
//! done when a template's logic depends on the very strings that are marked.

mod clock;
mod guard;
mod json;
mod python;

use std::ops::Range;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, ErrorKind};

pub use clock::{Clock, ClockError};
use serde_json::Value as Json;

use crate::tokenizer::Tokenizer;

/// Longest template.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;

/// Longest text that a single value is printed as.
const MAX_VALUE_BYTES: usize = 16 << 20;

/// Work that a template may do besides that for its input: one unit is an instruction or 64 bytes.
const BASE_FUEL: u64 = 2_000_000;

/// Work per byte of input.
const FUEL_PER_BYTE: u64 = 16;

/// How deep macros and includes may nest: far more than any template needs, and little enough for
/// the 2 MiB stack of a thread.
const MAX_DEPTH: usize = 64;

/// Why a template gave no text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template itself refuses the messages (`raise_exception`).
    #[error("the chat template refuses these messages: {0}")]
    Refused(String),
    /// The template is no valid Jinja.
    #[error("the chat template is not valid: {0}")]
    Syntax(String),
    /// The template failed on these messages.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// The template does more than a template should.
    #[error("the chat template takes too much {0}")]
    TooMuch(&'static str),
}

/// What a template sees besides the messages.
#[derive(Debug, Clone)]
pub struct RenderOptions {
    /// Whether the text ends with the start of the assistant's answer.
    pub add_generation_prompt: bool,
    /// OpenAI-style tool definitions; empty = the template sees no `tools`.
    pub tools: Vec<Json>,
    /// More variables, e.g. `enable_thinking`.
    pub args: Vec<(String, Json)>,
    /// String of the bos token, also where the tokenizer adds none.
    pub bos_token: String,
    /// String of the eos token.
    pub eos_token: String,
    /// What `strftime_now` says.
    pub clock: Clock,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            tools: Vec::new(),
            args: Vec::new(),
            bos_token: String::new(),
            eos_token: String::new(),
            clock: Clock::default(),
        }
    }
}

/// A rendered chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Exactly what the template rendered.
    pub text: String,
    /// Offsets in `text` over which no control token may reach, ascending; one that occurs twice
    /// is also no place for one to start.
    breaks: Vec<usize>,
    /// Strings of control tokens of which it could not be told who wrote them: text everywhere.
    plain: Vec<String>,
}

impl Rendered {
    /// A text in which every control token counts, e.g. a prompt that the user wrote in full.
    pub fn trusted(text: String) -> Self {
        Self { text, breaks: Vec::new(), plain: Vec::new() }
    }

    /// Whether the control token written at `range` of the text is the template's own.
    pub fn is_templates_own(&self, range: Range<usize>) -> bool {
        let from = self.breaks.partition_point(|&at| at < range.start);
        let at_start = self.breaks[from..].iter().take_while(|&&at| at == range.start).count();
        let is_broken = self.breaks.get(from + at_start).is_some_and(|&at| at < range.end);
        let is_plain = || {
            let text = self.text.get(range.clone());
            text.is_some_and(|text| self.plain.iter().any(|plain| plain == text))
        };
        at_start < 2 && !is_broken && !is_plain()
    }

    /// Strings of control tokens that are text everywhere in [`Self::text`], because messages hold
    /// them and the template's logic depends on them. Worth a warning: the template's own ones are
    /// text as well.
    pub fn undecided(&self) -> &[String] {
        &self.plain
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct Template {
    source: String,
}

impl Template {
    /// Checks the source.
    ///
    /// # Errors
    /// If it is no valid Jinja or longer than [`MAX_SOURCE_BYTES`].
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TemplateError::TooMuch("space"));
        }
        let template = Self { source: strip_generation_tags(source) };
        let environment = environment(Clock::default())?;
        environment.template_from_str(&template.source).map_err(error)?;
        Ok(template)
    }

    /// The source, without `{% generation %}` tags.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders `messages`, OpenAI-style objects with `role` and `content`. `guard` is the tokenizer
    /// that the text is meant for; without one the result counts as [`Rendered::trusted`].
    ///
    /// # Errors
    /// If the template refuses the messages, fails, or does too much.
    pub fn render(
        &self,
        messages: &[Json],
        options: &RenderOptions,
        guard: Option<&Tokenizer<'_>>,
    ) -> Result<Rendered, TemplateError> {
        let input = Input {
            messages: messages.to_vec(),
            tools: options.tools.clone(),
            args: options.args.clone(),
        };
        let text = self.render_text(&input, options)?;
        match guard {
            Some(tokenizer) => Ok(guard::render(self, &input, options, tokenizer, text)),
            None => Ok(Rendered::trusted(text)),
        }
    }

    fn render_text(&self, input: &Input, options: &RenderOptions) -> Result<String, TemplateError> {
        let mut environment = environment(options.clock)?;
        let n_bytes = json::n_bytes(&input.messages) + json::n_bytes(&input.tools);
        let fuel = BASE_FUEL.saturating_add((n_bytes as u64).saturating_mul(FUEL_PER_BYTE));
        environment.set_fuel(Some(fuel));
        let template = environment.template_from_str(&self.source).map_err(error)?;
        let mut context: Vec<(&str, Value)> = vec![
            ("messages", to_value(&input.messages)),
            ("add_generation_prompt", options.add_generation_prompt.into()),
            ("bos_token", options.bos_token.as_str().into()),
            ("eos_token", options.eos_token.as_str().into()),
        ];
        if !input.tools.is_empty() {
            context.push(("tools", to_value(&input.tools)));
        }
        let args = input.args.iter();
        context.extend(args.map(|(key, value)| (key.as_str(), to_value(value))));
        template.render(Value::from_pairs(context)).map_err(error)
    }
}

fn to_value(value: impl serde::Serialize) -> Value {
    Value::from(Serde(value))
}

/// Everything from outside that a template gets to see.
#[derive(Debug, Clone)]
struct Input {
    messages: Vec<Json>,
    tools: Vec<Json>,
    args: Vec<(String, Json)>,
}

/// Jinja as transformers sets it up.
fn environment<'s>(clock: Clock) -> Result<Environment<'s>, TemplateError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(error)?);
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_formatter(python::format);
    environment.set_unknown_method_callback(python::method);
    environment.add_filter("tojson", json::tojson);
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
        ErrorKind::SyntaxError => TemplateError::Syntax(innermost.to_string()),
        _ => TemplateError::Failed(innermost.to_string()),
    }
}

/// Takes away `{% generation %}` and `{% endgeneration %}`, which mark the assistant's text for
/// training and which only transformers knows.
fn strip_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let inner = &tag[2..end];
        let name = inner.trim_matches(['-', '+']).trim();
        if matches!(name, "generation" | "endgeneration") {
            // Comments trim white space as tags do.
            let open = if inner.starts_with('-') { "{#-" } else { "{#" };
            let close = if inner.ends_with('-') { "-#}" } else { "#}" };
            out.push_str(open);
            out.push_str(close);
        } else {
            out.push_str(tag);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
