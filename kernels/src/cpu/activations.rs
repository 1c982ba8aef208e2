//! Activations: f32 rows and their 8-bit form, quantized once for all the weights that read them.

use std::marker::PhantomData;
use std::ops::Range;

use super::Tier;
use super::form::{CHUNK, Chains, GROUP, N_CHAINS};

/// Tokens that share one tile of interleaved activations. Workers that quantize split the tokens at
/// multiples of it.
pub const TOKEN_GRANULE: usize = 12;

/// Up to this many tokens a product runs as one GEMV a token; above it as a GEMM.
pub const GEMV_MAX_TOKENS: usize = 4;

/// A chunk whose largest magnitude is below this is quantized to zeros (its reciprocal could
/// overflow).
pub(crate) const MIN_AMAX: f32 = 1e-30;

pub(crate) type QuantizeRowFn = unsafe fn(x: &[f32], q: &mut [i8], d: &mut [f32], s16: &mut [i32]);

/// One chunk of twelve tokens, interleaved so that a GEMM broadcasts four elements of a token.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct TileRecord {
    /// `[k / 4][token][k % 4]`
    pub(crate) q: [[[i8; 4]; TOKEN_GRANULE]; CHUNK / 4],
    /// Scale of the chunk.
    pub(crate) d: [f32; TOKEN_GRANULE],
    /// Sum of the 32 quantized values, negated: what an offset of the weights adds.
    pub(crate) neg_s32: [i32; TOKEN_GRANULE],
    /// `d * s32`
    pub(crate) ds: [f32; TOKEN_GRANULE],
    /// Negated sums of the two halves.
    pub(crate) neg_s16: [[i32; TOKEN_GRANULE]; 2],
    /// `d * s16`
    pub(crate) ds16: [[f32; TOKEN_GRANULE]; 2],
}

impl TileRecord {
    const ZERO: Self = Self {
        q: [[[0; 4]; TOKEN_GRANULE]; CHUNK / 4],
        d: [0.0; TOKEN_GRANULE],
        neg_s32: [0; TOKEN_GRANULE],
        ds: [0.0; TOKEN_GRANULE],
        neg_s16: [[0; TOKEN_GRANULE]; 2],
        ds16: [[0.0; TOKEN_GRANULE]; 2],
    };
}

/// Eight chunks of one token, as a GEMV reads them. Chunks beyond the row are zero.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct DotGroup {
    /// Element order.
    pub(crate) q: [i8; GROUP],
    /// Halves apart, chunks 0..4 and then 4..8: `[chunk / 4][half][chunk % 4][16]`.
    pub(crate) q_halves: [i8; GROUP],
    /// Halves apart, even chunks and then odd ones: `[chunk % 2][half][chunk / 2][16]`.
    pub(crate) q_pairs: [i8; GROUP],
    /// Scale of each chunk.
    pub(crate) d: [f32; N_CHAINS],
    /// `d * s32`
    pub(crate) ds: [f32; N_CHAINS],
    /// Sum of each chunk.
    pub(crate) s32: [i32; N_CHAINS],
    /// Sum of each half of a chunk.
    pub(crate) s16: [i32; 2 * N_CHAINS],
}

impl DotGroup {
    const ZERO: Self = Self {
        q: [0; GROUP],
        q_halves: [0; GROUP],
        q_pairs: [0; GROUP],
        d: [0.0; N_CHAINS],
        ds: [0.0; N_CHAINS],
        s32: [0; N_CHAINS],
        s16: [0; 2 * N_CHAINS],
    };

    /// Fills what follows from `q`, `d` and `s16`.
    fn derive(&mut self) {
        for c in 0..N_CHAINS {
            self.s32[c] = self.s16[2 * c] + self.s16[2 * c + 1];
            self.ds[c] = self.d[c] * self.s32[c] as f32;
        }
        let (q, _) = self.q.as_chunks::<16>();
        let (halves, _) = self.q_halves.as_chunks_mut::<16>();
        let (pairs, _) = self.q_pairs.as_chunks_mut::<16>();
        for c in 0..N_CHAINS {
            for h in 0..2 {
                halves[(c / 4 * 2 + h) * 4 + c % 4] = q[2 * c + h];
                pairs[(c % 2 * 2 + h) * 4 + c / 2] = q[2 * c + h];
            }
        }
    }
}

