//! Split rules: a text into the words that are merged on their own.
//!
//! A rule is a list of stages; each cuts the pieces of the one before further. The stages are
//! written as scanners, with the regular expression that they stand for above them: a scanner
//! reads each character about once, the expressions need look-around and a backtracking engine.

use format_spec::vocab::Split;

use super::unicode::{self, Class};

/// A character and its class.
#[derive(Debug, Clone, Copy)]
pub(super) struct Char {
    c: char,
    class: Class,
}

impl Char {
    fn is(self, class: Class) -> bool {
        self.class.is(class)
    }

    fn is_newline(self) -> bool {
        matches!(self.c, '\r' | '\n')
    }
}

const LETTER: Class = Class::LETTER;
const NUMBER: Class = Class::NUMBER;
const SPACE: Class = Class::SPACE;
const WORD: Class = LETTER.or(NUMBER).or(SPACE);

/// Where a stage's next piece ends, given the characters of a piece and where it starts. `None`:
/// nothing starts there, the character belongs to the gap before the next piece.
type Matcher = fn(&[Char], usize) -> Option<usize>;

fn stages(split: Split) -> &'static [Matcher] {
    match split {
        Split::Whole => &[],
        Split::Default => &[punctuation, gpt2, numbers, three_digits],
        Split::Gpt2 => &[gpt2],
        Split::DigitsGpt2 => &[number, gpt2],
        Split::Llama3 => &[|t, i| Some(LLAMA3.end(t, i))],
        Split::Qwen2 => &[|t, i| Some(QWEN2.end(t, i))],
        Split::Qwen35 => &[|t, i| Some(QWEN35.end(t, i))],
        Split::SeedCoder => &[|t, i| Some(SEED_CODER.end(t, i))],
        Split::Ufakzeka => &[|t, i| Some(UFAKZEKA.end(t, i))],
        Split::MiniCpm5 => &[three_numbers, |t, i| Some(MINICPM5.end(t, i))],
        Split::Falcon => &[falcon_punctuation, gpt2, three_digits],
        Split::DeepseekCoder => {
            &[newline, spaced_letters, spaced_punctuation, deepseek_ideographs, number]
        }
        Split::DeepseekV3 => &[three_numbers, deepseek_v3_ideographs, deepseek_v3],
        Split::Tekken => &[|t, i| cased_words(t, i, false, 1)],
        Split::Gpt4o => &[|t, i| cased_words(t, i, true, 3)],
        Split::Poro => &[poro],
        Split::Viking => &[poro, number],
        Split::Lines => &[lines],
    }
}

/// Buffers of [`split`], to be used again.
#[derive(Debug, Default)]
pub(super) struct SplitScratch {
    chars: Vec<Char>,
    /// Lengths of the pieces, in characters.
    pieces: Vec<usize>,
    finer: Vec<usize>,
}

/// Calls `word` with each word of `text`, in order; together they are the text.
pub(super) fn split(
    split: Split,
    text: &str,
    scratch: &mut SplitScratch,
    mut word: impl FnMut(&str),
) {
    let stages = stages(split);
    if stages.is_empty() {
        return word(text);
    }
    let SplitScratch { chars, pieces, finer } = scratch;
    chars.clear();
    chars.extend(text.chars().map(|c| Char { c, class: unicode::class(c) }));
    pieces.clear();
    pieces.push(chars.len());
    for stage in stages {
        finer.clear();
        let mut rest = chars.as_slice();
        for &n_chars in pieces.iter() {
            let (piece, after) = rest.split_at(n_chars.min(rest.len()));
            isolate(piece, *stage, finer);
            rest = after;
        }
        std::mem::swap(pieces, finer);
    }
    let mut rest = text;
    let mut chars = chars.iter();
    for &n_chars in pieces.iter() {
        let n_bytes = chars.by_ref().take(n_chars).map(|char| char.c.len_utf8()).sum();
        let (head, tail) = rest.split_at(n_bytes);
        if !head.is_empty() {
            word(head);
        }
        rest = tail;
    }
}

/// Matches and the gaps between them, as lengths.
fn isolate(text: &[Char], matcher: Matcher, out: &mut Vec<usize>) {
    let mut gap = 0;
    let mut at = 0;
    while at < text.len() {
        match matcher(text, at).filter(|&end| end > at) {
            Some(end) => {
                if at > gap {
                    out.push(at - gap);
                }
                out.push(end - at);
                at = end;
                gap = end;
            }
            None => at += 1,
        }
    }
    if at > gap {
        out.push(at - gap);
    }
}

/// End of the characters from `at` on for which `holds`.
fn run(text: &[Char], at: usize, holds: impl Fn(Char) -> bool) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    at + rest.iter().position(|&char| !holds(char)).unwrap_or(rest.len())
}

/// As [`run`], at most `limit` characters; `None` if there is none.
fn some(text: &[Char], at: usize, limit: usize, holds: impl Fn(Char) -> bool) -> Option<usize> {
    let end = run(text, at, holds).min(at.saturating_add(limit));
    (end > at).then_some(end)
}

