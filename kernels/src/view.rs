//! Checked views: shapes are proved here once, and kernels trust them.

use std::marker::PhantomData;
use std::ops::Range;

use format_spec::QuantType;
use format_spec::plane::{FieldName, Geometry, Layout, PlaneKind, TileRecord};

use crate::cpu::ops::dequantize_row;
use crate::cpu::scalar::units;
use crate::cpu::units::Units;
use crate::{Error, Result};

/// One weight matrix, `[n_rows, row_len]`, as kernels read it: its base and, for q6_K, the `exp`
/// and `dsc` planes.
///
/// Kernels read `padded` rows, and `tile` units where a tier has kernels for them. Rows of any other
/// base are rebuilt, some at a time, before they are read: slower, the same bits.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    quant: QuantType,
    n_rows: usize,
    row_len: usize,
    base: &'a [u8],
    row_stride: usize,
    /// Layout of a base that is not `padded`.
    other_base: Option<&'a Layout>,
    exp: Option<ExpPlane<'a>>,
    /// `tile`, the base or beside it.
    tile: Option<Units<'a>>,
    lone_plane: bool,
}

/// The q6_K planes that prefill reads together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpPlane<'a> {
    /// `[n_rows][row_len]` centred int8.
    pub(crate) exp: &'a [u8],
    /// `[row_len / 16][dsc_rows]` little-endian f32.
    pub(crate) dsc: &'a [u8],
    /// Rows of `dsc`: `n_rows` rounded up to 4.
    pub(crate) dsc_rows: usize,
}

/// Buffers for the rows that [`Weight::rebuild`] makes.
#[derive(Debug, Default)]
pub(crate) struct RebuiltRows {
    gguf: Vec<u8>,
    padded: Vec<u8>,
}

/// The bytes of one object, of the length that its layout says.
#[derive(Debug, Clone, Copy)]
pub struct PlaneRef<'a> {
    layout: &'a Layout,
    bytes: &'a [u8],
}

impl<'a> PlaneRef<'a> {
    /// Binds an object's bytes to its layout.
    ///
    /// # Errors
    /// [`Error::Shape`] if `bytes` has another length.
    pub fn new(layout: &'a Layout, bytes: &'a [u8]) -> Result<Self> {
        if bytes.len() as u64 != layout.len_bytes() {
            return Err(Error::Shape {
                what: "bytes of an object",
                expected: layout.len_bytes(),
                found: bytes.len() as u64,
            });
        }
        Ok(Self { layout, bytes })
    }

    /// The layout.
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }
}

