//! Symbols and merges while they are baked.

use std::collections::HashMap;

use super::NONE;
use super::byte_map::byte_to_char;
use super::table::{Packing, hash_pair, hash_text, insert};

/// Every string that merging can come across, and its id: the tokens first.
pub(crate) struct Symbols<'a> {
    /// Strings that are no token, in order of first use; ids continue those of the tokens.
    pub(crate) extra: Vec<Vec<u8>>,
    /// The last token with each string, as llama.cpp has it.
    by_text: &'a HashMap<&'a [u8], u32>,
    extra_by_text: HashMap<Vec<u8>, u32>,
    n_tokens: u32,
}

impl<'a> Symbols<'a> {
    pub(crate) fn new(by_text: &'a HashMap<&'a [u8], u32>, n_tokens: u32) -> Self {
        Self { extra: Vec::new(), by_text, extra_by_text: HashMap::new(), n_tokens }
    }

    pub(crate) fn len(&self) -> u32 {
        self.n_tokens + self.extra.len() as u32
    }

    /// The symbol of `text`, made if there is none.
    pub(crate) fn symbol(&mut self, text: &[u8]) -> u32 {
        if let Some(&id) = self.by_text.get(text).or_else(|| self.extra_by_text.get(text)) {
            return id;
        }
        let id = self.len();
        self.extra.push(text.to_vec());
        self.extra_by_text.insert(text.to_vec(), id);
        id
    }

    /// Symbols of the 256 bytes in a byte-encoded vocabulary.
    pub(crate) fn of_encoded_bytes(&mut self) -> Vec<u32> {
        (0..=255u8)
            .map(|byte| self.symbol(byte_to_char(byte).encode_utf8(&mut [0; 4]).as_bytes()))
            .collect()
    }

    /// Tokens `<0xNN>` of the 256 bytes, or the token that is the byte itself (only where
    /// `or_itself`), else [`NONE`].
    pub(crate) fn of_raw_bytes(&self, or_itself: bool) -> Vec<u32> {
        (0..=255u8)
            .map(|byte| {
                let named = format!("<0x{byte:02X}>");
                let itself = [byte];
                self.by_text
                    .get(named.as_bytes())
                    .or_else(|| self.by_text.get(&itself[..]).filter(|_| or_itself))
                    .map_or(NONE, |&id| id)
            })
            .collect()
    }

    /// The hash table from string to symbol. `texts`: the tokens' strings.
    pub(crate) fn slots(&self, texts: &[&[u8]]) -> Vec<u32> {
        let packing = Packing::new(self.len());
        let mut slots = vec![0; Packing::n_slots(self.len())];
        for (id, text) in (0u32..).zip(texts) {
            // Of tokens with equal strings only one can be found.
            if self.by_text.get(text) == Some(&id) {
                insert(packing, &mut slots, hash_text(text), id);
            }
        }
        for (id, text) in (self.n_tokens..).zip(&self.extra) {
            insert(packing, &mut slots, hash_text(text), id);
        }
        slots
    }
}

/// Merges by rank.
#[derive(Default)]
pub(crate) struct Merges {
    /// `[left, right, merged]`
    pub(crate) rows: Vec<[u32; 3]>,
}

impl Merges {
    /// Reads `left right` lines. A merge whose result is `forbidden` is left out.
    pub(crate) fn read<'l>(
        lines: impl Iterator<Item = &'l [u8]>,
        symbols: &mut Symbols<'_>,
        forbidden: impl Fn(u32) -> bool,
    ) -> Self {
        let mut seen = HashMap::new();
        let mut rows = Vec::new();
        let mut joined = Vec::new();
        for line in lines {
            // The first byte may itself be a space: the separator is the first one after it.
            let Some(at) = line.iter().skip(1).position(|&byte| byte == b' ').map(|at| at + 1)
            else {
                continue;
            };
            let (left, right) = (&line[..at], &line[at + 1..]);
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let pair = (symbols.symbol(left), symbols.symbol(right));
            let merged = symbols.symbol(&joined);
            // Of equal merges the first holds.
            if !forbidden(merged) && seen.insert(pair, ()).is_none() {
                rows.push([pair.0, pair.1, merged]);
            }
        }
        Self { rows }
    }

    /// The hash table from (left, right) to rank.
    pub(crate) fn slots(&self) -> Vec<u32> {
        let n_merges = self.rows.len() as u32;
        let packing = Packing::new(n_merges);
        let mut slots = vec![0; Packing::n_slots(n_merges)];
        for (rank, [left, right, _]) in (0u32..).zip(&self.rows) {
            insert(packing, &mut slots, hash_pair(*left, *right), rank);
        }
        slots
    }
}
