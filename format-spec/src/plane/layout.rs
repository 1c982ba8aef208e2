//! Layouts: a plane kind applied to a quant type and a geometry.

use std::ops::Range;

use half::{bf16, f16};

use super::{Encoding, Field, FieldName, Geometry, Padding, PlaneKind};
use crate::error::{Error, Result};
use crate::quant::QuantType;

/// Where everything of one object lies.
///
/// An object is a sequence of equal **units**, each producible on its own from the tensor's GGUF
/// bytes: a row of `padded` and `exp`, a column of super-blocks of `dsc`. A packer that produces
/// units in order writes the object front to back, whatever the kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    kind: PlaneKind,
    quant: QuantType,
    geometry: Geometry,
    fields: Vec<Field>,
    len_bytes: u64,
    row_stride: Option<u64>,
    block_stride: Option<u64>,
    unit_bytes: u64,
    rows_per_unit: Option<u64>,
    padding: Padding,
}

impl Layout {
    /// Lays out `kind` for a tensor of type `quant` and this geometry.
    ///
    /// # Errors
    /// If the kind does not exist for the type, a dimension is 0, rows do not consist of whole
    /// blocks, or the object would not fit into 2^63 bytes.
    pub fn new(kind: PlaneKind, quant: QuantType, geometry: Geometry) -> Result<Self> {
        let field = |name: &str, expected: String, found: String| Error::Field {
            field: name.to_owned(),
            offset: 0,
            expected,
            found,
        };
        if !kind.applies_to(quant) {
            return Err(Error::Unsupported {
                what: format!("plane kind {}", kind.name()),
                found: format!("type {}", quant.name()),
                supported: format!(
                    "it exists for {}",
                    QuantType::ALL
                        .iter()
                        .filter(|&&other| kind.applies_to(other))
                        .map(|other| other.name())
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
            });
        }
        if geometry.n_rows == 0 || geometry.row_len == 0 {
            return Err(field(
                "geometry",
                "at least 1 row and 1 element a row".to_owned(),
                format!("{} x {}", geometry.n_rows, geometry.row_len),
            ));
        }
        if !geometry.row_len.is_multiple_of(quant.block_elems() as u64) {
            return Err(field(
                "row length",
                format!("a multiple of {} ({})", quant.block_elems(), quant.name()),
                geometry.row_len.to_string(),
            ));
        }
        let too_large = || {
            field(
                "geometry",
                "an object below 2^63 bytes".to_owned(),
                format!("{} x {} {}", geometry.n_rows, geometry.row_len, quant.name()),
            )
        };
        // The GGUF side must be addressable too; both bounds keep later sums from overflowing.
        Self::gguf_bytes_of(quant, geometry).ok_or_else(too_large)?;
        let parts = (kind.spec().lay_out)(quant, geometry)
            .filter(|parts| parts.len_bytes < 1 << 63)
            .ok_or_else(too_large)?;
        Ok(Self {
            kind,
            quant,
            geometry,
            fields: parts.fields,
            len_bytes: parts.len_bytes,
            row_stride: parts.row_stride,
            block_stride: parts.block_stride,
            unit_bytes: parts.unit_bytes,
            rows_per_unit: parts.rows_per_unit,
            padding: parts.padding,
        })
    }

    fn gguf_bytes_of(quant: QuantType, geometry: Geometry) -> Option<u64> {
        let row_bytes = quant.checked_row_bytes(geometry.row_len)?;
        row_bytes.checked_mul(geometry.n_rows).filter(|&bytes| bytes < 1 << 63)
    }

    /// Plane kind.
    pub fn kind(&self) -> PlaneKind {
        self.kind
    }

    /// Quant type of the tensor.
    pub fn quant(&self) -> QuantType {
        self.quant
    }

    /// Shape of the tensor.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// All fields, in the order in which the container stores them.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The field of this name, if the plane has it.
    pub fn field(&self, name: FieldName) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Size of the object.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Bytes from one row to the next, where a row is contiguous (`padded`, `exp`).
    pub fn row_stride(&self) -> Option<u64> {
        self.row_stride
    }

    /// Bytes from one (super-)block of a row to the next, where a block is contiguous.
    pub fn block_stride(&self) -> Option<u64> {
        self.block_stride
    }

    /// Bytes that no field uses and that are zero.
    pub fn padding(&self) -> &Padding {
        &self.padding
    }

    /// Bytes of one GGUF row of the tensor.
    pub fn gguf_row_bytes(&self) -> u64 {
        self.geometry.row_len / self.quant.block_elems() as u64 * self.quant.block_bytes() as u64
    }

    /// Bytes of the tensor in the GGUF.
    pub fn gguf_bytes(&self) -> u64 {
        self.gguf_row_bytes() * self.geometry.n_rows
    }

    /// Bytes of one unit; `n_units * unit_bytes` is the object's size.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Number of units.
    pub fn n_units(&self) -> u64 {
        self.len_bytes / self.unit_bytes
    }

    /// Rows that a unit covers, where units are groups of rows (every base).
    pub fn rows_per_unit(&self) -> Option<u64> {
        self.rows_per_unit
    }

    /// Produces the bytes of `units` into `out` from the tensor's GGUF bytes.
    ///
    /// `gguf`: the whole tensor as it stands in the GGUF. `out`: `units.len() * unit_bytes`, every
    /// byte is written, padding too.
    ///
    /// # Errors
    /// If the lengths do not fit the layout.
    pub fn write_units(&self, gguf: &[u8], units: Range<u64>, out: &mut [u8]) -> Result<()> {
        self.expect_len("GGUF bytes of the tensor", self.gguf_bytes(), gguf.len())?;
        let units = self.checked_units(&units)?;
        self.expect_len("output", units.len() as u64 * self.unit_bytes, out.len())?;
        (self.kind.spec().write_units)(self, gguf, units, out);
        Ok(())
    }

    /// Rebuilds GGUF rows from consecutive units of a base object.
    ///
    /// `units`: bytes of whole units. `out`: as many GGUF rows as they hold (the last unit of an
    /// object may hold fewer than [`rows_per_unit`](Self::rows_per_unit)).
    ///
    /// # Errors
    /// If the kind is no base or the lengths do not fit.
    pub fn restore_units(&self, units: &[u8], out: &mut [u8]) -> Result<()> {
        let (Some(restore), Some(rows_per_unit)) =
            (self.kind.spec().restore_units, self.rows_per_unit)
        else {
            return Err(Error::Unsupported {
                what: "rebuilding GGUF rows".to_owned(),
                found: format!("plane kind {}", self.kind.name()),
                supported: "only a base holds the whole tensor".to_owned(),
            });
        };
        let n_units = units.len() as u64 / self.unit_bytes;
        self.expect_len("units", n_units * self.unit_bytes, units.len())?;
        let full = n_units * rows_per_unit * self.gguf_row_bytes();
        let least = full.saturating_sub((rows_per_unit - 1) * self.gguf_row_bytes());
        let found = out.len() as u64;
        if found < least || found > full || !found.is_multiple_of(self.gguf_row_bytes()) {
            self.expect_len("output", full, out.len())?;
        }
        restore(self, units, out);
        Ok(())
    }

    fn checked_units(&self, units: &Range<u64>) -> Result<Range<usize>> {
        let n_units = self.n_units();
        let as_usize = |n: u64| usize::try_from(n).ok();
        match (as_usize(units.start), as_usize(units.end)) {
            (Some(start), Some(end)) if start <= end && units.end <= n_units => Ok(start..end),
            _ => Err(Error::Field {
                field: format!("units of a {} object", self.kind.name()),
                offset: 0,
                expected: format!("a range inside 0..{n_units}"),
                found: format!("{}..{}", units.start, units.end),
            }),
        }
    }

    fn expect_len(&self, what: &str, expected: u64, found: usize) -> Result<()> {
        if found as u64 == expected {
            return Ok(());
        }
        Err(Error::Field {
            field: format!("{what} ({} {})", self.kind.name(), self.quant.name()),
            offset: 0,
            expected: format!("{expected} bytes"),
            found: format!("{found} bytes"),
        })
    }

    /// The number a field holds at `(row, k)`: integers with their high bits and bias.
    fn number(
        &self,
        object: &[u8],
        low: FieldName,
        high: Option<FieldName>,
        row: u64,
        k: u64,
    ) -> Option<f32> {
        let field = self.field(low)?;
        let raw = field.read(object, row, k);
        Some(match field.encoding {
            Encoding::F32 => f32::from_bits(raw),
            Encoding::F16 => f16::from_bits(raw as u16).to_f32(),
            Encoding::Bf16 => bf16::from_bits(raw as u16).to_f32(),
            Encoding::Signed => {
                let unused = 32 - u32::from(field.bits);
                ((raw << unused) as i32 >> unused) as f32
            }
            Encoding::Unsigned => {
                let high = high.and_then(|name| self.field(name));
                let high = high.map_or(0, |high| high.read(object, row, k) << field.bits);
                ((raw | high) as i32 + field.bias) as f32
            }
        })
    }

    /// The quantized integer at `(row, k)` with its bias, as a float; `None` without such a field.
    pub fn quant_at(&self, object: &[u8], row: u64, k: u64) -> Option<f32> {
        self.number(object, FieldName::Quant, Some(FieldName::High), row, k)
    }

    /// The factor of the quantized integer at `(row, k)`, `d * scale`; `None` without such fields.
    pub fn scale_at(&self, object: &[u8], row: u64, k: u64) -> Option<f32> {
        let d = self.number(object, FieldName::D, None, row, k);
        let scale = self.number(object, FieldName::Scale, Some(FieldName::ScaleHigh), row, k);
        match (d, scale) {
            (Some(d), Some(scale)) => Some(d * scale),
            (d, scale) => d.or(scale),
        }
    }

    /// What is added to `scale * quant` at `(row, k)`: `-(dmin * min)`, or `min` itself; `None`
    /// without such fields.
    pub fn min_at(&self, object: &[u8], row: u64, k: u64) -> Option<f32> {
        let min = self.number(object, FieldName::Min, Some(FieldName::MinHigh), row, k)?;
        Some(match self.number(object, FieldName::Dmin, None, row, k) {
            Some(dmin) => -(dmin * min),
            None => min,
        })
    }

    /// What the object says about the weight at `(row, k)`, through the fields and nothing else.
    ///
    /// For a base this is the weight, bit for bit what [`QuantType::dequantize_block`] gives; for
    /// a plane that holds a part of it (`exp`, `dsc`), that part. Slow: this is the oracle.
    ///
    /// # Panics
    /// If `object` is shorter than the layout or the position is outside the geometry.
    pub fn value(&self, object: &[u8], row: u64, k: u64) -> f32 {
        assert!(
            row < self.geometry.n_rows && k < self.geometry.row_len,
            "position outside the tensor"
        );
        if let Some(value) = self.number(object, FieldName::Value, None, row, k) {
            return value;
        }
        let product = match (self.scale_at(object, row, k), self.quant_at(object, row, k)) {
            (Some(scale), Some(quant)) => scale * quant,
            (scale, quant) => scale.or(quant).unwrap_or(0.0),
        };
        match self.min_at(object, row, k) {
            Some(min) => product + min,
            None => product,
        }
    }
}
