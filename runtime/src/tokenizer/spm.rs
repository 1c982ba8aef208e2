//! SentencePiece: merges of characters, the token with the best score first, bytes for the rest.

use format_spec::vocab::VocabView;

use super::merge::Chain;

/// A score as llama.cpp compares it; it is never NaN.
#[derive(Debug, Clone, Copy)]
pub(super) struct Score(f32);

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.partial_cmp(&other.0).unwrap_or(std::cmp::Ordering::Equal)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}

/// Appends the tokens of `text`, in which spaces are escaped already.
pub(super) fn encode(
    vocab: &VocabView<'_>,
    text: &str,
    unknown: Option<u32>,
    chain: &mut Chain<Score>,
    out: &mut Vec<u32>,
) {
    chain.clear();
    for c in text.chars() {
        chain.push(0, c.len_utf8() as u32);
    }
    let bytes = text.as_bytes();
    let slice = |start: u32, n_bytes: u32| {
        bytes.get(start as usize..(start + n_bytes) as usize).unwrap_or_default()
    };
    // A user's text must not merge into a control token.
    let token = |text: &[u8]| vocab.token(text).filter(|&token| !vocab.attr(token).is_reserved());
    chain.merge(|left, right| {
        let token = token(slice(left.start, left.n_bytes + right.n_bytes))?;
        Some((Score(vocab.score(token)), token))
    });
    for link in chain.links() {
        let text = slice(link.start, link.n_bytes);
        match token(text) {
            Some(token) => out.push(token),
            None => out.extend(text.iter().filter_map(|&byte| vocab.byte_symbol(byte).or(unknown))),
        }
    }
}