/// Activations of several tokens: `[n_tokens, row_len]` f32 and, once
/// [`quantize`](Self::quantize)d, the 8-bit form that products with quantized weights read.
///
/// The buffers are kept from use to use.
#[derive(Debug)]
pub struct Activations {
    tier: Tier,
    quantize_row: QuantizeRowFn,
    n_tokens: usize,
    row_len: usize,
    tiled: bool,
    x: Vec<f32>,
    dot: Vec<DotGroup>,
    tile: Vec<TileRecord>,
}

impl Activations {
    /// Empty activations whose quantized form fits products of this tier.
    ///
    /// # Errors
    /// [`crate::Error::TierUnavailable`]
    pub fn new(tier: Tier) -> crate::Result<Self> {
        let quantize_row = tier.require_tables()?.quantize_row;
        let (x, dot, tile) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { tier, quantize_row, n_tokens: 0, row_len: 0, tiled: false, x, dot, tile })
    }

    /// Takes a new shape. The contents are unspecified until written.
    pub fn resize(&mut self, n_tokens: usize, row_len: usize) {
        (self.n_tokens, self.row_len) = (n_tokens, row_len);
        self.tiled = self.tier != Tier::Scalar && n_tokens > GEMV_MAX_TOKENS;
        grow(&mut self.x, n_tokens * row_len, 0.0);
        if self.tiled {
            let n_tiles = n_tokens.div_ceil(TOKEN_GRANULE);
            grow(&mut self.tile, n_tiles * (row_len / CHUNK), TileRecord::ZERO);
        } else {
            grow(&mut self.dot, n_tokens * row_len.div_ceil(GROUP), DotGroup::ZERO);
        }
    }

    /// Tokens, the outer dimension.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Elements of a token, the inner dimension.
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// The tier that products reading these activations must have.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// The rows, `[n_tokens, row_len]`.
    pub fn x(&self) -> &[f32] {
        &self.x[..self.n_tokens * self.row_len]
    }

    /// The rows, for writing; [`quantize`](Self::quantize) afterwards.
    pub fn x_mut(&mut self) -> &mut [f32] {
        &mut self.x[..self.n_tokens * self.row_len]
    }

    /// Quantizes all tokens. Products with float weights do not need it.
    ///
    /// # Panics
    /// If the row length is no multiple of 32.
    pub fn quantize(&mut self) {
        let n_tokens = self.n_tokens;
        let shared = self.share();
        #[allow(unsafe_code)]
        // SAFETY: `shared` borrows self exclusively, and this is its only use.
        unsafe {
            shared.quantize(0..n_tokens);
        }
    }

    /// A view through which several workers may fill disjoint ranges of tokens.
    pub fn share(&mut self) -> SharedActivations<'_> {
        SharedActivations {
            quantize_row: self.quantize_row,
            n_tokens: self.n_tokens,
            row_len: self.row_len,
            tiled: self.tiled,
            x: self.x.as_mut_ptr(),
            dot: self.dot.as_mut_ptr(),
            tile: self.tile.as_mut_ptr(),
            _owner: PhantomData,
        }
    }

    /// The quantized form of one token.
    pub(crate) fn dot_row(&self, token: usize) -> DotRow<'_> {
        let n_groups = self.row_len.div_ceil(GROUP);
        let groups = &self.dot[token * n_groups..][..n_groups];
        DotRow { groups, n_chunks: self.row_len / CHUNK }
    }

    /// The chunks of some tiles of tokens, each chain by chain.
    pub(crate) fn tiles(&self, tile_idx: usize, n_tiles: usize) -> &[TileRecord] {
        let n_chunks = self.row_len / CHUNK;
        &self.tile[tile_idx * n_chunks..][..n_tiles * n_chunks]
    }
}

fn grow<T: Clone>(v: &mut Vec<T>, len: usize, value: T) {
    if v.len() < len {
        v.resize(len, value);
    }
}

/// One token, as a GEMV reads it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DotRow<'a> {
    pub(crate) groups: &'a [DotGroup],
    pub(crate) n_chunks: usize,
}

/// Activations being filled by several workers, each its own range of tokens.
#[derive(Debug, Clone, Copy)]
pub struct SharedActivations<'a> {
    quantize_row: QuantizeRowFn,
    n_tokens: usize,
    row_len: usize,
    tiled: bool,
    x: *mut f32,
    dot: *mut DotGroup,
    tile: *mut TileRecord,
    _owner: PhantomData<&'a mut Activations>,
}

#[allow(unsafe_code)]
// SAFETY: pointers into buffers of plain numbers, borrowed exclusively; the methods' contracts
// keep the ranges of workers apart.
unsafe impl Send for SharedActivations<'_> {}

