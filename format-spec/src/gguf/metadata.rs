//! The key-value section.

use super::cursor::{Cursor, to_u64};
use super::value::{Array, Lossy, Value, ValueType};
use crate::{Error, Result};

/// Longest key that GGUF allows.
const MAX_KEY_BYTES: usize = 65535;

/// Fewest bytes of a key-value pair: key length, one byte of key, type, one byte of value.
const MIN_KV_BYTES: u64 = 14;

/// Metadata in file order, with look-up by key.
#[derive(Debug, Clone)]
pub struct Metadata<'a> {
    entries: Vec<Entry<'a>>,
    /// Indices of `entries`, sorted by key.
    by_key: Vec<usize>,
}

#[derive(Debug, Clone)]
struct Entry<'a> {
    key: &'a str,
    value: Value<'a>,
    /// Offset of the key's length.
    key_offset: u64,
    /// Offset of the value, after its type.
    value_offset: u64,
}

impl<'a> Metadata<'a> {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, &Value<'a>)> {
        self.entries.iter().map(|entry| (entry.key, &entry.value))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The value of `key`, of any integer type, if it fits a u32.
    ///
    /// # Errors
    /// If it is of another type or does not fit. A missing key is `Ok(None)`, here and below.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.int(key, "u32")
    }

    /// The value of `key`, of any integer type, if it fits a u64.
    ///
    /// # Errors
    /// If it is of another type or negative.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.int(key, "u64")
    }

    /// The value of `key`, of either float type (an f64 is rounded).
    ///
    /// # Errors
    /// If it is of another type.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a float", |value| value.as_f32())
    }

    /// The bool of `key`.
    ///
    /// # Errors
    /// If it is of another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", |value| match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// The string of `key`.
    ///
    /// # Errors
    /// If it is of another type or not UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a UTF-8 string", |value| std::str::from_utf8(value.as_bytes()?).ok())
    }

    /// The array of `key`, whatever its elements.
    ///
    /// # Errors
    /// If it is no array.
    pub fn array(&self, key: &str) -> Result<Option<Array<'a>>> {
        self.typed(key, "an array", |value| value.as_array())
    }

    /// The array of strings of `key`.
    ///
    /// # Errors
    /// If it is of another type.
    pub fn strs(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a>>> {
        self.typed(key, "an array of str", |value| value.as_array()?.iter_str())
    }

    /// The array of integers of `key`, whatever their type.
    ///
    /// # Errors
    /// If it is of another type.
    pub fn ints(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = i128> + Clone + use<'a>>> {
        self.typed(key, "an array of integers", |value| value.as_array()?.iter_int())
    }

    /// The array of floats of `key`.
    ///
    /// # Errors
    /// If it is of another type.
    pub fn f32s(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = f32> + Clone + use<'a>>> {
        self.typed(key, "an array of floats", |value| value.as_array()?.iter_f32())
    }

    /// Offset of the value of `key` in the file, behind its type; `None` if the key is missing.
    pub fn value_offset(&self, key: &str) -> Option<u64> {
        self.entry(key).map(|entry| entry.value_offset)
    }

    /// An [`Error`] about the value of `key`, at its place in the file.
    pub fn error(&self, key: &str, expected: impl Into<String>) -> Error {
        let entry = self.entry(key);
        Error::Field {
            field: format!("key {key}"),
            offset: entry.map_or(0, |entry| entry.value_offset),
            expected: expected.into(),
            found: entry.map_or("nothing".into(), |entry| entry.value.to_string()),
        }
    }

    fn int<T: TryFrom<i128>>(&self, key: &str, ty: &str) -> Result<Option<T>> {
        self.typed(key, format!("an integer that fits {ty}"), |value| {
            value.as_int().and_then(|v| T::try_from(v).ok())
        })
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: impl Into<String>,
        convert: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.error(key, expected))
    }

    fn entry(&self, key: &str) -> Option<&Entry<'a>> {
        let at = self
            .by_key
            .binary_search_by(|&i| self.entries.get(i).map_or("", |entry| entry.key).cmp(key))
            .ok()?;
        self.by_key.get(at).and_then(|&i| self.entries.get(i))
    }

    /// Reads `n_kv` pairs; `n_kv_offset` is where the count itself stands.
    pub(super) fn read(cursor: &mut Cursor<'a>, n_kv: u64, n_kv_offset: u64) -> Result<Self> {
        check_count("n_kv", n_kv, n_kv_offset, cursor, MIN_KV_BYTES)?;
        // The count comes from the file: entries are pushed as they are read, nothing is reserved.
        let mut entries = Vec::new();
        for i in 0..n_kv {
            entries.push(Entry::read(cursor, i)?);
        }
        let by_key = sort_by_key(&entries)?;
        Ok(Self { entries, by_key })
    }
}

