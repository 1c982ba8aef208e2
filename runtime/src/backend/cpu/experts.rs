//! Mixtures of experts: the rows of each expert's tokens are brought together and multiplied as a
//! batch of their own.
//!
//! A row's result does not depend on its batch, and what a token's experts make of it is added in
//! the order of the token's own choices: so nothing depends on where the other tokens go.

use super::pool::{Product, Rows};
use super::{Cpu, Matrix, Operand, TOKEN_GRAIN, Tensor};
use crate::backend::{Activation, Backend, ExpertMatrices, ExpertShape};
use crate::error::{Error, Result};
use kernels::cpu::ops::Choice;
use kernels::cpu::{Activations, Matmul};
use std::ops::Range;

/// A layer's experts.
pub(crate) struct Experts<'a> {
    pub(super) matrices: ExpertMatrices<Matrix<'a>>,
    pub(super) shape: ExpertShape,
}

/// Which experts the tokens of a step go to, and what they make of them.
pub(crate) struct Mixture {
    order: Order,
    logits: Tensor,
    inputs: Vec<Activations>,
    gate: Tensor,
    up: Tensor,
    gated: Operand,
    out: Tensor,
}

/// A row for each token and each of its experts: in order of experts, those of one expert in order
/// of tokens.
#[derive(Default)]
struct Order {
    n_used: usize,
    /// `[n_tokens, n_used]`
    choices: Vec<Choice>,
    /// The row of each choice.
    places: Vec<u32>,
    /// The token of each row.
    tokens: Vec<u32>,
    /// Experts with tokens, in order.
    runs: Vec<Run>,
    /// Indices of `runs`, the longest first.
    by_len: Vec<usize>,
}

/// The rows of one expert.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    expert: usize,
    rows: Range<usize>,
}

impl Mixture {
    pub(super) fn new(cpu: &Cpu<'_>, shape: ExpertShape) -> Result<Self> {
        // Its rows are quantized a run at a time.
        let gated = Operand { quantize: false, ..cpu.operand(shape.n_ff)? };
        let empty = || Activations::new(cpu.tier).map_err(|e| Error::Tier(e.to_string()));
        Ok(Self {
            order: Order { n_used: shape.n_used, ..Order::default() },
            logits: cpu.tensor(shape.n_expert),
            inputs: (0..shape.n_expert).map(|_| empty()).collect::<Result<_>>()?,
            gate: cpu.tensor(shape.n_ff),
            up: cpu.tensor(shape.n_ff),
            gated,
            out: cpu.tensor(shape.n_embd),
        })
    }

    /// `x +=` the weighted sums of what the tokens' experts make of `y`.
    pub(super) fn add<'a>(
        &mut self,
        cpu: &Cpu<'a>,
        x: &mut Tensor,
        y: &Operand,
        experts: &Experts<'a>,
    ) {
        let Self { order, logits, inputs, gate, up, gated, out } = self;
        let ExpertMatrices { router, gate: w_gate, up: w_up, down: w_down } = &experts.matrices;
        let ExpertShape { n_embd, n_ff, .. } = experts.shape;
        cpu.linear([(&mut *logits, router)], y);
        order.choose(cpu, logits);
        let (tokens, rows) = (&order.tokens, y.activations.x());
        gather(cpu, inputs, order, n_embd, |row| &rows[tokens[row] as usize * n_embd..][..n_embd]);
        multiply(cpu, [(&mut *gate, w_gate), (&mut *up, w_up)], order, inputs);
        cpu.gate(gated, gate, up, Activation::Silu);
        let rows = gated.activations.x();
        gather(cpu, inputs, order, n_ff, |row| &rows[row * n_ff..][..n_ff]);
        multiply(cpu, [(&mut *out, w_down)], order, inputs);
        let Order { n_used, choices, places, .. } = &*order;
        cpu.pool.split(&x.split(), TOKEN_GRAIN, |tokens, part| {
            for (token, x) in tokens.zip(part.chunks_exact_mut(n_embd)) {
                let own = token * n_used..(token + 1) * n_used;
                cpu.ops.add_weighted(x, out.rows(), &places[own.clone()], &choices[own]);
            }
        });
    }
}

impl Order {
    /// Chooses the experts of each row of `logits`, which it overwrites.
    fn choose(&mut self, cpu: &Cpu<'_>, logits: &mut Tensor) {
        self.choices.resize(logits.n_tokens * self.n_used, Choice::default());
        let choices = Rows::new(&mut self.choices, self.n_used);
        cpu.pool.split2(&choices, &logits.split(), TOKEN_GRAIN, |_, choices, logits| {
            let rows = logits.chunks_exact_mut(logits.len() / (choices.len() / self.n_used));
            for (choices, logits) in choices.chunks_exact_mut(self.n_used).zip(rows) {
                cpu.ops.route(choices, logits);
            }
        });
        self.sort(logits.width);
    }

