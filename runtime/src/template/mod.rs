//! Chat templates: a list of messages to the text that a model was trained on.
//!
//! Templates are Jinja, written for Python's jinja2 as transformers sets it up; they come with the
//! model, so that both they and the messages are input from outside: a template has nothing of the
//! host to reach for, and what it may take is bounded.
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
mod engine;
mod guard;
mod json;
mod python;

use std::ops::Range;

pub use clock::{Clock, ClockError};
use format_spec::vocab::{MAX_TEMPLATE_BYTES, without_generation_tags};
use serde_json::Value as Json;

use crate::tokenizer::Tokenizer;

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
    /// If it is no valid Jinja or longer than 256 KiB.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TemplateError::TooMuch("space"));
        }
        let source = without_generation_tags(source);
        engine::check(&source)?;
        Ok(Self { source })
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
        engine::render(&self.source, input, options)
    }
}

/// Everything from outside that a template gets to see.
#[derive(Debug, Clone)]
struct Input {
    messages: Vec<Json>,
    tools: Vec<Json>,
    args: Vec<(String, Json)>,
}
