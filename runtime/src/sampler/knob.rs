//! The settings of the sampler: names, defaults, limits, and where each value came from.
//!
//! One table serves the flags' defaults, a model's own `general.sampling.*` values, the chat's
//! `/set` and the report of `--json`.

use std::fmt;

/// Where a value came from, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Given by the user: a flag, or `/set` in a chat.
    Flag,
    /// An environment variable.
    Env,
    /// The model's metadata.
    Model,
    /// The built-in default, llama.cpp's.
    BuiltIn,
}

impl Origin {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Env => "env",
            Self::Model => "model",
            Self::BuiltIn => "built-in",
        }
    }
}

/// What is known of one setting.
#[derive(Debug)]
pub struct KnobSpec {
    /// As in flags (with dashes), `/set` and JSON.
    pub name: &'static str,
    /// Metadata key that a model may set it with.
    pub gguf_key: Option<&'static str>,
    /// Used when nobody says otherwise.
    pub default: f32,
    /// Smallest value allowed.
    pub min: f32,
    /// Largest value allowed.
    pub max: f32,
    /// Whether only whole numbers make sense.
    pub integer: bool,
}

macro_rules! knobs {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $key:expr, $default:literal, $min:expr, $max:expr, $integer:literal;)*) => {
        /// One setting of the sampler.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Knob { $($(#[$doc])* $variant,)* }

        impl Knob {
            /// Every setting, in the order of the table.
            pub const ALL: &[Knob] = &[$(Knob::$variant,)*];
        }

        /// The table behind [`Knob::spec`].
        static SPECS: &[KnobSpec] = &[$(KnobSpec {
            name: $name, gguf_key: $key, default: $default, min: $min, max: $max, integer: $integer,
        },)*];
    };
}

const MAX: f32 = f32::MAX;
/// Whole numbers up to here are exact in f32, and no context is longer.
const MAX_COUNT: f32 = 16_777_216.0;

knobs! {
    /// Temperature; 0 is greedy.
    Temp = "temp", Some("general.sampling.temp"), 0.8, 0.0, MAX, false;
    /// Keep the k best; 0 or -1 keeps all.
    TopK = "top_k", Some("general.sampling.top_k"), 40.0, -1.0, MAX_COUNT, true;
    /// Keep the best that make up this probability; 1 keeps all.
    TopP = "top_p", Some("general.sampling.top_p"), 0.95, 0.0, 1.0, false;
    /// Drop what is less likely than this share of the best; 0 keeps all.
    MinP = "min_p", Some("general.sampling.min_p"), 0.05, 0.0, 1.0, false;
    /// Locally typical sampling; 1 keeps all.
    TypicalP = "typical_p", None, 1.0, 0.0, 1.0, false;
    /// Keep what lies within this many standard deviations of the best; 0 or less keeps all.
    TopNSigma = "top_n_sigma", None, -1.0, -1.0, MAX, false;
    /// Chance that the most likely tokens are dropped; 0 never.
    XtcProbability = "xtc_probability", Some("general.sampling.xtc_probability"), 0.0, 0.0, 1.0, false;
    /// Probability from which a token counts as most likely; above 0.5 nothing is dropped.
    XtcThreshold = "xtc_threshold", Some("general.sampling.xtc_threshold"), 0.1, 0.0, 1.0, false;
    /// Divides the logit of a token seen lately; 1 does nothing.
    RepeatPenalty = "repeat_penalty", Some("general.sampling.penalty_repeat"), 1.0, f32::MIN_POSITIVE, MAX, false;
    /// How many tokens count as lately, prompt included; 0 none, -1 the whole context.
    RepeatLastN = "repeat_last_n", Some("general.sampling.penalty_last_n"), 64.0, -1.0, MAX_COUNT, true;
    /// Taken off the logit of any token seen lately.
    PresencePenalty = "presence_penalty", None, 0.0, -MAX, MAX, false;
    /// Taken off the logit once for each time a token was seen lately.
    FrequencyPenalty = "frequency_penalty", None, 0.0, -MAX, MAX, false;
    /// DRY: strength of the penalty on continuing a repetition; 0 does nothing.
    DryMultiplier = "dry_multiplier", None, 0.0, 0.0, MAX, false;
    /// DRY: growth of the penalty with the length of the repetition.
    DryBase = "dry_base", None, 1.75, 0.0, MAX, false;
    /// DRY: repetitions up to this length are free.
    DryAllowedLength = "dry_allowed_length", None, 2.0, 0.0, MAX_COUNT, true;
    /// DRY: how many tokens are searched; 0 none, -1 the whole context.
    DryPenaltyLastN = "dry_penalty_last_n", None, 64.0, -1.0, MAX_COUNT, true;
}

