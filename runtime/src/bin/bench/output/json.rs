//! JSON: one list, or one object a line.

use super::Printer;
use crate::record::{Row, Value, columns};
use serde_json::{Map, Value as Json};

/// A list of objects, each complete as soon as it is printed.
#[derive(Default)]
pub(super) struct List {
    n_rows: usize,
}

/// An object a line.
pub(super) struct Lines;

/// The row as an object, samples last.
pub(super) fn object(row: &Row) -> Json {
    let value = |value: Value| match value {
        Value::Text(text) => Json::from(text),
        Value::Flag(flag) => Json::from(flag),
        Value::Int(int) => Json::from(int),
        // Six digits behind the point, as llama-bench writes them.
        Value::Float(float) => rounded(float),
        Value::Nothing => Json::Null,
    };
    let names = columns().into_iter().map(|(name, _)| name.to_owned());
    let mut object: Map<String, Json> = names.zip(row.values().into_iter().map(value)).collect();
    object.insert("samples_ns".to_owned(), row.samples_ns.clone().into());
    let samples_ts: Vec<Json> = row.samples_ts().into_iter().map(rounded).collect();
    object.insert("samples_ts".to_owned(), samples_ts.into());
    Json::Object(object)
}

fn rounded(value: f64) -> Json {
    ((value * 1e6).round() / 1e6).into()
}

impl Printer for List {
    fn head(&mut self) -> String {
        "[\n".to_owned()
    }

    fn row(&mut self, row: &Row) -> String {
        let comma = if self.n_rows > 0 { ",\n" } else { "" };
        self.n_rows += 1;
        let mut text = format!("{comma}  {{\n");
        let object = object(row);
        let fields = object.as_object().into_iter().flatten();
        let lines: Vec<String> =
            fields.map(|(key, value)| format!("    \"{key}\": {value}")).collect();
        text += &lines.join(",\n");
        text + "\n  }"
    }

    fn foot(&mut self) -> String {
        "\n]\n".to_owned()
    }
}

impl Printer for Lines {
    fn head(&mut self) -> String {
        String::new()
    }

    fn row(&mut self, row: &Row) -> String {
        format!("{}\n", object(row))
    }

    fn foot(&mut self) -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::test;
    use crate::record::tests::row;

    #[test]
    fn a_list_is_valid_json() {
        let rows =
            [row(test(512, 0, 0), &[5_000_000, 6_000_000]), row(test(0, 8, 4), &[1_000_000])];
        let mut list = List::default();
        let text = list.head() + &list.row(&rows[0]) + &list.row(&rows[1]) + &list.foot();
        let parsed: Json = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed.as_array().unwrap().len(), 2);
        assert_eq!(parsed[0]["model_filename"], "dir/a \"b\".mpk");
        assert_eq!(parsed[0]["samples_ns"], serde_json::json!([5_000_000, 6_000_000]));
        assert_eq!(parsed[1]["samples_ts"], serde_json::json!([8000.0]));
        assert_eq!(parsed[1]["limit_percent"], Json::Null);
        let line = Lines.row(&rows[0]);
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(serde_json::from_str::<Json>(&line).unwrap(), parsed[0]);
    }
}
