//! Character classes for the split rules.
//!
//! The classes are those of Unicode 15.1, which is what llama.cpp's tables hold: a newer letter
//! would be split differently from what the vocabularies' own tools do.

use std::sync::OnceLock;

use regex_syntax::hir::{Class as HirClass, HirKind};

/// General category as far as a split rule asks for it: a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Class(u8);

impl Class {
    pub(super) const LETTER: Self = Self(1);
    pub(super) const NUMBER: Self = Self(2);
    pub(super) const MARK: Self = Self(4);
    pub(super) const PUNCTUATION: Self = Self(8);
    pub(super) const SYMBOL: Self = Self(16);
    pub(super) const SPACE: Self = Self(32);

    /// Either of two classes.
    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether any bit of `other` is set.
    pub(super) const fn is(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

const SETS: [(&str, Class); 6] = [
    (r"[\p{L}&&\p{Age=15.1}]", Class::LETTER),
    (r"[\p{N}&&\p{Age=15.1}]", Class::NUMBER),
    (r"[\p{M}&&\p{Age=15.1}]", Class::MARK),
    (r"[\p{P}&&\p{Age=15.1}]", Class::PUNCTUATION),
    (r"[\p{S}&&\p{Age=15.1}]", Class::SYMBOL),
    (r"\s", Class::SPACE),
];

const PAGE: usize = 256;

/// Two-level table: the page of each 256 code points, and the distinct pages.
struct Classes {
    page_of: Vec<u16>,
    pages: Vec<[Class; PAGE]>,
}

impl Classes {
    fn build() -> Self {
        let n_pages = (char::MAX as usize + 1) / PAGE;
        let mut classes = Self { page_of: vec![0; n_pages], pages: vec![[Class(0); PAGE]] };
        for (pattern, class) in SETS {
            // The patterns are constants and a test parses them; none would leave a set empty.
            let Ok(hir) = regex_syntax::parse(pattern) else { continue };
            let HirKind::Class(HirClass::Unicode(set)) = hir.kind() else { continue };
            for range in set.ranges() {
                classes.add(range.start() as usize, range.end() as usize, class);
            }
        }
        classes
    }

    /// Adds `class` to the code points `first..=last`.
    fn add(&mut self, first: usize, last: usize, class: Class) {
        for page in first / PAGE..=last / PAGE {
            let from = first.max(page * PAGE) % PAGE;
            let to = last.min(page * PAGE + PAGE - 1) % PAGE;
            let mut cells = self.pages[usize::from(self.page_of[page])];
            cells[from..=to].iter_mut().for_each(|cell| *cell = cell.or(class));
            // The few kinds of uniform pages (ideographs, Hangul) are shared.
            let is_uniform = cells == [cells[0]; PAGE];
            let known = self.pages.iter().position(|other| is_uniform && *other == cells);
            let index = known.unwrap_or(self.pages.len());
            if known.is_none() {
                self.pages.push(cells);
            }
            self.page_of[page] = index as u16;
        }
    }
}

/// The class of `c`.
pub(super) fn class(c: char) -> Class {
    static CLASSES: OnceLock<Classes> = OnceLock::new();
    let classes = CLASSES.get_or_init(Classes::build);
    let page = classes.page_of[c as usize / PAGE];
    classes.pages[usize::from(page)][c as usize % PAGE]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_agree_with_the_standard_library_where_it_has_them() {
        for c in '\0'..=char::MAX {
            // Newer characters are unassigned in the version that the split rules use.
            assert_eq!(class(c).is(Class::SPACE), c.is_whitespace(), "{c:?}");
            if class(c).is(Class::NUMBER) {
                assert!(c.is_numeric(), "{c:?}");
            }
            if class(c).is(Class::LETTER) {
                assert!(c.is_alphabetic(), "{c:?}");
            }
            if c.is_ascii() {
                assert_eq!(class(c).is(Class::LETTER), c.is_ascii_alphabetic());
                assert_eq!(class(c).is(Class::NUMBER), c.is_ascii_digit());
                let marks = class(c).is(Class::PUNCTUATION.or(Class::SYMBOL));
                assert_eq!(marks, c.is_ascii_punctuation(), "{c:?}");
            }
        }
    }

    #[test]
    fn the_version_is_15_1() {
        // U+2EBF0 came with 15.1, U+1C89 with 16.0.
        assert!(class('\u{2ebf0}').is(Class::LETTER));
        assert_eq!(class('\u{1c89}'), Class::default());
        // A letter number is a number, not a letter; a combining accent neither.
        assert_eq!(class('Ⅷ'), Class::NUMBER);
        assert_eq!(class('\u{301}'), Class::MARK);
        assert_eq!(class('$'), Class::SYMBOL);
        assert_eq!(class('¿'), Class::PUNCTUATION);
    }
}
