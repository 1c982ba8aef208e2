//! Mixtures of experts: routing, and products of tokens with the matrices of their experts.
//!
//! The host never learns which expert a token went to: kernels take it from device memory, so that a
//! recorded launch serves every token and no step waits for an answer.

mod products;
mod table;

pub use products::ExpertOut;
pub use table::ExpertTable;

use std::ffi::c_void;

use super::driver::Gpu;
use super::error::CudaResult;
use super::launch::Shape;
use super::memory::Span;
use super::ops::{OperandRef, address, params, u32_of};
use super::products::MAX_GEMV_TOKENS;
use super::weight::DeviceWeight;

/// Most experts that are routed among: a warp has them in registers.
pub const MAX_EXPERTS: usize = 512;
/// Rows of a tile of the int8 products.
const MMQ_TILE: usize = 64;
/// Rows of a tile of the bf16 products.
const GEMM_TILE: usize = 128;
/// Numbers of experts and the sizes of what is made from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutingShape {
    /// Experts there are, up to [`MAX_EXPERTS`].
    pub n_expert: usize,
    /// Experts of a token.
    pub n_used: usize,
}

impl RoutingShape {
    /// Pairs of a token and one of its experts.
    pub fn n_pairs(&self, n_tokens: usize) -> usize {
        n_tokens * self.n_used
    }

    /// 32-bit words of [`SortedRows`]' buffer.
    pub fn n_sorted_words(&self, n_tokens: usize) -> usize {
        let n_pairs = self.n_pairs(n_tokens);
        let tiles = self.n_tiles(n_pairs, MMQ_TILE) + self.n_tiles(n_pairs, GEMM_TILE);
        // Tiles first: they are read 16 bytes at a time.
        4 * tiles + 2 * n_pairs + self.n_expert + 1
    }

    /// Tiles that there can be at most: every expert's last may be almost empty.
    fn n_tiles(&self, n_pairs: usize, height: usize) -> usize {
        n_pairs.div_ceil(height) + self.n_expert.min(n_pairs)
    }
}

/// The rows of many tokens in order of experts, on the device: tiles, order, places, first rows.
#[derive(Debug, Clone, Copy)]
pub struct SortedRows<'b> {
    shape: RoutingShape,
    n_pairs: usize,
    words: Span<'b, u32>,
}

impl<'b> SortedRows<'b> {
    /// The parts of a buffer of [`RoutingShape::n_sorted_words`] words.
    ///
    /// # Panics
    /// If it is smaller.
    pub fn new(shape: RoutingShape, n_tokens: usize, words: Span<'b, u32>) -> Self {
        assert!(words.len() >= shape.n_sorted_words(n_tokens), "{} words", words.len());
        Self { shape, n_pairs: shape.n_pairs(n_tokens), words }
    }

    /// Tiles of `height` rows.
    fn tiles(&self, height: usize) -> Span<'b, u32> {
        let n_first = 4 * self.shape.n_tiles(self.n_pairs, MMQ_TILE);
        let n_second = 4 * self.shape.n_tiles(self.n_pairs, GEMM_TILE);
        match height {
            MMQ_TILE => self.words.span(0..n_first),
            _ => self.words.span(n_first..n_first + n_second),
        }
    }

    fn after_tiles(&self) -> usize {
        self.tiles(MMQ_TILE).len() + self.tiles(GEMM_TILE).len()
    }

    /// The pair of each row.
    fn order(&self) -> Span<'b, u32> {
        let start = self.after_tiles();
        self.words.span(start..start + self.n_pairs)
    }

    /// The row of each pair.
    pub fn place(&self) -> Span<'b, u32> {
        let start = self.after_tiles() + self.n_pairs;
        self.words.span(start..start + self.n_pairs)
    }

    /// The first row of each expert, and the end of the last.
    fn starts(&self) -> Span<'b, u32> {
        let start = self.after_tiles() + 2 * self.n_pairs;
        self.words.span(start..start + self.shape.n_expert + 1)
    }
}

impl Gpu {
    /// Affinities of tokens to experts, `[n_tokens, n_expert]`, in f32 all through: `x`,
    /// `[n_tokens, width]`, times the rows of an f32 weight.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree or the weight is of another type.
    pub fn router_logits(
        &self,
        logits: Span<'_, f32>,
        router: &DeviceWeight,
        x: Span<'_, f32>,
        n_tokens: usize,
    ) -> CudaResult<()> {
        let Some((w, row_stride)) = router.f32_rows() else { panic!("a router in f32") };
        let (n_expert, width) = (router.n_rows(), router.row_len());
        assert!(logits.len() >= n_tokens * n_expert && x.len() >= n_tokens * width, "rows");
        let (n_tokens, n_expert) = (u32_of(n_tokens), u32_of(n_expert));
        let width = u32_of(width);
        let (name, grid, block) = if n_tokens as usize <= MAX_GEMV_TOKENS {
            ("moe_logits_few", (n_expert, 1, 1), 256)
        } else {
            ("moe_logits", (n_expert.div_ceil(16), n_tokens.div_ceil(8), 1), 128)
        };
        let params = params![logits.ptr, w, row_stride, x.ptr, n_tokens, n_expert, width];
        let shape = Shape { grid, block, shared: 0, waits: true };
        // SAFETY: the parameters of both; lengths are checked above, rows are made of 32 elements.
        unsafe { self.launch(self.known(name)?, shape, params) }
    }

