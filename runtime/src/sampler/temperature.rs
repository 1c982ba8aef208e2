//! Temperature: flattens (above 1) or sharpens (below 1) the distribution.

use super::candidates::Candidates;
use super::knob::Knob;
use super::rng::Rng;
use super::settings::Settings;
use super::step::{Step, Surroundings};

struct Temperature {
    temp: f32,
}

pub(super) fn build(s: &Settings, _around: &Surroundings) -> Option<Box<dyn Step>> {
    let temp = s.get(Knob::Temp);
    if temp == 1.0 || temp <= 0.0 { None } else { Some(Box::new(Temperature { temp })) }
}

impl Step for Temperature {
    fn apply(&mut self, candidates: &mut Candidates, _rng: &mut Rng) {
        candidates.scale(self.temp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::{chain, logits_after};

    #[test]
    fn divides_the_logits() {
        let mut step = chain(build, &[(Knob::Temp, 0.5)]);
        assert_eq!(logits_after(&mut step, &[1.0, -2.0]), [2.0, -4.0]);
    }
}
