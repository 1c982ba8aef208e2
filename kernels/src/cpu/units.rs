//! Products from `tile` units: sixteen rows are the lanes, so that nothing is transposed.
// Other machines have the scalar tier alone.
#![cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]

use std::ops::Range;

use format_spec::QuantType;
use format_spec::plane::TileRecord;

use super::activations::{Activations, DotRow, GEMV_MAX_TOKENS, TOKEN_GRANULE};
use super::form::{CHUNK, Chains, Form, GROUP, Group, N_CHAINS};
use super::kernels::{TILE_ROWS, TILE_TOKENS, TileFn, TileJob, TileOut};
use super::matmul::Scratch;
use super::panel::{PANEL_ROWS, record_bytes};
use super::scalar;
use crate::view::OutView;

/// Bytes of sixteen words of four elements.
pub(crate) const VECTOR_BYTES: usize = 64;

const _: () = assert!(PANEL_ROWS == TileRecord::ROWS, "a unit fills a panel");

/// The units of a `tile` object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Units<'a> {
    bytes: &'a [u8],
    unit_bytes: usize,
}

impl<'a> Units<'a> {
    pub(crate) fn new(bytes: &'a [u8], unit_bytes: usize) -> Self {
        Self { bytes, unit_bytes }
    }

    /// The unit of rows `16 * i..`.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn unit(&self, i: usize) -> &'a [u8] {
        &self.bytes[i * self.unit_bytes..][..self.unit_bytes]
    }

    /// What begins with the unit of `row`, if it exists.
    pub(crate) fn bytes_from(&self, row: usize) -> &'a [u8] {
        let n_units = self.bytes.len() / self.unit_bytes.max(1);
        self.some(row / PANEL_ROWS..n_units)
    }

    /// Those of some units that exist.
    fn some(&self, units: Range<usize>) -> &'a [u8] {
        let at = |i: usize| (i * self.unit_bytes).min(self.bytes.len());
        &self.bytes[at(units.start)..at(units.end)]
    }
}

/// What a quant type's records look like, for kernels that unroll over them.
pub(crate) trait Kind {
    const QUANT: QuantType;
    const RECORD: TileRecord = match TileRecord::of(Self::QUANT) {
        Some(record) => record,
        None => panic!("a type that `tile` exists for"),
    };
    const FORM: Form = match Form::of(Self::QUANT) {
        Some(form) => form,
        None => panic!("a quantized type"),
    };
    /// Chunks of a block.
    const CHUNKS: usize = Self::QUANT.block_elems() / CHUNK;
    /// Bytes of the records that hold one chunk of every chain.
    const GROUP_BYTES: usize = Self::RECORD.bytes * N_CHAINS / Self::CHUNKS;
    /// Bits of an element that stand in the quants, and in the high bits.
    const LOW_BITS: u32 = low_bits(Self::FORM.bits);
    const HIGH_BITS: u32 = Self::FORM.bits - Self::LOW_BITS;
}

/// What a GEMV asks for before it begins: about as much as it will be ahead.
const FIRST_BYTES: usize = 8192;

/// Chunks that a GEMV asks for units ahead. Two threads of a Zen 5 machine read the q4_K matrices of a model at 84, 86, 88,
/// 89 and 90 % of what plain reading does with 12, 16, 18, 20 and 22 chunks, at 89 with more; other types alike.
const AHEAD_CHUNKS: usize = 22;

/// The bytes that are asked for beside chunk `c` of a group, counted from the group's start: whole lines, a few with
/// each chunk, so that some are always on their way. A whole group at once, 16 KiB ahead, gave 67 % where this
/// gives 90, and none at all 45: requests beyond what a core can have under way hold up the loads behind them.
#[inline(always)]
pub(crate) const fn asked_with<K: Kind>(c: usize) -> Range<usize> {
    let n_lines = K::GROUP_BYTES.div_ceil(VECTOR_BYTES);
    let ahead = AHEAD_CHUNKS * K::GROUP_BYTES / N_CHAINS / VECTOR_BYTES;
    (ahead + c * n_lines / N_CHAINS) * VECTOR_BYTES
        ..(ahead + (c + 1) * n_lines / N_CHAINS) * VECTOR_BYTES
}