    /// Gives each choice its row.
    fn sort(&mut self, n_expert: usize) {
        let mut next = vec![0; n_expert + 1];
        for choice in &self.choices {
            next[choice.expert as usize + 1] += 1;
        }
        self.runs.clear();
        for expert in 0..n_expert {
            next[expert + 1] += next[expert];
            let rows = next[expert]..next[expert + 1];
            if !rows.is_empty() {
                self.runs.push(Run { expert, rows });
            }
        }
        self.places.clear();
        self.tokens.resize(self.choices.len(), 0);
        for (i, choice) in self.choices.iter().enumerate() {
            let row = &mut next[choice.expert as usize];
            self.places.push(*row as u32);
            self.tokens[*row] = (i / self.n_used) as u32;
            *row += 1;
        }
        self.by_len.clear();
        self.by_len.extend(0..self.runs.len());
        self.by_len.sort_by_key(|&run| std::cmp::Reverse(self.runs[run].rows.len()));
    }
}

/// The inputs of all runs, from their rows: those of the longest run first, so that buffers seldom
/// grow.
fn gather<'r>(
    cpu: &Cpu<'_>,
    inputs: &mut [Activations],
    order: &Order,
    row_len: usize,
    row: impl Fn(usize) -> &'r [f32] + Sync,
) {
    let inputs = &mut inputs[..order.runs.len()];
    for (input, &run) in inputs.iter_mut().zip(&order.by_len) {
        input.resize(order.runs[run].rows.len(), row_len);
    }
    // Rows of another length meet float weights alone.
    let quantize = row_len.is_multiple_of(32);
    cpu.pool.fill_each(inputs, quantize, |index, range, out| {
        let first = order.runs[order.by_len[index]].rows.start;
        for (i, out) in range.zip(out.chunks_exact_mut(row_len)) {
            out.copy_from_slice(row(first + i));
        }
    });
}

/// `outs`: what each run's expert makes of its input, all of it in one region.
fn multiply<'a, const N: usize>(
    cpu: &Cpu<'a>,
    outs: [(&mut Tensor, &[Matrix<'a>]); N],
    order: &Order,
    inputs: &[Activations],
) {
    let mut products = Vec::with_capacity(N * order.runs.len());
    for (out, matrices) in outs {
        let n_rows = out.width;
        let mut rest = out.resize(order.choices.len());
        let mut parts = Vec::with_capacity(order.runs.len());
        for run in &order.runs {
            let (part, others) = rest.split_at_mut(run.rows.len() * n_rows);
            parts.push(Some(part));
            rest = others;
        }
        for (x, &run) in inputs.iter().zip(&order.by_len) {
            let (matmul, rows) = rows_of(matrices, order.runs[run].expert, n_rows);
            products.extend(parts[run].take().map(|out| Product { out, matmul, rows, x }));
        }
    }
    // The longest last, where chunks of work are smallest: they share it evenly.
    products.sort_by_key(|product| product.x.n_tokens());
    cpu.pool.multiply(&mut products, &cpu.workers);
}

/// The rows of an expert: some of the one matrix of all, or all of its own.
fn rows_of<'m, 'a>(
    matrices: &'m [Matrix<'a>],
    expert: usize,
    n_rows: usize,
) -> (&'m Matmul<'a>, Range<usize>) {
    match matrices {
        [stack] => (&stack.matmul, expert * n_rows..(expert + 1) * n_rows),
        each => (&each[expert].matmul, 0..n_rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_of_experts_and_then_of_tokens() {
        let experts = [3, 0, 1, 3, 3, 1, 0, 3];
        let choices = experts.map(|expert| Choice { expert, weight: 0.5 }).to_vec();
        let mut order = Order { n_used: 2, choices, ..Order::default() };
        order.sort(5);
        assert_eq!(order.places, [4, 0, 2, 5, 6, 3, 1, 7]);
        assert_eq!(order.tokens, [0, 3, 1, 2, 0, 1, 2, 3]);
        let run = |expert, rows| Run { expert, rows };
        assert_eq!(order.runs, [run(0, 0..2), run(1, 2..4), run(3, 4..8)]);
        assert_eq!(order.by_len, [2, 0, 1]);
    }
}
