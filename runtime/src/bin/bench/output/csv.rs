//! Comma-separated values.

use super::Printer;
use crate::record::{Row, Value, columns};

/// A line of names, then a line a row.
pub(super) struct Csv;

/// As llama-bench writes values where there are no types: flags are 0 and 1.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Flag(flag) => u8::from(*flag).to_string(),
        Value::Int(int) => int.to_string(),
        Value::Float(float) => format!("{float:.6}"),
        Value::Nothing => String::new(),
    }
}

impl Printer for Csv {
    fn head(&mut self) -> String {
        let names: Vec<&str> = columns().iter().map(|(name, _)| *name).collect();
        names.join(",") + "\n"
    }

    fn row(&mut self, row: &Row) -> String {
        let quoted = |value: &Value| format!("\"{}\"", plain(value).replace('"', "\"\""));
        let values: Vec<String> = row.values().iter().map(quoted).collect();
        values.join(",") + "\n"
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
    fn every_value_is_in_quotes() {
        let row = row(test(512, 0, 0), &[5_000_000]);
        assert!(Csv.head().starts_with("build_commit,build_number,cpu_info,"));
        let line = Csv.row(&row);
        assert!(
            line.contains(",\"dir/a \"\"b\"\".mpk\",\"qwen2 1.5B Q4_K - Medium\",\"1111376384\",")
        );
        assert!(line.contains(",\"512\",\"0\",\"0\",\"2026-01-02T03:04:05Z\",\"5000000\",\"0\",\"102400.000000\",\"0.000000\","));
        let n_names = Csv.head().trim_end().split(',').count();
        assert_eq!(line.trim_end().matches("\",\"").count() + 1, n_names);
    }
}