pub(crate) const fn low_bits(bits: u32) -> u32 {
    match bits {
        8 => 8,
        2 | 3 => 2,
        _ => 4,
    }
}

macro_rules! kinds {
    ($($name:ident,)*) => {
        $(
            #[allow(non_camel_case_types)]
            pub(crate) struct $name;
            impl Kind for $name {
                const QUANT: QuantType = QuantType::$name;
            }
        )*
    };
}

kinds! { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, }

/// `y` = the sixteen rows of a unit times one token.
pub(crate) type UnitGemvFn = unsafe fn(y: &mut [f32; PANEL_ROWS], unit: &[u8], x: &DotRow<'_>);

/// The same for plain floats; `x`: `[row_len]`.
pub(crate) type UnitFloatFn =
    unsafe fn(y: &mut [f32; PANEL_ROWS], quant: QuantType, unit: &[u8], x: &[f32]);

/// Fills a panel from the unit of its rows.
pub(crate) type UnitFillFn = unsafe fn(unit: &[u8], row_len: usize, panel: &mut [u8]);

/// Unpacks row `row` of a unit: the groups of the whole row.
pub(crate) type UnitRowFn = fn(unit: &[u8], row: usize, groups: &mut [Group]);

/// The kernels that read units of one quant type.
#[derive(Debug, Clone, Copy)]
pub(crate) enum UnitKernels {
    Quant {
        form: Form,
        gemv: UnitGemvFn,
        fill: UnitFillFn,
        tile: TileFn,
        gemv_name: &'static str,
        gemm_name: &'static str,
    },
    Float {
        quant: QuantType,
        dot: UnitFloatFn,
        name: &'static str,
    },
    /// The scalar tier's: row after row, whatever the number of tokens.
    Plain {
        form: Form,
        unpack: UnitRowFn,
        name: &'static str,
    },
}

impl UnitKernels {
    /// Names of the kernels for many tokens and for few.
    pub(crate) fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::Quant { gemm_name, gemv_name, .. } => (gemm_name, gemv_name),
            Self::Float { name, .. } | Self::Plain { name, .. } => (name, name),
        }
    }

    /// `rows` of the output for every token.
    pub(crate) fn rows(
        &self,
        units: &Units<'_>,
        y: &OutView<'_>,
        x: &Activations,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) {
        match *self {
            Self::Quant { form, fill, tile, .. } if x.n_tokens() > GEMV_MAX_TOKENS => {
                gemm(units, form, fill, tile, y, x, rows, scratch);
            }
            #[allow(unsafe_code)]
            Self::Quant { gemv, .. } => each_unit(units, y, rows, x.n_tokens(), |y, i, token| {
                // SAFETY: the kernel's tier is on this machine, or `Matmul::new` had failed.
                unsafe { gemv(y, units.unit(i), &x.dot_row(token)) };
            }),
            #[allow(unsafe_code)]
            Self::Float { quant, dot, .. } => {
                each_unit(units, y, rows, x.n_tokens(), |y, i, token| {
                    let x = &x.x()[token * x.row_len()..][..x.row_len()];
                    // SAFETY: the kernel's tier is on this machine, or `Matmul::new` had failed.
                    unsafe { dot(y, quant, units.unit(i), x) };
                })
            }
            Self::Plain { form, unpack, .. } => plain(units, form, unpack, y, x, rows, scratch),
        }
    }
}

