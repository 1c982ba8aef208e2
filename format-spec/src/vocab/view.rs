//! The tables as they are read: in place, checked once.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::special::SpecialIds;
use super::table::{self, Packing};
use super::{ALIGN, Attr, Flags, MAGIC, Model, NONE, SPECIALS, Section, Special, Split, VERSION};
use crate::{Error, Result};

/// The fixed first bytes.
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: [u8; 4],
    pub(crate) version: U32,
    pub(crate) model: U32,
    pub(crate) split: U32,
    pub(crate) flags: U32,
    pub(crate) n_tokens: U32,
    pub(crate) n_symbols: U32,
    pub(crate) n_merges: U32,
    pub(crate) special_ids: [U32; SPECIALS.len()],
    pub(crate) sections: [SectionRange; Section::COUNT],
}

/// Where a section lies, from the start of the header.
#[derive(Debug, Default, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SectionRange {
    pub(crate) offset: U64,
    pub(crate) n_bytes: U64,
}

/// Baked tokenizer tables, read in place.
///
/// Everything that the methods rely on is checked by [`VocabView::new`]: no bytes, whatever their
/// hash, make them panic or read elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct VocabView<'a> {
    model: Model,
    split: Split,
    flags: Flags,
    special_ids: SpecialIds,
    text: &'a [u8],
    text_ends: &'a [U32],
    piece: &'a [u8],
    piece_ends: &'a [U32],
    attrs: &'a [u8],
    scores: &'a [U32],
    text_slots: &'a [U32],
    merges: &'a [[U32; 3]],
    merge_slots: &'a [U32],
    byte_symbols: &'a [U32],
    specials: &'a [U32],
    eog: &'a [U32],
    suppress: &'a [U32],
    pre: &'a str,
    chat_template: &'a str,
}

/// An error about one field of the tables.
fn wrong(field: &str, offset: usize, expected: impl ToString, found: impl ToString) -> Error {
    Error::Field {
        field: format!("tokenizer tables: {field}"),
        offset: offset as u64,
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// Cuts the sections and checks that they and their zero padding fill `bytes`.
struct Sections<'a> {
    bytes: &'a [u8],
    header: &'a Header,
    /// End of the section before.
    at: usize,
}

impl<'a> Sections<'a> {
    fn next(&mut self, section: Section) -> Result<&'a [u8]> {
        let name = format!("section {section:?}");
        let range = self.header.sections[section as usize];
        let start = self.at.next_multiple_of(ALIGN);
        if range.offset.get() != start as u64 {
            return Err(wrong(&name, self.at, format!("offset {start}"), range.offset));
        }
        let n_bytes = usize::try_from(range.n_bytes.get()).ok();
        let cut = n_bytes.and_then(|n| Some((n, self.bytes.get(start..)?.get(..n)?)));
        let Some((n_bytes, section_bytes)) = cut else {
            let left = self.bytes.len().saturating_sub(start);
            return Err(wrong(&name, start, format!("at most {left} bytes"), range.n_bytes));
        };
        let padding = self.bytes.get(self.at..start).unwrap_or_default();
        if padding.iter().any(|&byte| byte != 0) {
            return Err(wrong(&name, self.at, "zero padding", "other bytes"));
        }
        self.at = start + n_bytes;
        Ok(section_bytes)
    }

    /// A section of `n` fixed-size elements.
    fn array<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &mut self,
        section: Section,
        n: Option<u32>,
    ) -> Result<&'a [T]> {
        let bytes = self.next(section)?;
        let name = format!("section {section:?}");
        let Ok(array) = <[T]>::ref_from_bytes(bytes) else {
            let expected = format!("a multiple of {} bytes", size_of::<T>());
            return Err(wrong(&name, self.at, expected, bytes.len()));
        };
        match n {
            Some(n) if array.len() as u64 != u64::from(n) => {
                Err(wrong(&name, self.at, format!("{n} elements"), array.len()))
            }
            _ => Ok(array),
        }
    }

    fn string(&mut self, section: Section) -> Result<&'a str> {
        let bytes = self.next(section)?;
        std::str::from_utf8(bytes)
            .map_err(|_| wrong(&format!("section {section:?}"), self.at, "UTF-8", "other bytes"))
    }
}

