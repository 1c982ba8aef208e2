//! The command line of minfer-run. This file parses and checks; it does nothing else.

pub(crate) use crate::device_args::DeviceArgs;
use crate::sampling_args::SamplingArgs;
use clap::{Args as ClapArgs, Parser, ValueHint};
use serde_json::Value;
use std::path::{Path, PathBuf};

const AFTER_HELP: &str = "\
Examples:
  minfer-run model.mpk                         chat on the terminal
  minfer-run model.mpk -p 'Why is the sky blue?'
  minfer-run model.mpk --raw -n 64 'Once upon a time'
  git diff | minfer-run model.mpk -s 'Review this diff.'
  minfer-run model.mpk --json --temp 0 -p Hi   one JSON object on standard output

Without PROMPT, -p, -f, --messages or --ids the prompt is standard input, which must not be empty
then. If that is a terminal, a chat begins: /help lists its commands, ^C stops an answer, ^C again
or ^D leaves.

Sampling values may also come from variables: MINFER_TEMP, MINFER_TOP_K, ..., MINFER_SEED.
MINFER_CPU=scalar|avx2|avxvnni|avx512 (on ARM: scalar|neon|dotprod|i8mm) forces an instruction
set. docs/RUN.md lists every variable.
";

/// Run a packed model
#[derive(Debug, Parser)]
#[command(
    name = "minfer-run",
    version,
    long_version = cli::LONG_VERSION,
    after_help = format!("{AFTER_HELP}\n{}", cli::EXIT_CODES_HELP),
    override_usage = "minfer-run [OPTIONS] <MODEL.mpk> [PROMPT]"
)]
pub(crate) struct Args {
    /// Packed model, as minfer-pack writes it
    #[arg(value_name = "MODEL.mpk", value_hint = ValueHint::FilePath, required_unless_present = "model_flag")]
    first: Option<PathBuf>,

    /// Prompt: one answer, then exit
    #[arg(value_name = "PROMPT")]
    second: Option<String>,

    /// The model, for people used to llama.cpp
    #[arg(short = 'm', long = "model", value_name = "MODEL.mpk", hide = true)]
    model_flag: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) length: LengthArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) inspect: InspectArgs,
    #[command(flatten)]
    pub(crate) global: cli::GlobalArgs,
}

/// Where the prompt comes from and how it is dressed.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Prompt")]
pub(crate) struct PromptArgs {
    /// Prompt: one answer, then exit
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, group = "source")]
    pub(crate) prompt: Option<String>,

    /// Read the prompt from this file, byte for byte ("-" is standard input)
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, group = "source")]
    pub(crate) file: Option<PathBuf>,

    /// Read a list of messages ({"role", "content"}), or an object with `messages` and `tools`, from
    /// this JSON file
    #[arg(long, value_name = "FILE.json", value_hint = ValueHint::FilePath, group = "source",
          conflicts_with_all = ["raw", "system", "system_file"])]
    pub(crate) messages: Option<PathBuf>,

    /// Use this JSON list of token ids as the prompt, as it stands: no template, no BOS
    #[arg(long, value_name = "FILE.json", value_hint = ValueHint::FilePath, group = "source",
          conflicts_with_all = ["raw", "system", "system_file", "no_bos", "chat_template_file"])]
    pub(crate) ids: Option<PathBuf>,

    /// System message
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "raw")]
    pub(crate) system: Option<String>,

    /// Read the system message from this file, byte for byte
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["raw", "system"])]
    pub(crate) system_file: Option<PathBuf>,

    /// Plain continuation of the prompt: no chat template
    #[arg(long, alias = "no-template", conflicts_with_all = ["chat_template_file", "template_arg"])]
    pub(crate) raw: bool,

    /// Do not put a BOS token in front (with --raw and --tokenize)
    #[arg(long)]
    pub(crate) no_bos: bool,

    /// Understand \n, \t, \r, \\ and \" in the prompt
    #[arg(short, long)]
    pub(crate) escape: bool,

    /// Use this chat template instead of the model's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) chat_template_file: Option<PathBuf>,

    /// Set a variable for the template, e.g. enable_thinking=false (repeatable)
    #[arg(long, value_name = "KEY=JSON", value_parser = template_arg)]
    pub(crate) template_arg: Vec<(String, Value)>,
}

