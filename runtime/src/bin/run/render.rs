//! From a prompt to token ids: the chat template, and what stands in for it.

use crate::prompt::{self, Conversation, Prompt, message};
use crate::setup::Job;
use cli::{ExitCode, Failure};
use format_spec::vocab::Special;
use runtime::template::{Clock, RenderOptions, Rendered, Template, TemplateError};
use serde_json::Value;

/// A chat template with what it sees.
#[derive(Debug)]
pub(crate) struct Chat {
    template: Template,
    options: RenderOptions,
}

fn failure(error: TemplateError) -> Failure {
    let code = match error {
        TemplateError::Syntax(_) => ExitCode::Input,
        _ => ExitCode::Failed,
    };
    Failure::new(code, error.to_string())
}

impl Chat {
    /// The template of `--chat-template-file`, else the model's.
    ///
    /// # Errors
    /// If there is none, or it is not valid.
    pub(crate) fn new(job: &Job<'_, '_>) -> Result<Self, Failure> {
        let given = &job.args.prompt;
        let tokenizer = job.tokenizer()?;
        let source = match &given.chat_template_file {
            Some(path) => prompt::text_file(path)?,
            None => tokenizer.vocab().chat_template().map(str::to_owned).ok_or_else(|| {
                Failure::input("the model has no chat template: use --raw or --chat-template-file")
            })?,
        };
        let epoch = cli::variable("SOURCE_DATE_EPOCH");
        let epoch = epoch.as_ref().map(|value| value.to_string_lossy());
        let clock = Clock::from_source_date_epoch(epoch.as_deref())
            .map_err(|e| Failure::usage(e.to_string()))?;
        let options = RenderOptions {
            args: given.template_arg.clone(),
            bos_token: tokenizer.special_text(Special::Bos),
            eos_token: tokenizer.special_text(Special::Eos),
            clock,
            ..RenderOptions::default()
        };
        Ok(Self { template: Template::new(&source).map_err(failure)?, options })
    }

    /// Renders messages.
    ///
    /// # Errors
    /// What the template reports.
    pub(crate) fn render(
        &self,
        job: &Job<'_, '_>,
        messages: &[Value],
    ) -> Result<Rendered, Failure> {
        let rendered = self.template.render(messages, &self.options, job.tokenizer);
        let rendered = rendered.map_err(failure)?;
        if !rendered.undecided().is_empty() {
            job.ui.warn(format_args!(
                "the messages hold {} and the template depends on it: it is treated as text, also where the template writes it",
                rendered.undecided().join(", ")
            ));
        }
        Ok(rendered)
    }

    /// Token ids of messages, with exactly one BOS where one belongs.
    ///
    /// # Errors
    /// What the template reports.
    pub(crate) fn ids(&self, job: &Job<'_, '_>, messages: &[Value]) -> Result<Vec<u32>, Failure> {
        let ids = job.tokenizer()?.encode_rendered(&self.render(job, messages)?);
        job.or_bos(ids)
    }
}

/// What goes into the model.
enum Dressed {
    /// As the template renders it.
    Rendered(Rendered),
    /// A plain text.
    Plain(String),
    /// Ids, used as they stand.
    Ids(Vec<u32>),
}

impl Job<'_, '_> {
    fn dress(&self, prompt: Prompt) -> Result<Dressed, Failure> {
        let given = &self.args.prompt;
        match prompt {
            Prompt::Ids(ids) => Ok(Dressed::Ids(ids)),
            Prompt::Messages(Conversation { messages, tools }) => {
                let mut chat = Chat::new(self)?;
                chat.options.tools = tools;
                chat.render(self, &messages).map(Dressed::Rendered)
            }
            Prompt::Text(text) if given.raw => Ok(Dressed::Plain(text)),
            Prompt::Text(text) => {
                let own_template = self.tokenizer()?.vocab().chat_template();
                let has_template = given.chat_template_file.is_some() || own_template.is_some();
                let system = prompt::system(self.args)?;
                if !has_template && system.is_none() {
                    self.ui
                        .note(format_args!("the model has no chat template: continuing the text"));
                    return Ok(Dressed::Plain(text));
                }
                let mut messages: Vec<Value> =
                    system.iter().map(|text| message("system", text)).collect();
                messages.push(message("user", &text));
                Chat::new(self)?.render(self, &messages).map(Dressed::Rendered)
            }
        }
    }

    /// The prompt as text, as `--show-prompt` prints it.
    ///
    /// # Errors
    /// What the template reports; wrong use.
    pub(crate) fn render(&self, prompt: Prompt) -> Result<String, Failure> {
        match self.dress(prompt)? {
            Dressed::Rendered(rendered) => Ok(rendered.text),
            Dressed::Plain(text) => Ok(text),
            Dressed::Ids(_) => Err(Failure::usage("--show-prompt needs a text or messages")),
        }
    }

    /// The prompt as token ids.
    ///
    /// # Errors
    /// What the template reports; an empty prompt where the model has no BOS.
    pub(crate) fn prompt_ids(&self, prompt: Prompt) -> Result<Vec<u32>, Failure> {
        match self.dress(prompt)? {
            Dressed::Ids(ids) if ids.is_empty() => {
                Err(Failure::usage("--ids: the list is empty, there is nothing to go on from"))
            }
            Dressed::Ids(ids) => Ok(ids),
            Dressed::Rendered(rendered) => {
                self.or_bos(self.tokenizer()?.encode_rendered(&rendered))
            }
            Dressed::Plain(text) => self.plain_ids(&text),
        }
    }

    /// A text to be continued: BOS where the model adds one, and no EOS, which would end it.
    fn plain_ids(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let tokenizer = self.tokenizer()?;
        let mut ids = tokenizer.encode(text, false, false);
        if self.args.prompt.no_bos {
            return if ids.is_empty() { Err(empty()) } else { Ok(ids) };
        }
        tokenizer.settle_bos(&mut ids);
        self.or_bos(ids)
    }

    /// A model needs something to start from: its BOS, if there is nothing else.
    fn or_bos(&self, ids: Vec<u32>) -> Result<Vec<u32>, Failure> {
        if ids.is_empty() {
            self.tokenizer()?.bos().map(|bos| vec![bos]).ok_or_else(empty)
        } else {
            Ok(ids)
        }
    }
}

fn empty() -> Failure {
    Failure::usage("the prompt is empty, and there is no BOS token to start from")
}
