//! Between a GGUF block and its row of a record: which bits go where, read off the fields of both.

use super::TileRecord;
use crate::plane::{Encoding, Field, FieldName, Layout};
use crate::quant::QuantType;

/// Some bits, at most eight, of a block of one row.
#[derive(Debug, Clone, Copy)]
struct Move {
    gguf_byte: u16,
    gguf_shift: u8,
    /// For the unit's first row; the others lie `row_bytes` further each.
    tile_byte: u16,
    tile_shift: u8,
    row_bytes: u8,
    mask: u8,
    /// Bits that are inverted on the way: a signed byte becomes an unsigned one with a bias.
    flip: u8,
}

/// Everything of one block.
pub(super) struct Moves {
    moves: Vec<Move>,
    record_bytes: usize,
}

impl Moves {
    pub(super) fn new(layout: &Layout) -> Self {
        let quant = layout.quant();
        let record = TileRecord::of(quant);
        let mut moves = Vec::new();
        for field in layout.fields() {
            let low = block_field(quant, field.name);
            add(&mut moves, field, low, 0);
            // Scales and minimums whose high bits GGUF keeps apart are whole here.
            let high = match field.name {
                FieldName::Scale => block_field(quant, FieldName::ScaleHigh),
                FieldName::Min => block_field(quant, FieldName::MinHigh),
                _ => None,
            };
            add(&mut moves, field, high, low.map_or(0, |low| low.bits));
        }
        Self { moves, record_bytes: record.map_or(1, |record| record.bytes) }
    }

    pub(super) fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Puts a block into a zeroed row of a record.
    pub(super) fn put(&self, block: &[u8], record: &mut [u8], row: usize) {
        for m in &self.moves {
            let bits = (block[usize::from(m.gguf_byte)] >> m.gguf_shift & m.mask) ^ m.flip;
            let at = usize::from(m.tile_byte) + row * usize::from(m.row_bytes);
            record[at] |= bits << m.tile_shift;
        }
    }

    /// Takes a row of a record into a zeroed block.
    pub(super) fn take(&self, block: &mut [u8], record: &[u8], row: usize) {
        for m in &self.moves {
            let at = usize::from(m.tile_byte) + row * usize::from(m.row_bytes);
            let bits = (record[at] >> m.tile_shift & m.mask) ^ m.flip;
            block[usize::from(m.gguf_byte)] |= bits << m.gguf_shift;
        }
    }
}

/// The blocks of a row and their records.
pub(super) fn for_each_block(
    layout: &Layout,
    gguf_row: &[u8],
    unit: &mut [u8],
    mut f: impl FnMut(&[u8], &mut [u8]),
) {
    let blocks = gguf_row.chunks_exact(layout.quant().block_bytes());
    let record_bytes = TileRecord::of(layout.quant()).map_or(1, |record| record.bytes);
    for (block, record) in blocks.zip(unit.chunks_exact_mut(record_bytes)) {
        f(block, record);
    }
}

/// A field of one GGUF block.
fn block_field(quant: QuantType, name: FieldName) -> Option<Field> {
    let fields = quant.spec().fields.iter();
    let (elems, bytes) = (quant.block_elems(), quant.block_bytes() as u64);
    fields.map(|field| field.in_blocks(elems, bytes, bytes)).find(|field| field.name == name)
}

/// Adds the moves of one part: `gguf` to the bits of `tile` from bit `offset` on.
fn add(moves: &mut Vec<Move>, tile: &Field, gguf: Option<Field>, offset: u8) {
    let Some(gguf) = gguf else { return };
    // Elements that share a cell are moved once.
    let shared = tile.k_bits.iter().enumerate().filter(|(_, stride)| **stride == 0);
    let shared = shared.fold(0, |mask, (i, _)| mask | 1u64 << i);
    let positions = (0..u64::from(tile.k_per_group)).filter(|k| k & shared == 0);
    let signs_differ = gguf.encoding == Encoding::Signed && tile.encoding == Encoding::Unsigned;
    let mask = if gguf.bits >= 8 { u8::MAX } else { (1 << gguf.bits) - 1 };
    for k in positions {
        let (from, to) = (gguf.locate(0, k), tile.locate(0, k));
        for byte in 0..u64::from(gguf.bits.div_ceil(8)) {
            moves.push(Move {
                gguf_byte: (from.byte + byte) as u16,
                gguf_shift: from.shift,
                tile_byte: (to.byte + byte) as u16,
                tile_shift: to.shift + offset,
                row_bytes: (tile.row_bits[0] / 8) as u8,
                mask,
                flip: if signs_differ { 0x80 } else { 0 },
            });
        }
    }
}