/// When the answer ends.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Length and stop")]
pub(crate) struct LengthArgs {
    /// Most tokens to generate; -1 until the model stops or the context is full
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true,
          value_parser = cli::number(-1..=i64::from(i32::MAX)))]
    pub(crate) predict: Option<i64>,

    /// Context size in tokens; 0 is the largest of the model's that fits in memory
    #[arg(short, long, value_name = "N", default_value_t = 0, env = "MINFER_CTX_SIZE", hide_env_values = true,
          allow_negative_numbers = true,
          value_parser = cli::number(0..=1u32 << 30))]
    pub(crate) ctx_size: u32,

    /// Stop before this text; it is not printed (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = non_empty)]
    pub(crate) stop: Vec<String>,

    /// Go on after an end-of-generation token
    #[arg(long)]
    pub(crate) ignore_eos: bool,

    /// Stop after this many seconds of generating
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    pub(crate) max_time: Option<f64>,
}

/// Looking at what would run, or did.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Inspection and output")]
pub(crate) struct InspectArgs {
    /// Print the prompt as the template renders it and exit
    #[arg(long, group = "action", conflicts_with = "ids")]
    pub(crate) show_prompt: bool,

    /// Print the token ids of the prompt's text (no template, control tokens as plain text) and exit
    #[arg(long, group = "action", conflicts_with_all = ["ids", "messages"])]
    pub(crate) tokenize: bool,

    /// Print the perplexity of this text, measured as llama-perplexity does: in chunks of 512
    /// tokens, whatever -c says
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, group = "action",
          conflicts_with_all = ["source", "predict"])]
    pub(crate) perplexity: Option<PathBuf>,

    /// Print where memory would go and exit (5 if it does not fit)
    #[arg(long, group = "action")]
    pub(crate) dry_run: bool,

    /// Print which object and kernel each matrix uses, and why; after a run also how often
    #[arg(long)]
    pub(crate) explain: bool,

    /// With --ids: write the logits of every prompt position to this file, raw float32,
    /// n_vocab values a position; without -n, exit after the prompt. The file gets its name when it
    /// is complete
    #[arg(long, value_name = "OUT.f32", value_hint = ValueHint::FilePath, conflicts_with = "action")]
    pub(crate) logits: Option<PathBuf>,

    /// Print where the time went
    #[arg(long)]
    pub(crate) timings: bool,

    /// Print the answer when it is complete, not as it comes
    #[arg(long)]
    pub(crate) no_stream: bool,
}

impl Args {
    /// The model: the first positional argument, or `-m`.
    pub(crate) fn model(&self) -> &Path {
        let model = self.model_flag.as_deref().or(self.first.as_deref());
        model.unwrap_or(Path::new(""))
    }

    /// Checks what clap cannot: it forgives a missing companion when that conflicts with
    /// something given.
    ///
    /// # Errors
    /// Wrong use.
    pub(crate) fn check(&self) -> Result<(), cli::Failure> {
        self.positional()?;
        if self.inspect.logits.is_some() && self.prompt.ids.is_none() {
            return Err(cli::Failure::usage("--logits needs --ids"));
        }
        if self.prompt.no_bos && !self.prompt.raw && !self.inspect.tokenize {
            return Err(cli::Failure::usage("--no-bos needs --raw or --tokenize"));
        }
        Ok(())
    }

    /// The positional prompt. With `-m` it is the first positional argument.
    ///
    /// # Errors
    /// Wrong use: two positional arguments beside `-m`, a prompt that is no UTF-8, or a second
    /// prompt source.
    pub(crate) fn positional(&self) -> Result<Option<String>, cli::Failure> {
        let text = match (&self.model_flag, &self.first, &self.second) {
            (None, _, second) => second.clone(),
            (Some(_), None, _) => None,
            (Some(_), Some(first), None) => match first.to_str() {
                Some(text) => Some(text.to_owned()),
                None => return Err(cli::Failure::usage("the prompt is not valid UTF-8")),
            },
            (Some(_), Some(_), Some(_)) => {
                return Err(cli::Failure::usage("-m and a model given twice: drop one"));
            }
        };
        let p = &self.prompt;
        let other = [
            (p.prompt.is_some(), "-p"),
            (p.file.is_some(), "-f"),
            (p.messages.is_some(), "--messages"),
            (p.ids.is_some(), "--ids"),
            (self.inspect.perplexity.is_some(), "--perplexity"),
        ];
        match other.iter().find(|(given, _)| *given && text.is_some()) {
            Some((_, flag)) => {
                Err(cli::Failure::usage(format!("a prompt argument cannot be used with {flag}")))
            }
            None => Ok(text),
        }
    }

    /// Whether the command line names a prompt, so that standard input is left alone.
    pub(crate) fn has_prompt(&self) -> bool {
        let p = &self.prompt;
        let positional =
            if self.model_flag.is_some() { self.first.is_some() } else { self.second.is_some() };
        positional
            || p.prompt.is_some()
            || p.file.is_some()
            || p.messages.is_some()
            || p.ids.is_some()
    }
}

