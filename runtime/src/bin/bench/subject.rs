//! The model that is measured: what it is called, how large it is, what the file holds.

use cli::Failure;
use format_spec::container::Container;
use format_spec::vocab::VocabView;
use runtime::tokenizer::Tokenizer;
use std::collections::BTreeMap;
use std::path::Path;

/// What is known of a model before it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The path as given.
    pub(crate) filename: String,
    /// Architecture, size and file type.
    pub(crate) kind: String,
    /// Bytes of the tensors in the GGUF.
    pub(crate) n_bytes: u64,
    /// Elements of the tensors.
    pub(crate) n_params: u64,
    /// Bytes of the packed file.
    pub(crate) container_bytes: u64,
    /// Kinds of objects in it.
    pub(crate) planes: String,
    /// The token that every sequence begins with, if the model wants one.
    pub(crate) bos: Option<u32>,
}

impl Subject {
    /// Reads it from the container in the file at `path`.
    ///
    /// # Errors
    /// If the baked vocabulary is not usable.
    pub(crate) fn of(path: &Path, container: &Container<'_>) -> Result<Self, Failure> {
        let shards = || container.source().shards().flat_map(|shard| shard.gguf.tensors());
        let n_params: u64 = shards().map(|tensor| tensor.n_elems()).sum();
        let mut planes: Vec<&str> = Vec::new();
        for object in container.objects() {
            if !planes.contains(&object.kind.name()) {
                planes.push(object.kind.name());
            }
        }
        Ok(Self {
            filename: path.display().to_string(),
            kind: kind(container, n_params),
            n_bytes: shards().map(|tensor| tensor.n_bytes()).sum(),
            n_params,
            container_bytes: container.header().file_len,
            planes: planes.join("+"),
            bos: Self::bos(path, container)?,
        })
    }

    /// The token that every sequence begins with, if the model wants one.
    ///
    /// # Errors
    /// If the baked vocabulary is not usable.
    pub(crate) fn bos(path: &Path, container: &Container<'_>) -> Result<Option<u32>, Failure> {
        let vocab = container.vocab_bytes().map(VocabView::new).transpose();
        let tokenizer = vocab.map_err(|e| Failure::format(path, &e))?.map(Tokenizer::from);
        Ok(tokenizer.filter(Tokenizer::add_bos).and_then(|tokenizer| tokenizer.bos()))
    }
}

/// `qwen2 1.5B Q4_K - Medium`.
fn kind(container: &Container<'_>, n_params: u64) -> String {
    let metadata = container.gguf().metadata();
    let text = |key: &str| metadata.str(key).ok().flatten().map(str::to_owned);
    let architecture = text("general.architecture").unwrap_or_else(|| "unknown".to_owned());
    let size = text("general.size_label").filter(|label| !label.trim().is_empty());
    let size = size.unwrap_or_else(|| size_label(n_params));
    let file_type = metadata.u64("general.file_type").ok().flatten().and_then(file_type_name);
    let file_type = file_type.map_or_else(|| main_type(container), str::to_owned);
    format!("{architecture} {size} {file_type}")
}

/// Parameters in the unit that fits, with two digits at least.
fn size_label(n_params: u64) -> String {
    let n = n_params as f64;
    match n {
        _ if n >= 9.95e9 => format!("{:.0}B", n / 1e9),
        _ if n >= 1e9 => format!("{:.1}B", n / 1e9),
        _ if n >= 1e6 => format!("{:.0}M", n / 1e6),
        _ => format!("{:.0}K", n / 1e3),
    }
}

/// What `general.file_type` calls a mix of quant types, as llama.cpp prints it.
fn file_type_name(id: u64) -> Option<&'static str> {
    Some(match id {
        0 => "all F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K - Medium",
        11 => "Q3_K - Small",
        12 => "Q3_K - Medium",
        13 => "Q3_K - Large",
        14 => "Q4_K - Small",
        15 => "Q4_K - Medium",
        16 => "Q5_K - Small",
        17 => "Q5_K - Medium",
        18 => "Q6_K",
        21 => "Q2_K - Small",
        32 => "BF16",
        _ => return None,
    })
}

/// The type that most bytes are of.
fn main_type(container: &Container<'_>) -> String {
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for shard in container.source().shards() {
        for tensor in shard.gguf.tensors() {
            *bytes.entry(tensor.quant().name()).or_default() += tensor.n_bytes();
        }
    }
    let most = bytes.into_iter().max_by_key(|&(_, n_bytes)| n_bytes);
    most.map_or_else(|| "unknown".to_owned(), |(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        let labels =
            [134_515_008, 494_032_768, 1_543_714_304, 7_615_616_512, 46_702_792_704, 5_000];
        let expected = ["135M", "494M", "1.5B", "7.6B", "47B", "5K"];
        assert_eq!(labels.map(size_label), expected.map(str::to_owned));
    }
}
