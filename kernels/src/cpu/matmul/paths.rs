//! The loops over rows and tokens around the kernels.
#![allow(unsafe_code)] // rows that belong to one worker, kernels of a tier that was found

use std::ops::Range;

use super::Scratch;
use crate::cpu::activations::{Activations, TOKEN_GRANULE};
use crate::cpu::form::{CHUNK, Chains, Form, GROUP, Group};
use crate::cpu::kernels::{Kernels, TILE_ROWS, TILE_TOKENS, TileJob, TileOut};
use crate::cpu::panel::{self, PANEL_ROWS, PanelSource};
use crate::cpu::scalar;
use crate::cpu::scalar::unpack::{UnpackFn, unpack_exp};
use crate::cpu::tables::FloatFn;
use crate::view::{OutView, Weight};

/// Asks for the cache lines of some bytes.
pub(in crate::cpu) fn prefetch(bytes: &[u8]) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    crate::cpu::mem::prefetch(bytes.as_ptr(), bytes.len());
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = bytes;
}

/// Rows that several GEMVs read before the next stretch.
const GEMV_ROWS: usize = 32;

#[allow(clippy::too_many_arguments)] // the arguments of `path_rows` and the path's own
pub(super) fn scalar_rows(
    w: &Weight<'_>,
    form: Form,
    unpack: UnpackFn,
    exp: bool,
    y: &OutView<'_>,
    x: &Activations,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let n_groups = w.row_len().div_ceil(GROUP);
    scratch.groups.resize(n_groups, Group::ZERO);
    let n_chunks = w.row_len() / CHUNK;
    for row in rows {
        for (i, group) in scratch.groups.iter_mut().enumerate() {
            match w.exp() {
                Some(plane) if exp => unpack_exp(w, &plane, row, i, group),
                // SAFETY: scalar unpackers need no instructions beyond the target's.
                _ => unsafe { unpack(w.row(row), i, (n_chunks - i * 8).min(8), group) },
            }
        }
        for token in 0..x.n_tokens() {
            // SAFETY: these rows are this worker's, and the reference ends here.
            let y = unsafe { y.token_rows(token, row..row + 1) };
            y[0] = scalar::dot(form, &scratch.groups, &x.dot_row(token));
        }
    }
}

pub(super) fn gemv_rows(
    w: &Weight<'_>,
    kernels: &Kernels,
    y: &OutView<'_>,
    x: &Activations,
    rows: Range<usize>,
) {
    // With several tokens, a stretch of rows stays in the cache until all have read it.
    let step = if x.n_tokens() == 1 { rows.len().max(1) } else { GEMV_ROWS };
    for start in rows.clone().step_by(step) {
        let end = (start + step).min(rows.end);
        for token in 0..x.n_tokens() {
            // SAFETY: these rows are this worker's, and the reference ends here.
            let y = unsafe { y.token_rows(token, start..end) };
            // SAFETY: the kernel's tier is on this machine, or `new` had failed.
            unsafe { (kernels.gemv)(y, w, start, &x.dot_row(token)) };
        }
    }
}

#[allow(clippy::too_many_arguments)] // the arguments of `path_rows` and the path's own
pub(super) fn gemm_rows(
    w: &Weight<'_>,
    form: Form,
    kernels: &Kernels,
    exp: bool,
    y: &OutView<'_>,
    x: &Activations,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let source = PanelSource {
        w: *w,
        exp: if exp { w.exp() } else { None },
        form,
        unpack: kernels.unpack,
        interleave: kernels.interleave,
    };
    let chains = Chains::new(w.row_len());
    let chain_lens = std::array::from_fn(|s| chains.len(s));
    let panel_bytes = panel::record_bytes(form) * (w.row_len() / CHUNK);
    let (groups, [first, second]) = scratch.panels(panel_bytes);
    let mut out = TileOut::ZERO;
    for start in rows.clone().step_by(TILE_ROWS) {
        let n_rows = (rows.end - start).min(TILE_ROWS);
        source.fill(start, n_rows.min(PANEL_ROWS), groups, first);
        let both = n_rows > PANEL_ROWS;
        if both {
            source.fill(start + PANEL_ROWS, n_rows - PANEL_ROWS, groups, second);
        }
        let panels = [&*first, if both { &*second } else { &*first }];
        // While this pair of panels is at work, the next one's rows come from memory.
        let next = (start + TILE_ROWS).min(rows.end);
        let ahead = source.bytes(next..(next + TILE_ROWS).min(rows.end));
        let n_parts = x.n_tokens().div_ceil(TILE_TOKENS);
        let mut ahead = ahead.chunks(ahead.len().div_ceil(n_parts).max(1));
        for token in (0..x.n_tokens()).step_by(TILE_TOKENS) {
            prefetch(ahead.next().unwrap_or_default());
            let n_tokens = (x.n_tokens() - token).min(TILE_TOKENS);
            let x = x.tiles(token / TOKEN_GRANULE, n_tokens.div_ceil(TOKEN_GRANULE));
            let job = TileJob { form, panels, x, n_tokens, chain_lens };
            // SAFETY: the kernel's tier is on this machine, or `new` had failed.
            unsafe { (kernels.tile)(&mut out, &job) };
            for (t, out) in out.y.iter().enumerate().take(n_tokens) {
                // SAFETY: these rows are this worker's, and the reference ends here.
                let y = unsafe { y.token_rows(token + t, start..start + n_rows) };
                y.copy_from_slice(&out[..n_rows]);
            }
        }
    }
}

pub(super) fn float_rows(
    w: &Weight<'_>,
    dot: FloatFn,
    y: &OutView<'_>,
    x: &Activations,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    scratch.column.resize(x.n_tokens(), 0.0);
    for row in rows {
        // SAFETY: the kernel's tier is on this machine, or `new` had failed.
        unsafe { dot(&mut scratch.column, w.quant(), w.row(row), x.x()) };
        for (token, &value) in scratch.column.iter().enumerate() {
            // SAFETY: these rows are this worker's, and the reference ends here.
            let y = unsafe { y.token_rows(token, row..row + 1) };
            y[0] = value;
        }
    }
}