impl<'a> Weight<'a> {
    /// A weight from its base object and the planes that the container has for it.
    ///
    /// Planes that no CPU kernel reads are ignored.
    ///
    /// # Errors
    /// [`Error::Plane`] if the base is not one, a plane comes twice or belongs to another quant
    /// type; [`Error::Shape`] if a plane has another geometry than the base.
    pub fn new(base: PlaneRef<'a>, planes: &[PlaneRef<'a>]) -> Result<Self> {
        let layout = base.layout;
        let (quant, geometry) = (layout.quant(), layout.geometry());
        let (row_stride, other_base) = match (layout.kind(), layout.row_stride()) {
            (PlaneKind::Padded, Some(row_stride)) => {
                let stride = quant.padded_block_stride() as u64;
                check("block stride", stride, layout.block_stride().unwrap_or(stride))?;
                (row_stride, None)
            }
            (kind, _) if kind.is_base() && layout.rows_per_unit().is_some() => (0, Some(layout)),
            _ => return Err(plane_error(layout, "it is no base")),
        };
        let mut found: [Option<PlaneRef<'a>>; 3] = [None; 3];
        for plane in planes {
            let other = plane.layout;
            if other.quant() != quant {
                return Err(plane_error(other, "it belongs to another quant type than the base"));
            }
            check("rows of a plane", geometry.n_rows, other.geometry().n_rows)?;
            check("row length of a plane", geometry.row_len, other.geometry().row_len)?;
            let slot = match other.kind() {
                PlaneKind::Exp => &mut found[0],
                PlaneKind::Dsc => &mut found[1],
                PlaneKind::Tile => &mut found[2],
                _ => continue,
            };
            if slot.replace(*plane).is_some() {
                return Err(plane_error(other, "it is given twice"));
            }
        }
        let [exp, dsc, tile] = found;
        let lone_plane = exp.is_some() != dsc.is_some();
        let exp = match (exp, dsc) {
            (Some(exp), Some(dsc)) => Some(ExpPlane::new(&exp, &dsc)?),
            _ => None,
        };
        let tile = if layout.kind() == PlaneKind::Tile { Some(base) } else { tile };
        // The layout has proved that the object fits its slice, so these fit usize.
        Ok(Self {
            quant,
            n_rows: geometry.n_rows as usize,
            row_len: geometry.row_len as usize,
            base: base.bytes,
            row_stride: row_stride as usize,
            other_base,
            exp,
            tile: tile.map(|tile| Units::new(tile.bytes, tile.layout.unit_bytes() as usize)),
            lone_plane,
        })
    }

    /// Quant type of the weights.
    pub fn quant(&self) -> QuantType {
        self.quant
    }

    /// Rows: outputs of the product.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements a row: inputs of the product.
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// Kind of the base, e.g. `padded`.
    pub fn base_name(&self) -> &'static str {
        self.other_base.map_or(PlaneKind::Padded, Layout::kind).name()
    }

    /// Dequantizes one row: `out` has [`row_len`](Self::row_len) elements.
    ///
    /// # Panics
    /// If `row` is not below [`n_rows`](Self::n_rows) or `out` has another length.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.row_len, "elements of a row");
        if let (Some(units), true) = (self.tile, self.is_rebuilt()) {
            let unit = units.unit(row / TileRecord::ROWS);
            return units::dequantize_row(out, self.quant, unit, row % TileRecord::ROWS);
        }
        let mut buffers = RebuiltRows::default();
        match self.rebuild(row..row + 1, &mut buffers) {
            Some((rebuilt, first)) => rebuilt.dequantize_row(row - first, out),
            None => dequantize_row(out, self.quant, self.row(row)),
        }
    }

    /// Those rows as a `padded` weight of their own, and the row that is its row 0; nothing if the
    /// base is `padded` already.
    pub(crate) fn rebuild<'b>(
        &self,
        rows: Range<usize>,
        buffers: &'b mut RebuiltRows,
    ) -> Option<(Weight<'b>, usize)> {
        let layout = self.other_base?;
        match self.rebuild_from(layout, rows, buffers) {
            Ok(rebuilt) => Some(rebuilt),
            Err(e) => unreachable!("{e}, though the base was checked when the weight was bound"),
        }
    }

    fn rebuild_from<'b>(
        &self,
        layout: &Layout,
        rows: Range<usize>,
        buffers: &'b mut RebuiltRows,
    ) -> format_spec::Result<(Weight<'b>, usize)> {
        let rows_per_unit = layout.rows_per_unit().unwrap_or(1) as usize;
        let units = rows.start / rows_per_unit..rows.end.div_ceil(rows_per_unit);
        let first = units.start * rows_per_unit;
        let n_rows = (units.end * rows_per_unit).min(self.n_rows) - first;
        let unit_bytes = layout.unit_bytes() as usize;
        let units = &self.base[units.start * unit_bytes..units.end * unit_bytes];

        let geometry = Geometry { n_rows: n_rows as u64, row_len: self.row_len as u64 };
        let padded = Layout::new(PlaneKind::Padded, self.quant, geometry)?;
        buffers.gguf.resize(padded.gguf_bytes() as usize, 0);
        buffers.padded.resize(padded.len_bytes() as usize, 0);
        layout.restore_units(units, &mut buffers.gguf)?;
        padded.write_units(&buffers.gguf, 0..padded.n_units(), &mut buffers.padded)?;
        let rebuilt = Weight {
            quant: self.quant,
            n_rows,
            row_len: self.row_len,
            base: &buffers.padded,
            row_stride: padded.row_stride().unwrap_or(0) as usize,
            other_base: None,
            exp: None,
            tile: None,
            lone_plane: false,
        };
        Ok((rebuilt, first))
    }

    /// The blocks of one row of a `padded` base.
    ///
    /// # Panics
    /// If `row` is not below [`n_rows`](Self::n_rows).
    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        &self.base[row * self.row_stride..][..self.row_stride]
    }

    /// What begins with a row of a `padded` base; of any other, all of it.
    pub(crate) fn bytes_from(&self, row: usize) -> &'a [u8] {
        &self.base[(row * self.row_stride).min(self.base.len())..]
    }

    /// The blocks of some rows of a `padded` base.
    pub(crate) fn rows(&self, rows: Range<usize>) -> &'a [u8] {
        &self.base[rows.start * self.row_stride..rows.end * self.row_stride]
    }

    /// Whether rows must be rebuilt before kernels can read them.
    pub(crate) fn is_rebuilt(&self) -> bool {
        self.other_base.is_some()
    }

    /// The `tile` object, if there is one.
    pub(crate) fn tile(&self) -> Option<Units<'a>> {
        self.tile
    }

    pub(crate) fn exp(&self) -> Option<ExpPlane<'a>> {
        self.exp
    }

    /// Whether one of `exp` and `dsc` is there without the other.
    pub(crate) fn has_lone_plane(&self) -> bool {
        self.lone_plane
    }
}

