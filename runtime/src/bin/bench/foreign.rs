//! Flags of llama-bench that have nothing to switch here. What has no effect here is accepted with any
//! value, what names what is done anyway with that value, so that command lines can be shared; any other
//! value is wrong use, with a line that says what is done instead, since a figure measured under an
//! ignored flag would be a wrong one.

use crate::numbers::Numbers;
use Values::{Free, FreeUpTo, Ours};
use clap::{Arg, ArgAction, ArgMatches, Command};
use cli::Failure;

/// One of them.
struct Foreign {
    /// Short name of one dash and several letters, or empty.
    short: &'static str,
    long: &'static str,
    values: Values,
    /// What is done here.
    instead: &'static str,
}

/// What a flag may say.
#[derive(Clone, Copy)]
enum Values {
    /// All that llama-bench takes: these words.
    Free(&'static [&'static str]),
    /// All that llama-bench takes: numbers up to this, and ranges of them.
    FreeUpTo(u32),
    /// What names what is done here; nothing does if there is none.
    Ours(&'static [&'static str]),
}

impl Values {
    fn take(self, value: &str) -> bool {
        match self {
            Self::Free(words) | Self::Ours(words) => words.contains(&value),
            Self::FreeUpTo(max) => {
                value.parse().is_ok_and(|Numbers(list)| list.iter().all(|&n| n <= max))
            }
        }
    }

    /// ` (accepted: ...)`.
    fn accepted(self) -> String {
        match self {
            Self::Ours([]) => String::new(),
            Self::Free(words) | Self::Ours(words) => format!(" (accepted: {})", words.join(", ")),
            Self::FreeUpTo(max) => format!(" (accepted: 0 to {max})"),
        }
    }
}

impl Foreign {
    /// As people type it.
    fn name(&self) -> String {
        if self.short.is_empty() { format!("--{}", self.long) } else { self.short.to_owned() }
    }
}

const fn foreign(
    short: &'static str,
    long: &'static str,
    values: Values,
    instead: &'static str,
) -> Foreign {
    Foreign { short, long, values, instead }
}

const LOCAL: &str = "models are local files: minfer-pack model.gguf makes one";
const PLACE: &str = "the system places threads: taskset or numactl can";
const ONE_GPU: &str = "a model is on one GPU: --device cuda:N";
const WITH_LAYERS: &str = "everything of a layer is where the layer is: --gpu-layers N";
const MAPPED: &str = "the file is mapped";
const FIT: &str = "--gpu-layers auto takes as many layers as fit";

const FOREIGN: &[Foreign] = &[
    foreign("", "poll", FreeUpTo(100), "threads that wait spin for 60 microseconds, then sleep"),
    foreign(
        "",
        "repack",
        Free(&["0", "1"]),
        "nothing is repacked at load: minfer-pack has done it",
    ),
    foreign("", "no-host", Free(&["0", "1"]), WITH_LAYERS),
    foreign("-nopo", "no-op-offload", Free(&["0", "1"]), WITH_LAYERS),
    foreign("-fitc", "fit-ctx", FreeUpTo(i32::MAX as u32), FIT),
    foreign(
        "-fa",
        "flash-attn",
        Ours(&["1", "on", "auto"]),
        "attention never writes its scores to memory",
    ),
    foreign("-ctk", "cache-type-k", Ours(&["f16"]), "keys are kept as f16"),
    foreign("-ctv", "cache-type-v", Ours(&["f16"]), "values are kept as f16"),
    foreign("-C", "cpu-mask", Ours(&["0x0"]), PLACE),
    foreign("", "cpu-strict", Ours(&["0"]), PLACE),
    foreign("", "prio", Ours(&["0"]), "the priority stays: nice can change it"),
    foreign("-ncmoe", "n-cpu-moe", Ours(&["0"]), WITH_LAYERS),
    foreign("-nkvo", "no-kv-offload", Ours(&["0"]), WITH_LAYERS),
    foreign("-sm", "split-mode", Ours(&["none", "layer"]), ONE_GPU),
    foreign("-mg", "main-gpu", Ours(&["0"]), ONE_GPU),
    foreign("-ts", "tensor-split", Ours(&["0"]), ONE_GPU),
    foreign("-lm", "load-mode", Ours(&["auto", "mmap"]), MAPPED),
    foreign("-mmp", "mmap", Ours(&["1"]), MAPPED),
    foreign("-dio", "direct-io", Ours(&["0"]), MAPPED),
    foreign("-lzm", "lazy-mode", Ours(&["auto"]), MAPPED),
    foreign("-embd", "embeddings", Ours(&["0"]), "logits are computed, no embeddings"),
    foreign("-fitt", "fit-target", Ours(&["0"]), FIT),
    foreign("", "numa", Ours(&[]), PLACE),
    foreign("-ot", "override-tensor", Ours(&[]), WITH_LAYERS),
    foreign("-rpc", "rpc", Ours(&[]), ONE_GPU),
    foreign("-hf", "hf-repo", Ours(&[]), LOCAL),
    foreign("-hff", "hf-file", Ours(&[]), LOCAL),
    foreign("-hft", "hf-token", Ours(&[]), LOCAL),
];

