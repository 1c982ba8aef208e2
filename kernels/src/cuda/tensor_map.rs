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
    assert!(width.is_multiple_of(8) && rows.address().is_multiple_of(16), "rows of {width}");
    let mut map = TensorMap { opaque: [0; 16] };
    let (dims, strides) = ([width as u64, (rows.len() / width) as u64], [2 * width as u64]);
    let (boxes, steps) = ([64, n_rows], [1, 1]);
    // SAFETY: the arrays are as long as the rank says; the address is only kept.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            from_mut(&mut map),
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            2,
            rows.address() as *mut std::ffi::c_void,
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
