//! Matrix products: the kernels of one weight, chosen once at load.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use format_spec::QuantType;
use format_spec::plane::PlaneKind;

use super::Tier;
use super::activations::{Activations, TOKEN_GRANULE};
use super::form::{CHUNK, Chains, Form, GROUP, Group};
use super::kernels::{Kernels, TILE_ROWS, TILE_TOKENS, TileJob, TileOut};
use super::panel::{self, PANEL_ROWS, PanelSource};
use super::scalar;
use super::scalar::unpack::{UnpackFn, unpack_exp, unpacker};
use super::units::{UnitKernels, Units};
use crate::Result;
use crate::view::{OutView, RebuiltRows, Weight};

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

/// Why a base of another kind is slow on the CPU.
const REBUILT: &str = "this tier has no kernels for the base: rows are rebuilt for every product";
const TILE: &str = "sixteen rows at a time";
const TILE_OFF: &str = "kernels for tile are switched off";

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
}

/// Buffers of one worker, kept from product to product.
#[derive(Debug, Default)]
pub struct Scratch {
    groups: Vec<Group>,
    rebuilt: RebuiltRows,
    panels: Vec<Line>,
    column: Vec<f32>,
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
    pub(super) fn panels(
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
    Float { dot: FloatFn },
}

/// One weight row times several tokens: `y`: `[n_tokens]`, `x`: `[n_tokens, row_len]`.
type FloatFn = unsafe fn(y: &mut [f32], quant: QuantType, w: &[u8], x: &[f32]);

impl<'a> Matmul<'a> {
    /// Chooses the kernels for a weight.
    ///
    /// # Errors
    /// [`crate::Error::TierUnavailable`]
    pub fn new(tier: Tier, w: Weight<'a>, options: MatmulOptions) -> Result<Self> {
        let tier = tier.require()?;
        let path = match (Form::of(w.quant()), unpacker(w.quant())) {
            (Some(form), Some(unpack)) => match kernels_of(tier, w.quant(), unpack) {
                Some(kernels) => Path::Simd { form, kernels },
                None => Path::Scalar { form, unpack },
            },
            _ => Path::Float { dot: float_of(tier) },
        };
        let tile = w.tile().zip(unit_kernels_of(tier, w.quant()));
        let tile_off = tile.is_some() && !options.tile_units;
        let tile = tile.filter(|_| options.tile_units);
        Ok(Self { tier, w, options, path, tile, tile_off, launches: Launches::default() })
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
        if let Some((_, kernels)) = &self.tile {
            return tile_explain(kernels.names().0);
        }
        let (label, reason) = match (self.w.exp(), self.w.has_lone_plane()) {
            (Some(_), _) if self.options.exp_plane => (Label::Exp, "planes in the container"),
            (Some(_), _) => (Label::Off, "switched off"),
            (None, _) if self.tile_off => (Label::Off, TILE_OFF),
            (None, true) => (Label::Fallback, "exp and dsc are only of use together"),
            (None, false) if self.w.is_rebuilt() => (self.base_label(), REBUILT),
            (None, false) => (self.base_label(), "no plane for prefill in the container"),
        };
        let object = if label == Label::Exp { "exp" } else { self.w.base_name() };
        let kernel = match &self.path {
            Path::Simd { kernels, .. } => kernels.gemm_name,
            Path::Scalar { .. } | Path::Float { .. } => self.plain_name(),
        };
        Explain { object, kernel, label, reason }
    }

    /// What decode (few tokens) reads and why.
    pub fn explain_decode(&self) -> Explain {
        if let Some((_, kernels)) = &self.tile {
            return tile_explain(kernels.names().1);
        }
        let kernel = match &self.path {
            Path::Simd { kernels, .. } => kernels.gemv_name,
            Path::Scalar { .. } | Path::Float { .. } => self.plain_name(),
        };
        let (label, reason) = match (self.tile_off, self.w.is_rebuilt()) {
            (true, _) => (Label::Off, TILE_OFF),
            (false, true) => (self.base_label(), REBUILT),
            (false, false) => (self.base_label(), "decode reads the base"),
        };
        Explain { object: self.w.base_name(), kernel, label, reason }
    }

    fn base_label(&self) -> Label {
        Label::Base(self.w.base_name())
    }

    fn plain_name(&self) -> &'static str {
        match (self.tier, &self.path) {
            (Tier::Avx512, Path::Float { .. }) => "float_avx512",
            (Tier::Avx2, Path::Float { .. }) => "float_avx2",
            (_, Path::Float { .. }) => "float_scalar",
            _ => "scalar",
        }
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
                scalar_rows(w, form, unpack, exp, y, x, rows, scratch);
            }
            Path::Simd { form, ref kernels } if many => {
                gemm_rows(w, form, kernels, exp, y, x, rows, scratch);
            }
            Path::Simd { ref kernels, .. } => gemv_rows(w, kernels, y, x, rows),
            Path::Float { dot } => float_rows(w, dot, y, x, rows, scratch),
        }
    }
}

