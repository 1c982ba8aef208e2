//! Flags of llama-bench that have nothing to switch here. Where the value names what is done anyway
//! it is accepted, so that command lines can be shared; any other value is wrong use, with a line
//! that says what is done instead, since a figure measured under an ignored flag would be a wrong one.

use clap::{Arg, ArgAction, ArgMatches, Command};
use cli::Failure;

/// One of them.
struct Foreign {
    /// Short name of one dash and several letters, or empty.
    short: &'static str,
    long: &'static str,
    /// Values that name what is done here.
    ours: &'static [&'static str],
    /// What is done here.
    instead: &'static str,
}

const fn foreign(
    short: &'static str,
    long: &'static str,
    ours: &'static [&'static str],
    instead: &'static str,
) -> Foreign {
    Foreign { short, long, ours, instead }
}

const LOCAL: &str = "models are local files: minfer-pack model.gguf makes one";
const PLACE: &str = "the system places threads: taskset or numactl can";
const ONE_GPU: &str = "a model is on one GPU: --device cuda:N";
const WITH_LAYERS: &str = "everything of a layer is where the layer is: --gpu-layers N";

const FOREIGN: &[Foreign] = &[
    foreign(
        "-fa",
        "flash-attn",
        &["1", "on", "auto"],
        "attention never writes its scores to memory",
    ),
    foreign("-ctk", "cache-type-k", &["f16"], "keys are kept as f16"),
    foreign("-ctv", "cache-type-v", &["f16"], "values are kept as f16"),
    foreign("-C", "cpu-mask", &["0x0"], PLACE),
    foreign("", "cpu-strict", &["0"], PLACE),
    foreign("", "numa", &[], PLACE),
    foreign("", "poll", &[], "threads that wait spin for 60 microseconds, then sleep"),
    foreign("", "prio", &["0"], "the priority stays: nice can change it"),
    foreign("-ncmoe", "n-cpu-moe", &["0"], WITH_LAYERS),
    foreign("-nkvo", "no-kv-offload", &["0"], WITH_LAYERS),
    foreign("-nopo", "no-op-offload", &["0"], WITH_LAYERS),
    foreign("-ot", "override-tensor", &[], WITH_LAYERS),
    foreign("", "no-host", &["0"], WITH_LAYERS),
    foreign("-sm", "split-mode", &["none", "layer"], ONE_GPU),
    foreign("-mg", "main-gpu", &[], ONE_GPU),
    foreign("-ts", "tensor-split", &["0"], ONE_GPU),
    foreign("-rpc", "rpc", &[], ONE_GPU),
    foreign("-lm", "load-mode", &["auto", "mmap"], "the file is mapped"),
    foreign("-mmp", "mmap", &["1"], "the file is mapped"),
    foreign("-dio", "direct-io", &["0"], "the file is mapped"),
    foreign("-lzm", "lazy-mode", &["auto"], "the file is mapped"),
    foreign("-embd", "embeddings", &["0"], "logits are computed, no embeddings"),
    foreign("", "repack", &["0"], "nothing is repacked at load: minfer-pack --planes has done it"),
    foreign("-fitt", "fit-target", &[], "--gpu-layers auto takes as many layers as fit"),
    foreign("-fitc", "fit-ctx", &[], "--gpu-layers auto takes as many layers as fit"),
    foreign("-hf", "hf-repo", &[], LOCAL),
    foreign("-hff", "hf-file", &[], LOCAL),
    foreign("-hft", "hf-token", &[], LOCAL),
];

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
            let Foreign { short, long, ours, instead } = &FOREIGN[*which];
            if value.split(',').all(|value| ours.contains(&value)) {
                continue;
            }
            let name = if short.is_empty() { format!("--{long}") } else { (*short).to_owned() };
            let accepted = match ours {
                [] => String::new(),
                ours => format!(" (accepted: {})", ours.join(", ")),
            };
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
        FOREIGN.iter().fold(command, |command, foreign| {
            let arg = Arg::new(foreign.long).long(foreign.long).hide(true);
            let arg = arg.action(ArgAction::Append).allow_hyphen_values(true);
            command.arg(if foreign.short == "-C" { arg.short('C') } else { arg })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
