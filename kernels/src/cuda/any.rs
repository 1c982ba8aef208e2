//! Products and rows from a base of any kind, by its descriptors: what runs where no kernel was made
//! for the base. Slow, never wrong.

use std::ffi::c_void;

use format_spec::plane::{Field, FieldName, Layout};

use super::driver::Gpu;
use super::error::CudaResult;
use super::launch::Shape;
use super::memory::{Plain, Span};
use super::ops::{params, u32_of};
use super::products::RawGemv;
use super::weight::DeviceWeight;

/// As `AnyField` in `dequant/any.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct RawField {
    base: u64,
    row_group_stride: u64,
    k_group_stride: u64,
    row_bits: [u32; 8],
    k_bits: [u32; 8],
    bias: i32,
    encoding: u8,
    bits: u8,
    shift: u8,
    rows_log2: u8,
    k_log2: u8,
    /// What the compiler of the kernels leaves free.
    unused: [u8; 7],
}

impl RawField {
    fn of(field: &Field) -> Self {
        Self {
            base: field.base,
            row_group_stride: field.row_group_stride,
            k_group_stride: field.k_group_stride,
            row_bits: field.row_bits,
            k_bits: field.k_bits,
            bias: field.bias,
            encoding: field.encoding.id(),
            bits: field.bits,
            shift: field.shift,
            rows_log2: field.rows_per_group.trailing_zeros() as u8,
            k_log2: field.k_per_group.trailing_zeros() as u8,
            unused: [0; 7],
        }
    }
}

/// As `AnyLayout` in `dequant/any.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RawLayout {
    object: u64,
    /// By the ids of [`FieldName`], less one; an encoding of 0 is a field that is not there.
    fields: [RawField; FieldName::ALL.len()],
}

// As `static_assert` in `dequant/any.cuh` has it: arrays of them are in device memory.
const _: () = assert!(size_of::<RawField>() == 104 && size_of::<RawLayout>() == 8 + 9 * 104);

// SAFETY: numbers, without padding between them.
unsafe impl Plain for RawLayout {}

impl RawLayout {
    fn of(layout: &Layout, object: u64) -> Self {
        let mut fields = [RawField::default(); FieldName::ALL.len()];
        for (raw, &name) in fields.iter_mut().zip(FieldName::ALL) {
            *raw = layout.field(name).map(RawField::of).unwrap_or_default();
        }
        Self { object, fields }
    }

    /// The layout of a weight's base.
    pub(super) fn of_base(weight: &DeviceWeight) -> Self {
        let (layout, address) = weight.base_object();
        Self::of(layout, *address)
    }
}

/// Rows of a block of `gemv_any`, a warp each.
const GEMV_ROWS: u32 = 4;

impl Gpu {
    /// [`embed`](Gpu::embed) from a base of any kind; lengths are checked there.
    pub(super) fn embed_any(
        &self,
        out: Span<'_, f32>,
        table: &DeviceWeight,
        tokens: Span<'_, u32>,
        n_tokens: usize,
        scale: f32,
    ) -> CudaResult<()> {
        // As for `embed`.
        let shape = Shape { grid: (u32_of(n_tokens), 1, 1), block: 256, shared: 0, waits: false };
        let (layout, row_len) = (RawLayout::of_base(table), u32_of(table.row_len()));
        let params = params![layout, out.ptr, tokens.ptr, row_len, scale];
        // SAFETY: the parameters of `embed_any`; the caller has checked lengths.
        unsafe { self.launch(table.embed, shape, params) }
    }

    /// [`dequantize`](Gpu::dequantize) from a base of any kind; the length is checked there.
    pub(super) fn dequantize_any(
        &self,
        out: Span<'_, half::bf16>,
        weight: &DeviceWeight,
    ) -> CudaResult<()> {
        let n = weight.n_rows() as u64 * weight.row_len() as u64 / 2;
        let blocks = n.div_ceil(256).min(u64::from(self.info().n_multiprocessors) * 32);
        let shape = Shape { grid: (blocks as u32, 1, 1), block: 256, shared: 0, waits: true };
        let layout = RawLayout::of_base(weight);
        let (n_rows, row_len) = (u32_of(weight.n_rows()), u32_of(weight.row_len()));
        // SAFETY: the parameters of `dequant_any`; the caller has checked the length.
        unsafe { self.launch(weight.dequant, shape, params![layout, out.ptr, n_rows, row_len]) }
    }

    /// One matrix of [`gemv`](Gpu::gemv) from a base of any kind: the first of `job`, whose lengths
    /// are checked there.
    pub(super) fn gemv_any(&self, weight: &DeviceWeight, job: RawGemv) -> CudaResult<()> {
        let blocks = u32_of(weight.n_rows()).div_ceil(GEMV_ROWS);
        let shape = Shape { grid: (blocks, 1, 1), block: 32 * GEMV_ROWS, shared: 0, waits: true };
        let layout = RawLayout::of_base(weight);
        // SAFETY: the parameters of `gemv_any`; the caller has checked lengths.
        unsafe { self.launch(weight.gemv[0], shape, params![layout, job]) }
    }
}
