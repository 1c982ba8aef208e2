//! Kernels whose outputs several workers write: the contracts of their shared views are kept here.

use super::{Cut, Order, Pool, pieces};
use crate::backend::cpu::Worker;
use kernels::cpu::ops::{AttentionShape, AttentionUnit, KvView, Ops, attention_scratch_len};
use kernels::cpu::{Activations, GEMV_MAX_TOKENS, Matmul, ROW_GRANULE, TOKEN_GRANULE};
use kernels::view::OutView;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Rows of the smallest share of a GEMV: whole pairs, as its kernels take them.
const GEMV_GRANULE: usize = 16;

/// One product of a region.
pub(crate) struct Product<'p, 'a> {
    /// `[n_tokens, rows.len()]`
    pub(crate) out: &'p mut [f32],
    pub(crate) matmul: &'p Matmul<'a>,
    /// The weight's rows to multiply with.
    pub(crate) rows: Range<usize>,
    pub(crate) x: &'p Activations,
}

/// A product whose rows several workers compute.
struct Shared<'v, 'a> {
    out: OutView<'v>,
    matmul: &'v Matmul<'a>,
    rows: Range<usize>,
    x: &'v Activations,
    /// Rows that are handed out together.
    granule: usize,
    /// Granules of this product and those before it.
    end: usize,
}

/// What an attention region reads.
pub(crate) struct Queries<'q> {
    pub(crate) ops: &'q Ops,
    /// `[n_tokens, n_head * head_dim]`
    pub(crate) q: &'q [f32],
    pub(crate) kv: &'q KvView<'q>,
    pub(crate) shape: &'q AttentionShape,
    /// Position of the first query.
    pub(crate) pos0: usize,
}

impl Pool {
    /// Fills the rows of `out` by `fill(tokens, rows)` and quantizes them if products with
    /// quantized weights may follow. The shape of `out` is set already.
    pub(crate) fn fill(
        &self,
        out: &mut Activations,
        quantize: bool,
        fill: impl Fn(Range<usize>, &mut [f32]) + Sync,
    ) {
        let shared = out.share();
        self.run(shared.n_tokens(), TOKEN_GRANULE, |_, chunks| {
            while let Some(chunk) = chunks.take() {
                for tokens in pieces(chunk, TOKEN_GRANULE) {
                    // SAFETY: `Chunks` hands out each token once, and the reference ends with
                    // `fill`.
                    let rows = unsafe { shared.x_mut(tokens.clone()) };
                    fill(tokens.clone(), rows);
                    if quantize {
                        // SAFETY: as above; pieces start at multiples of the granule.
                        unsafe { shared.quantize(tokens) };
                    }
                }
            }
        });
    }

    /// Quantizes rows that are filled already.
    pub(crate) fn quantize(&self, x: &mut Activations) {
        self.fill(x, true, |_, _| ());
    }

    /// As [`fill`](Self::fill), for several activations at once: `fill(index, tokens, rows)`.
    pub(crate) fn fill_each(
        &self,
        outs: &mut [Activations],
        quantize: bool,
        fill: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
    ) {
        let mut end = 0;
        let shared: Vec<_> = outs
            .iter_mut()
            .map(|out| {
                let start = end;
                end += out.n_tokens().div_ceil(TOKEN_GRANULE);
                (start..end, out.share())
            })
            .collect();
        self.run(end, 1, |_, chunks| {
            for piece in std::iter::from_fn(|| chunks.take()).flatten() {
                let index = shared.partition_point(|(pieces, _)| pieces.end <= piece);
                let (pieces, out) = &shared[index];
                let first = (piece - pieces.start) * TOKEN_GRANULE;
                let tokens = first..out.n_tokens().min(first + TOKEN_GRANULE);
                // SAFETY: `Chunks` hands out each piece once, and the reference ends with `fill`.
                let rows = unsafe { out.x_mut(tokens.clone()) };
                fill(index, tokens.clone(), rows);
                if quantize {
                    // SAFETY: as above; pieces start at multiples of the granule.
                    unsafe { out.quantize(tokens) };
                }
            }
        });
    }

