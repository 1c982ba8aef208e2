//! Tells a template's own control tokens from those written in messages.
//!
//! The chat is rendered again with markers in the messages. The marker is a private-use character
//! that occurs neither in the template, nor in the input, nor in the output. If taking the markers
//! out of the second text gives the first, the template treated marked strings as it treats
//! unmarked ones, and the places of the markers hold in the first text. Several ways of marking
//! are tried, from the most to the least complete:
//!
//! 1. [`Marks::Edges`]: within each control string that a message holds, and at both ends of each
//!    message's content (inside of its surrounding white space, so that a template may trim it), so
//!    that no control token can be put together from a message's end and the template's text;
//! 2. [`Marks::Inside`]: only within control strings;
//! 3. [`Marks::Before`]: twice in front of each control string, for templates that look for one
//!    within a message (`content.split('</think>')`);
//! 4. 2 and 3 for one control string after the other, for templates that look for some of them;
//! 5. a string for which nothing helps is text wherever it occurs in the output, and the caller is
//!    told ([`Rendered::undecided`]): a chat that is odd to the model is better than one that
//!    another can hijack.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::{Input, RenderOptions, Rendered, Template};
use crate::tokenizer::Tokenizer;

/// Where markers are put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marks {
    Edges,
    Inside,
    Before,
}

/// One way of marking.
struct Marking<'t> {
    tokenizer: &'t Tokenizer<'t>,
    marker: char,
    marks: Marks,
    /// Only this control string.
    only: Option<&'t str>,
}

/// The rendered `text` with what is known about who wrote its control tokens.
pub(super) fn render(
    template: &Template,
    input: &Input,
    options: &RenderOptions,
    tokenizer: &Tokenizer<'_>,
    text: String,
) -> Rendered {
    let mut strings = BTreeSet::new();
    for_each_string(input, &mut |string| {
        let ranges = tokenizer.control_occurrences(string);
        strings.extend(ranges.into_iter().filter_map(|range| string.get(range)).map(str::to_owned));
    });
    let mut rendered = Rendered::trusted(text);
    let Some(marker) = free_marker(template, input, &rendered.text) else {
        // Somebody used up all of the private-use area.
        rendered.plain.extend(strings);
        return rendered;
    };
    let attempt = |marks: Marks, only: Option<&str>| {
        let marking = Marking { tokenizer, marker, marks, only };
        let marked = template.render_text(&marking.input(input), options).ok()?;
        unmark(&marked, marker, &rendered.text)
    };
    let whole = [Marks::Edges, Marks::Inside, Marks::Before];
    if let Some(breaks) = whole.into_iter().find_map(|marks| attempt(marks, None)) {
        rendered.breaks = breaks;
        return rendered;
    }
    let mut breaks = Vec::new();
    let mut plain = Vec::new();
    for string in strings {
        let one = [Marks::Inside, Marks::Before];
        match one.into_iter().find_map(|marks| attempt(marks, Some(&string))) {
            Some(found) => breaks.extend(found),
            None => plain.push(string),
        }
    }
    breaks.sort_unstable();
    Rendered { breaks, plain, ..rendered }
}

/// A private-use character that nothing else uses.
fn free_marker(template: &Template, input: &Input, text: &str) -> Option<char> {
    let private = |c: char| ('\u{e000}'..='\u{f8ff}').contains(&c);
    let mut used: BTreeSet<char> =
        text.chars().chain(template.source.chars()).filter(|&c| private(c)).collect();
    for_each_string(input, &mut |string| used.extend(string.chars().filter(|&c| private(c))));
    ('\u{e000}'..='\u{f8ff}').find(|c| !used.contains(c))
}

/// Offsets of the markers in `text`, if `marked` is `text` with markers.
fn unmark(marked: &str, marker: char, text: &str) -> Option<Vec<usize>> {
    let mut breaks = Vec::new();
    let mut rest = text;
    for (index, part) in marked.split(marker).enumerate() {
        if index > 0 {
            breaks.push(text.len() - rest.len());
        }
        rest = rest.strip_prefix(part)?;
    }
    rest.is_empty().then_some(breaks)
}

/// Every string from outside, keys too.
fn for_each_string(input: &Input, visit: &mut impl FnMut(&str)) {
    fn walk(value: &Json, visit: &mut impl FnMut(&str)) {
        match value {
            Json::String(text) => visit(text),
            Json::Array(items) => items.iter().for_each(|item| walk(item, visit)),
            Json::Object(items) => items.iter().for_each(|(key, item)| {
                visit(key);
                walk(item, visit);
            }),
            _ => {}
        }
    }
    input.messages.iter().chain(&input.tools).for_each(|value| walk(value, visit));
    input.args.iter().for_each(|(_, value)| walk(value, visit));
}

impl Marking<'_> {
    fn input(&self, input: &Input) -> Input {
        let all = |values: &[Json]| values.iter().map(|value| self.value(value, false)).collect();
        let args = input.args.iter();
        Input {
            messages: all(&input.messages),
            tools: all(&input.tools),
            args: args.map(|(key, value)| (key.clone(), self.value(value, false))).collect(),
        }
    }

    /// `is_content`: whether the value is what somebody says, not a name or a role that the
    /// template may turn into a control token on purpose.
    fn value(&self, value: &Json, is_content: bool) -> Json {
        match value {
            Json::String(text) => Json::String(self.string(text, is_content)),
            Json::Array(items) => {
                items.iter().map(|item| self.value(item, is_content)).collect::<Vec<_>>().into()
            }
            Json::Object(items) => {
                let items = items.iter().map(|(key, item)| {
                    let is_content = matches!(
                        key.as_str(),
                        "content" | "text" | "reasoning_content" | "thinking"
                    );
                    (self.string(key, false), self.value(item, is_content))
                });
                Json::Object(items.collect())
            }
            other => other.clone(),
        }
    }

    fn string(&self, text: &str, is_content: bool) -> String {
        let ranges = self.tokenizer.control_occurrences(text);
        let mut at = BTreeSet::new();
        let mut twice = BTreeSet::new();
        for range in ranges {
            let Some(string) = text.get(range.clone()) else { continue };
            if self.only.is_some_and(|only| only != string) {
                continue;
            }
            let first_len = string.chars().next().map_or(0, char::len_utf8);
            if self.marks == Marks::Before || first_len == string.len() {
                twice.insert(range.start);
            } else {
                at.insert(range.start + first_len);
            }
        }
        let core = text.trim();
        if self.marks == Marks::Edges && is_content && !core.is_empty() {
            let start = text.len() - text.trim_start().len();
            at.insert(start);
            at.insert(start + core.len());
        }
        let mut out = String::with_capacity(text.len() + 8);
        for (offset, c) in text.char_indices() {
            let n_markers =
                if twice.contains(&offset) { 2 } else { usize::from(at.contains(&offset)) };
            out.extend(std::iter::repeat_n(self.marker, n_markers));
            out.push(c);
        }
        out.extend(Some(self.marker).filter(|_| at.contains(&text.len())));
        out
    }
}
