//! Cuts special tokens out of a text before the rest is split into words.
//!
//! llama.cpp goes through the special tokens from the longest to the shortest and cuts each out of
//! what is left of the text. The same cuts come out of one pass that finds every occurrence, and
//! a second one that takes them in that order as long as their place is free.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use format_spec::vocab::{Attr, VocabView};

/// A part of a text: a token, or text to be split further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Token(u32),
    Text(Range<usize>),
}

/// Where special tokens begin in the list that is sorted by string.
#[derive(Debug)]
pub(super) struct Specials {
    /// Range of the list, by first byte.
    by_first: Vec<Range<u32>>,
}

/// An occurrence of a special token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Occurrence {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) token: u32,
}

impl Specials {
    pub(super) fn new(vocab: &VocabView<'_>) -> Self {
        let mut by_first = vec![0..0u32; 256];
        for (index, token) in (0u32..).zip(vocab.specials()) {
            let Some(&first) = vocab.text(token).first() else { continue };
            let range = &mut by_first[usize::from(first)];
            if range.start == range.end {
                range.start = index;
            }
            range.end = index + 1;
        }
        Self { by_first }
    }

    /// Every occurrence of every special token in `text`, by start.
    pub(super) fn occurrences(&self, vocab: &VocabView<'_>, text: &[u8]) -> Vec<Occurrence> {
        let mut found = Vec::new();
        for (start, &first) in text.iter().enumerate() {
            let range = self.by_first[usize::from(first)].clone();
            if range.start < range.end {
                Self::occurrences_at(vocab, text, start, range, &mut found);
            }
        }
        found
    }

    /// The occurrences that begin at `start`. `range`: the tokens with that first byte.
    fn occurrences_at(
        vocab: &VocabView<'_>,
        text: &[u8],
        start: usize,
        mut range: Range<u32>,
        found: &mut Vec<Occurrence>,
    ) {
        let token_at = |index: u32| vocab.special_at(index as usize).unwrap_or(u32::MAX);
        let byte_at = |index: u32, depth: usize| vocab.text(token_at(index)).get(depth).copied();
        let mut depth = 1;
        while range.start < range.end {
            if range.end - range.start == 1 {
                // Compared at once: bytewise, a long token in a text that repeats takes minutes.
                let token = token_at(range.start);
                let string = vocab.text(token);
                if text.get(start..).is_some_and(|rest| rest.starts_with(string)) {
                    found.push(Occurrence { start, end: start + string.len(), token });
                }
                return;
            }
            // Tokens that end here come first in their range; all of them match.
            while range.start < range.end && byte_at(range.start, depth).is_none() {
                let token = token_at(range.start);
                found.push(Occurrence { start, end: start + depth, token });
                range.start += 1;
            }
            let Some(&next) = text.get(start + depth) else { return };
            range = partition(range.clone(), |index| byte_at(index, depth) < Some(next))
                ..partition(range, |index| byte_at(index, depth) <= Some(next));
            depth += 1;
        }
    }
}

/// The first index of `range` for which `holds` does not; it holds for those before.
fn partition(range: Range<u32>, holds: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Cuts `text` at those special tokens of which `allowed` approves.
pub(super) fn partition_text(
    vocab: &VocabView<'_>,
    specials: &Specials,
    text: &[u8],
    allowed: impl Fn(&Occurrence) -> bool,
) -> Vec<Part> {
    let mut found = specials.occurrences(vocab, text);
    found.retain(allowed);
    found.sort_unstable_by_key(|o| (Reverse(o.end - o.start), o.token, o.start));
    // Start to (end, token); white space that a token swallowed has no token.
    let mut taken: BTreeMap<usize, (usize, Option<u32>)> = BTreeMap::new();
    for occurrence in found {
        let Occurrence { start, end, token } = occurrence;
        let before = taken.range(..end).next_back().map_or(0, |(_, &(end, _))| end);
        if before > start {
            continue;
        }
        let after = taken.range(end..).next().map_or(text.len(), |(&start, _)| start);
        taken.insert(start, (end, Some(token)));
        let attr = vocab.attr(token);
        if attr.any(Attr::LSTRIP) {
            let left = text.get(before..start).unwrap_or_default();
            let n_spaces = left.iter().rev().take_while(|byte| is_space(**byte)).count();
            if n_spaces > 0 {
                taken.insert(start - n_spaces, (start, None));
            }
        }
        if attr.any(Attr::RSTRIP) {
            let right = text.get(end..after).unwrap_or_default();
            let n_spaces = right.iter().take_while(|byte| is_space(**byte)).count();
            if n_spaces > 0 {
                taken.insert(end, (end + n_spaces, None));
            }
        }
    }
    let mut parts = Vec::with_capacity(2 * taken.len() + 1);
    let mut at = 0;
    for (start, (end, token)) in taken {
        if start > at {
            parts.push(Part::Text(at..start));
        }
        parts.extend(token.map(Part::Token));
        at = end;
    }
    if at < text.len() {
        parts.push(Part::Text(at..text.len()));
    }
    parts
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}
