//! Panels: sixteen weight rows unpacked for a GEMM, their elements interleaved by four.
//!
//! A panel is one record a chunk, chain by chain: 512 bytes `[k / 4][row][k % 4]` of stored values,
//! then the rows' scales (for the chunk, or for its halves), then the minimums likewise.

use std::ops::Range;

use super::form::{CHUNK, Chains, Form, GROUP, Group, N_CHAINS};
use super::scalar::unpack::{UnpackFn, unpack_exp};
use crate::view::{ExpPlane, Weight};

/// Rows of a panel.
pub(crate) const PANEL_ROWS: usize = 16;

/// Bytes of a record's stored values; the scales follow.
pub(crate) const QUANT_BYTES: usize = PANEL_ROWS * CHUNK;

/// Bytes of one vector of per-row parameters.
pub(crate) const PARAM_BYTES: usize = PANEL_ROWS * size_of::<f32>();

/// Scatters one group of sixteen rows into the records at `offsets` of `panel`.
pub(crate) type InterleaveFn =
    unsafe fn(form: Form, rows: &[Group; PANEL_ROWS], offsets: &[usize], panel: &mut [u8]);

/// Bytes of one chunk's record.
pub(crate) fn record_bytes(form: Form) -> usize {
    QUANT_BYTES + PARAM_BYTES * (1 + usize::from(form.per16)) * (1 + usize::from(form.has_min))
}

/// What fills panels from one weight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanelSource<'a> {
    pub(crate) w: Weight<'a>,
    pub(crate) exp: Option<ExpPlane<'a>>,
    pub(crate) form: Form,
    pub(crate) unpack: UnpackFn,
    pub(crate) interleave: InterleaveFn,
}

impl PanelSource<'_> {
    /// The bytes of some rows that the next fills will read, to be asked for in time.
    pub(crate) fn bytes(&self, rows: Range<usize>) -> &[u8] {
        match &self.exp {
            Some(plane) => &plane.exp[rows.start * self.w.row_len()..rows.end * self.w.row_len()],
            None => self.w.rows(rows),
        }
    }

    /// Fills `panel` with up to sixteen rows from `row`; what belongs to absent rows is arbitrary.
    #[allow(unsafe_code)]
    pub(crate) fn fill(
        &self,
        row: usize,
        n_rows: usize,
        groups: &mut [Group; PANEL_ROWS],
        panel: &mut [u8],
    ) {
        let chains = Chains::new(self.w.row_len());
        let starts = chains.starts();
        let record_bytes = record_bytes(self.form);
        for i in 0..self.w.row_len().div_ceil(GROUP) {
            let n_chunks = (self.w.row_len() / CHUNK - i * N_CHAINS).min(N_CHAINS);
            for (r, group) in groups.iter_mut().enumerate().take(n_rows) {
                match &self.exp {
                    Some(plane) => unpack_exp(&self.w, plane, row + r, i, group),
                    // SAFETY: the function belongs to a tier that this machine has.
                    None => unsafe { (self.unpack)(self.w.row(row + r), i, n_chunks, group) },
                }
            }
            let offsets = starts.map(|start| (start + i) * record_bytes);
            // SAFETY: the function belongs to a tier that this machine has.
            unsafe { (self.interleave)(self.form, groups, &offsets[..n_chunks], panel) };
        }
    }
}
