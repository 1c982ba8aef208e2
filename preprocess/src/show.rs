//! GGUF values as people and JSON readers see them.

use format_spec::gguf::{Array, Value};
use serde_json::{Number, json};

/// Elements of an array that a line shows.
const SHOWN_ELEMS: usize = 8;

/// Characters of a string that a line shows.
const SHOWN_CHARS: usize = 160;

/// One line: long strings and arrays are cut, control characters escaped.
pub fn to_line(value: &Value<'_>) -> String {
    match value {
        Value::Str(bytes) => string_line(bytes),
        Value::Array(array) => {
            let shown: Vec<_> = array.iter().take(SHOWN_ELEMS).map(|elem| to_line(&elem)).collect();
            let more = if array.len() > SHOWN_ELEMS { ", ..." } else { "" };
            let shown = shown.join(", ");
            format!("[{shown}{more}] ({} x {})", array.len(), array.elem_type().name())
        }
        _ => to_json(value).to_string(),
    }
}

fn string_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let n_chars = text.chars().count();
    let cut: String = text.chars().take(SHOWN_CHARS).collect();
    if n_chars > SHOWN_CHARS {
        format!("{cut:?}... ({n_chars} characters)")
    } else {
        format!("{cut:?}")
    }
}

/// The whole value. Bytes that are not UTF-8 are replaced; NaN and infinities become strings,
/// since JSON has no numbers for them.
pub fn to_json(value: &Value<'_>) -> serde_json::Value {
    let float = |x: f64| match Number::from_f64(x) {
        Some(number) => serde_json::Value::Number(number),
        None => json!(x.to_string()),
    };
    match value {
        Value::Bool(flag) => json!(flag),
        Value::F32(x) => float(f64::from(*x)),
        Value::F64(x) => float(*x),
        Value::Str(bytes) => json!(String::from_utf8_lossy(bytes)),
        Value::Array(array) => array_json(*array),
        _ => integer(value),
    }
}

fn array_json(array: Array<'_>) -> serde_json::Value {
    array.iter().map(|elem| to_json(&elem)).collect()
}

fn integer(value: &Value<'_>) -> serde_json::Value {
    let number = value.as_int().unwrap_or(0);
    match (u64::try_from(number), i64::try_from(number)) {
        (Ok(n), _) => json!(n),
        (_, Ok(n)) => json!(n),
        _ => json!(number.to_string()),
    }
}
