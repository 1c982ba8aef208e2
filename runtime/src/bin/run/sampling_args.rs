//! Sampling flags, made from the sampler's own table of settings, so that a new setting has its
//! flag, its variable and its help without another line.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use runtime::sampler::{Knob, Origin, Settings, StepKind};

/// What the command line and the environment say about sampling.
#[derive(Debug, Clone, Default)]
pub(crate) struct SamplingArgs {
    values: Vec<(Knob, f32, Origin)>,
    order: Option<(Vec<StepKind>, Origin)>,
    logit_bias: Vec<(u32, f32)>,
    /// The seed, if one was given.
    pub(crate) seed: Option<u64>,
}

impl SamplingArgs {
    /// Takes over what was given; flags and variables are stronger than the model's own values.
    pub(crate) fn apply(&self, settings: &mut Settings) {
        for &(knob, value, origin) in &self.values {
            settings.set(knob, value, origin);
        }
        if let Some((order, origin)) = &self.order {
            settings.set_order(order.clone(), *origin);
        }
        settings.logit_bias.extend_from_slice(&self.logit_bias);
    }
}

/// Help text of each flag.
fn help(knob: Knob) -> &'static str {
    match knob {
        Knob::Temp => "Temperature; 0 always takes the most likely token",
        Knob::TopK => "Keep the N most likely tokens; 0 keeps all",
        Knob::TopP => "Keep the most likely tokens that make up this probability",
        Knob::MinP => "Drop tokens less likely than this share of the most likely one",
        Knob::TypicalP => "Keep locally typical tokens; 1 keeps all",
        Knob::TopNSigma => "Keep tokens within this many standard deviations of the best logit",
        Knob::XtcProbability => "Chance of excluding the top choices",
        Knob::XtcThreshold => "Probability from which a token is a top choice",
        Knob::RepeatPenalty => "Penalty on tokens seen lately; 1 is none",
        Knob::RepeatLastN => "How many tokens count as lately; -1 is the whole context",
        Knob::PresencePenalty => "Taken off the logit of tokens seen lately",
        Knob::FrequencyPenalty => "Taken off the logit for each time a token was seen lately",
        Knob::DryMultiplier => "Strength of the DRY penalty on repeated sequences; 0 is none",
        Knob::DryBase => "Growth of the DRY penalty with the length of the repetition",
        Knob::DryAllowedLength => "Repetitions up to this length are free",
        Knob::DryPenaltyLastN => "How many tokens DRY looks at; -1 is the whole context",
    }
}

/// llama.cpp's spellings, where they differ from ours.
fn alias(knob: Knob) -> Option<&'static str> {
    match knob {
        Knob::TypicalP => Some("typical"),
        Knob::TopNSigma => Some("top-nsigma"),
        _ => None,
    }
}

fn knob_arg(knob: Knob) -> Arg {
    let spec = knob.spec();
    Arg::new(spec.name)
        .long(spec.name.replace('_', "-"))
        .aliases(alias(knob))
        .env(format!("MINFER_{}", spec.name.to_uppercase()))
        .hide_env(true)
        .value_name(if spec.integer { "N" } else { "X" })
        .help(format!("{} [default: {}]", help(knob), spec.default))
        .allow_negative_numbers(true)
        .value_parser(move |text: &str| knob.parse(text))
        .help_heading("Sampling (defaults: the model's own values, else these)")
}

fn origin(matches: &ArgMatches, id: &str) -> Origin {
    match matches.value_source(id) {
        Some(ValueSource::EnvVariable) => Origin::Env,
        _ => Origin::Flag,
    }
}

impl Args for SamplingArgs {
    fn augment_args(command: Command) -> Command {
        let heading = "Sampling (defaults: the model's own values, else these)";
        command
            .args(Knob::ALL.iter().map(|&knob| knob_arg(knob)))
            .arg(
                Arg::new("samplers")
                    .long("samplers")
                    .env("MINFER_SAMPLERS")
                    .hide_env(true)
                    .value_name("A;B;...")
                    .help("The steps and their order [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]")
                    .value_parser(|text: &str| StepKind::parse_order(text).map(Order))
                    .help_heading(heading),
            )
            .arg(
                Arg::new("seed")
                    .long("seed")
                    .env("MINFER_SEED")
                    .hide_env(true)
                    .value_name("N")
                    .help("Seed of the random choices; -1 is a random one, which is reported [default: -1]")
                    .allow_negative_numbers(true)
                    .value_parser(parse_seed)
                    .help_heading(heading),
            )
            .arg(
                Arg::new("logit_bias")
                    .long("logit-bias")
                    .value_name("ID+X|ID-X")
                    .help("Add to the logit of a token, e.g. 42+1.5 or 42-inf (repeatable)")
                    .action(ArgAction::Append)
                    .value_parser(parse_bias)
                    .help_heading(heading),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SamplingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |&knob: &Knob| {
            let id = knob.spec().name;
            Some((knob, *matches.get_one::<f32>(id)?, origin(matches, id)))
        };
        Ok(Self {
            values: Knob::ALL.iter().filter_map(given).collect(),
            order: matches
                .get_one::<Order>("samplers")
                .map(|order| (order.0.clone(), origin(matches, "samplers"))),
            logit_bias: matches.get_many("logit_bias").unwrap_or_default().copied().collect(),
            seed: matches.get_one::<Option<u64>>("seed").copied().flatten(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A list as one value of an argument.
#[derive(Debug, Clone)]
struct Order(Vec<StepKind>);

fn parse_seed(text: &str) -> Result<Option<u64>, String> {
    if text.trim() == "-1" {
        return Ok(None);
    }
    cli::whole(text.trim(), &(0..=u64::MAX)).map(Some).map_err(|why| format!("{why}, or -1"))
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let bad = || format!("`{text}`: expected a token id and a bias, e.g. 42+1.5 or 42-inf");
    let sign = text.find(['+', '-']).ok_or_else(bad)?;
    let (id, bias) = text.split_at(sign);
    let id = id.trim();
    let id = cli::whole(id, &(0..=u32::MAX)).map_err(|why| format!("token id `{id}`: {why}"))?;
    let bias: f32 = bias.parse().map_err(|_| bad())?;
    // Plus infinity would leave no distribution to draw from.
    if bias.is_nan() || bias == f32::INFINITY { Err(bad()) } else { Ok((id, bias)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bias_and_seed_read_as_llama_cpp_writes_them() {
        assert_eq!(parse_bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(parse_bias("15043-1.5"), Ok((15043, -1.5)));
        assert_eq!(parse_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        assert!(
            parse_bias("7+inf").is_err() && parse_bias("7").is_err() && parse_bias("+1").is_err()
        );
        assert_eq!(parse_seed("-1"), Ok(None));
        assert_eq!(parse_seed("18446744073709551615"), Ok(Some(u64::MAX)));
        assert!(parse_seed("-5").is_err());
    }
}
