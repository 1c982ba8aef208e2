//! A conversation on the terminal.

use crate::answer::{Answer, Generator, Stop, choose, feed};
use crate::prompt::{self, message};
use crate::render::Chat;
use crate::report;
use crate::setup::{Job, device, failure};
use crate::{history, interrupt};
use cli::{ExitCode, Failure};
use runtime::sampler::{Knob, Origin, Sampler, Settings};
use runtime::{Model, Session};
use rustyline::error::ReadlineError;
use serde_json::Value;

const HELP: &str = "\
/help              this list
/clear             forget the conversation
/regen             answer the last message again
/system TEXT       set the system message and start over (without TEXT: none)
/set NAME=VALUE    change a sampling setting (without NAME: list them)
/stats             tokens and times so far
/exit              leave, as ^D does
//TEXT             send a message that starts with a slash
^C stops an answer; at the prompt it leaves";

/// One line that was typed.
#[derive(Debug, PartialEq)]
enum Line<'l> {
    Message(&'l str),
    Help,
    Clear,
    Regen,
    System(&'l str),
    Set(&'l str),
    Stats,
    Exit,
    Unknown(&'l str),
}

fn parse(line: &str) -> Line<'_> {
    let Some(command) = line.strip_prefix('/') else { return Line::Message(line) };
    if command.starts_with('/') {
        return Line::Message(command);
    }
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    match name {
        "help" | "?" => Line::Help,
        "clear" => Line::Clear,
        "regen" => Line::Regen,
        "system" => Line::System(rest.trim()),
        "set" => Line::Set(rest.trim()),
        "stats" => Line::Stats,
        "exit" | "quit" | "bye" => Line::Exit,
        _ => Line::Unknown(name),
    }
}

/// The state of the conversation.
struct Conversation<'c, 'j, 'm, 'a> {
    job: &'c Job<'j, 'a>,
    model: &'c Model<'a>,
    chat: Chat,
    session: Session<'m, 'a>,
    /// The tokens that the session holds.
    held: Vec<u32>,
    messages: Vec<Value>,
    settings: Settings,
    sampler: Sampler,
    seed: u64,
}

/// Talks until the user leaves.
///
/// # Errors
/// If the model cannot be used, or the terminal fails.
pub(super) fn run(job: &mut Job<'_, '_>) -> Result<ExitCode, Failure> {
    let chat = Chat::new(job)?;
    let system = prompt::system(job.args)?;
    let model = job.load()?;
    let n_ctx = job.n_ctx(&model)?;
    let (settings, seed) = (job.settings()?, job.seed());
    let sampler = job.sampler(&settings, n_ctx, seed);
    let session = Session::new(&model, n_ctx).map_err(failure)?;
    let messages = system.iter().map(|text| message("system", text)).collect();
    job.ui.note(format_args!(
        "{} · context {n_ctx} tokens · seed {seed} · /help lists the commands",
        device(&model)
    ));
    let mut conversation = Conversation {
        job,
        model: &model,
        chat,
        session,
        held: Vec::new(),
        messages,
        settings,
        sampler,
        seed,
    };
    conversation.talk()
}

impl Conversation<'_, '_, '_, '_> {
    fn talk(&mut self) -> Result<ExitCode, Failure> {
        interrupt::remember_terminal();
        let mut editor = history::Editor::open(self.job.ui)?;
        loop {
            // A ^C that came too late for the answer is not meant for the next one.
            interrupt::clear();
            let line = match editor.read("> ") {
                Ok(line) => line,
                Err(ReadlineError::Eof) => return Ok(ExitCode::Ok),
                Err(ReadlineError::Interrupted) => return Ok(ExitCode::Interrupted),
                Err(e) if history::is_not_text(&e) => {
                    self.say("that was not valid UTF-8; the line is dropped");
                    continue;
                }
                Err(e) => {
                    return Err(Failure::new(
                        ExitCode::Io,
                        format!("cannot read the terminal: {e}"),
                    ));
                }
            };
            if line.trim().is_empty() {
                continue;
            }
            match parse(&line) {
                Line::Exit => return Ok(ExitCode::Ok),
                Line::Message(text) => {
                    self.messages.push(message("user", text));
                    if !self.answer()? {
                        self.messages.pop();
                    }
                }
                Line::Regen => self.regenerate()?,
                other => self.command(other),
            }
        }
    }

    fn command(&mut self, line: Line<'_>) {
        match line {
            Line::Clear => {
                self.messages.retain(|m| m["role"] == "system");
                self.say("the conversation is forgotten");
            }
            Line::System(text) => {
                self.messages.clear();
                if text.is_empty() {
                    self.say("no system message; the conversation starts over");
                } else {
                    self.messages.push(message("system", text));
                    self.say("the conversation starts over with this system message");
                }
            }
            Line::Set("") => self.list_settings(),
            Line::Set(change) => match self.set(change) {
                Ok(done) => self.say(&done),
                Err(why) => self.say(&why),
            },
            Line::Stats => {
                report::timings(self.job, self.session.timings());
                self.say(&format!(
                    "context: {} of {} tokens",
                    self.session.n_past(),
                    self.session.n_ctx()
                ));
            }
            Line::Unknown(name) => self.say(&format!("no command /{name}; /help lists them")),
            _ => self.say(HELP),
        }
    }

    /// Speaks about the chat, not in it: not even `-q` hides the answer to a command.
    fn say(&self, text: &str) {
        self.job.ui.verbose(0, format_args!("{text}"));
    }

    fn list_settings(&self) {
        for &knob in Knob::ALL {
            let origin = self.settings.origin(knob).name();
            let name = knob.spec().name;
            self.say(&format!("{name:<20}{:<10}{origin}", self.settings.get(knob)));
        }
        self.say(&format!("{:<20}{}", "seed", self.seed));
    }

    fn set(&mut self, change: &str) -> Result<String, String> {
        let (name, value) = change
            .split_once('=')
            .or_else(|| change.split_once(char::is_whitespace))
            .ok_or("write /set NAME=VALUE, e.g. /set temp=0.5")?;
        let (name, value) = (name.trim(), value.trim());
        let n_ctx = self.session.n_ctx();
        if name == "seed" {
            self.seed = cli::whole(value, &(0..=u64::MAX)).map_err(|why| format!("seed: {why}"))?;
            self.sampler = self.job.sampler(&self.settings, n_ctx, self.seed);
            return Ok(format!("seed = {}", self.seed));
        }
        let knob = Knob::by_name(name)
            .ok_or_else(|| format!("no setting is called `{name}`; /set lists them"))?;
        let value = knob.parse(value)?;
        self.settings.set(knob, value, Origin::Flag);
        // The random state goes on, so that a change does not repeat earlier draws.
        let fresh = self.job.sampler(&self.settings, n_ctx, self.seed);
        self.sampler = fresh.with_rng_of(&self.sampler);
        Ok(format!("{} = {value}", knob.spec().name))
    }

    fn regenerate(&mut self) -> Result<(), Failure> {
        let before = self.messages.pop_if(|m| m["role"] == "assistant");
        let answered = if self.messages.last().is_some_and(|m| m["role"] == "user") {
            self.answer()?
        } else {
            self.say("there is no message to answer yet");
            false
        };
        if !answered {
            self.messages.extend(before);
        }
        Ok(())
    }

    /// Answers the last message; says whether there is an answer now. What concerns this message
    /// alone is said and the chat goes on, with the messages as they were.
    fn answer(&mut self) -> Result<bool, Failure> {
        match self.try_answer() {
            Ok(answer) => {
                self.messages.push(message("assistant", &answer.text));
                Ok(true)
            }
            Err(failure) if failure.is_quiet() => Err(failure),
            Err(failure) if matches!(failure.code, ExitCode::Failed | ExitCode::Interrupted) => {
                self.say(&failure.message);
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    fn try_answer(&mut self) -> Result<Answer, Failure> {
        let _listening = interrupt::listen();
        let job = self.job;
        let ids = self.chat.ids(job, &self.messages)?;
        let n_ctx = self.session.n_ctx();
        if ids.len() > n_ctx {
            return Err(Failure::failed(format!(
                "context: the conversation has {} tokens, the context {n_ctx}; /clear starts over",
                ids.len()
            )));
        }
        let logits = self.feed_new(&ids)?;
        self.sampler.reset();
        ids.iter().for_each(|&id| self.sampler.accept(id));
        let limits = job.limits();
        let first = match limits.n_predict {
            Some(0) => None,
            _ => Some(choose(&mut self.sampler, job.tokenizer, &logits)?),
        };
        let mut generator = Generator {
            session: &mut self.session,
            sampler: &mut self.sampler,
            tokenizer: job.tokenizer,
            limits: &limits,
        };
        let outcome = generator.run(first, |text| match text {
            "" => Ok(()),
            text => job.ui.print(text),
        });
        job.ui.print("\n")?;
        let answer = outcome?;
        // The last token was sampled but never fed.
        let n_fed = self.session.n_past().saturating_sub(ids.len());
        self.held.extend(answer.token_ids.iter().take(n_fed));
        self.end_note(&answer.stop);
        Ok(answer)
    }

    fn end_note(&self, stop: &Stop) {
        match stop {
            Stop::Context => self.say("context: full, the answer is cut off; /clear starts over"),
            Stop::Interrupted => self.say("stopped"),
            Stop::Length | Stop::Time => {
                self.job.ui.note(format_args!("cut off: {}", stop.name()));
            }
            Stop::EndOfGeneration(_) | Stop::Text(_) => {}
        }
        if self.job.args.inspect.timings {
            let device = device(self.model);
            report::summary(self.job, &device, self.session.timings(), self.seed, Some(stop));
        }
    }

    /// Feeds what the session does not hold yet of `ids` and returns the logits after it.
    fn feed_new(&mut self, ids: &[u32]) -> Result<Vec<f32>, Failure> {
        let same = self.held.iter().zip(ids).take_while(|(a, b)| a == b).count();
        // One token at least has to be fed: its logits are wanted.
        let same = same.min(ids.len().saturating_sub(1));
        self.session.truncate(same);
        self.held.truncate(same);
        let n_batch = self.job.args.device.batch as usize;
        let fed = feed(&mut self.session, &ids[same..], n_batch).map(<[f32]>::to_vec);
        self.held.extend_from_slice(&ids[same..self.session.n_past()]);
        fed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_messages_are_told_apart() {
        assert_eq!(parse("hello"), Line::Message("hello"));
        assert_eq!(parse("//etc/hosts"), Line::Message("/etc/hosts"));
        assert_eq!(parse("/exit"), Line::Exit);
        assert_eq!(parse("/system  Be brief. "), Line::System("Be brief."));
        assert_eq!(parse("/system"), Line::System(""));
        assert_eq!(parse("/set temp=0"), Line::Set("temp=0"));
        assert_eq!(parse("/nothing here"), Line::Unknown("nothing"));
        for command in ["/help", "/clear", "/regen", "/stats"] {
            assert!(!matches!(parse(command), Line::Unknown(_)), "{command}");
            assert!(HELP.contains(command));
        }
    }
}
