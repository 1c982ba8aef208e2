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
        let backwards: Vec<u32> = text.iter().rev().copied().collect();
        let repeated = common_with_start(&backwards);
        for (next, &token) in text.iter().enumerate().skip(1) {
            let length = repeated[n - next].min(limit);
            if length >= self.allowed && length > 0 {
                let best = longest.entry(token).or_insert(0);
                *best = length.max(*best);
            }
        }
        longest
    }
}

/// For each position of `text`, how many tokens from there on are those that the text starts with
/// (the Z function): linear in the length, as a comparison at each position would not be.
fn common_with_start(text: &[u32]) -> Vec<usize> {
    let mut common = vec![text.len(); text.len()];
    // The match that reaches furthest so far; inside it the start of the text is known.
    let (mut start, mut end) = (0, 0);
    for at in 1..text.len() {
        let mut length = if at < end { common[at - start].min(end - at) } else { 0 };
        while text.get(at + length).is_some_and(|token| *token == text[length]) {
            length += 1;
        }
        if at + length > end {
            (start, end) = (at, at + length);
        }
        common[at] = length;
    }
    common
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
    fn common_starts_are_those_of_a_plain_comparison() {
        for n_kinds in [1, 2, 3] {
            for length in 0..70u32 {
                let text: Vec<u32> = (0..length).map(|i| (i * i * 7 + i / 3) % n_kinds).collect();
                let plain =
                    |at: usize| text.iter().zip(&text[at..]).take_while(|(a, b)| a == b).count();
                let expected: Vec<usize> = (0..text.len()).map(plain).collect();
                assert_eq!(common_with_start(&text), expected, "{text:?}");
            }
        }
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
