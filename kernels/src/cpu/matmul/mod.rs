//! Matrix products: the kernels of one weight, chosen once at load.

mod explain;
mod paths;
mod scratch;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Tier;
use super::activations::Activations;
use super::form::Form;
use super::kernels::Kernels;
use super::scalar::unpack::{UnpackFn, unpacker};
use super::tables::FloatFn;
use super::units::{UnitKernels, Units};
use crate::Result;
use crate::view::{OutView, Weight};

pub use explain::{Explain, Label};
pub(super) use paths::prefetch;
pub use scratch::Scratch;

/// Rows in which a pool should hand out work: multiples of this waste nothing.
pub const ROW_GRANULE: usize = 32;

/// Switches that change which object a product reads, never its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulOptions {
    /// Prefill reads the `exp` and `dsc` planes of q6_K weights (`MINFER_MMQ_Q6K_EXP`).
    pub exp_plane: bool,
    /// Products read the `tile` object where there is one (`MINFER_CPU_TILE`).
    pub tile_units: bool,
}

impl Default for MatmulOptions {
    fn default() -> Self {
        Self { exp_plane: true, tile_units: true }
    }
}

/// How often each path of a product ran (products, not tokens or shares of threads).
#[derive(Debug, Default)]
pub struct Launches {
    /// Few tokens, from the base.
    pub gemv_padded: AtomicU64,
    /// Many tokens, from the base.
    pub gemm_padded: AtomicU64,
    /// Many tokens, from `exp` and `dsc`.
    pub gemm_exp: AtomicU64,
    /// Few tokens, from `tile`.
    pub gemv_tile: AtomicU64,
    /// Many tokens, from `tile`.
    pub gemm_tile: AtomicU64,
}

/// The product of one weight with activations, `y = x W^T`, its kernels chosen once.
#[derive(Debug)]
pub struct Matmul<'a> {
    tier: Tier,
    w: Weight<'a>,
    options: MatmulOptions,
    path: Path,
    /// Kernels for the `tile` object, if there are both.
    tile: Option<(Units<'a>, UnitKernels)>,
    /// They are there, and switched off.
    tile_off: bool,
    launches: Launches,
}

#[derive(Debug)]
enum Path {
    Scalar { form: Form, unpack: UnpackFn },
    Simd { form: Form, kernels: Kernels },
    Float { dot: FloatFn, name: &'static str },
}

impl<'a> Matmul<'a> {
    /// Chooses the kernels for a weight.
    ///
    /// # Errors
    /// [`crate::Error::TierUnavailable`]
    pub fn new(tier: Tier, w: Weight<'a>, options: MatmulOptions) -> Result<Self> {
        let tables = tier.require_tables()?;
        let path = match (Form::of(w.quant()), unpacker(w.quant())) {
            (Some(form), Some(unpack)) => match tables.kernels {
                Some(kernels) => Path::Simd { form, kernels: kernels(w.quant(), unpack) },
                None => Path::Scalar { form, unpack },
            },
            _ => Path::Float { dot: tables.float_rows, name: tables.float_name },
        };
        let tile = w.tile().zip((tables.unit_kernels)(w.quant()));
        let tile_off = tile.is_some() && !options.tile_units;
        let tile = tile.filter(|_| options.tile_units);
        Ok(Self { tier, w, options, path, tile, tile_off, launches: Launches::default() })
    }

    /// The weight.
    pub fn weight(&self) -> &Weight<'a> {
        &self.w
    }

    /// Where a product with few tokens begins to read when it begins with `row`, as an address: of use to whoever
    /// wants the bytes in a cache beforehand ([`prefetch`](super::prefetch)).
    pub fn address_of(&self, row: usize) -> usize {
        let bytes = match &self.tile {
            Some((units, _)) => units.bytes_from(row),
            None => self.w.bytes_from(row),
        };
        bytes.as_ptr().addr()
    }

    /// How often each path ran.
    pub fn launches(&self) -> &Launches {
        &self.launches
    }

    /// Computes `rows` of the output for every token: `y[t][r] = sum over k of x[t][k] * w[r][k]`.
    ///
    /// `y`: `[n_tokens, n_rows]`, of all rows or, by [`OutView::from_row`], of some; `x`:
    /// `[n_tokens, row_len]`, quantized unless the weights are floats. Any split of the rows gives
    /// the same bits; multiples of [`ROW_GRANULE`] cost least.
    ///
    /// # Panics
    /// If shapes or tiers disagree.
    pub fn rows(
        &self,
        y: &OutView<'_>,
        x: &Activations,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) {
        assert_eq!(x.tier(), self.tier, "tier of the activations");
        assert_eq!(x.row_len(), self.w.row_len(), "row length of the activations");
        assert_eq!(y.n_tokens(), x.n_tokens(), "output");
        let all = y.rows();
        assert!(all.end <= self.w.n_rows(), "rows {all:?} of {}", self.w.n_rows());
        assert!(all.start <= rows.start && rows.end <= all.end, "rows {rows:?} of {all:?}");
        let many = x.n_tokens() > super::activations::GEMV_MAX_TOKENS;
        let exp = many && self.options.exp_plane && self.w.exp().is_some();
        let counter = match (many, exp, &self.tile) {
            (false, _, Some(_)) => &self.launches.gemv_tile,
            (true, _, Some(_)) => &self.launches.gemm_tile,
            (false, _, None) => &self.launches.gemv_padded,
            (true, false, None) => &self.launches.gemm_padded,
            (true, true, None) => &self.launches.gemm_exp,
        };
        // Whoever has the first row counts: once a product, however many threads share it.
        if rows.start == all.start {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if let Some((units, kernels)) = &self.tile {
            return kernels.rows(units, y, x, rows, scratch);
        }
        if !self.w.is_rebuilt() || exp {
            return self.path_rows(&self.w, exp, y, x, rows, scratch);
        }
        let mut buffers = std::mem::take(&mut scratch.rebuilt);
        for start in rows.clone().step_by(ROW_GRANULE) {
            let range = start..(start + ROW_GRANULE).min(rows.end);
            let Some((w, first)) = self.w.rebuild(range.clone(), &mut buffers) else {
                unreachable!("the layout of the base was checked when the weight was bound")
            };
            self.path_rows(
                &w,
                false,
                &y.below(first),
                x,
                range.start - first..range.end - first,
                scratch,
            );
        }
        scratch.rebuilt = buffers;
    }

    /// `rows`, of rows that kernels can read.
    fn path_rows(
        &self,
        w: &Weight<'_>,
        exp: bool,
        y: &OutView<'_>,
        x: &Activations,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let many = x.n_tokens() > super::activations::GEMV_MAX_TOKENS;
        match self.path {
            Path::Scalar { form, unpack } => {
                paths::scalar_rows(w, form, unpack, exp, y, x, rows, scratch);
            }
            Path::Simd { form, ref kernels } if many => {
                paths::gemm_rows(w, form, kernels, exp, y, x, rows, scratch);
            }
            Path::Simd { ref kernels, .. } => paths::gemv_rows(w, kernels, y, x, rows),
            Path::Float { dot, .. } => paths::float_rows(w, dot, y, x, rows, scratch),
        }
    }
}
