//! Checked views: shapes are proved here once, and kernels trust them.

use std::marker::PhantomData;
use std::ops::Range;

use format_spec::QuantType;

use crate::{Error, Result};

/// One weight matrix, `[n_rows, row_len]`, as kernels read it: the `padded` base and, for q6_K,
/// the `exp` and `dsc` planes.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    quant: QuantType,
    n_rows: usize,
    row_len: usize,
    base: &'a [u8],
    row_stride: usize,
    exp: Option<ExpPlane<'a>>,
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

impl<'a> Weight<'a> {
    /// A weight from the bytes of its `padded` object alone.
    ///
    /// # Errors
    /// [`Error::Shape`] if a row is not made of whole blocks, the matrix is empty, or `bytes` has
    /// another length than the layout.
    pub fn from_padded(
        quant: QuantType,
        n_rows: usize,
        row_len: usize,
        bytes: &'a [u8],
    ) -> Result<Self> {
        let block_elems = quant.block_elems();
        if row_len == 0 || !row_len.is_multiple_of(block_elems) {
            return Err(shape("row length", row_len.next_multiple_of(block_elems), row_len));
        }
        if n_rows == 0 {
            return Err(shape("number of rows", 1, 0));
        }
        let row_stride =
            (row_len / block_elems * quant.padded_block_stride()).next_multiple_of(ROW_ALIGN);
        let expected = row_stride.checked_mul(n_rows).ok_or(Error::Shape {
            what: "number of rows",
            expected: 1,
            found: n_rows as u64,
        })?;
        if bytes.len() != expected {
            return Err(shape("bytes of a padded object", expected, bytes.len()));
        }
        Ok(Self { quant, n_rows, row_len, base: bytes, row_stride, exp: None, lone_plane: false })
    }

    /// Adds the q6_K planes; prefill then reads them.
    ///
    /// # Errors
    /// [`Error::Plane`] for another quant type, [`Error::Shape`] for lengths that disagree with
    /// the weight.
    pub fn with_exp(mut self, exp: &'a [u8], dsc: &'a [u8]) -> Result<Self> {
        if self.quant != QuantType::Q6_K {
            return Err(Error::Plane { plane: "exp", why: "it exists for q6_K only" });
        }
        let dsc_rows = self.n_rows.next_multiple_of(4);
        let expected = self.n_rows * self.row_len;
        if exp.len() != expected {
            return Err(shape("bytes of an exp plane", expected, exp.len()));
        }
        let expected = self.row_len / 16 * dsc_rows * 4;
        if dsc.len() != expected {
            return Err(shape("bytes of a dsc plane", expected, dsc.len()));
        }
        self.exp = Some(ExpPlane { exp, dsc, dsc_rows });
        Ok(self)
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

    /// The blocks of one row of the base, at the `padded` block stride.
    ///
    /// # Panics
    /// If `row` is not below [`n_rows`](Self::n_rows).
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.base[row * self.row_stride..][..self.row_stride]
    }

    #[allow(dead_code)] // SIMD tiers read it
    /// Bytes from one row to the next in the base.
    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }

    #[allow(dead_code)] // SIMD tiers read it
    /// The base, all rows.
    pub(crate) fn base(&self) -> &'a [u8] {
        self.base
    }

    pub(crate) fn exp(&self) -> Option<ExpPlane<'a>> {
        self.exp
    }

    /// Whether one of `exp` and `dsc` is there without the other.
    pub(crate) fn has_lone_plane(&self) -> bool {
        self.lone_plane
    }
}

/// Rows of a `padded` object start on multiples of this.
const ROW_ALIGN: usize = 16;

fn shape(what: &'static str, expected: usize, found: usize) -> Error {
    Error::Shape { what, expected: expected as u64, found: found as u64 }
}

/// The output of a product, `[n_tokens, n_rows]` row-major f32, whose disjoint row ranges may be
/// written by several workers at a time.
#[derive(Debug, Clone, Copy)]
pub struct OutView<'a> {
    ptr: *mut f32,
    n_tokens: usize,
    n_rows: usize,
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
        Self { ptr: out.as_mut_ptr(), n_tokens, n_rows, _out: PhantomData }
    }

    /// Tokens, the outer dimension.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Rows of the weight, the inner dimension.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The outputs of one token for a range of rows.
    ///
    /// # Safety
    /// No other reference into this range lives.
    pub(crate) unsafe fn token_rows(&self, token: usize, rows: Range<usize>) -> &'a mut [f32] {
        assert!(token < self.n_tokens && rows.start <= rows.end && rows.end <= self.n_rows);
        let start = self.ptr.wrapping_add(token * self.n_rows + rows.start);
        // SAFETY: in bounds of the slice given to `new` by the assertion; unique by the contracts
        // of `new` and of this function.
        unsafe { std::slice::from_raw_parts_mut(start, rows.len()) }
    }
}
