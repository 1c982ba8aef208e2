//! The table that people read: llama-bench's columns and widths, then ours.

use super::{Printer, Shape};
use crate::plan::layers_number;
use crate::record::Row;
use cli::Bytes;

/// A Markdown table.
pub(super) struct Table {
    columns: Vec<Column>,
}

/// A column: its name, its width (left-aligned if negative), and what stands in it.
struct Column {
    name: &'static str,
    width: isize,
    cell: fn(&Row) -> String,
}

impl Table {
    pub(super) fn new(shape: Shape) -> Self {
        Self { columns: Self::columns(shape) }
    }

    fn columns(shape: Shape) -> Vec<Column> {
        let mut columns = Vec::new();
        let mut add = |when: bool, name, width, cell: fn(&Row) -> String| {
            if when {
                columns.push(Column { name, width, cell });
            }
        };
        add(true, "model", -30, |row| row.subject.kind.clone());
        add(true, "size", 10, |row| size(row.subject.n_bytes));
        add(true, "params", 10, |row| params(row.subject.n_params));
        add(true, "backend", -10, |row| row.place.backend().to_owned());
        add(shape.gpu, "ngl", 3, |row| layers_number(row.setup.placement.layers).to_string());
        add(shape.threads, "threads", 7, |row| row.test.n_threads.to_string());
        add(shape.batch, "n_batch", 7, |row| row.test.n_batch.to_string());
        add(shape.ubatch, "n_ubatch", 8, |row| row.test.n_ubatch.to_string());
        add(true, "test", 15, test);
        add(!shape.load, "t/s", 20, |row| pm(&row.samples_ts(), 1.0));
        add(shape.load, "usable ms", 10, |row| loaded(row, |load| ms(load.usable_ns)));
        let on_gpu = shape.load && shape.gpu;
        add(on_gpu, "context ms", 10, |row| loaded(row, |load| some_ms(load.context_ns)));
        add(on_gpu, "upload ms", 10, |row| loaded(row, |load| some_ms(load.upload_ns)));
        add(on_gpu, "library ms", 10, |row| loaded(row, |load| some_ms(load.library_ns)));
        add(on_gpu, "read ahead", 10, |row| loaded(row, |load| bytes(load.read_ahead_bytes)));
        add(shape.load, "first token ms", 20, |row| {
            pm(&row.samples_ns.iter().map(|&ns| ns as f64).collect::<Vec<_>>(), 1e-6)
        });
        add(shape.load, "GB/s", 8, |row| {
            loaded(row, |load| format!("{:.2}", load.bytes_per_second() / 1e9))
        });
        add(shape.load, "file", 10, |row| Bytes(row.subject.container_bytes).to_string());
        add(shape.load, "peak RSS", 10, |row| loaded(row, |load| bytes(load.peak_rss_bytes)));
        add(shape.load, "not file", 10, |row| loaded(row, |load| bytes(load.anon_rss_bytes)));
        add(shape.load, "KV cache", 10, |row| loaded(row, |load| bytes(Some(load.kv_bytes))));
        add(shape.device, "device", -7, |row| row.place.device());
        add(shape.planes, "planes", -14, |row| row.subject.planes.clone());
        add(shape.tier, "tier", -7, |row| row.setup.tier.name().to_owned());
        add(shape.prefill, "prefill", -7, |row| {
            format!("{:?}", row.setup.placement.prefill).to_lowercase()
        });
        add(shape.limits, "reached", 12, reached);
        add(shape.limits, "of limit", 8, |row| {
            row.reached.percent().map_or(String::new(), |percent| format!("{percent:.1} %"))
        });
        columns
    }

    fn line(&self, cell: impl Fn(&Column) -> String) -> String {
        let padded = |column: &Column| {
            let (cell, width) = (cell(column), column.width.unsigned_abs());
            if column.width < 0 {
                format!(" {cell:<width$} |")
            } else {
                format!(" {cell:>width$} |")
            }
        };
        self.columns.iter().map(padded).fold("|".to_owned(), |line, cell| line + &cell) + "\n"
    }
}

impl Printer for Table {
    fn head(&mut self) -> String {
        let rule = |column: &Column| {
            let dashes = "-".repeat(column.width.unsigned_abs() - 1);
            if column.width < 0 { dashes + "-" } else { dashes + ":" }
        };
        self.line(|column| column.name.to_owned()) + &self.line(rule)
    }

    fn row(&mut self, row: &Row) -> String {
        self.line(|column| (column.cell)(row))
    }

    fn foot(&mut self) -> String {
        format!("\nbuild: {} ({})\n", cli::COMMIT, cli::BUILD_NUMBER)
    }
}

