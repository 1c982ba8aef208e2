//! The list of a network's tensors with their shapes, and the comparison with what a file has.

use super::config::{Config, Experts};
use crate::error::{Error, Result};
use crate::gguf::TensorInfo;
use std::collections::HashMap;

/// A tensor that an architecture has a use for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedTensor {
    /// Its GGUF name.
    pub name: String,
    /// The layer that it belongs to, `None` for what stands before and behind the layers.
    pub layer: Option<usize>,
    /// Rows: all outer dimensions multiplied, 1 for a vector.
    pub n_rows: u64,
    /// Elements a row.
    pub row_len: u64,
    /// Whether the model cannot do without.
    pub required: bool,
}

/// A list in the making.
#[derive(Debug, Default)]
pub(super) struct Tensors {
    list: Vec<ExpectedTensor>,
    /// The layer that is being listed.
    layer: Option<usize>,
}

impl Tensors {
    fn push(&mut self, name: String, n_rows: usize, row_len: usize, required: bool) {
        let (n_rows, row_len, layer) = (n_rows as u64, row_len as u64, self.layer);
        self.list.push(ExpectedTensor { name, layer, n_rows, row_len, required });
    }

    /// Lists what `one` lists, for each layer: its arguments are this list and the layer.
    pub(super) fn layers(&mut self, config: &Config, one: impl Fn(&mut Self, usize)) {
        for layer in 0..config.n_layer {
            self.layer = Some(layer);
            one(self, layer);
        }
        self.layer = None;
    }

    /// The matrix `{name}.weight`, `[n_rows, row_len]`, and perhaps `{name}.bias`.
    pub(super) fn matrix(&mut self, name: &str, n_rows: usize, row_len: usize) {
        self.push(format!("{name}.weight"), n_rows, row_len, true);
        self.push(format!("{name}.bias"), 1, n_rows, false);
    }

    /// As [`matrix`](Self::matrix), if it is there.
    pub(super) fn optional_matrix(&mut self, name: &str, n_rows: usize, row_len: usize) {
        self.push(format!("{name}.weight"), n_rows, row_len, false);
        self.push(format!("{name}.bias"), 1, n_rows, false);
    }

    /// A vector of `len` elements.
    pub(super) fn vector(&mut self, name: &str, len: usize) {
        self.push(name.to_owned(), 1, len, true);
    }

    /// A vector of `len` elements, if it is there.
    pub(super) fn optional_vector(&mut self, name: &str, len: usize) {
        self.push(name.to_owned(), 1, len, false);
    }

    /// Norm and projections of layer `layer`'s attention.
    pub(super) fn attention(&mut self, config: &Config, layer: usize) {
        let n_q = config.n_head * config.head_dim;
        let n_kv = config.n_head_kv * config.head_dim;
        let name = |part: &str| format!("blk.{layer}.attn_{part}");
        self.vector(&name("norm.weight"), config.n_embd);
        self.matrix(&name("q"), n_q, config.n_embd);
        self.matrix(&name("k"), n_kv, config.n_embd);
        self.matrix(&name("v"), n_kv, config.n_embd);
        self.matrix(&name("output"), config.n_embd, n_q);
    }

    /// Norms of the heads of layer `layer`'s queries and keys.
    pub(super) fn head_norms(&mut self, config: &Config, layer: usize) {
        for part in ["q", "k"] {
            self.vector(&format!("blk.{layer}.attn_{part}_norm.weight"), config.head_dim);
        }
    }

    /// Norm and matrices of layer `layer`'s second half: the experts, where there are any, else a
    /// gated feed-forward network.
    pub(super) fn feed_forward_or_experts(&mut self, config: &Config, layer: usize) {
        match &config.experts {
            None => self.feed_forward(config, layer),
            Some(experts) => self.experts(config, experts, layer),
        }
    }

    fn experts(&mut self, config: &Config, experts: &Experts, layer: usize) {
        let Experts { n_expert, n_ff, are_stacked, .. } = *experts;
        let name = |part: &str| format!("blk.{layer}.ffn_{part}.weight");
        self.vector(&name("norm"), config.n_embd);
        self.push(name("gate_inp"), n_expert, config.n_embd, true);
        for (part, n_rows, row_len) in [
            ("gate", n_ff, config.n_embd),
            ("up", n_ff, config.n_embd),
            ("down", config.n_embd, n_ff),
        ] {
            if are_stacked {
                self.push(name(&format!("{part}_exps")), n_expert * n_rows, row_len, true);
                continue;
            }
            for expert in 0..n_expert {
                self.push(name(&format!("{part}.{expert}")), n_rows, row_len, true);
            }
        }
    }

    /// Norm and projections of layer `layer`'s gated feed-forward network.
    pub(super) fn feed_forward(&mut self, config: &Config, layer: usize) {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}");
        self.vector(&name("norm.weight"), config.n_embd);
        self.matrix(&name("gate"), config.n_ff, config.n_embd);
        self.matrix(&name("up"), config.n_ff, config.n_embd);
        self.matrix(&name("down"), config.n_embd, config.n_ff);
    }

    /// Embedding, final norm, and the matrix that makes logits (the embedding, where there is no
    /// other).
    pub(super) fn ends(&mut self, config: &Config) {
        self.matrix("token_embd", config.n_vocab, config.n_embd);
        self.vector("output_norm.weight", config.n_embd);
        self.optional_matrix("output", config.n_vocab, config.n_embd);
    }

    /// Compares the list with the tensors of a file.
    pub(super) fn check(&self, found: &[&TensorInfo<'_>]) -> Result<()> {
        let found_by_name: HashMap<&str, &TensorInfo<'_>> =
            found.iter().map(|&tensor| (tensor.name(), tensor)).collect();
        for ExpectedTensor { name, n_rows, row_len, required, .. } in &self.list {
            let tensor = found_by_name.get(name.as_str());
            let is_right = match tensor {
                Some(tensor) => (tensor.n_rows(), tensor.row_len()) == (*n_rows, *row_len),
                None => !required,
            };
            if !is_right {
                let nothing = "nothing".to_owned();
                let found = tensor.map_or(nothing, |t| shape(t.n_rows(), t.row_len()));
                let expected = shape(*n_rows, *row_len);
                return Err(Error::Tensor { tensor: name.clone(), expected, found });
            }
            let matrix = name.strip_suffix(".bias").map(|matrix| format!("{matrix}.weight"));
            if let (Some(matrix), Some(bias)) = (matrix, tensor)
                && !found_by_name.contains_key(matrix.as_str())
            {
                // Nothing would add it.
                let found = shape(bias.n_rows(), bias.row_len());
                let expected = format!("nothing (there is no {matrix})");
                return Err(Error::Tensor { tensor: name.clone(), expected, found });
            }
        }
        let expected: HashMap<&str, &ExpectedTensor> =
            self.list.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        match found.iter().find(|tensor| !expected.contains_key(tensor.name())) {
            None => Ok(()),
            // It would be missing from the model's results.
            Some(tensor) => Err(Error::Tensor {
                tensor: tensor.name().to_owned(),
                expected: "nothing (the architecture has no such tensor)".to_owned(),
                found: shape(tensor.n_rows(), tensor.row_len()),
            }),
        }
    }

    pub(super) fn into_vec(self) -> Vec<ExpectedTensor> {
        self.list
    }
}

/// A shape as messages give it: rows first.
fn shape(n_rows: u64, row_len: u64) -> String {
    if n_rows == 1 { format!("[{row_len}]") } else { format!("[{n_rows}, {row_len}]") }
}
