//! Objects: the tensors and planes of a container.

use std::ops::Range;

use super::{ObjectDigest, slice};
use crate::plane::PlaneKind;
use crate::quant::QuantType;
use crate::{Geometry, Layout};

/// Name of the object that holds `kind` of a tensor: its geometry is part of it, so that a plane
/// of another shape can never be taken for this one.
pub fn object_name(tensor: &str, kind: PlaneKind, geometry: Geometry) -> String {
    format!("{tensor}__{}{}x{}", kind.name(), geometry.n_rows, geometry.row_len)
}

/// A tensor or plane in the file, checked against its layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// `{tensor}__{kind}{n_rows}x{row_len}`.
    pub name: String,
    /// Name of the tensor in the GGUF.
    pub tensor: String,
    /// Plane kind.
    pub kind: PlaneKind,
    /// Type of the tensor's weights.
    pub quant: QuantType,
    /// Shape of the tensor.
    pub geometry: Geometry,
    /// Start in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// sha256 over the concatenated `leaves`.
    pub sha256: [u8; 32],
    /// xxh3 of the bytes.
    pub xxh3: u64,
    /// sha256 of each 4 MiB of the bytes.
    pub leaves: Vec<[u8; 32]>,
    /// Where everything lies.
    pub layout: Layout,
}

impl Object {
    /// Where the object lies in the file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len)
    }

    /// The object's bytes; empty if `file` is not the whole file that this object was read from.
    pub fn bytes<'f>(&self, file: &'f [u8]) -> &'f [u8] {
        slice(file, self.range()).unwrap_or_default()
    }

    /// The recorded hashes.
    pub fn digest(&self) -> ObjectDigest {
        ObjectDigest { sha256: self.sha256, xxh3: self.xxh3, leaves: self.leaves.clone() }
    }
}
