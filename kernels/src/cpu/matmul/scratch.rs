//! Buffers that products keep.

use crate::cpu::form::Group;
use crate::cpu::panel::PANEL_ROWS;
use crate::view::RebuiltRows;

/// Buffers of one worker, kept from product to product.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(in crate::cpu) groups: Vec<Group>,
    pub(super) rebuilt: RebuiltRows,
    panels: Vec<Line>,
    pub(super) column: Vec<f32>,
}

/// A cache line: what panels are made of, so that they are aligned to one.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Scratch {
    /// Empty buffers; they grow to the largest product and stay.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sixteen groups, and two panels of `panel_bytes`.
    #[allow(unsafe_code)]
    pub(in crate::cpu) fn panels(
        &mut self,
        panel_bytes: usize,
    ) -> (&mut [Group; PANEL_ROWS], [&mut [u8]; 2]) {
        if self.groups.len() < PANEL_ROWS {
            self.groups.resize(PANEL_ROWS, Group::ZERO);
        }
        let n_lines = 2 * panel_bytes.div_ceil(size_of::<Line>());
        if self.panels.len() < n_lines {
            self.panels.resize(n_lines, Line([0; 64]));
        }
        let lines = &mut self.panels[..n_lines];
        // SAFETY: a Line is 64 bytes without padding, and the slice is borrowed exclusively.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), size_of_val(lines))
        };
        let (first, second) = bytes.split_at_mut(bytes.len() / 2);
        let (groups, _) = self.groups.as_chunks_mut::<PANEL_ROWS>();
        (&mut groups[0], [first, second])
    }
}
