//! The options that print something about a container and exit.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cli::{ExitCode, Failure, Ui, hex};
use format_spec::container::{Container, Object};
use preprocess::{Error, ReadAt, show, verify};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::args::Args;

/// Prints what was asked for, for each file; goes on after a file that cannot be read.
pub(crate) fn run(args: &Args, ui: &Ui) -> Result<ExitCode, Failure> {
    let mut code = ExitCode::Ok;
    let mut results = Vec::new();
    for path in &args.models {
        match one(path, args, ui) {
            Ok(Some(result)) => results.push(result),
            Ok(None) => {}
            Err(failure) if failure.is_quiet() => return Err(failure),
            Err(failure) => {
                ui.error(format_args!("{failure}"));
                let name = path.to_string_lossy();
                let result = failure.code.name();
                results.push(json!({"name": name, "result": result, "error": failure.message}));
                if failure.code.code() > code.code() {
                    code = failure.code;
                }
            }
        }
    }
    if ui.is_json() {
        ui.set("files", results);
    }
    Ok(code)
}

fn one(path: &Path, args: &Args, ui: &Ui) -> Result<Option<Value>, Failure> {
    let (file, len_bytes) = cli::open_regular(path)?;
    let in_model = |error: Error| error.failure(path);
    let front = verify::read_front(&file, len_bytes).map_err(in_model)?;
    let container = verify::open(&front, len_bytes).map_err(in_model)?;
    let name = path.to_string_lossy();
    if args.print_sha256 {
        let digest = hex(&whole_sha256(&file, len_bytes).map_err(in_model)?);
        if ui.is_json() {
            return Ok(Some(json!({"name": name, "result": "ok", "sha256": digest})));
        }
        ui.print(sha256sum_line(&digest, path))?;
        return Ok(None);
    }
    let root = hex(&container.root());
    if args.root {
        if ui.is_json() {
            return Ok(Some(json!({"name": name, "result": "ok", "root": root})));
        }
        let line = match args.models.len() {
            1 => format!("{root}\n"),
            _ => format!("{root}  {name}\n"),
        };
        ui.print(line)?;
        return Ok(None);
    }
    if ui.is_json() {
        let mut result = Map::new();
        result.insert("name".to_owned(), json!(name));
        result.insert("result".to_owned(), json!("ok"));
        result.insert("root".to_owned(), json!(root));
        let (key, value) = match args.list {
            true => ("objects", container.objects().iter().map(object_json).collect()),
            false => ("metadata", metadata_json(&container)),
        };
        result.insert(key.to_owned(), value);
        return Ok(Some(Value::Object(result)));
    }
    ui.print(if args.list { list(&container) } else { metadata(&container) })?;
    Ok(None)
}

/// sha256 of the whole file, read on one thread while another hashes.
fn whole_sha256(file: &dyn ReadAt, len_bytes: u64) -> Result<[u8; 32], Error> {
    const CHUNK: u64 = 4 << 20;
    std::thread::scope(|scope| {
        let (chunks, received) = std::sync::mpsc::sync_channel::<Vec<u8>>(2);
        let hashing = scope.spawn(move || {
            let mut hasher = Sha256::new();
            received.iter().for_each(|chunk| hasher.update(&chunk));
            hasher.finalize().into()
        });
        let mut at = 0;
        while at < len_bytes {
            let n_bytes = CHUNK.min(len_bytes - at);
            let mut chunk = vec![0; usize::try_from(n_bytes).unwrap_or(0)];
            file.read_exact_at(&mut chunk, at).map_err(|source| Error::Read {
                what: format!("bytes {at}..{}", at + n_bytes),
                source,
            })?;
            at += n_bytes;
            // The other side only goes away by a panic, which join passes on.
            if chunks.send(chunk).is_err() {
                break;
            }
        }
        drop(chunks);
        Ok(hashing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// A line that `sha256sum -c` reads, whatever bytes the name has.
fn sha256sum_line(digest: &str, path: &Path) -> Vec<u8> {
    let (is_escaped, name) = escape(path.as_os_str().as_bytes());
    let mut line = Vec::new();
    if is_escaped {
        line.push(b'\\');
    }
    line.extend_from_slice(digest.as_bytes());
    line.extend_from_slice(b"  ");
    line.extend_from_slice(&name);
    line.push(b'\n');
    line
}

/// A name as the start of a line of results: where sha256sum would escape it, as sha256sum does,
/// with a backslash in front.
pub(crate) fn one_line_name(path: &Path) -> String {
    let (is_escaped, name) = escape(path.as_os_str().as_bytes());
    let mark = if is_escaped { "\\" } else { "" };
    format!("{mark}{}", String::from_utf8_lossy(&name))
}

/// Escapes line ends and backslashes; whether there were any.
fn escape(name: &[u8]) -> (bool, Vec<u8>) {
    let escaped: Vec<u8> = name
        .iter()
        .flat_map(|&byte| match byte {
            b'\\' => b"\\\\".to_vec(),
            b'\n' => b"\\n".to_vec(),
            b'\r' => b"\\r".to_vec(),
            _ => vec![byte],
        })
        .collect();
    (escaped.len() != name.len(), escaped)
}

fn list(container: &Container<'_>) -> String {
    let mut text = String::new();
    let width = container.objects().iter().map(|object| object.tensor.len()).max();
    let width = width.unwrap_or(0).max(6);
    let _ = writeln!(
        text,
        "{:<width$} {:>5} {:<7} {:>8} {:>8} {:>14} {:>12} {:>10}  sha256",
        "tensor", "type", "plane", "rows", "elements", "offset", "bytes", "padding"
    );
    for object in container.objects() {
        let short: String = hex(&object.sha256).chars().take(16).collect();
        let _ = writeln!(
            text,
            "{:<width$} {:>5} {:<7} {:>8} {:>8} {:>14} {:>12} {:>10}  {short}",
            object.tensor,
            object.quant.name(),
            object.kind.name(),
            object.geometry.n_rows,
            object.geometry.row_len,
            object.offset,
            object.len,
            object.layout.padding().total_bytes(object.len),
        );
    }
    text
}

fn object_json(object: &Object) -> Value {
    json!({
        "name": object.name,
        "tensor": object.tensor,
        "type": object.quant.name(),
        "plane": object.kind.name(),
        "rows": object.geometry.n_rows,
        "row_len": object.geometry.row_len,
        "offset": object.offset,
        "bytes": object.len,
        "padding": object.layout.padding().total_bytes(object.len),
        "sha256": hex(&object.sha256),
        "xxh3": format!("{:016x}", object.xxh3),
    })
}

fn metadata(container: &Container<'_>) -> String {
    let mut text = String::new();
    for (key, value) in container.gguf().metadata().iter() {
        let _ = writeln!(text, "{key} = {}", show::to_line(value));
    }
    text
}

fn metadata_json(container: &Container<'_>) -> Value {
    let pairs = container.gguf().metadata().iter();
    Value::Object(pairs.map(|(key, value)| (key.to_owned(), show::to_json(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn odd_names_are_escaped_as_sha256sum_does() {
        let line = |name: &[u8]| sha256sum_line("ab", Path::new(OsStr::from_bytes(name)));
        assert_eq!(line(b"m.mpk"), b"ab  m.mpk\n");
        assert_eq!(line(b"a\nb\\c"), b"\\ab  a\\nb\\\\c\n");
        assert_eq!(line(b"\xff"), b"ab  \xff\n");
        assert_eq!(one_line_name(Path::new("m.mpk")), "m.mpk");
        assert_eq!(one_line_name(Path::new("a\nb")), "\\a\\nb");
    }
}
