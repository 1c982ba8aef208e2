//! `--inspect`: metadata and tensors of the input.

use std::fmt::Write as _;
use std::fs::File;

use cli::{ExitCode, Failure, Ui};
use preprocess::{Input, show};
use serde_json::{Map, Value, json};

/// Prints keys, values and tensors of a `.gguf` or `.mpk`.
pub(crate) fn run(input: &Input<File>, ui: &Ui) -> Result<ExitCode, Failure> {
    let gguf = input.gguf().map_err(|error| Failure::input(error.to_string()))?;
    if ui.is_json() {
        let metadata: Map<String, Value> = gguf
            .metadata()
            .iter()
            .map(|(key, value)| (key.to_owned(), show::to_json(value)))
            .collect();
        let tensors = gguf.tensors().iter().map(|tensor| {
            json!({
                "name": tensor.name(),
                "type": tensor.quant().name(),
                "dims": tensor.dims(),
                "offset": tensor.range().start,
                "bytes": tensor.n_bytes(),
            })
        });
        ui.set("gguf_version", gguf.version());
        ui.set("tensors", tensors.collect::<Vec<_>>());
        ui.set("metadata", metadata);
        return Ok(ExitCode::Ok);
    }
    let mut text = String::new();
    let _ = writeln!(
        text,
        "GGUF version {}, {} keys, {} tensors, alignment {}",
        gguf.version(),
        gguf.metadata().len(),
        gguf.tensors().len(),
        gguf.alignment(),
    );
    for (key, value) in gguf.metadata().iter() {
        let _ = writeln!(text, "{key} = {}", show::to_line(value));
    }
    for tensor in gguf.tensors() {
        let dims: Vec<_> = tensor.dims().iter().map(u64::to_string).collect();
        let _ = writeln!(
            text,
            "{:<40} {:>6} {:>20} {:>14} bytes at {}",
            tensor.name(),
            tensor.quant().name(),
            dims.join(" x "),
            tensor.n_bytes(),
            tensor.range().start,
        );
    }
    ui.print(text)?;
    Ok(ExitCode::Ok)
}
