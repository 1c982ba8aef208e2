//! The values that one run samples with, and where each came from.

use super::knob::{Knob, Origin};
use super::step::StepKind;

/// Every setting of the sampler with its origin. Starts as llama.cpp's defaults; stronger origins
/// replace weaker ones, never the other way round.
#[derive(Debug, Clone)]
pub struct Settings {
    values: Vec<(f32, Origin)>,
    order: Vec<StepKind>,
    order_origin: Origin,
    /// Added to the logits of these tokens before anything else.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            values: Knob::ALL.iter().map(|k| (k.spec().default, Origin::BuiltIn)).collect(),
            order: StepKind::DEFAULT_ORDER.to_vec(),
            order_origin: Origin::BuiltIn,
            logit_bias: Vec::new(),
        }
    }
}

impl Settings {
    /// The value of a setting.
    pub fn get(&self, knob: Knob) -> f32 {
        self.values[knob as usize].0
    }

    /// Where the value of a setting came from.
    pub fn origin(&self, knob: Knob) -> Origin {
        self.values[knob as usize].1
    }

    /// Sets a value unless a stronger origin has set it already.
    pub fn set(&mut self, knob: Knob, value: f32, origin: Origin) {
        let slot = &mut self.values[knob as usize];
        if origin <= slot.1 {
            *slot = (value, origin);
        }
    }

    /// The steps, in the order in which they are applied.
    pub fn order(&self) -> &[StepKind] {
        &self.order
    }

    /// Where the order came from.
    pub fn order_origin(&self) -> Origin {
        self.order_origin
    }

    /// Sets the order unless a stronger origin has set it already.
    pub fn set_order(&mut self, order: Vec<StepKind>, origin: Origin) {
        if origin <= self.order_origin {
            (self.order, self.order_origin) = (order, origin);
        }
    }

    /// Takes over what the model says of itself. `number` and `text` look metadata keys up.
    /// Returns a warning for each value that cannot be honoured.
    pub fn apply_model(
        &mut self,
        number: impl Fn(&str) -> Option<f64>,
        text: impl Fn(&str) -> Option<String>,
    ) -> Vec<String> {
        let mut warnings = Vec::new();
        for &knob in Knob::ALL {
            let Some(key) = knob.spec().gguf_key else { continue };
            let Some(value) = number(key) else { continue };
            match knob.check(value as f32) {
                Ok(value) => self.set(knob, value, Origin::Model),
                Err(e) => warnings.push(format!("{key} in the model is ignored: {e}")),
            }
        }
        if let Some(sequence) = text("general.sampling.sequence") {
            match StepKind::parse_order(&sequence) {
                Ok(order) => self.set_order(order, Origin::Model),
                Err(e) => {
                    warnings
                        .push(format!("general.sampling.sequence in the model is ignored: {e}"));
                }
            }
        }
        if number("general.sampling.mirostat").is_some_and(|v| v != 0.0) {
            warnings.push("the model asks for mirostat, which is not supported".to_owned());
        }
        warnings
    }

    /// Whether the most likely token is taken, with no draw.
    pub fn is_greedy(&self) -> bool {
        self.get(Knob::Temp) <= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stronger_origin_wins_in_any_order() {
        let mut s = Settings::default();
        s.set(Knob::Temp, 0.1, Origin::Flag);
        s.set(Knob::Temp, 0.2, Origin::Env);
        s.set(Knob::TopK, 7.0, Origin::Env);
        let warnings = s.apply_model(
            |key| match key {
                "general.sampling.temp" => Some(0.3),
                "general.sampling.top_k" => Some(64.0),
                "general.sampling.top_p" => Some(0.5),
                "general.sampling.min_p" => Some(2.0),
                "general.sampling.mirostat" => Some(1.0),
                _ => None,
            },
            |_| Some("top_k;temperature".to_owned()),
        );
        assert_eq!((s.get(Knob::Temp), s.origin(Knob::Temp)), (0.1, Origin::Flag));
        assert_eq!((s.get(Knob::TopK), s.origin(Knob::TopK)), (7.0, Origin::Env));
        assert_eq!((s.get(Knob::TopP), s.origin(Knob::TopP)), (0.5, Origin::Model));
        assert_eq!((s.get(Knob::MinP), s.origin(Knob::MinP)), (0.05, Origin::BuiltIn));
        assert_eq!(s.order(), [StepKind::TopK, StepKind::Temperature]);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
    }
}