fn is_at(text: &[Char], at: usize, class: Class) -> bool {
    text.get(at).is_some_and(|char| char.is(class))
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, with `fold` in either case.
fn contraction(text: &[Char], at: usize, fold: bool) -> Option<usize> {
    let letter = |at: usize| {
        let c = text.get(at)?.c;
        Some(if fold { c.to_ascii_lowercase() } else { c })
    };
    if text.get(at)?.c != '\'' {
        return None;
    }
    match (letter(at + 1)?, letter(at + 2)) {
        ('s' | 't' | 'm' | 'd', _) => Some(at + 2),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(at + 3),
        _ => None,
    }
}

/// `\s+(?!\S)|\s+`
fn spaces(text: &[Char], at: usize) -> Option<usize> {
    let end = some(text, at, usize::MAX, |char| char.is(SPACE))?;
    // The last space before a word goes with the word.
    Some(if end < text.len() && end - at > 1 { end - 1 } else { end })
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`
fn newlines_or_spaces(text: &[Char], at: usize) -> Option<usize> {
    let end = run(text, at, |char| char.is(SPACE));
    let last_newline = text.get(at..end)?.iter().rposition(|char| char.is_newline());
    last_newline.map(|last| at + last + 1).or_else(|| spaces(text, at))
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2(text: &[Char], at: usize) -> Option<usize> {
    if let Some(end) = contraction(text, at, false) {
        return Some(end);
    }
    let start = if text.get(at)?.c == ' ' { at + 1 } else { at };
    if is_at(text, start, LETTER) {
        return Some(run(text, start, |char| char.is(LETTER)));
    }
    if is_at(text, start, NUMBER) {
        return Some(run(text, start, |char| char.is(NUMBER)));
    }
    some(text, start, usize::MAX, |char| !char.is(WORD)).or_else(|| spaces(text, at))
}

/// What differs between the rules of Llama 3's kind:
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
struct LlamaLike {
    /// The first alternative.
    contractions: bool,
    /// What a word consists of.
    letters: Class,
    /// Most numbers in a piece.
    n_numbers: usize,
    /// `[\r\n]*` after punctuation.
    newline_tail: bool,
}

const LLAMA3: LlamaLike =
    LlamaLike { contractions: true, letters: LETTER, n_numbers: 3, newline_tail: true };
const QWEN2: LlamaLike = LlamaLike { n_numbers: 1, ..LLAMA3 };
const QWEN35: LlamaLike = LlamaLike { letters: LETTER.or(Class::MARK), ..QWEN2 };
const SEED_CODER: LlamaLike = LlamaLike { newline_tail: false, ..QWEN2 };
const UFAKZEKA: LlamaLike = LlamaLike { contractions: false, ..QWEN2 };
const MINICPM5: LlamaLike = LlamaLike { n_numbers: usize::MAX, ..LLAMA3 };

impl LlamaLike {
    fn end(&self, text: &[Char], at: usize) -> usize {
        self.word(text, at)
            .or_else(|| some(text, at, self.n_numbers, |char| char.is(NUMBER)))
            .or_else(|| self.punctuation(text, at))
            .or_else(|| newlines_or_spaces(text, at))
            .unwrap_or(at + 1)
    }

    fn word(&self, text: &[Char], at: usize) -> Option<usize> {
        if let Some(end) = contraction(text, at, true).filter(|_| self.contractions) {
            return Some(end);
        }
        let first = *text.get(at)?;
        if first.is_newline() || first.is(NUMBER) {
            return None;
        }
        let is_word = first.is(self.letters) || is_at(text, at + 1, self.letters);
        is_word.then(|| run(text, at + 1, |char| char.is(self.letters)))
    }

    fn punctuation(&self, text: &[Char], at: usize) -> Option<usize> {
        let start = if text.get(at)?.c == ' ' { at + 1 } else { at };
        let end = some(text, start, usize::MAX, |char| !char.is(WORD.or(self.letters)))?;
        Some(if self.newline_tail { run(text, end, Char::is_newline) } else { end })
    }
}

/// Tekken's and GPT-4o's rule. Where those tell capitals from small letters by category, llama.cpp
/// does so for ASCII only, and its way is what the vocabularies are run with:
/// `[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*|\p{N}{1,n}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
/// with a contraction at the end of a word if `contractions`.
fn cased_words(text: &[Char], at: usize, contractions: bool, n_numbers: usize) -> Option<usize> {
    if let Some(end) = cased_word(text, at) {
        return Some(contraction(text, end, true).filter(|_| contractions).unwrap_or(end));
    }
    some(text, at, n_numbers, |char| char.is(NUMBER))
        .or_else(|| {
            let start = if text.get(at)?.c == ' ' { at + 1 } else { at };
            let end = some(text, start, usize::MAX, |char| !char.is(WORD))?;
            Some(run(text, end, |char| matches!(char.c, '\r' | '\n' | '/')))
        })
        .or_else(|| newlines_or_spaces(text, at))
}

/// The first two alternatives of [`cased_words`].
fn cased_word(text: &[Char], at: usize) -> Option<usize> {
    let is_capital = |char: Char| char.is(LETTER) && !char.c.is_ascii_lowercase();
    let is_small = |char: Char| char.is(LETTER) && !char.c.is_ascii_uppercase();
    let first = *text.get(at)?;
    let may_prefix = !first.is_newline() && !first.is(LETTER.or(NUMBER));
    let start = if may_prefix { at + 1 } else { at };
    let capitals_end = run(text, start, is_capital);
    // The greedy run of capitals gives back until a small letter follows.
    let smalls =
        (start..=capitals_end).rev().find_map(|split| some(text, split, usize::MAX, is_small));
    // Without any, the capitals alone are the word.
    smalls.or_else(|| (capitals_end > start).then_some(capitals_end))
}

/// `[\p{P}\$\+<=>\^~\|]+`
fn punctuation(text: &[Char], at: usize) -> Option<usize> {
    some(text, at, usize::MAX, |char| char.is(Class::PUNCTUATION) || "$+<=>^~|".contains(char.c))
}

/// ``[\p{P}\$\+<=>\^~\|`]+``
fn falcon_punctuation(text: &[Char], at: usize) -> Option<usize> {
    some(text, at, usize::MAX, |char| char.is(Class::PUNCTUATION) || "$+<=>^~|`".contains(char.c))
}

/// `\p{N}`
fn number(text: &[Char], at: usize) -> Option<usize> {
    some(text, at, 1, |char| char.is(NUMBER))
}

/// `\p{N}{1,3}`
fn three_numbers(text: &[Char], at: usize) -> Option<usize> {
    some(text, at, 3, |char| char.is(NUMBER))
}

/// `\p{N}+`
fn numbers(text: &[Char], at: usize) -> Option<usize> {
    some(text, at, usize::MAX, |char| char.is(NUMBER))
}

/// `[0-9][0-9][0-9]`
fn three_digits(text: &[Char], at: usize) -> Option<usize> {
    some(text, at, 3, |char| char.c.is_ascii_digit()).filter(|&end| end == at + 3)
}

/// `[\r\n]`
fn newline(text: &[Char], at: usize) -> Option<usize> {
    some(text, at, 1, Char::is_newline)
}

/// `[^\n]+|[\n]+`
fn lines(text: &[Char], at: usize) -> Option<usize> {
    let first = text.get(at)?.c == '\n';
    Some(run(text, at, |char| (char.c == '\n') == first))
}

/// `\s?` and one or more of `class`.
fn spaced(text: &[Char], at: usize, class: Class) -> Option<usize> {
    let start = if is_at(text, at, SPACE) { at + 1 } else { at };
    some(text, start, usize::MAX, |char| char.is(class))
}

/// `\s?\p{L}+`
fn spaced_letters(text: &[Char], at: usize) -> Option<usize> {
    spaced(text, at, LETTER)
}

/// `\s?\p{P}+`
fn spaced_punctuation(text: &[Char], at: usize) -> Option<usize> {
    spaced(text, at, Class::PUNCTUATION)
}

/// `[一-龥ࠀ-一가-퟿]+`, where llama.cpp takes no white space for an ideograph.
fn deepseek_ideographs(text: &[Char], at: usize) -> Option<usize> {
    some(text, at, usize::MAX, |char| {
        matches!(char.c, '\u{800}'..='龥' | '가'..='\u{d7ff}') && !char.is(SPACE)
    })
}

/// `[一-龥぀-ゟ゠-ヿ]+`
fn deepseek_v3_ideographs(text: &[Char], at: usize) -> Option<usize> {
    some(text, at, usize::MAX, |char| matches!(char.c, '一'..='龥' | '\u{3040}'..='\u{30ff}'))
}

/// ``[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
fn deepseek_v3(text: &[Char], at: usize) -> Option<usize> {
    const MARKS: Class = Class::PUNCTUATION.or(Class::SYMBOL);
    const LETTERS: Class = LETTER.or(Class::MARK);
    let first = *text.get(at)?;
    let ascii_word = || {
        first.c.is_ascii_punctuation().then_some(())?;
        some(text, at + 1, usize::MAX, |char| char.c.is_ascii_alphabetic())
    };
    let word = || {
        let may_prefix = !first.is_newline() && !first.is(LETTER.or(MARKS));
        let prefixed =
            may_prefix.then(|| some(text, at + 1, usize::MAX, |char| char.is(LETTERS))).flatten();
        prefixed.or_else(|| some(text, at, usize::MAX, |char| char.is(LETTERS)))
    };
    let marks = || {
        let start = if first.c == ' ' { at + 1 } else { at };
        let end = some(text, start, usize::MAX, |char| char.is(MARKS))?;
        Some(run(text, end, Char::is_newline))
    };
    ascii_word().or_else(word).or_else(marks).or_else(|| newlines_or_spaces(text, at))
}

/// ` ?[^(\s|.,!?…。，、।۔،)]+`
fn poro(text: &[Char], at: usize) -> Option<usize> {
    let start = if text.get(at)?.c == ' ' { at + 1 } else { at };
    some(text, start, usize::MAX, |char| !char.is(SPACE) && !"(|.,!?…。，、।۔،)".contains(char.c))
}
