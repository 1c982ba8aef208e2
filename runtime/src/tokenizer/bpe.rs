//! Byte pair encoding: words, then ranked merges of their bytes.

use std::cmp::Reverse;

use format_spec::vocab::{Flags, VocabView, byte_to_char};

use super::merge::Chain;
use super::split::{SplitScratch, split};

/// Buffers of [`encode`], to be used again.
#[derive(Debug, Default)]
pub(super) struct BpeScratch {
    split: SplitScratch,
    chain: Chain<Reverse<u32>>,
    encoded: String,
}

/// Appends the tokens of `text`, which holds no special token.
pub(super) fn encode(
    vocab: &VocabView<'_>,
    text: &str,
    scratch: &mut BpeScratch,
    out: &mut Vec<u32>,
) {
    let BpeScratch { split: buffers, chain, encoded } = scratch;
    let escaped;
    let text = if vocab.flags().has(Flags::ESCAPE_SPACES) {
        escaped = text.replace(' ', "\u{2581}");
        &escaped
    } else {
        text
    };
    split(vocab.split(), text, buffers, |word| {
        if let Some(token) = whole_word(vocab, word, encoded) {
            out.push(token);
            return;
        }
        chain.clear();
        if vocab.flags().has(Flags::BYTE_ENCODED) {
            for byte in word.bytes() {
                // Baking gives every byte a symbol; without one it could not be expressed.
                if let Some(symbol) = vocab.byte_symbol(byte) {
                    chain.push(symbol, 1);
                }
            }
        } else {
            push_chars(vocab, word, chain);
        }
        chain.merge(|left, right| {
            vocab.merge(left.symbol, right.symbol).map(|(rank, merged)| (Reverse(rank), merged))
        });
        for link in chain.links() {
            emit(vocab, word, link.symbol, link.start, link.n_bytes, out);
        }
    });
}

/// Marks a character that is no symbol, so that it takes part in no merge.
const NO_SYMBOL: u32 = u32::MAX;

fn push_chars(vocab: &VocabView<'_>, word: &str, chain: &mut Chain<Reverse<u32>>) {
    for c in word.chars() {
        let symbol = vocab.symbol(c.encode_utf8(&mut [0; 4]).as_bytes()).unwrap_or(NO_SYMBOL);
        chain.push(symbol, c.len_utf8() as u32);
    }
}

/// The token that a word is as a whole, where the vocabulary prefers that to merging.
fn whole_word(vocab: &VocabView<'_>, word: &str, encoded: &mut String) -> Option<u32> {
    let flags = vocab.flags();
    // Gemma 4's newline runs have no merges of their own.
    let is_lines = !flags.has(Flags::BYTE_ENCODED) && word.starts_with('\n');
    if !flags.has(Flags::IGNORE_MERGES) && !is_lines {
        return None;
    }
    let token = if flags.has(Flags::BYTE_ENCODED) {
        encoded.clear();
        encoded.extend(word.bytes().map(byte_to_char));
        vocab.token(encoded.as_bytes())
    } else {
        vocab.token(word.as_bytes())
    };
    token.filter(|&token| !vocab.attr(token).is_reserved())
}

/// Appends a symbol: the token that it is, else one token a byte, as far as there are any.
fn emit(
    vocab: &VocabView<'_>,
    word: &str,
    symbol: u32,
    start: u32,
    n_bytes: u32,
    out: &mut Vec<u32>,
) {
    let is_text = |token: &u32| *token < vocab.n_tokens() && !vocab.attr(*token).is_reserved();
    if is_text(&symbol) {
        out.push(symbol);
        return;
    }
    let bytes = word.as_bytes().get(start as usize..(start + n_bytes) as usize);
    let tokens = bytes.unwrap_or_default().iter().filter_map(|&byte| vocab.byte_symbol(byte));
    out.extend(tokens.filter(is_text));
}
