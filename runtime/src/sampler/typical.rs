//! Locally typical sampling (Meister et al.): keeps the tokens whose surprise is nearest to the
//! distribution's entropy.

use super::candidates::{Candidate, Candidates};
use super::knob::Knob;
use super::rng::Rng;
use super::settings::Settings;
use super::step::{Step, Surroundings};

struct Typical {
    p: f32,
}

pub(super) fn build(s: &Settings, _around: &Surroundings) -> Option<Box<dyn Step>> {
    let p = s.get(Knob::TypicalP);
    if p >= 1.0 { None } else { Some(Box::new(Typical { p })) }
}

impl Step for Typical {
    fn apply(&mut self, candidates: &mut Candidates, _rng: &mut Rng) {
        candidates.sort();
        candidates.softmax();
        let surprise = |c: &Candidate| -c.p.ln();
        // A probability that underflowed adds nothing; 0 * ln 0 would be NaN.
        let entropy: f32 =
            candidates.items().iter().filter(|c| c.p > 0.0).map(|c| c.p * surprise(c)).sum();
        let mut items = candidates.items().to_vec();
        let oddness = |c: &Candidate| (surprise(c) - entropy).abs();
        items.sort_by(|a, b| oddness(a).total_cmp(&oddness(b)));
        let mut sum = 0f32;
        let kept = items.iter().position(|c| {
            sum += c.p;
            sum > self.p
        });
        items.truncate(kept.map_or(items.len(), |i| i + 1));
        candidates.replace(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::{chain, ids_after};

    /// The cases of llama.cpp's own sampler test.
    #[test]
    fn keeps_the_typical() {
        let kept = |p: f32, probs: &[f32]| {
            let logits: Vec<f32> = probs.iter().map(|p| p.ln()).collect();
            ids_after(&mut chain(build, &[(Knob::TypicalP, p)]), &logits)
        };
        assert_eq!(kept(0.5, &[0.97, 0.01, 0.01, 0.01]), [0]);
        assert_eq!(kept(0.5, &[0.4, 0.2, 0.2, 0.2]), [1, 2, 3]);
    }

    #[test]
    fn underflow_is_no_nan() {
        let mut step = chain(build, &[(Knob::TypicalP, 0.5)]);
        assert_eq!(ids_after(&mut step, &[0.0, -1000.0, f32::NEG_INFINITY]), [0]);
    }
}