#[allow(unsafe_code)]
// SAFETY: as above.
unsafe impl Sync for SharedActivations<'_> {}

#[allow(unsafe_code)]
impl<'a> SharedActivations<'a> {
    /// Tokens, the outer dimension.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// The f32 rows of a range of tokens.
    ///
    /// # Safety
    /// No other reference into these rows lives.
    pub unsafe fn x_mut(&self, tokens: Range<usize>) -> &'a mut [f32] {
        assert!(tokens.start <= tokens.end && tokens.end <= self.n_tokens, "range of tokens");
        let start = self.x.wrapping_add(tokens.start * self.row_len);
        // SAFETY: in bounds, since `resize` made room for n_tokens rows; unique by the contract.
        unsafe { std::slice::from_raw_parts_mut(start, tokens.len() * self.row_len) }
    }

    /// Quantizes a range of tokens, which starts at a multiple of [`TOKEN_GRANULE`] and ends at
    /// one or at the last token.
    ///
    /// # Panics
    /// If the range is none of these, or the row length no multiple of 32.
    ///
    /// # Safety
    /// No other reference into these tokens lives: no other worker's range overlaps.
    pub unsafe fn quantize(&self, tokens: Range<usize>) {
        assert!(self.row_len.is_multiple_of(CHUNK), "row length {}", self.row_len);
        assert!(tokens.start.is_multiple_of(TOKEN_GRANULE), "tokens from {}", tokens.start);
        assert!(
            tokens.end.is_multiple_of(TOKEN_GRANULE) || tokens.end == self.n_tokens,
            "tokens up to {}",
            tokens.end
        );
        // SAFETY: the caller's contract.
        let x = unsafe { self.x_mut(tokens.clone()) };
        let quantize_row = self.quantize_row;
        let n_groups = self.row_len.div_ceil(GROUP);
        for (token, x) in tokens.zip(x.chunks_exact(self.row_len)) {
            if self.tiled {
                let n_chunks = self.row_len / CHUNK;
                let start = self.tile.wrapping_add(token / TOKEN_GRANULE * n_chunks);
                // SAFETY: in bounds as `resize` made room for whole tiles; no other worker has
                // this tile, since ranges split at multiples of its tokens.
                let tile = unsafe { std::slice::from_raw_parts_mut(start, n_chunks) };
                quantize_tile(quantize_row, x, tile, token % TOKEN_GRANULE);
            } else {
                let start = self.dot.wrapping_add(token * n_groups);
                // SAFETY: in bounds as `resize` made room; this token is this worker's.
                let groups = unsafe { std::slice::from_raw_parts_mut(start, n_groups) };
                quantize_dot(quantize_row, x, groups);
            }
        }
    }
}

#[allow(unsafe_code)]
fn quantize_dot(quantize_row: QuantizeRowFn, x: &[f32], groups: &mut [DotGroup]) {
    for (x, group) in x.chunks(GROUP).zip(groups) {
        if x.len() < GROUP {
            *group = DotGroup::ZERO;
        }
        // SAFETY: the function belongs to a tier that `Activations::new` found on this machine.
        unsafe { quantize_row(x, &mut group.q, &mut group.d, &mut group.s16) };
        group.derive();
    }
}

#[allow(unsafe_code)]
fn quantize_tile(quantize_row: QuantizeRowFn, x: &[f32], tile: &mut [TileRecord], lane: usize) {
    let starts = Chains::new(x.len()).starts();
    for (i, x) in x.chunks(GROUP).enumerate() {
        let (mut q, mut d, mut s16) = ([0; GROUP], [0.0; N_CHAINS], [0; 2 * N_CHAINS]);
        // SAFETY: the function belongs to a tier that `Activations::new` found on this machine.
        unsafe { quantize_row(x, &mut q, &mut d, &mut s16) };
        for (s, q) in q.as_chunks::<CHUNK>().0.iter().enumerate().take(x.len() / CHUNK) {
            let record = &mut tile[starts[s] + i];
            for (row, q) in record.q.iter_mut().zip(q.as_chunks::<4>().0) {
                row[lane] = *q;
            }
            let halves = [s16[2 * s], s16[2 * s + 1]];
            record.d[lane] = d[s];
            let sum = halves[0] + halves[1];
            record.neg_s32[lane] = -sum;
            record.ds[lane] = d[s] * sum as f32;
            for (h, sum) in halves.into_iter().enumerate() {
                record.neg_s16[h][lane] = -sum;
                record.ds16[h][lane] = d[s] * sum as f32;
            }
        }
    }
}
