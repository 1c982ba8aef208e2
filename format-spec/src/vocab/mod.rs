//! Baked tokenizer tables: everything that a tokenizer needs, in the form in which it is read.
//!
//! [`bake()`] turns the tokenizer keys of a GGUF into one byte string; [`VocabView`] reads it in
//! place. No map of strings is built when a model starts: the hash tables lie in the bytes, with a
//! fixed hash (XXH3 64, seed 0), so that the same keys always give the same bytes.
//!
//! # Layout
//!
//! Little-endian, a fixed header and then the sections in the order of [`Section`], each on 16
//! bytes, zeros between. `S` = symbols, `T` = tokens (`T <= S`), `M` = merges.
//!
//! | section | bytes | what |
//! |---|---|---|
//! | `text` | | strings, one after the other |
//! | `text_ends` | 4 S | end of each symbol's string in `text` |
//! | `piece` | | what each token prints, one after the other |
//! | `piece_ends` | 4 T | end of each token's piece in `piece` |
//! | `attrs` | T | [`Attr`] |
//! | `scores` | 4 T or 0 | f32, only for [`Model::Spm`] |
//! | `text_slots` | 4 x 2^a | hash table: string to symbol |
//! | `merges` | 12 M | (left, right, merged) symbols, by rank |
//! | `merge_slots` | 4 x 2^b | hash table: (left, right) to rank |
//! | `byte_symbols` | 1024 | symbol of each byte, `u32::MAX` = none |
//! | `specials` | 4 each | tokens that are cut out of a text first, by string (bytewise) |
//! | `eog` | 4 each | tokens that end a generation, ascending |
//! | `suppress` | 4 each | tokens that must not be sampled |
//! | `pre` | | name of the pre-tokenizer, as the GGUF has it |
//! | `chat_template` | | Jinja source |
//!
//! A *symbol* is a string that merging can come across: the tokens first, under their ids, then the
//! strings that occur only in merges. A hash table has a power of two of u32 slots, at most half
//! of them used rounded up to it; slot 0 means empty, else the low bits hold index + 1 and the
//! high bits the high bits of the hash, so that most misses end in the slot. Probing is linear.

mod bake;
mod byte_map;
mod pre;
mod read;
mod special;
mod symbols;
mod table;
mod template;
mod view;

pub use bake::{BakeOptions, Baked, bake};
pub use byte_map::{byte_to_char, char_to_byte};
pub use pre::Split;
pub use special::{SPECIALS, Special};
pub use template::{MAX_TEMPLATE_BYTES, without_generation_tags};
pub use view::VocabView;

/// What kind of tokenizer this is. Discriminants are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Model {
    /// SentencePiece with scores (`tokenizer.ggml.model` = `llama`).
    Spm = 1,
    /// Byte pair encoding with ranked merges (`gpt2`, `gemma4`).
    Bpe = 2,
}

impl Model {
    pub(crate) fn from_id(id: u32) -> Option<Self> {
        [Self::Spm, Self::Bpe].into_iter().find(|model| *model as u32 == id)
    }

    /// Name as llama.cpp prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spm => "SPM",
            Self::Bpe => "BPE",
        }
    }
}

/// Properties of a token: a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attr(pub u8);

impl Attr {
    /// Stands for what the vocabulary cannot express.
    pub const UNKNOWN: Self = Self(1);
    /// Reserved by the model's makers.
    pub const UNUSED: Self = Self(2);
    /// Plain text.
    pub const NORMAL: Self = Self(4);
    /// Steers the model; never made from a user's text.
    pub const CONTROL: Self = Self(8);
    /// Text that is one token wherever it occurs, also in a user's text.
    pub const USER_DEFINED: Self = Self(16);
    /// One byte, written `<0xNN>`.
    pub const BYTE: Self = Self(32);
    /// Swallows white space on its left when it is cut out of a text.
    pub const LSTRIP: Self = Self(64);
    /// Swallows white space on its right.
    pub const RSTRIP: Self = Self(128);

    /// Whether any bit of `other` is set.
    pub fn any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Control or unknown: what only a template's own text may become.
    pub fn is_reserved(self) -> bool {
        self.any(Self::CONTROL.and(Self::UNKNOWN))
    }

    /// Both sets of bits.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without the bits of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// Behaviour switches: a set of bits in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// A text starts with the bos token.
    pub const ADD_BOS: Self = Self(1);
    /// A text ends with the eos token.
    pub const ADD_EOS: Self = Self(2);
    /// A space goes before a text that starts or follows a special token.
    pub const ADD_SPACE_PREFIX: Self = Self(4);
    /// A word that is a token is not merged from its bytes.
    pub const IGNORE_MERGES: Self = Self(8);
    /// Spaces are written U+2581 in the vocabulary.
    pub const ESCAPE_SPACES: Self = Self(16);
    /// Bytes are written as printable characters (GPT-2's table).
    pub const BYTE_ENCODED: Self = Self(32);
    /// Spaces before punctuation are removed when a whole text is put together.
    pub const CLEAN_SPACES: Self = Self(64);

    const ALL: u32 = 127;

    /// Whether `other` is set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn set(&mut self, other: Self, on: bool) {
        self.0 = if on { self.0 | other.0 } else { self.0 & !other.0 };
    }
}

/// The sections, in file order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Text,
    TextEnds,
    Piece,
    PieceEnds,
    Attrs,
    Scores,
    TextSlots,
    Merges,
    MergeSlots,
    ByteSymbols,
    Specials,
    Eog,
    Suppress,
    Pre,
    ChatTemplate,
}

impl Section {
    pub(crate) const COUNT: usize = 15;
}

/// First bytes of the tables.
const MAGIC: [u8; 4] = *b"MVOC";

/// Version of the layout above.
const VERSION: u32 = 1;

/// Alignment of a section.
const ALIGN: usize = 16;

/// "None" among ids.
const NONE: u32 = u32::MAX;
