//! A real model cut to its first layers and the first rows of its vocabulary, small enough to be
//! carried anywhere: `cut_gguf IN.gguf OUT.gguf N_LAYERS N_ROWS [IDS.json OUT_IDS.json]`
//!
//! The layers that stay keep their types, so that every kernel sees real weights. The tokenizer
//! goes: such a model runs on token ids. Of a list of ids (or an object with one under "ids") those
//! below `N_ROWS` are kept.
#![allow(clippy::print_stdout)] // a program for developers
#![allow(clippy::unwrap_used)] // a program for developers

use format_spec::Gguf;
use format_spec::gguf::{TensorInfo, Value};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use tests::gguf_writer::GgufBuilder;

/// More than any header in use.
const MAX_HEADER: u64 = 64 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, n_layers, n_rows, ids @ ..] = &args[..] else {
        panic!("usage: cut_gguf IN.gguf OUT.gguf N_LAYERS N_ROWS [IDS.json OUT_IDS.json]");
    };
    let (n_layers, n_rows): (u32, u64) = (n_layers.parse().unwrap(), n_rows.parse().unwrap());
    let file = File::open(input).unwrap();
    let mut header = vec![0; file.metadata().unwrap().len().min(MAX_HEADER) as usize];
    file.read_exact_at(&mut header, 0).unwrap();
    let gguf = Gguf::parse_header(&header).unwrap();
    let mut out = metadata(&gguf, &header, n_layers, n_rows);
    for tensor in gguf.tensors().iter().filter(|tensor| stays(tensor.name(), n_layers)) {
        let dims = cut_dims(tensor, n_rows);
        let row_bytes = tensor.n_bytes() / tensor.n_rows();
        let mut data = vec![0; (row_bytes * dims[1..].iter().product::<u64>()) as usize];
        file.read_exact_at(&mut data, gguf.data_offset() + tensor.offset()).unwrap();
        println!("{} {} {dims:?}", tensor.name(), tensor.quant().name());
        out = out.tensor(tensor.name(), &dims, tensor.quant(), &data);
    }
    std::fs::write(output, out.build()).unwrap();
    if let [ids, out_ids] = ids {
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(ids).unwrap()).unwrap();
        let list = json.get("ids").unwrap_or(&json).as_array().unwrap();
        let kept: Vec<u64> =
            list.iter().map(|id| id.as_u64().unwrap()).filter(|&id| id < n_rows).collect();
        println!("{} of {} ids", kept.len(), list.len());
        std::fs::write(out_ids, serde_json::to_string(&kept).unwrap()).unwrap();
    }
}

/// All keys but the tokenizer's; the number of layers is the new one.
fn metadata(gguf: &Gguf<'_>, header: &[u8], n_layers: u32, n_rows: u64) -> GgufBuilder {
    let metadata = gguf.metadata();
    let architecture = metadata.str("general.architecture").unwrap().unwrap();
    let blocks = format!("{architecture}.block_count");
    // What llama.cpp needs to know of a model without a tokenizer.
    let mut out = GgufBuilder::new()
        .kv_str("tokenizer.ggml.model", "no_vocab")
        .kv_u32(&format!("{architecture}.vocab_size"), n_rows as u32);
    for (key, value) in metadata.iter().filter(|(key, _)| !is_replaced(key)) {
        let start = metadata.value_offset(key).unwrap() as usize;
        out = match value {
            _ if key == blocks => out.kv_u32(key, n_layers),
            Value::Str(text) => out.kv_str(key, text),
            Value::Array(array) => {
                let len = array.len() as u64;
                out.kv_array_raw(key, array.elem_type() as u32, len, array.bytes())
            }
            other => {
                let len = other.value_type().fixed_bytes().unwrap();
                out.kv_raw(key, other.value_type() as u32, &header[start..start + len])
            }
        };
    }
    out
}

fn is_replaced(key: &str) -> bool {
    key.starts_with("tokenizer.") || key.ends_with(".vocab_size")
}

/// Whether a tensor is of a layer that stays, or of none.
fn stays(name: &str, n_layers: u32) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
    layer.is_none_or(|layer| layer.parse::<u32>().unwrap() < n_layers)
}

/// Dimensions, innermost first; a vocabulary is cut.
fn cut_dims(tensor: &TensorInfo<'_>, n_rows: u64) -> Vec<u64> {
    let mut dims = tensor.dims().to_vec();
    if matches!(tensor.name(), "token_embd.weight" | "output.weight") {
        dims[1] = dims[1].min(n_rows);
    }
    dims
}
