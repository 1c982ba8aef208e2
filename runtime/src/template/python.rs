//! Values printed as Python prints them, and Python's methods on them.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};

use super::engine::MAX_VALUE_BYTES;
use super::json::MAX_NESTING;

/// Names of the three floats that are no numbers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Names {
    /// `nan`, `inf`
    Python,
    /// `NaN`, `Infinity`
    Json,
}

/// `{{ value }}`
pub(super) fn format(
    out: &mut Output<'_>,
    _: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    let result = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&str(value)?),
    };
    result.map_err(|_| Error::from(ErrorKind::WriteFailure))
}

/// The filter `value | string`.
pub(super) fn string(value: &Value) -> Result<Value, Error> {
    Ok(if value.as_str().is_some() { value.clone() } else { str(value)?.into() })
}

/// Python's `str`.
fn str(value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut out = String::new();
    write_repr(&mut out, value, 0)?;
    Ok(out)
}

/// Python's `repr`.
fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_NESTING || out.len() > MAX_VALUE_BYTES {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is too large to print"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number => out.push_str(&number(value, Names::Python)),
        ValueKind::String => write_string_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            out.push('[');
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &item, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        ValueKind::Invalid => {
            return Err(Error::new(ErrorKind::InvalidOperation, value.to_string()));
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn write_string_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// A number as Python writes it.
pub(super) fn number(value: &Value, names: Names) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), |v| float(v, names))
}

/// Python's `repr` of a float: the shortest digits that read back as the same number, without an
/// exponent from 1e-4 up to 1e16.
fn float(value: f64, names: Names) -> String {
    if !value.is_finite() {
        let (nan, infinite) = match names {
            Names::Python => ("nan", "inf"),
            Names::Json => ("NaN", "Infinity"),
        };
        let name = if value.is_nan() { nan } else { infinite };
        return if value < 0.0 { format!("-{name}") } else { name.to_owned() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        if plain.contains('.') { plain } else { format!("{plain}.0") }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_those_of_pythons_repr() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1.5e15, "1500000000000000.0"),
            (1e16, "1e+16"),
            (1.25e300, "1.25e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456.789, "123456.789"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(value, Names::Python), expected);
        }
        assert_eq!(float(f64::NAN, Names::Json), "NaN");
    }

    #[test]
    fn values_print_as_in_python() {
        let value = super::super::engine::to_value(serde_json::json!(
            {"a": [1, 2.0, null, true, "it's", "say \"it's\"\n"], "b": {}}
        ));
        assert_eq!(
            str(&value).unwrap(),
            r#"{'a': [1, 2.0, None, True, "it's", 'say "it\'s"\n'], 'b': {}}"#
        );
        assert_eq!(str(&Value::UNDEFINED).unwrap(), "");
    }
}
