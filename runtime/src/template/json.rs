//! `tojson` as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::engine::MAX_VALUE_BYTES;
use super::python;

/// Deepest nesting that is written; beyond it a template has built something endless.
pub(super) const MAX_NESTING: usize = 64;

/// How the text is laid out.
struct Style {
    /// What is repeated for each level; `None` = all on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

/// The filter: `value | tojson(indent=.., separators=.., sort_keys=.., ensure_ascii=..)`.
pub(super) fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|indent| !indent.is_none() && !indent.is_undefined()) {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(32)),
        }),
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            let message = "tojson: separators must be two strings";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let style = Style {
        indent,
        item_separator,
        key_separator,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write_value(&mut out, value, &style, 0)?;
    state.consume_fuel(out.len() as u64 / 16)?;
    // Not `safe`: nothing is escaped here, and a `safe` string would infect what it is joined to.
    Ok(Value::from(out))
}

fn too_much(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}"))
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_NESTING {
        return Err(too_much("nested too deep"));
    }
    if out.len() > MAX_VALUE_BYTES {
        return Err(too_much("too long"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&python::number(value, python::Names::Json)),
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| (None, item)).collect();
            write_items(out, ['[', ']'], items, style, depth)?;
        }
        ValueKind::Map => {
            let mut items = Vec::new();
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                items.push((Some(key_text(&key)?), item));
            }
            if style.sort_keys {
                items.sort_by(|(a, _), (b, _)| a.cmp(b));
            }
            write_items(out, ['{', '}'], items, style, depth)?;
        }
        kind => return Err(too_much(&format!("a value of kind {kind} has no JSON form"))),
    }
    Ok(())
}

/// A key as Python turns it into a string.
fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Number => python::number(key, python::Names::Json),
        _ => return Err(too_much("a key must be a string, number, bool or none")),
    })
}

fn write_items(
    out: &mut String,
    [open, close]: [char; 2],
    items: Vec<(Option<String>, Value)>,
    style: &Style,
    depth: usize,
) -> Result<(), Error> {
    out.push(open);
    let is_empty = items.is_empty();
    for (index, (key, item)) in items.into_iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, style, depth + 1);
        if let Some(key) = key {
            write_string(out, &key, style);
            out.push_str(&style.key_separator);
        }
        write_value(out, &item, style, depth + 1)?;
    }
    if !is_empty {
        new_line(out, style, depth);
    }
    out.push(close);
    Ok(())
}

fn new_line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str(indent));
    }
}

fn write_string(out: &mut String, text: &str, style: &Style) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (style.ensure_ascii && !(' '..='~').contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// How large an input is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) n_values: u64,
    pub(super) n_bytes: u64,
}

impl Size {
    pub(super) fn and(self, other: Self) -> Self {
        Self { n_values: self.n_values + other.n_values, n_bytes: self.n_bytes + other.n_bytes }
    }
}

/// The size of `values` and everything in them.
pub(super) fn size(values: &[serde_json::Value]) -> Size {
    use serde_json::Value as Json;
    values.iter().fold(Size::default(), |sum, value| {
        let of_value = match value {
            Json::String(text) => Size { n_values: 1, n_bytes: text.len() as u64 },
            Json::Array(items) => size(items),
            Json::Object(items) => items.iter().fold(Size::default(), |sum, (key, item)| {
                let of_key = Size { n_values: 1, n_bytes: key.len() as u64 };
                sum.and(of_key).and(size(std::slice::from_ref(item)))
            }),
            _ => Size { n_values: 1, n_bytes: 8 },
        };
        sum.and(of_value)
    })
}
