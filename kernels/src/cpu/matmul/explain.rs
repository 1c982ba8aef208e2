//! What a product reads, and why: the lines of `--explain`.

use format_spec::plane::PlaneKind;

use super::{Matmul, Path};

/// Why a base of another kind is slow on the CPU.
const REBUILT: &str = "this tier has no kernels for the base: rows are rebuilt for every product";
const TILE: &str = "sixteen rows at a time";
const TILE_OFF: &str = "kernels for tile are switched off";

/// What a product reads, and what became of a plane that it could have read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// The base object, of this kind.
    Base(&'static str),
    /// The `exp` and `dsc` planes.
    Exp,
    /// The `tile` object, by kernels made for it.
    Tile,
    /// The base, since the plane is switched off.
    Off,
    /// The base, although a plane is in the container and nobody switched it off.
    Fallback,
}

impl Label {
    /// The label as reports print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Base(kind) => kind,
            Self::Exp => "exp",
            Self::Tile => "tile",
            Self::Off => "off",
            Self::Fallback => "fallback!",
        }
    }
}

/// Why a product runs as it does in one phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explain {
    /// Kind of the object read: `exp`, or the base's, e.g. `padded`.
    pub object: &'static str,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// What stands in the report.
    pub label: Label,
    /// The reason for the choice.
    pub reason: &'static str,
    /// Whether rows are rebuilt for every product, since no kernel reads the object: slow.
    pub is_rebuilt: bool,
}

impl Matmul<'_> {
    /// What prefill (many tokens) reads and why.
    pub fn explain_prefill(&self) -> Explain {
        if let Some((_, kernels)) = &self.tile {
            return tile_explain(kernels.names().0);
        }
        let (label, reason) = match (self.w.exp(), self.w.has_lone_plane()) {
            (Some(_), _) if self.options.exp_plane => (Label::Exp, "planes in the container"),
            (Some(_), _) => (Label::Off, "switched off"),
            (None, _) if self.tile_off => (Label::Off, TILE_OFF),
            (None, true) => (Label::Fallback, "exp and dsc are only of use together"),
            (None, false) if self.w.is_rebuilt() => (self.base_label(), REBUILT),
            (None, false) => (self.base_label(), "no plane that the CPU reads in prefill"),
        };
        let object = if label == Label::Exp { "exp" } else { self.w.base_name() };
        let is_rebuilt = self.w.is_rebuilt() && label != Label::Exp;
        let kernel = match &self.path {
            Path::Simd { kernels, .. } => kernels.gemm_name,
            Path::Scalar { .. } => "scalar",
            Path::Float { name, .. } => name,
        };
        Explain { object, kernel, label, reason, is_rebuilt }
    }

    /// What decode (few tokens) reads and why.
    pub fn explain_decode(&self) -> Explain {
        if let Some((_, kernels)) = &self.tile {
            return tile_explain(kernels.names().1);
        }
        let kernel = match &self.path {
            Path::Simd { kernels, .. } => kernels.gemv_name,
            Path::Scalar { .. } => "scalar",
            Path::Float { name, .. } => name,
        };
        let is_rebuilt = self.w.is_rebuilt();
        let (label, reason) = match (self.tile_off, is_rebuilt) {
            (true, _) => (Label::Off, TILE_OFF),
            (false, true) => (self.base_label(), REBUILT),
            (false, false) => (self.base_label(), "decode reads the base"),
        };
        Explain { object: self.w.base_name(), kernel, label, reason, is_rebuilt }
    }

    fn base_label(&self) -> Label {
        Label::Base(self.w.base_name())
    }
}

fn tile_explain(kernel: &'static str) -> Explain {
    let object = PlaneKind::Tile.name();
    Explain { object, kernel, label: Label::Tile, reason: TILE, is_rebuilt: false }
}
