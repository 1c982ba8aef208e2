//! Matrix products: the kernels of one weight, chosen once at load.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use format_spec::QuantType;

use super::Tier;
use super::activations::Activations;
use super::form::{Form, GROUP, Group};
use super::scalar;
use super::scalar::unpack::{UnpackFn, unpack_exp, unpacker};
use crate::Result;
use crate::view::{OutView, Weight};

/// Rows in which a pool should hand out work: multiples of this waste nothing.
pub const ROW_GRANULE: usize = 32;

/// Switches that change which object a product reads, never its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulOptions {
    /// Prefill reads the `exp` and `dsc` planes of q6_K weights (`MINFER_MMQ_Q6K_EXP`).
    pub exp_plane: bool,
}

impl Default for MatmulOptions {
    fn default() -> Self {
        Self { exp_plane: true }
    }
}

/// How often each path of a product ran (calls, not tokens).
#[derive(Debug, Default)]
pub struct Launches {
    /// Few tokens, from the base.
    pub gemv_padded: AtomicU64,
    /// Many tokens, from the base.
    pub gemm_padded: AtomicU64,
    /// Many tokens, from `exp` and `dsc`.
    pub gemm_exp: AtomicU64,
}

/// What a product reads, and what became of a plane that it could have read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// The base object.
    Padded,
    /// The `exp` and `dsc` planes.
    Exp,
    /// The base, since the plane is switched off.
    Off,
    /// The base, although a plane is in the container and nobody switched it off.
    Fallback,
}

impl Label {
    /// The label as reports print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Padded => "padded",
            Self::Exp => "exp",
            Self::Off => "off",
            Self::Fallback => "fallback!",
        }
    }
}

/// Why a product runs as it does in one phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explain {
    /// Kind of the object read: `padded` or `exp`.
    pub object: &'static str,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// What stands in the report.
    pub label: Label,
    /// The reason for the choice.
    pub reason: &'static str,
}

/// Buffers of one worker, kept from product to product.
#[derive(Debug, Default)]
pub struct Scratch {
    groups: Vec<Group>,
}

impl Scratch {
    /// Empty buffers; they grow to the largest product and stay.
    pub fn new() -> Self {
        Self::default()
    }
}

/// The product of one weight with activations, `y = x W^T`, its kernels chosen once.
#[derive(Debug)]
pub struct Matmul<'a> {
    tier: Tier,
    w: Weight<'a>,
    options: MatmulOptions,
    path: Path,
    launches: Launches,
}

#[derive(Debug)]
enum Path {
    Scalar { form: Form, unpack: UnpackFn },
    ScalarFloat,
}

impl<'a> Matmul<'a> {
    /// Chooses the kernels for a weight.
    ///
    /// # Errors
    /// [`crate::Error::TierUnavailable`]
    pub fn new(tier: Tier, w: Weight<'a>, options: MatmulOptions) -> Result<Self> {
        let tier = tier.require()?;
        let path = match (Form::of(w.quant()), unpacker(w.quant())) {
            (Some(form), Some(unpack)) => Path::Scalar { form, unpack },
            _ => Path::ScalarFloat,
        };
        Ok(Self { tier, w, options, path, launches: Launches::default() })
    }

    /// The weight.
    pub fn weight(&self) -> &Weight<'a> {
        &self.w
    }

    /// How often each path ran.
    pub fn launches(&self) -> &Launches {
        &self.launches
    }

    /// What prefill (many tokens) reads and why.
    pub fn explain_prefill(&self) -> Explain {
        let (label, reason) = match (self.w.exp(), self.w.has_lone_plane()) {
            (Some(_), _) if self.options.exp_plane => (Label::Exp, "planes in the container"),
            (Some(_), _) => (Label::Off, "switched off"),
            (None, true) => (Label::Fallback, "exp and dsc are only of use together"),
            (None, false) => (Label::Padded, "no plane for prefill in the container"),
        };
        let object = if label == Label::Exp { "exp" } else { "padded" };
        Explain { object, kernel: self.tier.name(), label, reason }
    }

    /// What decode (few tokens) reads and why.
    pub fn explain_decode(&self) -> Explain {
        let reason = "decode reads the base";
        Explain { object: "padded", kernel: self.tier.name(), label: Label::Padded, reason }
    }

    /// Computes `rows` of the output for every token: `y[t][r] = sum over k of x[t][k] * w[r][k]`.
    ///
    /// `y`: `[n_tokens, n_rows]`; `x`: `[n_tokens, row_len]`, quantized unless the weights are
    /// floats. Any split of the rows gives the same bits; multiples of [`ROW_GRANULE`] cost least.
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
        assert_eq!((y.n_tokens(), y.n_rows()), (x.n_tokens(), self.w.n_rows()), "output");
        assert!(rows.start <= rows.end && rows.end <= self.w.n_rows(), "rows {rows:?}");
        let many = x.n_tokens() > super::activations::GEMV_MAX_TOKENS;
        let exp = many && self.options.exp_plane && self.w.exp().is_some();
        let counter = match (many, exp) {
            (false, _) => &self.launches.gemv_padded,
            (true, false) => &self.launches.gemm_padded,
            (true, true) => &self.launches.gemm_exp,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        match self.path {
            Path::Scalar { form, unpack } => {
                self.scalar_rows(form, unpack, exp, y, x, rows, scratch);
            }
            Path::ScalarFloat => self.scalar_float_rows(y, x, rows),
        }
    }

    #[allow(clippy::too_many_arguments)] // the arguments of `rows` and the path's own
    #[allow(unsafe_code)]
    fn scalar_rows(
        &self,
        form: Form,
        unpack: UnpackFn,
        exp: bool,
        y: &OutView<'_>,
        x: &Activations,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let n_groups = self.w.row_len().div_ceil(GROUP);
        scratch.groups.resize(n_groups, Group::ZERO);
        let n_chunks = self.w.row_len() / super::form::CHUNK;
        for row in rows {
            for (i, group) in scratch.groups.iter_mut().enumerate() {
                match self.w.exp() {
                    Some(plane) if exp => unpack_exp(&self.w, &plane, row, i, group),
                    _ => unpack(self.w.row(row), i, (n_chunks - i * 8).min(8), group),
                }
            }
            for token in 0..x.n_tokens() {
                // SAFETY: these rows are this worker's, and the reference ends here.
                let y = unsafe { y.token_rows(token, row..row + 1) };
                y[0] = scalar::dot(form, &scratch.groups, &x.dot_row(token));
            }
        }
    }

    #[allow(unsafe_code)]
    fn scalar_float_rows(&self, y: &OutView<'_>, x: &Activations, rows: Range<usize>) {
        for row in rows {
            let w = self.w.row(row);
            for (token, x) in x.x().chunks_exact(self.w.row_len()).enumerate() {
                // SAFETY: these rows are this worker's, and the reference ends here.
                let y = unsafe { y.token_rows(token, row..row + 1) };
                y[0] = match self.w.quant() {
                    QuantType::F16 => scalar::dot_float(scalar::f16_row(w), x),
                    QuantType::BF16 => scalar::dot_float(scalar::bf16_row(w), x),
                    _ => scalar::dot_float(scalar::f32_row(w), x),
                };
            }
        }
    }
}
