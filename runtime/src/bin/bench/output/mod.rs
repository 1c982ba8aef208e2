//! Printing rows: one file a format.

mod csv;
mod json;
mod md;
mod sql;

use crate::args::Args;
use crate::device::{Device, Layers, Placement};
use crate::plan::{Batch, Grid};
use crate::record::Row;
use clap::ValueEnum;
use cli::{Failure, Ui};
use serde_json::Value;
use std::io::Write as _;

/// A format of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A Markdown table
    Md,
    /// Comma-separated values, each in quotes
    Csv,
    /// One list
    Json,
    /// One object a line
    Jsonl,
    /// Statements that make tables and fill them
    Sql,
}

/// What a table is about: which columns have something to say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Several models: which planes each holds.
    pub(crate) planes: bool,
    /// Several batch sizes, or another than the usual.
    pub(crate) batch: bool,
    /// They are not what is computed together.
    pub(crate) ubatch: bool,
    /// Several numbers of threads, or another than the usual, or something runs on the CPU.
    pub(crate) threads: bool,
    /// Several devices.
    pub(crate) device: bool,
    pub(crate) tier: bool,
    pub(crate) prefill: bool,
    /// Something runs on a GPU: how many layers.
    pub(crate) gpu: bool,
    /// How far it is to the limits.
    pub(crate) limits: bool,
    /// Load times in place of tokens a second.
    pub(crate) load: bool,
}

impl Shape {
    fn of(args: &Args, grid: &Grid) -> Self {
        let test = &args.flags.test;
        let differ = |key: fn(&Placement) -> i64| {
            let mut keys = grid.placements.iter().map(key);
            let first = keys.next();
            keys.any(|key| Some(key) != first)
        };
        // As far as it can be known before: `auto` may still find that a model does not fit.
        let has_gpu = grid.placements.iter().any(|placement| placement.device == Device::Auto)
            && runtime::probe_gpu(0).is_ok();
        let on_gpu = |placement: &Placement| match placement.device {
            _ if placement.layers == Some(Layers::Last(0)) => false,
            Device::Auto => has_gpu,
            Device::Cpu => false,
            Device::Cuda(_) => true,
        };
        // llama-bench's default, spelled out, is what is done without it.
        let is_usual = |batch: &Batch| batch.together == 512 && [512, 2048].contains(&batch.given);
        let batch = grid.batches.len() > 1 || !grid.batches.iter().all(is_usual);
        Self {
            planes: args.models().count() > 1,
            batch,
            ubatch: batch && grid.batches.iter().any(|batch| batch.given != batch.together),
            threads: grid.n_threads != [cli::threads(None)] || !grid.placements.iter().all(on_gpu),
            device: differ(|placement| match placement.device {
                Device::Auto => -2,
                Device::Cpu => -1,
                Device::Cuda(ordinal) => ordinal as i64,
            }),
            tier: grid.tiers.len() > 1,
            prefill: differ(|placement| placement.prefill as i64),
            gpu: grid.placements.iter().any(on_gpu),
            limits: !test.no_limits && !args.flags.load.load,
            load: args.flags.load.load,
        }
    }
}

/// Writes rows of one format.
pub(crate) trait Printer {
    /// What comes before the first row.
    fn head(&mut self) -> String;
    /// A row.
    fn row(&mut self, row: &Row) -> String;
    /// What comes behind the last.
    fn foot(&mut self) -> String;
}

impl Format {
    fn printer(self, shape: Shape) -> Box<dyn Printer> {
        match self {
            Self::Md => Box::new(md::Table::new(shape)),
            Self::Csv => Box::new(csv::Csv),
            Self::Json => Box::new(json::List::default()),
            Self::Jsonl => Box::new(json::Lines),
            Self::Sql => Box::new(sql::Sql),
        }
    }
}

/// Where rows go: standard output, and standard error in another format.
pub(crate) struct Output<'u> {
    ui: &'u Ui,
    out: Box<dyn Printer>,
    err: Option<Box<dyn Printer>>,
    n_rows: usize,
    /// Rows for `--json`.
    objects: Vec<Value>,
}

impl<'u> Output<'u> {
    pub(crate) fn new(args: &Args, ui: &'u Ui, grid: &Grid) -> Self {
        let shape = Shape::of(args, grid);
        let out = args.flags.out.output.printer(shape);
        let err = args.flags.out.output_err.map(|format| format.printer(shape));
        ui.set("schema", "minfer.bench/1");
        Self { ui, out, err, n_rows: 0, objects: Vec::new() }
    }

    /// Prints a row as soon as it is there.
    ///
    /// # Errors
    /// Standard output.
    pub(crate) fn row(&mut self, row: &Row) -> Result<(), Failure> {
        let is_first = self.n_rows == 0;
        self.n_rows += 1;
        let text = |printer: &mut Box<dyn Printer>| {
            let head = if is_first { printer.head() } else { String::new() };
            head + &printer.row(row)
        };
        if let Some(err) = &mut self.err {
            let text = text(err);
            write_err(&text);
        }
        if self.ui.is_json() {
            self.objects.push(json::object(row));
            return Ok(());
        }
        let text = text(&mut self.out);
        self.ui.print(text)
    }

    /// Completes what was printed, also of tests that were ended early.
    ///
    /// # Errors
    /// Standard output.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        if self.ui.is_json() {
            self.ui.set("tests", std::mem::take(&mut self.objects));
        }
        if self.n_rows == 0 {
            return Ok(());
        }
        if let Some(err) = &mut self.err {
            let text = err.foot();
            write_err(&text);
        }
        if self.ui.is_json() {
            return Ok(());
        }
        let text = self.out.foot();
        self.ui.print(text)
    }
}

/// Nobody can be told that standard error is gone.
fn write_err(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
