//! Drops what is less likely than a share of the best.

use super::candidates::Candidates;
use super::knob::Knob;
use super::rng::Rng;
use super::settings::Settings;
use super::step::{Step, Surroundings};

struct MinP {
    p: f32,
}

pub(super) fn build(s: &Settings, _around: &Surroundings) -> Option<Box<dyn Step>> {
    let p = s.get(Knob::MinP);
    if p <= 0.0 { None } else { Some(Box::new(MinP { p })) }
}

impl Step for MinP {
    fn apply(&mut self, candidates: &mut Candidates, _rng: &mut Rng) {
        let floor = candidates.max_logit() + self.p.ln();
        candidates.retain(|c| c.logit >= floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::{chain, ids_after};

    /// The cases of llama.cpp's own sampler test.
    #[test]
    fn keeps_a_share_of_the_best() {
        let logits = [0.1f32.ln(), 0.2f32.ln(), 0.3f32.ln(), 0.4f32.ln()];
        let kept = |p: f32| ids_after(&mut chain(build, &[(Knob::MinP, p)]), &logits);
        assert_eq!(kept(0.24), [0, 1, 2, 3]);
        assert_eq!(kept(0.26), [1, 2, 3]);
        assert_eq!(kept(0.51), [2, 3]);
        assert_eq!(kept(0.76), [3]);
        assert_eq!(kept(1.0), [3]);
    }
}