impl<'a> VocabView<'a> {
    /// Reads the tables in `bytes`; the alignment of `bytes` does not matter.
    ///
    /// # Errors
    /// If a field, an id or an offset is not what this version allows; offsets in the error are
    /// relative to `bytes`.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let Ok((header, _)) = Header::ref_from_prefix(bytes) else {
            return Err(Error::Truncated {
                what: "tokenizer tables: header".into(),
                offset: 0,
                end: size_of::<Header>() as u64,
                have: bytes.len() as u64,
            });
        };
        let view = Self::cut(bytes, header)?;
        view.check()?;
        Ok(view)
    }

    fn cut(bytes: &'a [u8], header: &'a Header) -> Result<Self> {
        if header.magic != MAGIC {
            return Err(wrong("magic", 0, "MVOC", header.magic.escape_ascii()));
        }
        if header.version.get() != VERSION {
            return Err(Error::Unsupported {
                what: "tokenizer tables".into(),
                found: format!("version {}", header.version),
                supported: format!("this build reads version {VERSION}"),
            });
        }
        let unsupported = |what: &str, found: String| Error::Unsupported {
            what: format!("tokenizer tables: {what}"),
            found,
            supported: "not known to this build".into(),
        };
        let model = Model::from_id(header.model.get())
            .ok_or_else(|| unsupported("model", header.model.to_string()))?;
        let split = Split::from_id(header.split.get())
            .ok_or_else(|| unsupported("split rule", header.split.to_string()))?;
        let flags = header.flags.get();
        if flags & !Flags::ALL != 0 {
            return Err(unsupported("flags", format!("{flags:#x}")));
        }
        let (n_tokens, n_symbols) = (header.n_tokens.get(), header.n_symbols.get());
        if n_tokens == 0 || n_symbols < n_tokens || n_symbols == u32::MAX {
            let found = format!("{n_tokens} tokens, {n_symbols} symbols");
            return Err(wrong("counts", 0, "1 <= tokens <= symbols", found));
        }
        let n_merges = header.n_merges.get();
        let n_scores = if model == Model::Spm { n_tokens } else { 0 };
        let n_slots = |n| u32::try_from(Packing::n_slots(n)).ok();
        let mut sections = Sections { bytes, header, at: size_of::<Header>() };
        let view = Self {
            model,
            split,
            flags: Flags(flags),
            special_ids: header.special_ids.map(U32::get),
            text: sections.next(Section::Text)?,
            text_ends: sections.array(Section::TextEnds, Some(n_symbols))?,
            piece: sections.next(Section::Piece)?,
            piece_ends: sections.array(Section::PieceEnds, Some(n_tokens))?,
            attrs: sections.array(Section::Attrs, Some(n_tokens))?,
            scores: sections.array(Section::Scores, Some(n_scores))?,
            text_slots: sections.array(Section::TextSlots, n_slots(n_symbols))?,
            merges: sections.array(Section::Merges, Some(n_merges))?,
            merge_slots: sections.array(Section::MergeSlots, n_slots(n_merges))?,
            byte_symbols: sections.array(Section::ByteSymbols, Some(256))?,
            specials: sections.array(Section::Specials, None)?,
            eog: sections.array(Section::Eog, None)?,
            suppress: sections.array(Section::Suppress, None)?,
            pre: sections.string(Section::Pre)?,
            chat_template: sections.string(Section::ChatTemplate)?,
        };
        if sections.at != bytes.len() {
            return Err(wrong("length", 0, format!("{} bytes", sections.at), bytes.len()));
        }
        Ok(view)
    }

    /// Every id and every end, once.
    fn check(&self) -> Result<()> {
        let (n_tokens, n_symbols) = (self.n_tokens(), self.n_symbols());
        for (name, ends, bytes) in
            [("TextEnds", self.text_ends, self.text), ("PieceEnds", self.piece_ends, self.piece)]
        {
            let is_sorted = ends.is_sorted_by_key(|end| end.get());
            let last = ends.last().map_or(0, |end| end.get());
            if !is_sorted || last as usize != bytes.len() {
                let expected = format!("ascending ends, the last {}", bytes.len());
                return Err(wrong(&format!("section {name}"), 0, expected, "others"));
            }
        }
        let below = |name: &str, ids: &mut dyn Iterator<Item = u32>, limit: u32, none: bool| {
            let mut ids = ids.filter(|&id| id >= limit && !(none && id == NONE));
            ids.next().map_or(Ok(()), |id| Err(wrong(name, 0, format!("ids below {limit}"), id)))
        };
        let packings = [(self.text_slots, n_symbols), (self.merge_slots, self.merges.len() as u32)];
        for (slots, n_entries) in packings {
            let packing = Packing::new(n_entries);
            let mut indices = slots.iter().filter_map(|slot| packing.index(slot.get()));
            below("hash table", &mut indices, n_entries, false)?;
        }
        let words = |ids: &'a [U32]| ids.iter().map(|id| id.get());
        let mut merged = self.merges.iter().flatten().map(|id| id.get());
        below("section Merges", &mut merged, n_symbols, false)?;
        below("section ByteSymbols", &mut words(self.byte_symbols), n_symbols, true)?;
        below("section Specials", &mut words(self.specials), n_tokens, false)?;
        below("section Eog", &mut words(self.eog), n_tokens, false)?;
        below("section Suppress", &mut words(self.suppress), n_tokens, false)?;
        below("special ids", &mut self.special_ids.iter().copied(), n_tokens, true)?;
        if self.scores.iter().any(|bits| f32::from_bits(bits.get()).is_nan()) {
            return Err(wrong("section Scores", 0, "numbers", "NaN"));
        }
        if !self.eog.is_sorted_by_key(|id| id.get()) {
            return Err(wrong("section Eog", 0, "ascending ids", "others"));
        }
        let texts = |id: &U32| self.text(id.get());
        if !self.specials.is_sorted_by_key(texts)
            || self.specials.iter().any(|id| texts(id).is_empty())
        {
            return Err(wrong("section Specials", 0, "tokens by string, none empty", "others"));
        }
        Ok(())
    }
}