/// Calls `product(y, unit, token)` for each unit that `rows` touch and every token, and keeps the
/// rows that were asked for.
#[allow(unsafe_code)]
fn each_unit(
    units: &Units<'_>,
    out: &OutView<'_>,
    rows: Range<usize>,
    n_tokens: usize,
    product: impl Fn(&mut [f32; PANEL_ROWS], usize, usize),
) {
    let mut y = [0.0; PANEL_ROWS];
    // What follows is asked for on the way; nobody has asked for the beginning.
    let first = units.some(rows.start / PANEL_ROWS..rows.end.div_ceil(PANEL_ROWS));
    super::matmul::prefetch(&first[..first.len().min(FIRST_BYTES)]);
    for i in rows.start / PANEL_ROWS..rows.end.div_ceil(PANEL_ROWS) {
        let first = i * PANEL_ROWS;
        let wanted = rows.start.max(first)..rows.end.min(first + PANEL_ROWS);
        for token in 0..n_tokens {
            product(&mut y, i, token);
            // SAFETY: these rows are this worker's, and the reference ends here.
            let out = unsafe { out.token_rows(token, wanted.clone()) };
            out.copy_from_slice(&y[wanted.start - first..wanted.end - first]);
        }
    }
}

#[allow(unsafe_code)]
fn plain(
    units: &Units<'_>,
    form: Form,
    unpack: UnitRowFn,
    y: &OutView<'_>,
    x: &Activations,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    scratch.groups.resize(x.row_len().div_ceil(GROUP), Group::ZERO);
    for row in rows {
        unpack(units.unit(row / PANEL_ROWS), row % PANEL_ROWS, &mut scratch.groups);
        for token in 0..x.n_tokens() {
            // SAFETY: these rows are this worker's, and the reference ends here.
            let y = unsafe { y.token_rows(token, row..row + 1) };
            y[0] = scalar::dot(form, &scratch.groups, &x.dot_row(token));
        }
    }
}

#[allow(clippy::too_many_arguments)] // the arguments of `rows` and the kernels' own
#[allow(unsafe_code)]
fn gemm(
    units: &Units<'_>,
    form: Form,
    fill: UnitFillFn,
    tile: TileFn,
    y: &OutView<'_>,
    x: &Activations,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let chains = Chains::new(x.row_len());
    let chain_lens = std::array::from_fn(|s| chains.len(s));
    let panel_bytes = record_bytes(form) * (x.row_len() / CHUNK);
    let (_, [first, second]) = scratch.panels(panel_bytes);
    let mut out = TileOut::ZERO;
    let aligned = rows.start / PANEL_ROWS * PANEL_ROWS;
    for start in (aligned..rows.end).step_by(TILE_ROWS) {
        let unit = start / PANEL_ROWS;
        let both = start + PANEL_ROWS < rows.end;
        // SAFETY: the kernel's tier is on this machine, or `Matmul::new` had failed.
        unsafe { fill(units.unit(unit), x.row_len(), first) };
        if both {
            // SAFETY: as above.
            unsafe { fill(units.unit(unit + 1), x.row_len(), second) };
        }
        let panels = [&*first, if both { &*second } else { &*first }];
        let wanted = rows.start.max(start)..rows.end.min(start + TILE_ROWS);
        // While this pair of panels is at work, the next one's units come from memory.
        let next = (start + TILE_ROWS).min(rows.end).div_ceil(PANEL_ROWS);
        let ahead = units.some(next..(next + 2).min(rows.end.div_ceil(PANEL_ROWS)).max(next));
        let n_parts = x.n_tokens().div_ceil(TILE_TOKENS);
        let mut ahead = ahead.chunks(ahead.len().div_ceil(n_parts).max(1));
        for token in (0..x.n_tokens()).step_by(TILE_TOKENS) {
            super::matmul::prefetch(ahead.next().unwrap_or_default());
            let n_tokens = (x.n_tokens() - token).min(TILE_TOKENS);
            let x = x.tiles(token / TOKEN_GRANULE, n_tokens.div_ceil(TOKEN_GRANULE));
            let job = TileJob { form, panels, x, n_tokens, chain_lens };
            // SAFETY: the kernel's tier is on this machine, or `Matmul::new` had failed.
            unsafe { tile(&mut out, &job) };
            for (t, out) in out.y.iter().enumerate().take(n_tokens) {
                // SAFETY: these rows are this worker's, and the reference ends here.
                let y = unsafe { y.token_rows(token + t, wanted.clone()) };
                y.copy_from_slice(&out[wanted.start - start..wanted.end - start]);
            }
        }
    }
}
