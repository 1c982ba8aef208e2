//! Mixtures of experts: which experts a token goes to, and the sum of what they make of it.

use super::lanes::{LANES, Lanes};
use super::rows::softmax;

/// Weights are divided by their sum, but by no less than this: llama.cpp's bound, the smallest
/// normal f16.
const MIN_SUM: f32 = 6.103_515_6e-5;

/// One of the experts that a token goes to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Choice {
    /// Number of the expert.
    pub expert: u32,
    /// Factor on what it makes of the token; a token's add up to 1.
    pub weight: f32,
}

/// The largest of `probabilities` that `choices` does not have yet; the first of equal ones.
fn largest(probabilities: &[f32], choices: &[Choice]) -> Choice {
    let mut best: Option<Choice> = None;
    for (expert, &weight) in (0u32..).zip(probabilities) {
        let better = best.is_none_or(|best| weight > best.weight);
        if better && choices.iter().all(|choice| choice.expert != expert) {
            best = Some(Choice { expert, weight });
        }
    }
    best.unwrap_or_default()
}

#[inline(always)]
pub(super) fn route<L: Lanes>(l: L, choices: &mut [Choice], logits: &mut [f32]) {
    assert!(choices.len() <= logits.len(), "{} of {}", choices.len(), logits.len());
    softmax(l, logits);
    let mut sum = 0.0;
    for slot in 0..choices.len() {
        let (before, rest) = choices.split_at_mut(slot);
        rest[0] = largest(logits, before);
        sum += rest[0].weight;
    }
    for choice in choices {
        choice.weight /= sum.max(MIN_SUM);
    }
}

#[inline(always)]
pub(super) fn add_weighted<L: Lanes>(
    l: L,
    x: &mut [f32],
    rows: &[f32],
    places: &[u32],
    choices: &[Choice],
) {
    assert_eq!(places.len(), choices.len(), "a row each");
    let row_len = x.len();
    let row = |place: u32| &rows[place as usize * row_len..][..row_len];
    for start in (0..row_len).step_by(LANES) {
        let len = LANES.min(row_len - start);
        let mut sum = None;
        for (&place, choice) in places.iter().zip(choices) {
            let y = l.load_partial(&row(place)[start..][..len], 0.0);
            let term = l.mul(y, l.splat(choice.weight));
            sum = Some(sum.map_or(term, |sum| l.add(sum, term)));
        }
        if let Some(sum) = sum {
            let x = &mut x[start..][..len];
            let all = l.add(sum, l.load_partial(x, 0.0));
            l.store_partial(all, x);
        }
    }
}
