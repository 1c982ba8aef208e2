//! How many bytes a generated token must read, and how many operations a prompt takes.

use crate::plan::Test;
use format_spec::container::Container;
use format_spec::model::Config;
use kernels::cpu::GEMV_MAX_TOKENS;
use runtime::Model;
use runtime::report::{KernelReport, MatmulReport};

/// What a model's matrix products read and compute.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Work {
    /// Bytes of weights that a step of one token reads.
    pub(crate) decode_weight_bytes: u64,
    /// Bytes of weights that a step of many tokens reads.
    prefill_weight_bytes: u64,
    /// Multiplications and additions of weights with one token, without the output matrix.
    ops_per_token: u64,
    /// Those of the output matrix, which a prompt needs once.
    output_ops: u64,
    /// Bytes of keys and values of one position of one layer.
    kv_bytes: u64,
    /// Sliding window of each layer.
    windows: Vec<Option<usize>>,
}

/// How much of a matrix a token uses.
#[derive(Debug, Clone, Copy)]
struct Share {
    used: u64,
    of: u64,
}

impl Work {
    /// Of a loaded model.
    pub(crate) fn of(model: &Model<'_>, container: &Container<'_>) -> Self {
        let config = model.config();
        let report = model.explain();
        // The output matrix comes last, and a model without any matrix computes nothing.
        let (layers, output) = match report.split_last() {
            Some((output, layers)) => (layers, Some(output)),
            None => (&[][..], None),
        };
        let ops = |row: &MatmulReport| 2 * row.n_rows * row.row_len;
        let of_layer = |row: &MatmulReport| share(config, &row.name).part(ops(row));
        let kv_per_token = model.memory().kv_bytes_per_token;
        let bytes = |phase: fn(&MatmulReport) -> &KernelReport| -> u64 {
            let of = |row: &MatmulReport| {
                share(config, &row.name).part(read_bytes(container, row, phase(row)))
            };
            report.iter().map(of).sum()
        };
        Self {
            decode_weight_bytes: bytes(|row| &row.decode),
            prefill_weight_bytes: bytes(|row| &row.prefill),
            ops_per_token: layers.iter().map(of_layer).sum(),
            output_ops: output.map_or(0, ops),
            kv_bytes: kv_per_token / config.n_layer.max(1) as u64,
            windows: config.windows.clone(),
        }
    }

    /// Bytes of weights that a step of `n_tokens` reads at least once.
    pub(crate) fn weight_bytes(&self, n_tokens: usize) -> u64 {
        if n_tokens <= GEMV_MAX_TOKENS {
            self.decode_weight_bytes
        } else {
            self.prefill_weight_bytes
        }
    }

    /// Operations of a prompt's products with weights: `n_prompt` tokens through the layers, one
    /// through the output matrix.
    pub(crate) fn prompt_ops(&self, n_prompt: usize) -> u64 {
        self.ops_per_token * n_prompt as u64 + self.output_ops
    }

    /// Bytes of keys and values that a generated token moves, on average over the test: those of
    /// all positions before it are read, its own written.
    pub(crate) fn kv_bytes(&self, test: &Test) -> u64 {
        let first = (test.n_depth + test.n_prompt) as u64;
        let n_gen = test.n_gen.max(1) as u64;
        let seen = |window: &Option<usize>| -> u64 {
            let window = window.map_or(u64::MAX, |window| window as u64);
            (first..first + n_gen).map(|pos| (pos + 1).min(window) + 1).sum()
        };
        self.windows.iter().map(seen).sum::<u64>() * self.kv_bytes / n_gen
    }
}

impl Share {
    fn part(self, whole: u64) -> u64 {
        whole / self.of.max(1) * self.used
    }
}

/// Of experts a token uses a few; of every other matrix all.
fn share(config: &Config, name: &str) -> Share {
    match &config.experts {
        Some(experts) if is_expert(name) => {
            Share { used: experts.n_used as u64, of: experts.n_expert as u64 }
        }
        _ => Share { used: 1, of: 1 },
    }
}

/// `blk.0.ffn_up_exps.weight`, or `blk.0.ffn_up.3.weight` in files of 2023.
fn is_expert(name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    match parts.as_slice() {
        ["blk", _, tensor, "weight"] => tensor.ends_with("_exps"),
        ["blk", _, tensor, number, "weight"] => {
            tensor.starts_with("ffn_") && number.bytes().all(|b| b.is_ascii_digit())
        }
        _ => false,
    }
}

/// Bytes of the object that a phase reads.
fn read_bytes(container: &Container<'_>, row: &MatmulReport, phase: &KernelReport) -> u64 {
    let Some(tensor) = container.tensor(&row.name) else { return 0 };
    let mut objects = std::iter::once(tensor.base).chain(tensor.planes.iter().copied());
    let read = objects.find(|object| object.kind.name() == phase.reads);
    read.unwrap_or(tensor.base).len
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(windows: Vec<Option<usize>>) -> Work {
        Work {
            decode_weight_bytes: 0,
            prefill_weight_bytes: 0,
            ops_per_token: 10,
            output_ops: 7,
            kv_bytes: 100,
            windows,
        }
    }

    fn test(n_prompt: usize, n_gen: usize, n_depth: usize) -> Test {
        crate::plan::tests::test(n_prompt, n_gen, n_depth)
    }

    #[test]
    fn keys_and_values_grow_with_the_depth() {
        // Positions 0, 1, 2, 3: 1 + 2 + 3 + 4 read, 4 written, over 4 tokens.
        assert_eq!(work(vec![None]).kv_bytes(&test(0, 4, 0)), 14 * 100 / 4);
        assert_eq!(work(vec![None; 3]).kv_bytes(&test(0, 1, 999)), 3 * 1001 * 100);
        // A window of 2: 1 + 2 + 2 + 2.
        assert_eq!(work(vec![Some(2)]).kv_bytes(&test(0, 4, 0)), 11 * 100 / 4);
        assert_eq!(work(vec![Some(2), None]).kv_bytes(&test(0, 1, 9)), (3 + 11) * 100);
    }

    #[test]
    fn a_prompt_needs_the_output_matrix_once() {
        assert_eq!(work(Vec::new()).prompt_ops(512), 5127);
    }

    #[test]
    fn experts_are_known_by_name() {
        for name in ["blk.0.ffn_up_exps.weight", "blk.11.ffn_gate.7.weight"] {
            assert!(is_expert(name), "{name}");
        }
        for name in ["blk.0.ffn_up.weight", "blk.0.ffn_gate_inp.weight", "output.weight"] {
            assert!(!is_expert(name), "{name}");
        }
    }
}
