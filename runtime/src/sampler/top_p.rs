//! Nucleus sampling: keeps the best that together reach probability p.

use super::candidates::Candidates;
use super::knob::Knob;
use super::rng::Rng;
use super::settings::Settings;
use super::step::{Step, Surroundings};

struct TopP {
    p: f32,
}

pub(super) fn build(s: &Settings, _around: &Surroundings) -> Option<Box<dyn Step>> {
    let p = s.get(Knob::TopP);
    if p >= 1.0 { None } else { Some(Box::new(TopP { p })) }
}

impl Step for TopP {
    fn apply(&mut self, candidates: &mut Candidates, _rng: &mut Rng) {
        candidates.keep_mass(self.p);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::{chain, ids_after};

    /// The cases of llama.cpp's own sampler test.
    #[test]
    fn keeps_the_nucleus() {
        let logits = [0.1f32.ln(), 0.2f32.ln(), 0.3f32.ln(), 0.4f32.ln()];
        let kept = |p: f32| ids_after(&mut chain(build, &[(Knob::TopP, p)]), &logits);
        assert_eq!(kept(0.0), [3]);
        assert_eq!(kept(0.7 - 1e-4), [3, 2]);
        assert_eq!(kept(0.8), [3, 2, 1]);
    }
}