fn check(what: &'static str, expected: u64, found: u64) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Shape { what, expected, found }) }
}

fn plane_error(layout: &Layout, why: &'static str) -> Error {
    Error::Plane { plane: layout.kind().name(), why }
}

impl<'a> ExpPlane<'a> {
    fn new(exp: &PlaneRef<'a>, dsc: &PlaneRef<'a>) -> Result<Self> {
        // The kernels' index is row * row_len + k; a layout that says otherwise is refused here.
        check(
            "row stride of exp",
            exp.layout.geometry().row_len,
            exp.layout.row_stride().unwrap_or(0),
        )?;
        let Some(scale) = dsc.layout.field(FieldName::Scale) else {
            return Err(plane_error(dsc.layout, "it has no scales"));
        };
        check("elements a dsc scale", 16, u64::from(scale.k_per_group))?;
        check("row stride of dsc", 4, scale.row_group_stride)?;
        Ok(Self { exp: exp.bytes, dsc: dsc.bytes, dsc_rows: scale.k_group_stride as usize / 4 })
    }
}

/// The output of a product, `[n_tokens, n_rows]` row-major f32, whose disjoint row ranges may be
/// written by several workers at a time.
#[derive(Debug, Clone, Copy)]
pub struct OutView<'a> {
    ptr: *mut f32,
    n_tokens: usize,
    /// The weight's row that the first column is of.
    first_row: usize,
    n_rows: usize,
    /// Elements from token to token.
    stride: usize,
    _out: PhantomData<&'a mut [f32]>,
}

#[allow(unsafe_code)]
// SAFETY: an OutView is a pointer into a slice of f32 that its constructor's caller has promised
// to write from one worker a range; f32 itself is Send.
unsafe impl Send for OutView<'_> {}

#[allow(unsafe_code)]
// SAFETY: as above; shared access never writes outside of the ranges that the contract splits.
unsafe impl Sync for OutView<'_> {}

#[allow(unsafe_code)]
impl<'a> OutView<'a> {
    /// A view of `out`, `[n_tokens, n_rows]`; `n_tokens` is `out.len() / n_rows`.
    ///
    /// # Panics
    /// If `out` is not made of whole rows.
    ///
    /// # Safety
    /// While the view or a copy of it lives, no two products write overlapping ranges of its rows
    /// at the same time.
    pub unsafe fn new(out: &'a mut [f32], n_rows: usize) -> Self {
        assert!(n_rows > 0 && out.len().is_multiple_of(n_rows), "{} of {n_rows}", out.len());
        let n_tokens = out.len() / n_rows;
        let (ptr, stride) = (out.as_mut_ptr(), n_rows);
        Self { ptr, n_tokens, first_row: 0, n_rows, stride, _out: PhantomData }
    }

    /// Tokens, the outer dimension.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Rows of the weight, the inner dimension.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The same outputs as those of rows `first_row..` of a weight: what a product with some of a
    /// weight's rows writes, with one expert's of a stack for instance.
    pub fn from_row(self, first_row: usize) -> Self {
        Self { first_row, ..self }
    }

    /// The weight's rows that have a column here.
    pub fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.n_rows
    }

    /// The view for a weight whose row 0 is row `row` of this one's.
    pub(crate) fn below(&self, row: usize) -> Self {
        let before = row.saturating_sub(self.first_row).min(self.n_rows);
        Self {
            ptr: self.ptr.wrapping_add(before),
            first_row: self.first_row.saturating_sub(row),
            n_rows: self.n_rows - before,
            ..*self
        }
    }

    /// The outputs of one token for a range of rows.
    ///
    /// # Safety
    /// No other reference into this range lives.
    pub(crate) unsafe fn token_rows(&self, token: usize, rows: Range<usize>) -> &'a mut [f32] {
        assert!(token < self.n_tokens && rows.start <= rows.end);
        assert!(self.first_row <= rows.start && rows.end <= self.rows().end, "rows {rows:?}");
        let start = self.ptr.wrapping_add(token * self.stride + rows.start - self.first_row);
        // SAFETY: in bounds of the slice given to `new` by the assertion; unique by the contracts
        // of `new` and of this function.
        unsafe { std::slice::from_raw_parts_mut(start, rows.len()) }
    }
}
