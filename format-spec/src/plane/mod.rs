//! Planes: the forms in which a tensor's weights lie in a container, and the one index function
//! that says where each part of each weight is.
//!
//! A [`Layout`] is a plane kind applied to a quant type and a [`Geometry`]. It is a table of
//! [`Field`]s; a field maps `(row, k)` to a [`Cell`] (byte, shift, bits), and its descriptor is what
//! the container stores. Packer, kernels, tests and generated headers use these functions and no
//! other expression: two strides in one expression read plausible weights at the wrong place.
//!
//! To add a kind, write `plane/<name>.rs` with a `SPEC`, add its `mod` line and its table line here.

mod bf16;
mod block_field;
mod deep;
mod dsc;
mod eb;
mod exp;
mod field;
mod layout;
mod padded;
mod padding;
mod planar;
mod sb;
mod tile;

use std::ops::Range;

use crate::error::{Error, Result};
use crate::quant::QuantType;

pub(crate) use block_field::{BlockField, k_bits};
pub use deep::{Mismatch, find_mismatch};
pub use field::{Cell, Encoding, Field, FieldName};
pub use layout::Layout;
pub use padding::{Gap, Padding};
pub use tile::TileRecord;

/// Shape of a tensor as planes see it: rows of elements. Outer dimensions are multiplied into rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Rows, `od`.
    pub n_rows: u64,
    /// Elements a row, `id`.
    pub row_len: u64,
}

type WriteUnits = fn(&Layout, gguf: &[u8], units: Range<usize>, out: &mut [u8]);
type RestoreUnits = fn(&Layout, units: &[u8], out: &mut [u8]);

/// What one plane kind is.
pub(crate) struct PlaneSpec {
    /// Name as it stands in object names and on the command line.
    pub(crate) name: &'static str,
    /// Whether the whole tensor can be rebuilt from it, so that it may be the base.
    pub(crate) is_base: bool,
    /// The quant types that it exists for.
    pub(crate) applies_to: fn(QuantType) -> bool,
    /// Fields, strides and size; the geometry is checked already.
    pub(crate) lay_out: fn(QuantType, Geometry) -> Option<Parts>,
    /// Produces the bytes of some units from the tensor's GGUF bytes. Lengths are checked already.
    pub(crate) write_units: WriteUnits,
    /// Rebuilds GGUF rows from the bytes of some units; bases only. Lengths are checked already.
    pub(crate) restore_units: Option<RestoreUnits>,
}

/// What a kind's `lay_out` yields: everything of a [`Layout`] that is not its arguments.
pub(crate) struct Parts {
    pub(crate) fields: Vec<Field>,
    pub(crate) len_bytes: u64,
    /// Bytes from row to row, where rows are contiguous.
    pub(crate) row_stride: Option<u64>,
    /// Bytes from (super-)block to (super-)block of a row.
    pub(crate) block_stride: Option<u64>,
    /// Bytes of one independently producible unit.
    pub(crate) unit_bytes: u64,
    /// Rows that a unit covers, where units are groups of rows.
    pub(crate) rows_per_unit: Option<u64>,
    pub(crate) padding: Padding,
}

macro_rules! plane_kinds {
    ($($id:literal => $variant:ident : $module:ident,)*) => {
        /// A form in which weights lie in a container. Discriminants are the ids in the file.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum PlaneKind {
            $(
                #[allow(missing_docs)]
                $variant = $id,
            )*
        }

        impl PlaneKind {
            /// Every kind, in order of id.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Id in the file.
            pub fn id(self) -> u16 {
                match self {
                    $(Self::$variant => $id,)*
                }
            }

            /// The kind with this id.
            ///
            /// # Errors
            /// [`Error::Unsupported`] for an id that this version does not read.
            pub fn from_id(id: u16) -> Result<Self> {
                match id {
                    $($id => Ok(Self::$variant),)*
                    _ => Err(unsupported(format!("id {id}"))),
                }
            }

            pub(crate) fn spec(self) -> &'static PlaneSpec {
                match self {
                    $(Self::$variant => &$module::SPEC,)*
                }
            }
        }
    };
}

plane_kinds! {
    1 => Padded : padded,
    2 => Exp : exp,
    3 => Dsc : dsc,
    4 => Eb : eb,
    5 => Sb : sb,
    6 => Planar : planar,
    7 => Bf16 : bf16,
    8 => Tile : tile,
}

fn unsupported(found: String) -> Error {
    Error::Unsupported {
        what: "plane kind".to_owned(),
        found,
        supported: format!(
            "this version reads {}; upgrade minfer",
            PlaneKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
        ),
    }
}

impl PlaneKind {
    /// Name as it stands in object names and on the command line, e.g. `exp`.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// The kind with this name.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming what this version reads.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| unsupported(format!("`{name}`")))
    }

    /// Whether this kind exists for tensors of this type.
    pub fn applies_to(self, quant: QuantType) -> bool {
        (self.spec().applies_to)(quant)
    }

    /// Whether the tensor can be rebuilt from it byte for byte, so that it may be the base object.
    pub fn is_base(self) -> bool {
        self.spec().is_base
    }
}

#[cfg(test)]
mod tests;
