//! What `minfer-pack` says about a plan and about what it did.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use cli::{Bytes, ExitCode, Failure, Seconds, Ui, hex};
use preprocess::{FigureRow, Packer};
use serde_json::{Value, json};

/// A plan with the size of its input.
pub(crate) struct Summary<'p> {
    pub(crate) packer: &'p Packer<'p, File>,
    pub(crate) input_bytes: u64,
}

impl Summary<'_> {
    /// Prints the plan on standard output.
    pub(crate) fn dry_run(&self, output: &Path, ui: &Ui) -> Result<ExitCode, Failure> {
        let dir = output.parent().filter(|dir| !dir.as_os_str().is_empty());
        let stat = rustix::fs::statvfs(dir.unwrap_or(Path::new(".")));
        let free = stat.ok().map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        let working = self.packer.working_bytes(ui.threads());
        if ui.is_json() {
            self.set_json(ui);
            ui.set("output", output.to_string_lossy());
            ui.set("free_disk_bytes", free);
            ui.set("working_bytes", working);
            return Ok(ExitCode::Ok);
        }
        let mut text = self.table();
        let file_len = self.packer.file_len();
        let _ = writeln!(text, "\noutput         {} (not written)", output.display());
        let _ = writeln!(
            text,
            "size           {file_len} bytes ({}, {} of the input)",
            Bytes(file_len),
            self.growth()
        );
        let _ = writeln!(text, "working memory at most {}", Bytes(working));
        if let Some(free) = free {
            let enough = if free < file_len { ": NOT ENOUGH" } else { "" };
            let _ = writeln!(text, "free disk      {}{enough}", Bytes(free));
        }
        ui.print(text)?;
        Ok(ExitCode::Ok)
    }

    fn growth(&self) -> String {
        let growth = self.packer.file_len() as f64 / self.input_bytes.max(1) as f64 - 1.0;
        format!("{:+.1} %", growth * 100.0)
    }

    /// The table of figures, by quant type and plane kind, in bytes.
    pub(crate) fn table(&self) -> String {
        let figures = self.packer.plan().figures();
        let mut text = String::new();
        let header = ["type", "plane", "objects", "in GGUF", "on disk", "in GPU memory", "a token"];
        push_row(&mut text, header.map(str::to_owned));
        for row in &figures.rows {
            let n = |n: u64| if n == 0 { "-".to_owned() } else { n.to_string() };
            push_row(
                &mut text,
                [
                    row.quant.name().to_owned(),
                    row.kind.name().to_owned(),
                    row.n_objects.to_string(),
                    n(row.gguf_bytes),
                    row.stored_bytes.to_string(),
                    row.stored_bytes.to_string(),
                    n(row.token_bytes),
                ],
            );
        }
        let front = self.packer.front_len();
        let stored = figures.total(|row| row.stored_bytes);
        let header_in_gguf = self.input_bytes.saturating_sub(figures.total(|row| row.gguf_bytes));
        let head = ["header, index, source, tokenizer", "", ""].map(str::to_owned);
        let [name, kind, count] = head;
        let none = || "-".to_owned();
        let row =
            [name, kind, count, header_in_gguf.to_string(), front.to_string(), none(), none()];
        push_row(&mut text, row);
        let end = self.packer.file_len().saturating_sub(front).saturating_sub(stored);
        let row = ["end of the file", "", "", "-", &end.to_string(), "-", "-"];
        push_row(&mut text, row.map(str::to_owned));
        push_row(
            &mut text,
            [
                "total".to_owned(),
                String::new(),
                figures.total(|row| row.n_objects).to_string(),
                self.input_bytes.to_string(),
                self.packer.file_len().to_string(),
                stored.to_string(),
                figures.total(|row| row.token_bytes).to_string(),
            ],
        );
        text
    }

    fn set_json(&self, ui: &Ui) {
        let plan = self.packer.plan();
        let figures = plan.figures();
        let row = |row: &FigureRow| {
            json!({
                "type": row.quant.name(),
                "plane": row.kind.name(),
                "objects": row.n_objects,
                "gguf_bytes": row.gguf_bytes,
                "object_bytes": row.object_bytes,
                "disk_bytes": row.stored_bytes,
                "gpu_bytes": row.stored_bytes,
                "token_bytes": row.token_bytes,
            })
        };
        ui.set("tensors", plan.tensors.len());
        ui.set("input_bytes", self.input_bytes);
        ui.set("file_bytes", self.packer.file_len());
        ui.set("front_bytes", self.packer.front_len());
        ui.set("gpu_bytes", figures.total(|row| row.stored_bytes));
        ui.set("token_bytes", figures.total(|row| row.token_bytes));
        ui.set("planes", figures.rows.iter().map(row).collect::<Vec<Value>>());
    }

    /// The line after a pack, and its JSON.
    pub(crate) fn done(
        &self,
        output: &Path,
        root: [u8; 32],
        verified: bool,
        elapsed: Duration,
        ui: &Ui,
    ) {
        let root = hex(&root);
        let file_len = self.packer.file_len();
        let n_tensors = self.packer.plan().tensors.len();
        let megabytes = file_len as f64 / 1e6;
        ui.note(format_args!(
            "{}: packed {n_tensors} tensors, {} -> {} ({}) in {} ({:.0} MB/s), sha256:{root}{}",
            output.display(),
            Bytes(self.input_bytes),
            Bytes(file_len),
            self.growth(),
            Seconds(elapsed),
            megabytes / elapsed.as_secs_f64().max(1e-9),
            if verified { " verified" } else { " not verified" },
        ));
        if ui.is_json() {
            self.set_json(ui);
            ui.set("output", output.to_string_lossy());
            ui.set("root", root);
            ui.set("verified", verified);
            ui.set("elapsed_ms", u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        }
    }
}

/// Names to the left, numbers to the right.
fn push_row(text: &mut String, [quant, kind, n, gguf, disk, gpu, token]: [String; 7]) {
    let names = if kind.is_empty() {
        // A wide name may run on over the columns that it leaves empty.
        format!("{quant:<14} {n:>7}")
    } else {
        format!("{quant:<6} {kind:<7} {n:>7}")
    };
    let line = format!("{names:<24} {gguf:>14} {disk:>14} {gpu:>14} {token:>14}");
    let _ = writeln!(text, "{}", line.trim_end());
}