impl<'a> Entry<'a> {
    fn read(cursor: &mut Cursor<'a>, i: u64) -> Result<Self> {
        let key_offset = cursor.offset();
        let key = cursor.string(format_args!("key {i}"))?;
        let key = check_name(key, MAX_KEY_BYTES).map_err(|(expected, found)| Error::Field {
            field: format!("key {i}"),
            offset: key_offset,
            expected,
            found,
        })?;
        let type_offset = cursor.offset();
        let id = cursor.u32(format_args!("value type of key {key}"))?;
        let ty = ValueType::from_id(id).ok_or_else(|| Error::Field {
            field: format!("value type of key {key}"),
            offset: type_offset,
            expected: "a value type 0..=12".into(),
            found: id.to_string(),
        })?;
        let value_offset = cursor.offset();
        let value = Value::read(cursor, ty, format_args!("value of key {key}"))?;
        Ok(Self { key, value, key_offset, value_offset })
    }
}

/// Indices of `entries` sorted by key; refuses a key that stands twice.
fn sort_by_key(entries: &[Entry<'_>]) -> Result<Vec<usize>> {
    let key_of = |i: usize| entries.get(i).map_or("", |entry| entry.key);
    let mut by_key: Vec<usize> = (0..entries.len()).collect();
    by_key.sort_by_key(|&i| key_of(i)); // stable: equal keys stay in file order
    let duplicate = by_key
        .iter()
        .zip(by_key.iter().skip(1))
        .filter(|&(&a, &b)| key_of(a) == key_of(b))
        .map(|(&first, &second)| (second, first))
        .min();
    match duplicate.and_then(|(second, first)| entries.get(second).zip(entries.get(first))) {
        None => Ok(by_key),
        Some((second, first)) => Err(Error::Field {
            field: format!("key {}", second.key),
            offset: second.key_offset,
            expected: "every key once".into(),
            found: format!("the key again, first at offset {}", first.key_offset),
        }),
    }
}

/// Refuses a count that the remaining bytes cannot hold, before anything is read by it.
pub(super) fn check_count(
    field: &str,
    count: u64,
    offset: u64,
    cursor: &Cursor<'_>,
    min_bytes: u64,
) -> Result<()> {
    let remaining = cursor.remaining();
    let most = remaining.checked_div(min_bytes).unwrap_or(0);
    if count <= most {
        return Ok(());
    }
    Err(Error::Field {
        field: field.into(),
        offset,
        expected: format!("at most {most} (all that the remaining {remaining} bytes can hold)"),
        found: count.to_string(),
    })
}

/// A key or tensor name: not empty, at most `max_bytes`, UTF-8, without NUL (a reader in C would
/// see a shorter name). On failure says what was expected and found.
pub(super) fn check_name(bytes: &[u8], max_bytes: usize) -> Result<&str, (String, String)> {
    if bytes.is_empty() {
        return Err(("a name".into(), "an empty string".into()));
    }
    if bytes.len() > max_bytes {
        return Err((
            format!("at most {max_bytes} bytes"),
            format!("{} bytes", to_u64(bytes.len())),
        ));
    }
    let quoted = || {
        let shown = bytes.get(..bytes.len().min(80)).unwrap_or(bytes);
        format!("{:?}", Lossy(shown))
    };
    match std::str::from_utf8(bytes) {
        Err(_) => Err(("UTF-8".into(), quoted())),
        Ok(_) if bytes.contains(&0) => Err(("no NUL".into(), quoted())),
        Ok(name) => Ok(name),
    }
}
