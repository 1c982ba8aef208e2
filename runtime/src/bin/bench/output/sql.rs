//! SQL: a table as llama-bench makes it, so that the rows of both programs fit into one database, and
//! a second with what is only ours.

use super::Printer;
use super::csv::plain;
use crate::record::{LLAMA_BENCH, OURS, Row, Type, Value};

/// Statements for sqlite3 and others.
pub(super) struct Sql;

/// What connects a row of the second table with one of the first.
const SHARED: &[&str] = &[
    "model_filename",
    "n_threads",
    "n_batch",
    "n_gpu_layers",
    "n_prompt",
    "n_gen",
    "n_depth",
    "test_time",
];

fn create(table: &str, columns: &[(&str, Type)]) -> String {
    let column = |(name, of_type): &(&str, Type)| {
        let of_type = match of_type {
            Type::Text => "TEXT",
            Type::Integer => "INTEGER",
            Type::Real => "REAL",
        };
        format!("  {name} {of_type}")
    };
    let columns: Vec<String> = columns.iter().map(column).collect();
    format!("CREATE TABLE IF NOT EXISTS {table} (\n{}\n);\n\n", columns.join(",\n"))
}

fn insert(table: &str, names: &[&str], values: &[&Value]) -> String {
    let literal = |value: &&Value| match value {
        Value::Nothing => "NULL".to_owned(),
        value => format!("'{}'", plain(value).replace('\'', "''")),
    };
    let values: Vec<String> = values.iter().map(literal).collect();
    format!("INSERT INTO {table} ({}) VALUES ({});\n", names.join(", "), values.join(", "))
}

/// Columns of the second table.
fn ours() -> Vec<(&'static str, Type)> {
    let shared = LLAMA_BENCH.iter().filter(|(name, _)| SHARED.contains(name));
    shared.chain(OURS).copied().collect()
}

impl Printer for Sql {
    fn head(&mut self) -> String {
        create("llama_bench", LLAMA_BENCH) + &create("minfer_bench", &ours())
    }

    fn row(&mut self, row: &Row) -> String {
        let values = row.values();
        let names: Vec<&str> = LLAMA_BENCH.iter().map(|(name, _)| *name).collect();
        let (theirs, rest) = values.split_at(names.len());
        let first = insert("llama_bench", &names, &theirs.iter().collect::<Vec<_>>());
        let shared = names.iter().zip(theirs).filter(|(name, _)| SHARED.contains(name));
        let of_ours = shared.map(|(_, value)| value).chain(rest).collect::<Vec<_>>();
        let names: Vec<&str> = ours().iter().map(|(name, _)| *name).collect();
        first + &insert("minfer_bench", &names, &of_ours)
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
    fn both_tables_are_made_and_filled() {
        let mut row = row(test(512, 0, 0), &[5_000_000]);
        row.subject.filename = "it's".to_owned();
        let head = Sql.head();
        assert!(head.starts_with("CREATE TABLE IF NOT EXISTS llama_bench (\n  build_commit TEXT,\n  build_number INTEGER,"));
        assert!(head.contains("  stddev_ts REAL\n);\n\nCREATE TABLE IF NOT EXISTS minfer_bench (\n  model_filename TEXT,"));
        let text = Sql.row(&row);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("INSERT INTO llama_bench (build_commit, build_number, "));
        assert!(lines[1].starts_with("INSERT INTO minfer_bench (model_filename, n_batch, n_threads, n_gpu_layers, n_prompt, n_gen, n_depth, test_time, median_ns, "));
        assert!(lines.iter().all(|line| line.contains("'it''s'") && line.ends_with(");")));
        assert!(lines[1].contains(", NULL"));
        for line in lines {
            let (names, values) = line.split_once(" VALUES ").unwrap();
            assert_eq!(names.matches(", ").count(), values.matches(", ").count());
        }
    }
}
