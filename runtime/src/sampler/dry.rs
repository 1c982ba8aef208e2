//! DRY ("don't repeat yourself"): the longer a repeated sequence already is, the less likely the
//! token that would continue it.

use super::candidates::Candidates;
use super::knob::Knob;
use super::penalties::window;
use super::rng::Rng;
use super::settings::Settings;
use super::step::{Step, Surroundings};
use std::collections::{HashMap, HashSet, VecDeque};

struct Dry {
    multiplier: f32,
    base: f32,
    allowed: usize,
    last_n: usize,
    breakers: HashSet<u32>,
    recent: VecDeque<u32>,
}

pub(super) fn build(s: &Settings, around: &Surroundings) -> Option<Box<dyn Step>> {
    let step = Dry {
        multiplier: s.get(Knob::DryMultiplier),
        base: s.get(Knob::DryBase),
        allowed: s.get(Knob::DryAllowedLength) as usize,
        last_n: window(s.get(Knob::DryPenaltyLastN), around),
        breakers: around.dry_breakers.clone(),
        recent: VecDeque::new(),
    };
    let idle = step.multiplier == 0.0 || step.base < 1.0 || step.last_n == 0;
    if idle { None } else { Some(Box::new(step)) }
}

impl Dry {
    /// For each token that followed an earlier occurrence of the text's present ending: the
    /// length of the longest such ending. Endings stop at a breaker.
    fn continuations(&self) -> HashMap<u32, usize> {
        let text: Vec<u32> = self.recent.iter().copied().collect();
        let n = text.len();
        let limit = text.iter().rev().position(|t| self.breakers.contains(t)).unwrap_or(n);
        let mut longest = HashMap::new();
        if n <= self.allowed || limit < self.allowed {
            return longest;
        }
        for (next, &token) in text.iter().enumerate().skip(1) {
            let length =
                (0..next.min(limit)).take_while(|&i| text[next - 1 - i] == text[n - 1 - i]).count();
            if length >= self.allowed && length > 0 {
                let best = longest.entry(token).or_insert(0);
                *best = length.max(*best);
            }
        }
        longest
    }
}

impl Step for Dry {
    fn apply(&mut self, candidates: &mut Candidates, _rng: &mut Rng) {
        let longest = self.continuations();
        if longest.is_empty() {
            return;
        }
        // Keeps base^exponent finite in f32.
        let max_exponent = if self.base > 1.000_001 { f32::MAX.ln() / self.base.ln() } else { 0.0 };
        candidates.change(|c| {
            let Some(&length) = longest.get(&c.id) else { return };
            if self.breakers.contains(&c.id) {
                return;
            }
            let mut exponent = (length - self.allowed) as f32;
            if max_exponent > 0.0 {
                exponent = exponent.min(max_exponent.trunc());
            }
            c.logit -= self.multiplier * self.base.powf(exponent);
        });
    }

    fn accept(&mut self, token: u32) {
        if self.recent.len() == self.last_n {
            self.recent.pop_front();
        }
        self.recent.push_back(token);
    }

    fn reset(&mut self) {
        self.recent.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::{chain, chain_around, logits_after};

    const ON: [(Knob, f32); 2] = [(Knob::DryMultiplier, 1.0), (Knob::DryBase, 2.0)];

    /// The example in llama.cpp's own comment: after `a b c c b c y a b c`, `c` would make a
    /// repetition of 3 longer, `b` one of 1, `y` one of 2.
    #[test]
    fn penalty_grows_with_the_repetition() {
        let (a, b, c, y) = (0, 1, 2, 3);
        let mut step = chain(build, &ON);
        for token in [a, b, c, c, b, c, y, a, b, c] {
            step.accept(token);
        }
        // Allowed length 2: c pays 2^(3-2), y pays 2^(2-2), b nothing.
        assert_eq!(logits_after(&mut step, &[9.0; 4]), [9.0, 9.0, 7.0, 8.0]);
    }

    #[test]
    fn a_breaker_ends_the_repetition_and_is_never_penalized() {
        let around = Surroundings { n_ctx: 64, dry_breakers: HashSet::from([9]) };
        let mut step = chain_around(build, &ON, &around);
        for token in [0, 9, 1, 2, 0, 9, 1] {
            step.accept(token);
        }
        // Only `1` lies behind the breaker: shorter than the allowed length.
        assert_eq!(logits_after(&mut step, &[9.0; 3]), [9.0; 3]);
    }
}
