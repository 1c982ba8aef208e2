//! Keeps the k best.

use super::candidates::Candidates;
use super::knob::Knob;
use super::rng::Rng;
use super::settings::Settings;
use super::step::{Step, Surroundings};

struct TopK {
    k: usize,
}

pub(super) fn build(s: &Settings, _around: &Surroundings) -> Option<Box<dyn Step>> {
    let k = s.get(Knob::TopK);
    if k <= 0.0 { None } else { Some(Box::new(TopK { k: k as usize })) }
}

impl Step for TopK {
    fn apply(&mut self, candidates: &mut Candidates, _rng: &mut Rng) {
        candidates.keep_best(self.k);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::{chain, ids_after};

    #[test]
    fn keeps_the_best_sorted() {
        let logits = [0.1f32.ln(), 0.2f32.ln(), 0.3f32.ln(), 0.4f32.ln()];
        let kept = |k: f32| ids_after(&mut chain(build, &[(Knob::TopK, k)]), &logits);
        assert_eq!(kept(1.0), [3]);
        assert_eq!(kept(3.0), [3, 2, 1]);
        assert_eq!(kept(9.0), [3, 2, 1, 0]);
        assert!(build(&Settings::default(), &Surroundings::default()).is_some());
    }
}