#[allow(clippy::too_many_arguments)] // the arguments of `path_rows` and the path's own
#[allow(unsafe_code)]
fn scalar_rows(
    w: &Weight<'_>,
    form: Form,
    unpack: UnpackFn,
    exp: bool,
    y: &OutView<'_>,
    x: &Activations,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let n_groups = w.row_len().div_ceil(GROUP);
    scratch.groups.resize(n_groups, Group::ZERO);
    let n_chunks = w.row_len() / CHUNK;
    for row in rows {
        for (i, group) in scratch.groups.iter_mut().enumerate() {
            match w.exp() {
                Some(plane) if exp => unpack_exp(w, &plane, row, i, group),
                // SAFETY: scalar unpackers need no instructions beyond the target's.
                _ => unsafe { unpack(w.row(row), i, (n_chunks - i * 8).min(8), group) },
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
fn gemv_rows(
    w: &Weight<'_>,
    kernels: &Kernels,
    y: &OutView<'_>,
    x: &Activations,
    rows: Range<usize>,
) {
    // With several tokens, a stretch of rows stays in the cache until all have read it.
    let step = if x.n_tokens() == 1 { rows.len().max(1) } else { GEMV_ROWS };
    for start in rows.clone().step_by(step) {
        let end = (start + step).min(rows.end);
        for token in 0..x.n_tokens() {
            // SAFETY: these rows are this worker's, and the reference ends here.
            let y = unsafe { y.token_rows(token, start..end) };
            // SAFETY: the kernel's tier is on this machine, or `new` had failed.
            unsafe { (kernels.gemv)(y, w, start, &x.dot_row(token)) };
        }
    }
}

#[allow(clippy::too_many_arguments)] // the arguments of `path_rows` and the path's own
#[allow(unsafe_code)]
fn gemm_rows(
    w: &Weight<'_>,
    form: Form,
    kernels: &Kernels,
    exp: bool,
    y: &OutView<'_>,
    x: &Activations,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let source = PanelSource {
        w: *w,
        exp: if exp { w.exp() } else { None },
        form,
        unpack: kernels.unpack,
        interleave: kernels.interleave,
    };
    let chains = Chains::new(w.row_len());
    let chain_lens = std::array::from_fn(|s| chains.len(s));
    let panel_bytes = panel::record_bytes(form) * (w.row_len() / CHUNK);
    let (groups, [first, second]) = scratch.panels(panel_bytes);
    let mut out = TileOut::ZERO;
    for start in rows.clone().step_by(TILE_ROWS) {
        let n_rows = (rows.end - start).min(TILE_ROWS);
        source.fill(start, n_rows.min(PANEL_ROWS), groups, first);
        let both = n_rows > PANEL_ROWS;
        if both {
            source.fill(start + PANEL_ROWS, n_rows - PANEL_ROWS, groups, second);
        }
        let panels = [&*first, if both { &*second } else { &*first }];
        // While this pair of panels is at work, the next one's rows come from memory.
        let next = (start + TILE_ROWS).min(rows.end);
        let ahead = source.bytes(next..(next + TILE_ROWS).min(rows.end));
        let n_parts = x.n_tokens().div_ceil(TILE_TOKENS);
        let mut ahead = ahead.chunks(ahead.len().div_ceil(n_parts).max(1));
        for token in (0..x.n_tokens()).step_by(TILE_TOKENS) {
            prefetch(ahead.next().unwrap_or_default());
            let n_tokens = (x.n_tokens() - token).min(TILE_TOKENS);
            let x = x.tiles(token / TOKEN_GRANULE, n_tokens.div_ceil(TOKEN_GRANULE));
            let job = TileJob { form, panels, x, n_tokens, chain_lens };
            // SAFETY: the kernel's tier is on this machine, or `new` had failed.
            unsafe { (kernels.tile)(&mut out, &job) };
            for (t, out) in out.y.iter().enumerate().take(n_tokens) {
                // SAFETY: these rows are this worker's, and the reference ends here.
                let y = unsafe { y.token_rows(token + t, start..start + n_rows) };
                y.copy_from_slice(&out[..n_rows]);
            }
        }
    }
}

#[allow(unsafe_code)]
fn float_rows(
    w: &Weight<'_>,
    dot: FloatFn,
    y: &OutView<'_>,
    x: &Activations,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    scratch.column.resize(x.n_tokens(), 0.0);
    for row in rows {
        // SAFETY: the kernel's tier is on this machine, or `new` had failed.
        unsafe { dot(&mut scratch.column, w.quant(), w.row(row), x.x()) };
        for (token, &value) in scratch.column.iter().enumerate() {
            // SAFETY: these rows are this worker's, and the reference ends here.
            let y = unsafe { y.token_rows(token, row..row + 1) };
            y[0] = value;
        }
    }
}

fn tile_explain(kernel: &'static str) -> Explain {
    Explain { object: PlaneKind::Tile.name(), kernel, label: Label::Tile, reason: TILE }
}

/// Asks for the cache lines of some bytes.
pub(super) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    super::mem::prefetch(bytes.as_ptr(), bytes.len());
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Rows that several GEMVs read before the next stretch.
const GEMV_ROWS: usize = 32;

#[cfg(target_arch = "x86_64")]
fn kernels_of(tier: Tier, quant: QuantType, unpack: UnpackFn) -> Option<Kernels> {
    match tier {
        Tier::Scalar => None,
        Tier::Avx2 => Some(super::avx2::kernels(quant, unpack)),
        Tier::Avx512 => Some(super::avx512::kernels(quant, unpack)),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn kernels_of(_: Tier, _: QuantType, _: UnpackFn) -> Option<Kernels> {
    None
}

#[cfg(target_arch = "x86_64")]
fn unit_kernels_of(tier: Tier, quant: QuantType) -> Option<UnitKernels> {
    match tier {
        Tier::Scalar => None,
        Tier::Avx2 => super::avx2::unit_kernels(quant),
        Tier::Avx512 => super::avx512::unit_kernels(quant),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn unit_kernels_of(_: Tier, _: QuantType) -> Option<UnitKernels> {
    None
}

#[cfg(target_arch = "x86_64")]
fn float_of(tier: Tier) -> FloatFn {
    match tier {
        Tier::Scalar => scalar::float_rows,
        Tier::Avx2 => super::avx2::float_rows,
        Tier::Avx512 => super::avx512::float_rows,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn float_of(_: Tier) -> FloatFn {
    scalar::float_rows
}
