//! Tensors as Hopper's copy engine sees them.

use std::ptr::from_mut;

use cudarc::driver::sys;

use super::driver::check;
use super::error::CudaResult;
use super::memory::Span;

/// What a kernel's parameter holds of a tensor.
pub(super) type TensorMap = sys::CUtensorMap;

/// Rows of `width` f16 elements, in boxes of `n_rows` rows times 64 elements; the 16-byte pieces of
/// a box's rows are swizzled (128 bytes).
///
/// # Errors
/// If the driver refuses it.
///
/// # Panics
/// If a row does not start at a multiple of 16 bytes.
pub(super) fn rows_f16(
    rows: Span<'_, half::f16>,
    width: usize,
    n_rows: u32,
) -> CudaResult<TensorMap> {
    let data_type = sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    encode(data_type, rows.address(), (rows.len() / width, width, width), n_rows)
}

/// Matrix rows in bf16, (rows, elements of a row, elements from row to row), in boxes of `box_rows`
/// rows times 64 elements, swizzled in the same way; outside there are zeros.
///
/// # Errors
/// If the driver refuses it.
///
/// # Panics
/// If it is longer than `rows`, or a row does not start at a multiple of 16 bytes.
pub(super) fn rows_bf16(
    rows: Span<'_, half::bf16>,
    shape: (usize, usize, usize),
    box_rows: u32,
) -> CudaResult<TensorMap> {
    let (n_rows, row_len, stride) = shape;
    assert!(n_rows > 0 && row_len > 0 && row_len <= stride, "{shape:?}");
    assert!(rows.len() >= (n_rows - 1) * stride + row_len, "{shape:?} in {}", rows.len());
    let data_type = sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    encode(data_type, rows.address(), shape, box_rows)
}

/// Rows of elements of two bytes, (rows, elements of a row, elements from row to row).
fn encode(
    data_type: sys::CUtensorMapDataType,
    address: u64,
    (n_rows, row_len, stride): (usize, usize, usize),
    box_rows: u32,
) -> CudaResult<TensorMap> {
    assert!(stride.is_multiple_of(8) && address.is_multiple_of(16), "rows of {stride}, {address}");
    let mut map = TensorMap { opaque: [0; 16] };
    let (dims, strides) = ([row_len as u64, n_rows as u64], [2 * stride as u64]);
    let (boxes, steps) = ([64, box_rows], [1, 1]);
    // SAFETY: the arrays are as long as the rank says; the address is only kept.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            from_mut(&mut map),
            data_type,
            2,
            address as *mut std::ffi::c_void,
            dims.as_ptr(),
            strides.as_ptr(),
            boxes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check("describing a tensor", status.result())?;
    Ok(map)
}
