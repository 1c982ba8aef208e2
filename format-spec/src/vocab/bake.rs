//! GGUF tokenizer keys to baked tables.

use std::borrow::Cow;
use std::collections::HashMap;

use zerocopy::IntoBytes;

use super::read::{self, Kind, MODEL_KEY};
use super::special::{self, SpecialIds, Tokens};
use super::symbols::{Merges, Symbols};
use super::view::{Header, SectionRange};
use super::{ALIGN, Attr, Flags, MAGIC, Model, Section, VERSION, byte_map};
use crate::gguf::Metadata;
use crate::{Error, Result};

const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// How a vocabulary with [`Flags::ESCAPE_SPACES`] writes a space.
const LOWER_BLOCK: &str = "\u{2581}";

/// What to take instead of the file's own keys.
#[derive(Debug, Clone, Default)]
pub struct BakeOptions {
    /// Instead of `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// Instead of `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

/// Tables and what was odd about their source.
#[derive(Debug, Clone)]
pub struct Baked {
    /// The tables, for [`VocabView::new`](super::VocabView::new).
    pub bytes: Vec<u8>,
    /// One sentence each, for the user.
    pub warnings: Vec<String>,
}

/// Bakes the tokenizer of `metadata`; `None` if the file has none.
///
/// # Errors
/// If a key has a type or length that does not fit, or the tokenizer's kind or its pre-tokenizer
/// is not supported; the error names the key and, for a pre-tokenizer, its name.
pub fn bake(metadata: &Metadata<'_>, options: &BakeOptions) -> Result<Option<Baked>> {
    let Some(tokenizer_model) = metadata.str(MODEL_KEY)? else { return Ok(None) };
    if matches!(tokenizer_model, "none" | "no_vocab") {
        return Ok(None);
    }
    let mut warnings = Vec::new();
    let kind = Kind::read(metadata, tokenizer_model, options, &mut warnings)?;
    let owned = read::texts(metadata, &mut warnings)?;
    let mut attrs = read::attrs(metadata, &owned, &mut warnings)?;
    let texts: Vec<&[u8]> = owned.iter().map(AsRef::as_ref).collect();
    let n_tokens = texts.len() as u32;
    // Of equal strings the last token is found, as in llama.cpp.
    let by_text: HashMap<&[u8], u32> = texts.iter().copied().zip(0..n_tokens).collect();
    if by_text.len() < texts.len() {
        let n_twins = texts.len() - by_text.len();
        warnings.push(format!("{n_twins} tokens have the string of a later token, which is used"));
    }

    let mut ids = special::defaults(kind.model, tokenizer_model, kind.no_default_bos);
    special::read_ids(metadata, n_tokens, &mut ids, &mut warnings)?;
    let mut tokens = Tokens { by_text: &by_text, attrs: &mut attrs, warnings: &mut warnings };
    let eog = special::find_roles(&mut tokens, &mut ids);
    special::mark_unused(&texts, tokens.attrs);
    let name = metadata.str("general.name")?.unwrap_or_default();
    let architecture = metadata.str("general.architecture")?.unwrap_or_default();
    special::mark_strips(&mut tokens, &kind.pre, name, architecture);

    let mut symbols = Symbols::new(&by_text, n_tokens);
    let (byte_symbols, merges) = bake_merges(metadata, &kind, &attrs, &mut symbols)?;
    let template = match &options.chat_template {
        Some(template) => template.as_str(),
        None => metadata.str(TEMPLATE_KEY)?.unwrap_or_default(),
    };

    let all_texts = texts.iter().copied().chain(symbols.extra.iter().map(Vec::as_slice));
    let (text, text_ends) = concatenate(all_texts.map(Cow::Borrowed))?;
    let pieces = owned.iter().zip(&attrs).map(|(text, attr)| match text {
        Cow::Borrowed(text) => piece(text, *attr, &kind),
        // An owned string is the name given to an empty token.
        Cow::Owned(_) => Cow::Borrowed(&[][..]),
    });
    let (piece, piece_ends) = concatenate(pieces)?;
    let mut specials: Vec<u32> =
        (0..n_tokens).filter(|&id| special::is_cut_out(attrs[id as usize])).collect();
    specials.sort_by_key(|&id| (texts[id as usize], id));

    let mut writer = Writer::default();
    writer.section(&text);
    writer.words(text_ends);
    writer.section(&piece);
    writer.words(piece_ends);
    writer.section(&attrs.iter().map(|attr| attr.0).collect::<Vec<_>>());
    writer.words(match kind.model {
        Model::Spm => read::scores(metadata, texts.len())?.into_iter().map(f32::to_bits).collect(),
        Model::Bpe => Vec::new(),
    });
    writer.words(symbols.slots(&texts));
    writer.words(merges.rows.iter().flatten().copied());
    writer.words(merges.slots());
    writer.words(byte_symbols);
    writer.words(specials);
    writer.words(eog);
    writer.words(read::suppressed(metadata, n_tokens)?);
    writer.section(kind.pre.as_bytes());
    writer.section(template.as_bytes());
    let counts = [n_tokens, symbols.len(), merges.rows.len() as u32];
    Ok(Some(Baked { bytes: writer.finish(&kind, counts, &ids), warnings }))
}

/// The symbols of the bytes and the merges; new symbols go into `symbols`.
fn bake_merges(
    metadata: &Metadata<'_>,
    kind: &Kind,
    attrs: &[Attr],
    symbols: &mut Symbols<'_>,
) -> Result<(Vec<u32>, Merges)> {
    if kind.model == Model::Spm {
        return Ok((symbols.of_raw_bytes(true), Merges::default()));
    }
    let lines = read::merges(metadata)?;
    let byte_symbols = if kind.flags.has(Flags::BYTE_ENCODED) {
        symbols.of_encoded_bytes()
    } else {
        symbols.of_raw_bytes(false)
    };
    // A user's text must not merge into a control token.
    let is_reserved = |id: u32| attrs.get(id as usize).is_some_and(|attr| attr.is_reserved());
    let merges = Merges::read(lines, symbols, is_reserved);
    Ok((byte_symbols, merges))
}

/// What a token prints.
fn piece<'t>(text: &'t [u8], attr: Attr, kind: &Kind) -> Cow<'t, [u8]> {
    if special::is_cut_out(attr) {
        Cow::Borrowed(text)
    } else if !attr.any(Attr::NORMAL) {
        let byte = read::byte_of(text).filter(|_| attr.any(Attr::BYTE));
        Cow::Owned(byte.into_iter().collect())
    } else if kind.flags.has(Flags::ESCAPE_SPACES) {
        Cow::Owned(unescape_spaces(text))
    } else {
        Cow::Owned(decode_bytes(text))
    }
}

