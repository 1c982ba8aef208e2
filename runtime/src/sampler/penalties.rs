//! Penalties on tokens seen lately.

use super::candidates::Candidates;
use super::knob::Knob;
use super::rng::Rng;
use super::settings::Settings;
use super::step::{Step, Surroundings};
use std::collections::{HashMap, VecDeque};

struct Penalties {
    last_n: usize,
    repeat: f32,
    frequency: f32,
    presence: f32,
    recent: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

/// What "the last n tokens" means when n is -1: all of the context.
pub(super) fn window(n: f32, around: &Surroundings) -> usize {
    if n < 0.0 { around.n_ctx } else { n as usize }
}

pub(super) fn build(s: &Settings, around: &Surroundings) -> Option<Box<dyn Step>> {
    let step = Penalties {
        last_n: window(s.get(Knob::RepeatLastN), around),
        repeat: s.get(Knob::RepeatPenalty),
        frequency: s.get(Knob::FrequencyPenalty),
        presence: s.get(Knob::PresencePenalty),
        recent: VecDeque::new(),
        counts: HashMap::new(),
    };
    let idle = step.repeat == 1.0 && step.frequency == 0.0 && step.presence == 0.0;
    if step.last_n == 0 || idle { None } else { Some(Box::new(step)) }
}

impl Step for Penalties {
    fn apply(&mut self, candidates: &mut Candidates, _rng: &mut Rng) {
        candidates.change(|c| {
            let Some(&count) = self.counts.get(&c.id) else { return };
            // Dividing a negative logit would make the token likelier.
            if c.logit <= 0.0 {
                c.logit *= self.repeat;
            } else {
                c.logit /= self.repeat;
            }
            c.logit -= count as f32 * self.frequency + self.presence;
        });
    }

    fn accept(&mut self, token: u32) {
        if self.recent.len() == self.last_n
            && let Some(old) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
        self.recent.push_back(token);
        *self.counts.entry(token).or_default() += 1;
    }

    fn reset(&mut self) {
        self.recent.clear();
        self.counts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::{chain, logits_after};

    #[test]
    fn repeat_divides_positive_and_multiplies_negative_logits() {
        let mut step = chain(build, &[(Knob::RepeatPenalty, 2.0)]);
        step.accept(0);
        step.accept(1);
        assert_eq!(logits_after(&mut step, &[4.0, -4.0, 4.0]), [2.0, -8.0, 4.0]);
    }

    #[test]
    fn frequency_counts_and_presence_does_not() {
        let mut step =
            chain(build, &[(Knob::FrequencyPenalty, 0.5), (Knob::PresencePenalty, 0.25)]);
        for token in [0, 0, 1] {
            step.accept(token);
        }
        assert_eq!(logits_after(&mut step, &[4.0, 4.0, 4.0]), [2.75, 3.25, 4.0]);
    }

    #[test]
    fn tokens_leave_the_window() {
        let mut step = chain(build, &[(Knob::PresencePenalty, 1.0), (Knob::RepeatLastN, 2.0)]);
        for token in [0, 1, 1] {
            step.accept(token);
        }
        assert_eq!(logits_after(&mut step, &[4.0, 4.0]), [4.0, 3.0]);
        step.reset();
        assert_eq!(logits_after(&mut step, &[4.0, 4.0]), [4.0, 4.0]);
    }
}
