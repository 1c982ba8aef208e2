//! Memory of the device and pinned memory of the host, and copies between them.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::driver::{Gpu, check, name_of};
use super::error::{CudaError, CudaResult};

/// Device memory is handed out at multiples of this.
pub const DEVICE_ALIGN: usize = 256;

/// Types that any bytes are a value of.
///
/// # Safety
/// Every bit pattern is a value, and there is no padding.
pub unsafe trait Plain: Copy + 'static {}
// SAFETY: a number.
unsafe impl Plain for u8 {}
// SAFETY: a number.
unsafe impl Plain for i8 {}
// SAFETY: a number.
unsafe impl Plain for u16 {}
// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: a number.
unsafe impl Plain for u64 {}
// SAFETY: a number.
unsafe impl Plain for f32 {}
// SAFETY: a number.
unsafe impl Plain for f64 {}
// SAFETY: a number.
unsafe impl Plain for half::f16 {}
// SAFETY: a number.
unsafe impl Plain for half::bf16 {}
// SAFETY: two numbers of one size.
unsafe impl Plain for [f32; 2] {}
// SAFETY: as above.
unsafe impl Plain for [u32; 2] {}

/// Device memory.
#[derive(Debug)]
pub struct Buffer<T> {
    gpu: Arc<Gpu>,
    ptr: sys::CUdeviceptr,
    len: usize,
    item: PhantomData<T>,
}

impl<T> Buffer<T> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it.
    pub fn all(&self) -> Span<'_, T> {
        Span { ptr: self.ptr, len: self.len, item: PhantomData }
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it has no such part.
    pub fn span(&self, range: Range<usize>) -> Span<'_, T> {
        self.all().span(range)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // Failures here have nobody to report to.
        let _ = self.gpu.bind();
        // SAFETY: allocated by `alloc`; the driver waits for launches that use it.
        let _ = unsafe { result::free_sync(self.ptr) };
    }
}

/// Pinned host memory, which the device reaches at full speed.
pub struct HostBuffer<T> {
    gpu: Arc<Gpu>,
    ptr: *mut T,
    len: usize,
}

// SAFETY: it owns plain memory.
unsafe impl<T: Plain + Send> Send for HostBuffer<T> {}

impl<T: Plain> HostBuffer<T> {
    /// Zeros.
    ///
    /// # Errors
    /// If memory cannot be pinned.
    pub fn new(gpu: &Arc<Gpu>, len: usize) -> CudaResult<Self> {
        gpu.bind()?;
        let n_bytes = len.saturating_mul(size_of::<T>()).max(1);
        // SAFETY: freed by `drop`.
        let ptr = check("pinning memory", unsafe { result::malloc_host(n_bytes, 0) })?;
        // SAFETY: it has that many bytes, and zeros are a value of a plain type.
        unsafe { std::ptr::write_bytes(ptr.cast::<u8>(), 0, n_bytes) };
        Ok(Self { gpu: Arc::clone(gpu), ptr: ptr.cast(), len })
    }

    /// The elements.
    pub fn get(&self) -> &[T] {
        // SAFETY: it owns `len` initialized elements.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    /// An element that the device writes by itself, as it is now.
    ///
    /// # Panics
    /// If there is no such element.
    pub(super) fn get_fresh(&self, index: usize) -> T {
        assert!(index < self.len, "{index} of {}", self.len);
        let element = &raw const self.get()[index];
        // SAFETY: it owns the element; any bytes are a value of a plain type.
        unsafe { element.read_volatile() }
    }

    /// Where the device finds it.
    pub(super) fn address(&self) -> u64 {
        self.ptr as u64
    }

    /// The elements.
    pub fn get_mut(&mut self) -> &mut [T] {
        // SAFETY: it owns `len` initialized elements.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

impl<T> Drop for HostBuffer<T> {
    fn drop(&mut self) {
        let _ = self.gpu.bind();
        // SAFETY: allocated by `new`; reads into it have ended when they returned.
        let _ = unsafe { result::free_host(self.ptr.cast()) };
    }
}

/// A part of device memory. Launches run in order, so that one may write what the next reads, as
/// with a `Cell`.
#[derive(Debug)]
pub struct Span<'b, T> {
    pub(super) ptr: sys::CUdeviceptr,
    pub(super) len: usize,
    item: PhantomData<&'b T>,
}

impl<T> Clone for Span<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Span<'_, T> {}

impl<T> Default for Span<'_, T> {
    /// Nothing.
    fn default() -> Self {
        Self { ptr: 0, len: 0, item: PhantomData }
    }
}

impl<T> Span<'_, T> {
    /// Memory whose owner is known to outlive the span.
    pub(super) fn at(ptr: sys::CUdeviceptr, len: usize) -> Self {
        Self { ptr, len, item: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it has no such part.
    pub fn span(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        let ptr = self.ptr + (range.start * size_of::<T>()) as u64;
        Self { ptr, len: range.len(), item: PhantomData }
    }

    /// Its address on the device: what a base is known by.
    pub fn address(&self) -> u64 {
        self.ptr
    }
}

impl Gpu {
    /// Takes device memory. Its contents are undefined.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn alloc<T: Plain>(self: &Arc<Self>, len: usize) -> CudaResult<Buffer<T>> {
        let n_bytes = len.saturating_mul(size_of::<T>()).max(1);
        self.bind()?;
        // SAFETY: the memory is freed by the buffer's drop and by nothing else.
        let ptr = unsafe { result::malloc_sync(n_bytes) }.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                CudaError::Memory { n_bytes: n_bytes as u64 }
            }
            _ => CudaError::Driver { what: "allocating GPU memory", code: name_of(e) },
        })?;
        Ok(Buffer { gpu: Arc::clone(self), ptr, len, item: PhantomData })
    }

    /// Device memory with these contents.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn upload<T: Plain>(self: &Arc<Self>, values: &[T]) -> CudaResult<Buffer<T>> {
        let buffer = self.alloc(values.len())?;
        self.write(buffer.all(), values)?;
        Ok(buffer)
    }

    /// Copies `values` to the device, in order with launches; they may be reused at once.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn write<T: Plain>(&self, to: Span<'_, T>, values: &[T]) -> CudaResult<()> {
        assert!(values.len() <= to.len, "{} of {}", values.len(), to.len);
        if values.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the span is that long; pageable memory is taken over before the call returns.
        check("copying to the GPU", unsafe {
            result::memcpy_htod_async(to.ptr, values, self.stream())
        })
    }

    /// Copies from the device and waits for it.
    ///
    /// # Errors
    /// If the driver or an earlier launch fails.
    pub fn read<T: Plain>(&self, to: &mut [T], from: Span<'_, T>) -> CudaResult<()> {
        assert!(to.len() <= from.len, "{} of {}", to.len(), from.len);
        self.bind()?;
        if !to.is_empty() {
            // SAFETY: the span is that long, and the copy ends before this function does.
            check("copying from the GPU", unsafe {
                result::memcpy_dtoh_async(to, from.ptr, self.stream())
            })?;
        }
        self.synchronize()
    }

    /// Copies `from` over the start of `to`, on the device, in order with launches.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn copy<T: Plain>(&self, to: Span<'_, T>, from: Span<'_, T>) -> CudaResult<()> {
        assert!(from.len <= to.len, "{} into {}", from.len, to.len);
        if from.len == 0 {
            return Ok(());
        }
        self.bind()?;
        let n_bytes = from.len * size_of::<T>();
        // SAFETY: both spans are that long.
        check("copying on the GPU", unsafe {
            result::memcpy_dtod_async(to.ptr, from.ptr, n_bytes, self.stream())
        })
    }
}
