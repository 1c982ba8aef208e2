//! Keeps what lies within n standard deviations of the best logit.

use super::candidates::Candidates;
use super::knob::Knob;
use super::rng::Rng;
use super::settings::Settings;
use super::step::{Step, Surroundings};

struct TopNSigma {
    n: f32,
}

pub(super) fn build(s: &Settings, _around: &Surroundings) -> Option<Box<dyn Step>> {
    let n = s.get(Knob::TopNSigma);
    if n <= 0.0 { None } else { Some(Box::new(TopNSigma { n })) }
}

impl Step for TopNSigma {
    fn apply(&mut self, candidates: &mut Candidates, _rng: &mut Rng) {
        let finite = || candidates.items().iter().map(|c| c.logit).filter(|l| l.is_finite());
        let count = finite().count().max(1) as f64;
        let mean = finite().map(f64::from).sum::<f64>() / count;
        let variance = finite().map(|l| (f64::from(l) - mean).powi(2)).sum::<f64>() / count;
        let floor = candidates.max_logit() - self.n * variance.sqrt() as f32;
        candidates.retain(|c| c.logit >= floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::{chain, ids_after};

    #[test]
    fn cuts_below_n_deviations() {
        // Mean 2, deviation 2: the floor is 5 - 2 n.
        let logits = [5.0, 3.5, 0.0, 0.0, 1.5, 2.0];
        let deviation = (logits.iter().map(|l: &f32| (l - 2.0).powi(2)).sum::<f32>() / 6.0).sqrt();
        let mut step = chain(build, &[(Knob::TopNSigma, 1.0)]);
        let expected: Vec<u32> =
            (0..6).filter(|&i| logits[i as usize] >= 5.0 - deviation).collect();
        assert_eq!(ids_after(&mut step, &logits), expected);
        assert_eq!(expected, [0, 1]);
    }
}