/// The string that ends at `ends[index]`, empty if there is none.
fn string<'a>(bytes: &'a [u8], ends: &[U32], index: u32) -> &'a [u8] {
    let index = index as usize;
    let start = match index.checked_sub(1) {
        Some(before) => ends.get(before).map_or(0, |end| end.get()),
        None => 0,
    };
    let end = ends.get(index).map_or(start, |end| end.get());
    bytes.get(start as usize..end as usize).unwrap_or_default()
}

impl<'a> VocabView<'a> {
    /// What kind of tokenizer it is.
    pub fn model(&self) -> Model {
        self.model
    }

    /// How a text is split into words.
    pub fn split(&self) -> Split {
        self.split
    }

    /// Name of the pre-tokenizer.
    pub fn pre(&self) -> &'a str {
        self.pre
    }

    /// Behaviour switches.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Jinja source of the chat template, if there is one.
    pub fn chat_template(&self) -> Option<&'a str> {
        (!self.chat_template.is_empty()).then_some(self.chat_template)
    }

    /// Number of tokens; ids are below it.
    pub fn n_tokens(&self) -> u32 {
        self.attrs.len() as u32
    }

    /// Number of symbols; the tokens are the first of them.
    pub fn n_symbols(&self) -> u32 {
        self.text_ends.len() as u32
    }

    /// Number of merges.
    pub fn n_merges(&self) -> u32 {
        self.merges.len() as u32
    }

    /// The string of a symbol as the vocabulary writes it; empty for an id that does not exist.
    pub fn text(&self, symbol: u32) -> &'a [u8] {
        string(self.text, self.text_ends, symbol)
    }

    /// What a token prints; empty for an id that does not exist.
    pub fn piece(&self, token: u32) -> &'a [u8] {
        string(self.piece, self.piece_ends, token)
    }

    /// Properties of a token; none for an id that does not exist.
    pub fn attr(&self, token: u32) -> Attr {
        self.attrs.get(token as usize).map_or(Attr::default(), |&bits| Attr(bits))
    }

    /// Score of a token ([`Model::Spm`]), else 0.
    pub fn score(&self, token: u32) -> f32 {
        self.scores.get(token as usize).map_or(0.0, |bits| f32::from_bits(bits.get()))
    }

    /// The symbol whose string is `text`.
    pub fn symbol(&self, text: &[u8]) -> Option<u32> {
        table::find(
            Packing::new(self.n_symbols()),
            self.text_slots.len(),
            table::hash_text(text),
            |i| self.text_slots.get(i).map_or(0, |slot| slot.get()),
            |symbol| self.text(symbol) == text,
        )
    }

    /// The token whose string is `text`; of several the last.
    pub fn token(&self, text: &[u8]) -> Option<u32> {
        self.symbol(text).filter(|&symbol| symbol < self.n_tokens())
    }

    /// Rank and result of merging two symbols.
    pub fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let rank = table::find(
            Packing::new(self.n_merges()),
            self.merge_slots.len(),
            table::hash_pair(left, right),
            |i| self.merge_slots.get(i).map_or(0, |slot| slot.get()),
            |rank| {
                self.merges
                    .get(rank as usize)
                    .is_some_and(|[l, r, _]| l.get() == left && r.get() == right)
            },
        )?;
        self.merges.get(rank as usize).map(|[_, _, merged]| (rank, merged.get()))
    }

    /// The symbol of one byte: in a byte-encoded vocabulary its character, else `<0xNN>`.
    pub fn byte_symbol(&self, byte: u8) -> Option<u32> {
        self.byte_symbols.get(usize::from(byte)).map(|id| id.get()).filter(|&id| id != NONE)
    }

    /// Tokens that are cut out of a text first, ascending by string.
    pub fn specials(&self) -> impl ExactSizeIterator<Item = u32> + Clone + use<'a> {
        self.specials.iter().map(|id| id.get())
    }

    /// Number of [`Self::specials`].
    pub fn n_specials(&self) -> usize {
        self.specials.len()
    }

    /// Element of [`Self::specials`].
    pub fn special_at(&self, index: usize) -> Option<u32> {
        self.specials.get(index).map(|id| id.get())
    }

    /// The token with a role.
    pub fn special(&self, special: Special) -> Option<u32> {
        self.special_ids.get(special as usize).copied().filter(|&id| id != NONE)
    }

    /// Tokens that end a generation, ascending.
    pub fn eog(&self) -> impl ExactSizeIterator<Item = u32> + Clone + use<'a> {
        self.eog.iter().map(|id| id.get())
    }

    /// Whether a token ends a generation.
    pub fn is_eog(&self, token: u32) -> bool {
        self.eog.binary_search_by_key(&token, |id| id.get()).is_ok()
    }

    /// Tokens that must not be sampled.
    pub fn suppressed(&self) -> impl ExactSizeIterator<Item = u32> + Clone + use<'a> {
        self.suppress.iter().map(|id| id.get())
    }
}
