//! Unaligned loads from checked stretches of memory, so that kernels read as arithmetic.
#![allow(unsafe_code)] // the one place where SIMD kernels turn addresses into values

use std::marker::PhantomData;

/// Values for which every bit pattern is valid.
///
/// # Safety
/// The type has no padding and no invalid bit pattern.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($t:ty),*) => {
        $(
            // SAFETY: numbers and vectors of numbers.
            unsafe impl Plain for $t {}
        )*
    };
}

plain!(u8, i8, u16, u32, i32, u64, f32);
#[cfg(target_arch = "x86_64")]
plain!(
    std::arch::x86_64::__m128i,
    std::arch::x86_64::__m256i,
    std::arch::x86_64::__m512i,
    std::arch::x86_64::__m128,
    std::arch::x86_64::__m256,
    std::arch::x86_64::__m512
);
#[cfg(target_arch = "aarch64")]
plain!(
    std::arch::aarch64::int8x16_t,
    std::arch::aarch64::uint8x16_t,
    std::arch::aarch64::uint8x8_t,
    std::arch::aarch64::uint16x4_t,
    std::arch::aarch64::uint32x4_t,
    std::arch::aarch64::int32x4_t,
    std::arch::aarch64::float32x4_t
);

/// A position in memory from which a kernel loads at offsets that it knows to be inside.
///
/// Builds with debug assertions check every load against the slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Src<'a> {
    ptr: *const u8,
    #[cfg(debug_assertions)]
    left: usize,
    _bytes: PhantomData<&'a [u8]>,
}

impl<'a> Src<'a> {
    /// The start of a slice.
    ///
    /// # Safety
    /// Every load through this value and those derived from it ends inside the slice.
    #[inline(always)]
    pub(crate) unsafe fn new<T: Plain>(slice: &'a [T]) -> Self {
        Self {
            ptr: slice.as_ptr().cast(),
            #[cfg(debug_assertions)]
            left: size_of_val(slice),
            _bytes: PhantomData,
        }
    }

    /// The start of a record made of plain numbers.
    ///
    /// # Safety
    /// As [`new`](Self::new), for the bytes of the records.
    #[inline(always)]
    pub(crate) unsafe fn of_records<T>(records: &'a [T]) -> Self {
        Self {
            ptr: records.as_ptr().cast(),
            #[cfg(debug_assertions)]
            left: size_of_val(records),
            _bytes: PhantomData,
        }
    }

    /// `offset` bytes further.
    #[inline(always)]
    pub(crate) fn skip(self, offset: usize) -> Self {
        #[cfg(debug_assertions)]
        assert!(offset <= self.left, "skip of {offset} in {}", self.left);
        Self {
            ptr: self.ptr.wrapping_add(offset),
            #[cfg(debug_assertions)]
            left: self.left - offset,
            _bytes: PhantomData,
        }
    }

    /// The value `offset` bytes further, at any alignment.
    #[inline(always)]
    pub(crate) fn load<T: Plain>(self, offset: usize) -> T {
        #[cfg(debug_assertions)]
        assert!(offset + size_of::<T>() <= self.left, "load at {offset} in {}", self.left);
        let at = self.ptr.wrapping_add(offset).cast::<T>();
        // SAFETY: inside the slice by the contract of `new`; any bits are a T.
        unsafe { at.read_unaligned() }
    }

    /// The address, for masked loads.
    #[inline(always)]
    pub(crate) fn ptr(self, offset: usize) -> *const u8 {
        self.ptr.wrapping_add(offset)
    }
}

/// How far ahead of its use a GEMV asks for weights, at least. On Zen 5 one thread reads twice as much
/// with it as by the hardware's own prefetching; 4 KiB are too few, 16 KiB no better.
pub(crate) const PREFETCH_BYTES: usize = 8192;

/// Asks for the cache lines of `n_bytes` bytes; the address may be anything.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8, n_bytes: usize) {
    for offset in (0..n_bytes).step_by(64) {
        let line = at.wrapping_add(offset).cast::<i8>();
        // SAFETY: SSE is part of x86-64, and a prefetch of any address has no effect but on caches.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line);
        };
        // SAFETY: a prefetch of any address has no effect but on caches. (The intrinsic is unstable.)
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) line, options(nostack, preserves_flags, readonly));
        };
    }
}

/// The value `offset` bytes into a slice of numbers, at any alignment.
///
/// # Panics
/// If it does not lie inside; on arrays the check costs nothing.
#[inline(always)]
pub(crate) fn read<T: Plain>(numbers: &[impl Plain], offset: usize) -> T {
    assert!(offset + size_of::<T>() <= size_of_val(numbers), "read at {offset}");
    // SAFETY: the assertion is the contract, for the one load.
    unsafe { Src::new(numbers) }.load(offset)
}

/// Stores a value `offset` bytes into a slice of numbers, at any alignment.
///
/// # Panics
/// If it does not fit; on arrays the check costs nothing.
#[inline(always)]
pub(crate) fn write<T: Plain>(numbers: &mut [impl Plain], offset: usize, value: T) {
    assert!(offset + size_of::<T>() <= size_of_val(numbers), "write at {offset}");
    let at = numbers.as_mut_ptr().cast::<u8>().wrapping_add(offset).cast::<T>();
    // SAFETY: inside the slice by the assertion; any bits are a number.
    unsafe { at.write_unaligned(value) }
}