    /// The experts that each token goes to: `choices[t * n_used + i]` (number, bits of the factor)
    /// from `logits`, `[n_tokens, n_expert]`.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree or there are more experts than [`MAX_EXPERTS`].
    pub fn route(
        &self,
        choices: Span<'_, [u32; 2]>,
        logits: Span<'_, f32>,
        shape: RoutingShape,
        n_tokens: usize,
    ) -> CudaResult<()> {
        let RoutingShape { n_expert, n_used } = shape;
        assert!((1..=MAX_EXPERTS).contains(&n_expert) && n_used <= n_expert, "{shape:?}");
        assert!(choices.len() >= n_tokens * n_used && logits.len() >= n_tokens * n_expert);
        let name = match n_expert {
            ..=32 => "moe_route_1",
            33..=128 => "moe_route_4",
            _ => "moe_route_16",
        };
        let grid = (u32_of(n_tokens).div_ceil(4), 1, 1);
        let (n_tokens, n_expert, n_used) = (u32_of(n_tokens), u32_of(n_expert), u32_of(n_used));
        let params = params![choices.ptr, logits.ptr, n_tokens, n_expert, n_used];
        let shape = Shape { grid, block: 128, shared: 0, waits: true };
        // SAFETY: the parameters of `moe_route_*`; lengths are checked above.
        unsafe { self.launch(self.known(name)?, shape, params) }
    }

    /// Puts the rows of many tokens in order of their experts.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn sort_by_expert(
        &self,
        sorted: &SortedRows<'_>,
        choices: Span<'_, [u32; 2]>,
    ) -> CudaResult<()> {
        let n_pairs = u32_of(sorted.n_pairs);
        assert!(choices.len() >= sorted.n_pairs, "choices");
        let (order, place, starts) = (sorted.order(), sorted.place(), sorted.starts());
        let n_expert = u32_of(sorted.shape.n_expert);
        let shape = Shape { grid: (n_expert, 1, 1), block: 256, shared: 0, waits: true };
        let params = params![order.ptr, place.ptr, starts.ptr, choices.ptr, n_pairs];
        // SAFETY: the parameters of `moe_sort`, a block an expert; `SortedRows` has the lengths.
        unsafe { self.launch(self.known("moe_sort")?, shape, params) }?;
        let (small, large) = (sorted.tiles(MMQ_TILE), sorted.tiles(GEMM_TILE));
        let (n_small, n_large) = (u32_of(small.len() / 4), u32_of(large.len() / 4));
        let shape = Shape { grid: (2, 1, 1), block: 512, shared: 0, waits: true };
        let params = params![small.ptr, n_small, large.ptr, n_large, starts.ptr, n_expert];
        // SAFETY: the parameters of `moe_tiles`; `SortedRows` has the lengths.
        unsafe { self.launch(self.known("moe_tiles")?, shape, params) }
    }

    /// The rows of tokens, `[n_tokens, width]`, once for each of their experts and in their order,
    /// `[n_pairs, width]`, in the forms that `to` has (bf16 and int8).
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree or `from` lacks a form.
    pub fn gather_rows(
        &self,
        to: &OperandRef<'_>,
        from: &OperandRef<'_>,
        sorted: &SortedRows<'_>,
        width: usize,
    ) -> CudaResult<()> {
        let n_tokens = sorted.n_pairs / sorted.shape.n_used;
        let (raw_to, raw_from) = (to.raw(sorted.n_pairs * width), from.raw(n_tokens * width));
        assert!(to.bf16.is_none() || from.bf16.is_some(), "bf16 form");
        assert!(to.int8.is_none() || from.int8.is_some(), "int8 form");
        assert!(width.is_multiple_of(32), "{width}");
        let (n_used, width) = (u32_of(sorted.shape.n_used), u32_of(width));
        let order = sorted.order();
        let params = params![raw_to, raw_from, order.ptr, n_used, width];
        let grid = (u32_of(sorted.n_pairs), 1, 1);
        let shape = Shape { grid, block: 128, shared: 0, waits: true };
        // SAFETY: the parameters of `moe_gather`; lengths are checked above.
        unsafe { self.launch(self.known("moe_gather")?, shape, params) }
    }

    /// `x[t] +=` the weighted sum of what the token's experts made of it, `y`: `[n_pairs, width]`.
    /// `place`: the row of each pair, where pairs are not rows.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn add_experts(
        &self,
        x: Span<'_, f32>,
        y: Span<'_, f32>,
        choices: Span<'_, [u32; 2]>,
        place: Option<Span<'_, u32>>,
        (n_tokens, n_used): (usize, usize),
    ) -> CudaResult<()> {
        let (n_pairs, width) = (n_tokens * n_used, x.len() / n_tokens.max(1));
        assert!(x.len() == n_tokens * width && y.len() >= n_pairs * width, "rows");
        assert!(choices.len() >= n_pairs && place.is_none_or(|place| place.len() >= n_pairs));
        let (n_used, width, place) = (u32_of(n_used), u32_of(width), address(place));
        let params = params![x.ptr, y.ptr, choices.ptr, place, n_used, width];
        let grid = (width.div_ceil(256), u32_of(n_tokens), 1);
        let shape = Shape { grid, block: 256, shared: 0, waits: true };
        // SAFETY: the parameters of `moe_add`; lengths are checked above.
        unsafe { self.launch(self.known("moe_add")?, shape, params) }
    }
}