impl Knob {
    /// The table line of this setting.
    pub fn spec(self) -> &'static KnobSpec {
        &SPECS[self as usize]
    }

    /// Looks a setting up by its name; dashes count as underscores.
    pub fn by_name(name: &str) -> Option<Self> {
        let wanted = name.replace('-', "_");
        let wanted = match wanted.as_str() {
            "typical" => "typical_p",
            "top_nsigma" => "top_n_sigma",
            "temperature" => "temp",
            other => other,
        };
        Self::ALL.iter().copied().find(|k| k.spec().name == wanted)
    }

    /// Whether `value` is allowed; the message names the setting and its limits.
    pub fn check(self, value: f32) -> Result<f32, BadValue> {
        let found = value.to_string();
        self.checked(value, found)
    }

    fn checked(self, value: f32, found: String) -> Result<f32, BadValue> {
        let spec = self.spec();
        let whole = !spec.integer || value.fract() == 0.0;
        if value.is_finite() && value >= spec.min && value <= spec.max && whole {
            Ok(value)
        } else {
            Err(BadValue { spec, value, found })
        }
    }

    /// Reads `text` as a value of this setting.
    pub fn parse(self, text: &str) -> Result<f32, String> {
        let value: f32 = text.trim().parse().map_err(|_| format!("`{text}` is not a number"))?;
        // As it was typed: what f32 makes of a large number is another one.
        self.checked(value, text.trim().to_owned()).map_err(|e| e.to_string())
    }
}

/// A value outside a setting's limits.
#[derive(Debug)]
pub struct BadValue {
    spec: &'static KnobSpec,
    value: f32,
    found: String,
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, value, found } = self;
        let kind = if spec.integer { "a whole number" } else { "a number" };
        write!(f, "{}: expected {kind}", spec.name)?;
        let (min, max) = (spec.min, spec.max);
        // Limits of f32 itself are of interest where they were passed, and nowhere else.
        let beyond = *value > max || *value < -MAX;
        if min == f32::MIN_POSITIVE {
            write!(f, " above 0")?;
            if beyond {
                write!(f, ", up to {max:e}")?;
            }
        } else if max == MAX && beyond {
            match min == -MAX {
                true => write!(f, " from {min:e} to {max:e}")?,
                false => write!(f, " from {min} to {max:e}")?,
            }
        } else if max < MAX_COUNT || beyond {
            write!(f, " from {min} to {max}")?;
        } else if min > -MAX {
            write!(f, ", {min} or more")?;
        }
        write!(f, ", found {found}")
    }
}

impl std::error::Error for BadValue {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_defaults_are_allowed() {
        for &knob in Knob::ALL {
            assert_eq!(Knob::by_name(knob.spec().name), Some(knob));
            assert!(knob.check(knob.spec().default).is_ok(), "{}", knob.spec().name);
        }
        assert_eq!(Knob::by_name("top-k"), Some(Knob::TopK));
        assert_eq!(Knob::by_name("nothing"), None);
    }

    #[test]
    fn limits_are_named() {
        let message = |knob: Knob, text: &str| knob.parse(text).unwrap_err();
        assert_eq!(message(Knob::TopP, "1.5"), "top_p: expected a number from 0 to 1, found 1.5");
        assert_eq!(
            message(Knob::TopK, "-3"),
            "top_k: expected a whole number, -1 or more, found -3"
        );
        assert_eq!(
            message(Knob::TopK, "1.5"),
            "top_k: expected a whole number, -1 or more, found 1.5"
        );
        assert_eq!(
            message(Knob::RepeatPenalty, "0"),
            "repeat_penalty: expected a number above 0, found 0"
        );
        assert_eq!(message(Knob::Temp, "NaN"), "temp: expected a number, 0 or more, found NaN");
        assert_eq!(message(Knob::Temp, "hot"), "`hot` is not a number");
        let large = "top_k: expected a whole number from -1 to 16777216, found 99999999999";
        assert_eq!(message(Knob::TopK, "99999999999"), large);
        let large = "temp: expected a number from 0 to 3.4028235e38, found 1e39";
        assert_eq!(message(Knob::Temp, "1e39"), large);
        assert_eq!(
            message(Knob::RepeatPenalty, "1e39"),
            "repeat_penalty: expected a number above 0, up to 3.4028235e38, found 1e39"
        );
        assert_eq!(
            message(Knob::PresencePenalty, "-1e39"),
            "presence_penalty: expected a number from -3.4028235e38 to 3.4028235e38, found -1e39"
        );
    }
}