fn size(n_bytes: u64) -> String {
    let mib = n_bytes as f64 / 1024.0 / 1024.0;
    if n_bytes < 1 << 30 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

fn params(n: u64) -> String {
    let n_f = n as f64;
    if n < 1_000_000_000 { format!("{:.2} M", n_f / 1e6) } else { format!("{:.2} B", n_f / 1e9) }
}

/// Mean and standard deviation.
fn pm(samples: &[f64], scale: f64) -> String {
    let scaled: Vec<f64> = samples.iter().map(|sample| sample * scale).collect();
    format!("{:.2} ± {:.2}", crate::stats::mean(&scaled), crate::stats::deviation(&scaled))
}

fn test(row: &Row) -> String {
    match &row.load {
        Some(load) if load.cold => format!("load {} cold", row.test.name()),
        Some(_) => format!("load {}", row.test.name()),
        None => row.test.name(),
    }
}

fn loaded(row: &Row, cell: impl Fn(&crate::load::Loaded) -> String) -> String {
    row.load.as_ref().map_or(String::new(), cell)
}

fn ms(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e6)
}

fn some_ms(ns: Option<u64>) -> String {
    ns.map_or(String::new(), ms)
}

fn bytes(n: Option<u64>) -> String {
    n.map_or(String::new(), |n| Bytes(n).to_string())
}

/// Bytes or operations a second.
fn reached(row: &Row) -> String {
    let Some(per_second) = row.reached.per_second else { return String::new() };
    match row.reached.prompt_ops {
        Some(_) => format!("{:.3} TOPS", per_second / 1e12),
        None => format!("{:.2} GB/s", per_second / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limit;
    use crate::plan::tests::test;
    use crate::record::Reached;
    use crate::record::tests::row;

    /// Of tests on the CPU alone.
    const CPU: Shape = Shape {
        planes: false,
        batch: false,
        ubatch: false,
        threads: true,
        device: false,
        tier: false,
        prefill: false,
        gpu: false,
        limits: false,
        load: false,
    };

    #[test]
    fn rows_of_several_devices_can_be_told_apart() {
        let mut first = row(test(512, 0, 0), &[1_000_000_000]);
        let on_cpu = first.clone();
        first.place.gpu = Some((1, "X".to_owned()));
        let text = table(Shape { device: true, gpu: true, ..CPU }, &[first, on_cpu]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("| backend    | ngl | threads |"), "{text}");
        assert!(lines[2].contains("| CUDA       |") && lines[2].ends_with("| cuda:1  |"), "{text}");
        assert!(lines[3].contains("| CPU        |") && lines[3].ends_with("| cpu     |"), "{text}");
    }

    fn table(shape: Shape, rows: &[Row]) -> String {
        let mut table = Table::new(shape);
        let mut text = table.head();
        rows.iter().for_each(|row| text += &table.row(row));
        text
    }

    /// Head and columns as llama-bench (build 11434) prints them.
    #[test]
    fn the_table_is_llama_benchs() {
        let mut small = row(test(0, 4, 8), &[40_000_000, 42_000_000]);
        small.subject.kind = "llama 135M Q4_1".to_owned();
        small.subject.n_bytes = 96_576_768;
        small.subject.n_params = 134_515_008;
        let rows = [row(test(512, 0, 0), &[1_000_000_000; 2]), small];
        let expected = "\
| model                          |       size |     params | backend    | threads |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | ------: | --------------: | -------------------: |
| qwen2 1.5B Q4_K - Medium       |   1.04 GiB |     1.78 B | CPU        |       2 |           pp512 |        512.00 ± 0.00 |
| llama 135M Q4_1                |  92.10 MiB |   134.52 M | CPU        |       2 |        tg4 @ d8 |         97.62 ± 3.37 |
";
        assert_eq!(table(CPU, &rows), expected);
    }

    #[test]
    fn ours_stand_behind() {
        let mut prompt = row(test(512, 0, 0), &[1_000_000_000]);
        let limit = |per_second| Some(Limit { per_second, name: "x".to_owned() });
        prompt.reached = Reached {
            prompt_ops: Some(800_000_000_000),
            per_second: Some(0.8e12),
            limit: limit(1e12),
            ..Reached::default()
        };
        let mut token = row(test(0, 128, 0), &[1_000_000_000]);
        token.reached =
            Reached { per_second: Some(33.3e9), limit: limit(37e9), ..Reached::default() };
        let both = row(test(512, 128, 0), &[1_000_000_000]);
        let shape =
            Shape { batch: true, ubatch: true, planes: true, tier: true, limits: true, ..CPU };
        let text = table(shape, &[prompt, token, both]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("| n_batch | n_ubatch |            test |                  t/s | planes         | tier    |      reached | of limit |"));
        assert!(lines[2].ends_with("| padded+exp+dsc | avx2    |   0.800 TOPS |   80.0 % |"));
        assert!(lines[3].ends_with("| padded+exp+dsc | avx2    |   33.30 GB/s |   90.0 % |"));
        assert!(lines[4].ends_with("| padded+exp+dsc | avx2    |              |          |"));
    }
}