fn template_arg(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=JSON")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if key.is_empty() || !key.chars().all(is_name) || key.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(format!("`{key}` is not a variable name"));
    }
    let value = serde_json::from_str(value).map_err(|e| {
        format!("`{value}` is not JSON ({e}); a string needs quotes: {key}='\"...\"'")
    })?;
    Ok((key.to_owned(), value))
}

fn non_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("an empty text stops nothing".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// What `--max-time` takes at most: thirty years.
const MAX_SECONDS: f64 = 1e9;

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= MAX_SECONDS => Ok(value),
        Ok(value) if !value.is_nan() => {
            Err(format!("out of range: expected above 0, up to {MAX_SECONDS}"))
        }
        _ => Err(format!("expected a number of seconds above 0, up to {MAX_SECONDS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(line: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["minfer-run"], line].concat())
    }

    #[test]
    fn the_command_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_model_comes_first_or_behind_m() {
        let args = parse(&["a.mpk", "hello"]).unwrap();
        assert_eq!(args.model(), Path::new("a.mpk"));
        assert_eq!(args.positional().unwrap().as_deref(), Some("hello"));
        let args = parse(&["-m", "a.mpk", "hello"]).unwrap();
        assert_eq!(args.model(), Path::new("a.mpk"));
        assert_eq!(args.positional().unwrap().as_deref(), Some("hello"));
        assert!(args.has_prompt());
        assert!(!parse(&["-m", "a.mpk"]).unwrap().has_prompt());
        assert!(parse(&["-m", "a.mpk", "b", "c"]).unwrap().positional().is_err());
        assert!(parse(&["a.mpk", "x", "-p", "y"]).unwrap().positional().is_err());
    }

    #[test]
    fn one_prompt_source_only() {
        assert!(parse(&["a.mpk", "-p", "x", "-f", "y"]).is_err());
        assert!(parse(&["a.mpk", "--ids", "x", "--messages", "y"]).is_err());
        let checked = |line: &[&str]| parse(line).unwrap().check().is_ok();
        assert!(!checked(&["a.mpk", "--logits", "x"]));
        assert!(!checked(&["a.mpk", "--logits", "x", "-p", "y"]));
        assert!(checked(&["a.mpk", "--logits", "x", "--ids", "y"]));
        assert!(!checked(&["a.mpk", "--no-bos", "y"]));
        assert!(parse(&["a.mpk", "--perplexity", "x", "-n", "4"]).is_err());
        assert!(parse(&["a.mpk", "--raw", "-s", "x"]).is_err());
    }

    #[test]
    fn numbers_are_checked() {
        for bad in [
            ["-n", "-2"],
            ["-n", "x"],
            ["-c", "-1"],
            ["-b", "0"],
            ["--temp", "-1"],
            ["--temp", "nan"],
            ["--top-p", "1.1"],
            ["--top-k", "1.5"],
            ["--seed", "-2"],
            ["--repeat-penalty", "0"],
            ["--logit-bias", "x"],
            ["--logit-bias", "5+nan"],
            ["--stop", ""],
            ["--template-arg", "a=b"],
            ["--samplers", "magic"],
            ["--max-time", "0"],
            ["--device", "tpu"],
            ["--device", "cuda:x"],
            ["--prefill", "fp4"],
            ["--gpu-layers", "-2"],
            ["--flash-attn", "off"],
            ["--gpu-layers", "some"],
            ["--verify", "some"],
        ] {
            assert!(parse(&["a.mpk", bad[0], bad[1]]).is_err(), "{bad:?}");
        }
        for negative in ["-c", "-b", "--max-time"] {
            let message = parse(&["a.mpk", negative, "-1"]).unwrap_err().to_string();
            assert!(message.contains("'-1'"), "a number and no flag: {message}");
        }
        for good in [
            ["--gpu-layers", "-1"],
            ["--flash-attn", "on"],
            ["-n", "-1"],
            ["-n", "0"],
            ["-c", "0"],
            ["--temp", "0"],
            ["--seed", "-1"],
            ["--top-k", "-1"],
            ["--logit-bias", "5-inf"],
            ["--logit-bias", "5+1.5"],
            ["--template-arg", "a=\"b\""],
            ["--presence-penalty", "-0.5"],
            ["--stop", "--"],
            ["-p", "-x"],
            ["--device", "cuda:1"],
            ["--prefill", "mmq"],
            ["--gpu-layers", "20"],
            ["--n-gpu-layers", "auto"],
        ] {
            assert!(parse(&["a.mpk", good[0], good[1]]).is_ok(), "{good:?}");
        }
    }
}
