//! The registry of steps: a sampler's chain is a list of these.

use super::candidates::Candidates;
use super::rng::Rng;
use super::settings::Settings;
use std::collections::HashSet;

/// One link of the chain.
pub(super) trait Step: Send {
    /// Changes logits or drops candidates; always leaves at least one.
    fn apply(&mut self, candidates: &mut Candidates, rng: &mut Rng);
    /// Learns of a token that is now part of the text (prompt or answer).
    fn accept(&mut self, _token: u32) {}
    /// Forgets the text.
    fn reset(&mut self) {}
}

/// What a step may want to know of the run besides its settings.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Length of the context: what -1 in a "last n" setting means.
    pub n_ctx: usize,
    /// Tokens whose text contains one of [`DRY_BREAKERS`]; wanted only when DRY is on.
    pub dry_breakers: HashSet<u32>,
}

/// A repetition ends at these; llama.cpp's default list.
pub const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

macro_rules! steps {
    ($($(#[$doc:meta])* $variant:ident = $name:literal : $module:ident;)*) => {
        /// The kinds of step, named as llama.cpp names them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum StepKind { $($(#[$doc])* $variant,)* }

        impl StepKind {
            /// llama.cpp's default order.
            pub const DEFAULT_ORDER: &[StepKind] = &[$(StepKind::$variant,)*];

            /// As written in `--samplers` and `general.sampling.sequence`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The step itself, or nothing when the settings make it do nothing.
            pub(super) fn build(self, s: &Settings, around: &Surroundings) -> Option<Box<dyn Step>> {
                match self { $(Self::$variant => super::$module::build(s, around),)* }
            }
        }
    };
}

// The order of these lines is the default order of the chain.
steps! {
    /// Repetition, presence and frequency penalties.
    Penalties = "penalties" : penalties;
    /// Penalty on continuing a repeated sequence.
    Dry = "dry" : dry;
    /// Cut by standard deviations below the best.
    TopNSigma = "top_n_sigma" : top_n_sigma;
    /// The k best.
    TopK = "top_k" : top_k;
    /// Locally typical.
    TypicalP = "typ_p" : typical;
    /// The best that make up a probability.
    TopP = "top_p" : top_p;
    /// Cut by share of the best.
    MinP = "min_p" : min_p;
    /// Exclude top choices.
    Xtc = "xtc" : xtc;
    /// Temperature.
    Temperature = "temperature" : temperature;
}

impl StepKind {
    /// Whether this step changes logits one by one, and so may make another candidate the best.
    pub(super) fn changes_logits(self) -> bool {
        matches!(self, Self::Penalties | Self::Dry)
    }

    /// Whether this step can drop the best candidate. What it drops depends on probabilities, and
    /// so on what the steps before it have left.
    pub(super) fn can_drop_best(self) -> bool {
        matches!(self, Self::TypicalP | Self::Xtc)
    }

    /// Reads a list such as `top_k;top_p;temperature`.
    pub fn parse_order(list: &str) -> Result<Vec<Self>, String> {
        list.split(';')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(|name| {
                let wanted = match name.replace('-', "_").as_str() {
                    "typical_p" | "typical" => "typ_p".to_owned(),
                    "temp" => "temperature".to_owned(),
                    other => other.to_owned(),
                };
                Self::DEFAULT_ORDER.iter().copied().find(|k| k.name() == wanted).ok_or_else(|| {
                    let known: Vec<_> = Self::DEFAULT_ORDER.iter().map(|k| k.name()).collect();
                    format!("no sampler is called `{name}` (known: {})", known.join(";"))
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_order_is_llama_cpps() {
        let names: Vec<_> = StepKind::DEFAULT_ORDER.iter().map(|k| k.name()).collect();
        assert_eq!(
            names.join(";"),
            "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
        );
        assert_eq!(StepKind::parse_order(&names.join(";")).unwrap(), StepKind::DEFAULT_ORDER);
        assert!(StepKind::parse_order("top_k;magic").unwrap_err().contains("`magic`"));
    }
}
