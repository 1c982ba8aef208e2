//! Text to tokens and back, from the baked tables of a container.
//!
//! Same ids as llama.cpp, with one deliberate exception: text that is not a template's own never
//! becomes a control token, not even where llama.cpp's merges would lead to one.

mod bpe;
mod merge;
mod partition;
mod split;
mod spm;
mod unicode;

use std::ops::Range;

use format_spec::vocab::{Flags, Model, Special, VocabView};

use partition::{Occurrence, Part, Specials};

use crate::template::Rendered;

/// A tokenizer over baked tables.
#[derive(Debug)]
pub struct Tokenizer<'a> {
    vocab: VocabView<'a>,
    specials: Specials,
}

impl<'a> From<VocabView<'a>> for Tokenizer<'a> {
    fn from(vocab: VocabView<'a>) -> Self {
        Self { vocab, specials: Specials::new(&vocab) }
    }
}

impl<'a> Tokenizer<'a> {
    /// The tables.
    pub fn vocab(&self) -> &VocabView<'a> {
        &self.vocab
    }

    /// Number of tokens; ids are below it.
    pub fn n_tokens(&self) -> u32 {
        self.vocab.n_tokens()
    }

    /// The token with a role.
    pub fn special(&self, special: Special) -> Option<u32> {
        self.vocab.special(special)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.special(Special::Bos)
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.special(Special::Eos)
    }

    /// Whether a text starts with [`Self::bos`].
    pub fn add_bos(&self) -> bool {
        self.vocab.flags().has(Flags::ADD_BOS) && self.bos().is_some()
    }

    /// Whether a token ends a generation.
    pub fn is_eog(&self, token: u32) -> bool {
        self.vocab.is_eog(token)
    }

    /// Whether a token is a control token (or the unknown token): not shown to the user.
    pub fn is_control(&self, token: u32) -> bool {
        self.vocab.attr(token).is_reserved()
    }

    /// The bytes that a token prints, also of a control token. They need not be whole characters.
    pub fn piece(&self, token: u32) -> &'a [u8] {
        self.vocab.piece(token)
    }

    /// The string of a role's token as a chat template wants it, empty if there is none.
    pub fn special_text(&self, special: Special) -> String {
        let token = self.special(special);
        String::from_utf8_lossy(token.map_or(&[], |token| self.piece(token))).into_owned()
    }

    /// Tokens of `text`. With `parse_special`, control tokens written out in it are recognised:
    /// never do that with text from outside. With `add_special`, the bos and eos tokens are added
    /// as the vocabulary says.
    pub fn encode(&self, text: &str, parse_special: bool, add_special: bool) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if add_special && self.add_bos() {
            out.extend(self.bos());
        }
        self.encode_parts(
            text,
            |occurrence| parse_special || !self.is_control(occurrence.token),
            &mut out,
        );
        if add_special && self.vocab.flags().has(Flags::ADD_EOS) {
            out.extend(self.eos());
        }
        out
    }

    /// Tokens of a rendered chat: control tokens only where the template itself wrote them, and
    /// the bos token as [`Self::settle_bos`] has it.
    pub fn encode_rendered(&self, rendered: &Rendered) -> Vec<u32> {
        let mut out = Vec::with_capacity(rendered.text.len() / 3 + 2);
        self.encode_parts(
            &rendered.text,
            |occurrence| {
                let Occurrence { start, end, token } = *occurrence;
                !self.is_control(token) || rendered.is_templates_own(start..end)
            },
            &mut out,
        );
        self.settle_bos(&mut out);
        out
    }

    /// Makes `tokens` start with exactly one bos token if the vocabulary wants one or the template
    /// wrote one, else with none.
    pub fn settle_bos(&self, tokens: &mut Vec<u32>) {
        let Some(bos) = self.bos() else { return };
        let n_bos = tokens.iter().take_while(|&&token| token == bos).count();
        if n_bos > 1 {
            tokens.drain(1..n_bos);
        } else if n_bos == 0 && self.add_bos() {
            tokens.insert(0, bos);
        }
    }

    /// Where control tokens are written out in `text`.
    pub fn control_occurrences(&self, text: &str) -> Vec<Range<usize>> {
        self.specials
            .occurrences(&self.vocab, text.as_bytes())
            .into_iter()
            .filter(|occurrence| self.is_control(occurrence.token))
            .map(|occurrence| occurrence.start..occurrence.end)
            .collect()
    }

    fn encode_parts(&self, text: &str, allowed: impl Fn(&Occurrence) -> bool, out: &mut Vec<u32>) {
        let parts =
            partition::partition_text(&self.vocab, &self.specials, text.as_bytes(), allowed);
        let mut bpe = bpe::BpeScratch::default();
        let mut chain = merge::Chain::default();
        let mut after_special = true;
        for part in parts {
            let range = match part {
                Part::Token(token) => {
                    out.push(token);
                    after_special = true;
                    continue;
                }
                Part::Text(range) => range,
            };
            // A hostile vocabulary may hold special tokens that end within a character.
            let fragment = String::from_utf8_lossy(text.as_bytes().get(range).unwrap_or_default());
            match self.vocab.model() {
                Model::Bpe => bpe::encode(&self.vocab, &fragment, &mut bpe, out),
                Model::Spm => {
                    let prefix = after_special && self.vocab.flags().has(Flags::ADD_SPACE_PREFIX);
                    let mut escaped = String::with_capacity(fragment.len() + 16);
                    escaped.push_str(if prefix { "\u{2581}" } else { "" });
                    escaped.push_str(&fragment.replace(' ', "\u{2581}"));
                    let unknown = self.special(Special::Unk);
                    spm::encode(&self.vocab, &escaped, unknown, &mut chain, out);
                }
            }
            after_special = false;
        }
    }

    /// The bytes that a token shows to the user: its piece, nothing for a control token.
    pub fn shown(&self, token: u32) -> &'a [u8] {
        if self.is_control(token) { &[] } else { self.piece(token) }
    }

    /// The text of `tokens`, from its start: the space that [`Flags::ADD_SPACE_PREFIX`] put before
    /// it is taken away. Control tokens are left out, invalid UTF-8 becomes U+FFFD.
    ///
    /// To show tokens as they come, feed [`Self::shown`] to a [`TextStream`](crate::stream::TextStream).
    pub fn decode(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| self.shown(token)).copied().collect();
        let strip = self.vocab.flags().has(Flags::ADD_SPACE_PREFIX);
        let bytes = bytes.strip_prefix(b" ").filter(|_| strip).unwrap_or(&bytes);
        String::from_utf8_lossy(bytes).into_owned()
    }
}