/// A flag of llama-bench without a value: nothing is fetched here, with it or without.
const OFFLINE: &str = "offline";

/// For `--help`: what becomes of them.
pub(crate) fn help() -> String {
    let list = |each: &dyn Fn(&Foreign) -> Option<String>| -> Vec<String> {
        FOREIGN.iter().filter_map(each).collect()
    };
    let mut free = list(&|f| matches!(f.values, Free(_) | FreeUpTo(_)).then(|| f.name()));
    free.push(format!("--{OFFLINE}"));
    let ours = list(&|f| match f.values {
        Ours(words @ [_, ..]) => Some(format!("{} {}", f.name(), words.join("|"))),
        _ => None,
    });
    let never = list(&|f| matches!(f.values, Ours([])).then(|| f.name()));
    let mut text = String::from("Flags of llama-bench that switch nothing here:\n");
    paragraph(&mut text, "accepted, without effect:", &free);
    paragraph(&mut text, "accepted with these values, which name what is done:", &ours);
    paragraph(&mut text, "refused, as is any other value of those:", &never);
    text
}

/// Appends an item and its list in lines of at most 100 characters.
fn paragraph(text: &mut String, head: &str, items: &[String]) {
    let mut line = format!("  {head}");
    for (i, item) in items.iter().enumerate() {
        let comma = if i + 1 < items.len() { "," } else { "" };
        if line.len() + item.len() + 2 > 100 {
            text.push_str(&line);
            text.push('\n');
            line = "   ".to_owned();
        }
        line.push_str(&format!(" {item}{comma}"));
    }
    text.push_str(&line);
    text.push('\n');
}

/// Names of one dash and several letters, ours among them, with the flag that each stands for.
pub(crate) fn long_names() -> Vec<(&'static str, &'static str)> {
    let mut names = vec![
        ("-ngl", "--gpu-layers"),
        ("-pg", "--pg"),
        ("-oe", "--output-err"),
        ("-ub", "--ubatch-size"),
        ("-dev", "--device"),
        ("-hfr", "--hf-repo"),
    ];
    names.extend(FOREIGN.iter().filter(|f| !f.short.is_empty()).map(|f| (f.short, dashed(f.long))));
    names
}

/// `--name`, once for the life of the process: clap and the renaming want it for as long.
fn dashed(long: &'static str) -> &'static str {
    Box::leak(format!("--{long}").into_boxed_str())
}

/// What was given of them.
#[derive(Debug, Default)]
pub(crate) struct ForeignArgs {
    given: Vec<(usize, String)>,
}

impl ForeignArgs {
    /// # Errors
    /// Wrong use: a value that names something else than what is done here.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        for (which, value) in &self.given {
            let foreign = &FOREIGN[*which];
            if value.split(',').all(|value| foreign.values.take(value)) {
                continue;
            }
            let (name, accepted) = (foreign.name(), foreign.values.accepted());
            let instead = foreign.instead;
            return Err(Failure::usage(format!("{name} {value}: {instead}{accepted}")));
        }
        Ok(())
    }

    fn from(matches: &ArgMatches) -> Self {
        let mut given = Vec::new();
        for (which, foreign) in FOREIGN.iter().enumerate() {
            let values = matches.get_many::<String>(foreign.long).into_iter().flatten();
            given.extend(values.map(|value| (which, value.clone())));
        }
        Self { given }
    }
}

impl clap::FromArgMatches for ForeignArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self::from(matches))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from(matches);
        Ok(())
    }
}

impl clap::Args for ForeignArgs {
    fn augment_args(command: Command) -> Command {
        let offline = Arg::new(OFFLINE).long(OFFLINE).hide(true).overrides_with(OFFLINE);
        let offline = offline.action(ArgAction::SetTrue);
        FOREIGN.iter().fold(command.arg(offline), |command, foreign| {
            let arg = Arg::new(foreign.long).long(foreign.long).hide(true);
            let arg = arg.action(ArgAction::Append).allow_hyphen_values(true);
            command.arg(if foreign.short == "-C" { arg.short('C') } else { arg })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
