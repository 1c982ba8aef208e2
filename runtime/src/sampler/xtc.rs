//! XTC ("exclude top choices"): now and then drops all but the least likely of the tokens above a
//! threshold.

use super::candidates::Candidates;
use super::knob::Knob;
use super::rng::Rng;
use super::settings::Settings;
use super::step::{Step, Surroundings};

struct Xtc {
    probability: f32,
    threshold: f32,
}

pub(super) fn build(s: &Settings, _around: &Surroundings) -> Option<Box<dyn Step>> {
    let (probability, threshold) = (s.get(Knob::XtcProbability), s.get(Knob::XtcThreshold));
    let idle = probability <= 0.0 || threshold > 0.5;
    if idle { None } else { Some(Box::new(Xtc { probability, threshold })) }
}

impl Step for Xtc {
    fn apply(&mut self, candidates: &mut Candidates, rng: &mut Rng) {
        if candidates.len() < 2 || rng.next_f64() as f32 > self.probability {
            return;
        }
        candidates.sort();
        candidates.softmax();
        let above = candidates.items().iter().take_while(|c| c.p >= self.threshold).count();
        candidates.drop_first(above.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::{chain, ids_after};

    /// The cases of llama.cpp's own sampler test.
    #[test]
    fn drops_all_top_choices_but_the_last() {
        let logits = [0.4f32.ln(), 0.3f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
        let kept = |threshold: f32| {
            let on = [(Knob::XtcProbability, 1.0), (Knob::XtcThreshold, threshold)];
            ids_after(&mut chain(build, &on), &logits)
        };
        assert_eq!(kept(0.09), [3]);
        assert_eq!(kept(0.19), [2, 3]);
        assert_eq!(kept(0.29), [1, 2, 3]);
        assert_eq!(kept(0.45), [0, 1, 2, 3]);
    }
}