    /// Computes several products in one region.
    pub(crate) fn multiply(&self, products: &mut [Product<'_, '_>], workers: &[Mutex<Worker>]) {
        let mut end = 0;
        let shared: Vec<Shared<'_, '_>> = products
            .iter_mut()
            .map(|product| {
                let (rows, x) = (product.rows.clone(), product.x);
                let many = x.n_tokens() > GEMV_MAX_TOKENS;
                let granule = if many { ROW_GRANULE } else { GEMV_GRANULE };
                end += rows.len().div_ceil(granule);
                // SAFETY: the region below writes each granule of rows once, and the view's
                // copies end with it.
                let out = unsafe { OutView::new(product.out, rows.len()) }.from_row(rows.start);
                Shared { out, matmul: product.matmul, rows, x, granule, end }
            })
            .collect();
        // Few tokens wait for memory, and a stream that goes on is read faster than one that starts anew.
        let few = shared.iter().all(|product| product.granule == GEMV_GRANULE);
        let order = if few { Order::Apart } else { Order::Together };
        if few && self.n_threads() > 1 && end > 1 {
            self.mark(&shared, &Cut::new(end, 1, self.n_threads(), order));
        }
        self.run_in(order, end, 1, |worker, chunks| {
            let mut worker = lock(workers, worker);
            while let Some(granules) = chunks.take() {
                let mut start = 0;
                for product in &shared {
                    let here = granules.start.max(start)..granules.end.min(product.end);
                    if !here.is_empty() {
                        let Shared { granule, rows, .. } = product;
                        let first = rows.start + (here.start - start) * granule;
                        let last = (rows.start + (here.end - start) * granule).min(rows.end);
                        let (out, x) = (&product.out, product.x);
                        product.matmul.rows(out, x, first..last, &mut worker.matmul);
                    }
                    start = product.end;
                }
            }
        });
    }

    /// Notes that a region of products with few tokens begins, and from where its workers read.
    fn mark(&self, products: &[Shared<'_, '_>], cut: &Cut) {
        let starts = (0..self.n_threads()).map(|worker| {
            let granule = cut.boundary(worker);
            let i = products.partition_point(|product| product.end <= granule);
            let before = i.checked_sub(1).map_or(0, |i| products[i].end);
            let Shared { matmul, rows, .. } = &products[i];
            matmul.address_of(rows.start + (granule - before) * GEMV_GRANULE)
        });
        let first = &products[0];
        self.shared.trail.begins(first.matmul.address_of(first.rows.start), starts);
    }

    /// Attention of all rows of `q` into the rows of `out`, which has its shape already.
    pub(crate) fn attend(
        &self,
        out: &mut Activations,
        queries: &Queries<'_>,
        workers: &[Mutex<Worker>],
    ) {
        let Queries { ops, q, kv, shape, pos0 } = *queries;
        let (n_tokens, row_len) = (out.n_tokens(), out.row_len());
        // SAFETY: units are disjoint in tokens or heads, and the region runs each once.
        let out = unsafe { OutView::new(out.x_mut(), row_len) };
        let n_kv = pos0 + n_tokens;
        let group = shape.n_head / kv.shape.n_head_kv;
        let n_heads = self.heads_together(group, kv.shape.n_head_kv, n_tokens);
        let units_per_group = group.div_ceil(n_heads);
        let n_together = shape.tile_tokens(n_heads, n_kv).min(n_tokens);
        let n_head_units = units_per_group * kv.shape.n_head_kv;
        // Late tokens see the most positions: they go first, so that the end is even.
        let n_token_units = n_tokens.div_ceil(n_together);
        let unit_at = |i: usize| {
            let (tile, head_unit) = (i / n_head_units, i % n_head_units);
            let first = (n_token_units - 1 - tile) * n_together;
            let tokens = first..n_tokens.min(first + n_together);
            let (head_kv, part) = (head_unit / units_per_group, head_unit % units_per_group);
            let first = head_kv * group + part * n_heads;
            let heads = first..(first + n_heads).min((head_kv + 1) * group);
            AttentionUnit { tokens, heads, pos0 }
        };
        self.run(n_head_units * n_token_units, 1, |worker, chunks| {
            let scratch = &mut lock(workers, worker).attention;
            while let Some(units) = chunks.take() {
                for unit in units.map(unit_at) {
                    let (n_tokens, n_heads) = (unit.tokens.len(), unit.heads.len());
                    let reach = pos0 + unit.tokens.end;
                    let len = attention_scratch_len(&kv.shape, shape, n_tokens, n_heads, reach);
                    if scratch.len() < len {
                        scratch.resize(len, 0.0);
                    }
                    ops.attention(&out, q, kv, shape, &unit, scratch);
                }
            }
        });
    }

    /// Query heads of a unit: as many as share a KV head, fewer if that leaves threads without
    /// work.
    fn heads_together(&self, group: usize, n_head_kv: usize, n_tokens: usize) -> usize {
        let n_units = if n_tokens > 1 { self.n_threads() } else { 2 * self.n_threads() };
        if self.n_threads() == 1 || n_tokens >= 2 * n_units * 16 {
            return group;
        }
        let parts = n_units.div_ceil(n_head_kv).clamp(1, group);
        group.div_ceil(parts)
    }
}

/// The scratch of one worker. Nobody else uses it during a region.
fn lock(workers: &[Mutex<Worker>], worker: usize) -> std::sync::MutexGuard<'_, Worker> {
    // Scratch has no state between uses, so a panic in an earlier region leaves nothing broken.
    workers[worker].lock().unwrap_or_else(PoisonError::into_inner)
}