fn unescape_spaces(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(LOWER_BLOCK.as_bytes()) {
            out.push(b' ');
            rest = tail;
        } else {
            out.push(first);
            rest = tail;
        }
    }
    out
}

/// Characters that stand for bytes back to bytes; what stands for none stays as it is.
fn decode_bytes(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match byte_map::char_to_byte(c) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        out.extend_from_slice(chunk.invalid());
    }
    out
}

/// Strings one after the other, and where each ends.
fn concatenate<'t>(strings: impl Iterator<Item = Cow<'t, [u8]>>) -> Result<(Vec<u8>, Vec<u32>)> {
    let mut bytes = Vec::new();
    let mut ends = Vec::new();
    for string in strings {
        bytes.extend_from_slice(&string);
        ends.push(u32::try_from(bytes.len()).map_err(|_| Error::Unsupported {
            what: "tokenizer strings".into(),
            found: format!("{} bytes", bytes.len()),
            supported: "less than 4 GiB".into(),
        })?);
    }
    Ok((bytes, ends))
}

/// Puts the sections behind a header that is filled in last.
struct Writer {
    bytes: Vec<u8>,
    ranges: Vec<SectionRange>,
}

impl Default for Writer {
    fn default() -> Self {
        Self { bytes: vec![0; size_of::<Header>()], ranges: Vec::new() }
    }
}

impl Writer {
    fn section(&mut self, bytes: &[u8]) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
        let range = SectionRange {
            offset: (self.bytes.len() as u64).into(),
            n_bytes: (bytes.len() as u64).into(),
        };
        self.ranges.push(range);
        self.bytes.extend_from_slice(bytes);
    }

    fn words(&mut self, words: impl IntoIterator<Item = u32>) {
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        self.section(&bytes);
    }

    /// `counts`: tokens, symbols, merges.
    fn finish(mut self, kind: &Kind, counts: [u32; 3], ids: &SpecialIds) -> Vec<u8> {
        let mut header = Header {
            magic: MAGIC,
            version: VERSION.into(),
            model: (kind.model as u32).into(),
            split: (kind.split as u32).into(),
            flags: kind.flags.0.into(),
            n_tokens: counts[0].into(),
            n_symbols: counts[1].into(),
            n_merges: counts[2].into(),
            special_ids: ids.map(Into::into),
            sections: [SectionRange::default(); Section::COUNT],
        };
        header.sections.copy_from_slice(&self.ranges);
        self.bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        self.bytes
    }
}
