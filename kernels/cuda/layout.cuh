// Generated from the layouts of format-spec by kernels/tests/layout_cuh.rs; do not edit.
//
// One struct for each plane kind and quant type, with the index function of each of its fields:
// where the bits for (row, k) lie. What depends on the shape of a tensor is an argument, and the
// host takes it from the layout's descriptor: no kernel computes a stride from a shape.
#pragma once
#include <cstdint>

struct PaddedF32 {
    static constexpr unsigned BLOCK_ELEMS = 1;
    static constexpr unsigned BLOCK_STRIDE = 4;
    static constexpr unsigned VALUE_BASE = 0;
    static constexpr unsigned VALUE_K_GROUP_STRIDE = 4;
    static constexpr unsigned VALUE_BITS = 32;
    static constexpr unsigned VALUE_SHIFT = 0;
    static constexpr unsigned VALUE_ROWS_PER_GROUP = 1;
    static constexpr unsigned VALUE_K_PER_GROUP = 1;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t value_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return VALUE_BASE + row / 1 * row_group_stride + k / 1 * VALUE_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned value_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedF16 {
    static constexpr unsigned BLOCK_ELEMS = 1;
    static constexpr unsigned BLOCK_STRIDE = 2;
    static constexpr unsigned VALUE_BASE = 0;
    static constexpr unsigned VALUE_K_GROUP_STRIDE = 2;
    static constexpr unsigned VALUE_BITS = 16;
    static constexpr unsigned VALUE_SHIFT = 0;
    static constexpr unsigned VALUE_ROWS_PER_GROUP = 1;
    static constexpr unsigned VALUE_K_PER_GROUP = 1;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t value_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return VALUE_BASE + row / 1 * row_group_stride + k / 1 * VALUE_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned value_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedQ40 {
    static constexpr unsigned BLOCK_ELEMS = 32;
    static constexpr unsigned BLOCK_STRIDE = 18;
    static constexpr unsigned QUANT_BASE = 2;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 18;
    static constexpr unsigned QUANT_BITS = 4;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 32;
    static constexpr int QUANT_BIAS = -8;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 1 * row_group_stride + k / 32 * QUANT_K_GROUP_STRIDE + (0 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) % 8;
    }
    static constexpr unsigned D_BASE = 0;
    static constexpr unsigned D_K_GROUP_STRIDE = 18;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 1;
    static constexpr unsigned D_K_PER_GROUP = 32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return D_BASE + row / 1 * row_group_stride + k / 32 * D_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedQ41 {
    static constexpr unsigned BLOCK_ELEMS = 32;
    static constexpr unsigned BLOCK_STRIDE = 20;
    static constexpr unsigned QUANT_BASE = 4;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 20;
    static constexpr unsigned QUANT_BITS = 4;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 32;
    static constexpr int QUANT_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 1 * row_group_stride + k / 32 * QUANT_K_GROUP_STRIDE + (0 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) % 8;
    }
    static constexpr unsigned MIN_BASE = 2;
    static constexpr unsigned MIN_K_GROUP_STRIDE = 20;
    static constexpr unsigned MIN_BITS = 16;
    static constexpr unsigned MIN_SHIFT = 0;
    static constexpr unsigned MIN_ROWS_PER_GROUP = 1;
    static constexpr unsigned MIN_K_PER_GROUP = 32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t min_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return MIN_BASE + row / 1 * row_group_stride + k / 32 * MIN_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned min_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
    static constexpr unsigned D_BASE = 0;
    static constexpr unsigned D_K_GROUP_STRIDE = 20;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 1;
    static constexpr unsigned D_K_PER_GROUP = 32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return D_BASE + row / 1 * row_group_stride + k / 32 * D_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedQ50 {
    static constexpr unsigned BLOCK_ELEMS = 32;
    static constexpr unsigned BLOCK_STRIDE = 22;
    static constexpr unsigned QUANT_BASE = 6;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 22;
    static constexpr unsigned QUANT_BITS = 4;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 32;
    static constexpr int QUANT_BIAS = -16;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 1 * row_group_stride + k / 32 * QUANT_K_GROUP_STRIDE + (0 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) % 8;
    }
    static constexpr unsigned HIGH_BASE = 2;
    static constexpr unsigned HIGH_K_GROUP_STRIDE = 22;
    static constexpr unsigned HIGH_BITS = 1;
    static constexpr unsigned HIGH_SHIFT = 0;
    static constexpr unsigned HIGH_ROWS_PER_GROUP = 1;
    static constexpr unsigned HIGH_K_PER_GROUP = 32;
    static constexpr int HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t high_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return HIGH_BASE + row / 1 * row_group_stride + k / 32 * HIGH_K_GROUP_STRIDE + (0 + (k >> 0 & 31) * 1) / 8;
    }
    static __device__ __forceinline__ unsigned high_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 31) * 1) % 8;
    }
    static constexpr unsigned D_BASE = 0;
    static constexpr unsigned D_K_GROUP_STRIDE = 22;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 1;
    static constexpr unsigned D_K_PER_GROUP = 32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return D_BASE + row / 1 * row_group_stride + k / 32 * D_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedQ51 {
    static constexpr unsigned BLOCK_ELEMS = 32;
    static constexpr unsigned BLOCK_STRIDE = 24;
    static constexpr unsigned QUANT_BASE = 8;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 24;
    static constexpr unsigned QUANT_BITS = 4;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 32;
    static constexpr int QUANT_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 1 * row_group_stride + k / 32 * QUANT_K_GROUP_STRIDE + (0 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) % 8;
    }
    static constexpr unsigned HIGH_BASE = 4;
    static constexpr unsigned HIGH_K_GROUP_STRIDE = 24;
    static constexpr unsigned HIGH_BITS = 1;
    static constexpr unsigned HIGH_SHIFT = 0;
    static constexpr unsigned HIGH_ROWS_PER_GROUP = 1;
    static constexpr unsigned HIGH_K_PER_GROUP = 32;
    static constexpr int HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t high_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return HIGH_BASE + row / 1 * row_group_stride + k / 32 * HIGH_K_GROUP_STRIDE + (0 + (k >> 0 & 31) * 1) / 8;
    }
    static __device__ __forceinline__ unsigned high_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 31) * 1) % 8;
    }
    static constexpr unsigned MIN_BASE = 2;
    static constexpr unsigned MIN_K_GROUP_STRIDE = 24;
    static constexpr unsigned MIN_BITS = 16;
    static constexpr unsigned MIN_SHIFT = 0;
    static constexpr unsigned MIN_ROWS_PER_GROUP = 1;
    static constexpr unsigned MIN_K_PER_GROUP = 32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t min_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return MIN_BASE + row / 1 * row_group_stride + k / 32 * MIN_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned min_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
    static constexpr unsigned D_BASE = 0;
    static constexpr unsigned D_K_GROUP_STRIDE = 24;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 1;
    static constexpr unsigned D_K_PER_GROUP = 32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return D_BASE + row / 1 * row_group_stride + k / 32 * D_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedQ80 {
    static constexpr unsigned BLOCK_ELEMS = 32;
    static constexpr unsigned BLOCK_STRIDE = 34;
    static constexpr unsigned QUANT_BASE = 2;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 34;
    static constexpr unsigned QUANT_BITS = 8;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 32;
    static constexpr int QUANT_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 1 * row_group_stride + k / 32 * QUANT_K_GROUP_STRIDE + (0 + (k >> 0 & 31) * 8) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 31) * 8) % 8;
    }
    static constexpr unsigned D_BASE = 0;
    static constexpr unsigned D_K_GROUP_STRIDE = 34;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 1;
    static constexpr unsigned D_K_PER_GROUP = 32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return D_BASE + row / 1 * row_group_stride + k / 32 * D_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedQ2K {
    static constexpr unsigned BLOCK_ELEMS = 256;
    static constexpr unsigned BLOCK_STRIDE = 84;
    static constexpr unsigned QUANT_BASE = 16;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 84;
    static constexpr unsigned QUANT_BITS = 2;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 256;
    static constexpr int QUANT_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 1 * row_group_stride + k / 256 * QUANT_K_GROUP_STRIDE + (0 + (k >> 0 & 31) * 8 + (k >> 5 & 3) * 2 + (k >> 7 & 1) * 256) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 31) * 8 + (k >> 5 & 3) * 2 + (k >> 7 & 1) * 256) % 8;
    }
    static constexpr unsigned SCALE_BASE = 0;
    static constexpr unsigned SCALE_K_GROUP_STRIDE = 84;
    static constexpr unsigned SCALE_BITS = 4;
    static constexpr unsigned SCALE_SHIFT = 0;
    static constexpr unsigned SCALE_ROWS_PER_GROUP = 1;
    static constexpr unsigned SCALE_K_PER_GROUP = 256;
    static constexpr int SCALE_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return SCALE_BASE + row / 1 * row_group_stride + k / 256 * SCALE_K_GROUP_STRIDE + (0 + (k >> 4 & 15) * 8) / 8;
    }
    static __device__ __forceinline__ unsigned scale_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 4 & 15) * 8) % 8;
    }
    static constexpr unsigned MIN_BASE = 0;
    static constexpr unsigned MIN_K_GROUP_STRIDE = 84;
    static constexpr unsigned MIN_BITS = 4;
    static constexpr unsigned MIN_SHIFT = 4;
    static constexpr unsigned MIN_ROWS_PER_GROUP = 1;
    static constexpr unsigned MIN_K_PER_GROUP = 256;
    static constexpr int MIN_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t min_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return MIN_BASE + row / 1 * row_group_stride + k / 256 * MIN_K_GROUP_STRIDE + (4 + (k >> 4 & 15) * 8) / 8;
    }
    static __device__ __forceinline__ unsigned min_shift(uint64_t row, uint64_t k) {
        return (4 + (k >> 4 & 15) * 8) % 8;
    }
    static constexpr unsigned D_BASE = 80;
    static constexpr unsigned D_K_GROUP_STRIDE = 84;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 1;
    static constexpr unsigned D_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return D_BASE + row / 1 * row_group_stride + k / 256 * D_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
    static constexpr unsigned DMIN_BASE = 82;
    static constexpr unsigned DMIN_K_GROUP_STRIDE = 84;
    static constexpr unsigned DMIN_BITS = 16;
    static constexpr unsigned DMIN_SHIFT = 0;
    static constexpr unsigned DMIN_ROWS_PER_GROUP = 1;
    static constexpr unsigned DMIN_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t dmin_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return DMIN_BASE + row / 1 * row_group_stride + k / 256 * DMIN_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned dmin_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedQ3K {
    static constexpr unsigned BLOCK_ELEMS = 256;
    static constexpr unsigned BLOCK_STRIDE = 112;
    static constexpr unsigned QUANT_BASE = 32;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 112;
    static constexpr unsigned QUANT_BITS = 2;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 256;
    static constexpr int QUANT_BIAS = -4;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 1 * row_group_stride + k / 256 * QUANT_K_GROUP_STRIDE + (0 + (k >> 0 & 31) * 8 + (k >> 5 & 3) * 2 + (k >> 7 & 1) * 256) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 31) * 8 + (k >> 5 & 3) * 2 + (k >> 7 & 1) * 256) % 8;
    }
    static constexpr unsigned HIGH_BASE = 0;
    static constexpr unsigned HIGH_K_GROUP_STRIDE = 112;
    static constexpr unsigned HIGH_BITS = 1;
    static constexpr unsigned HIGH_SHIFT = 0;
    static constexpr unsigned HIGH_ROWS_PER_GROUP = 1;
    static constexpr unsigned HIGH_K_PER_GROUP = 256;
    static constexpr int HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t high_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return HIGH_BASE + row / 1 * row_group_stride + k / 256 * HIGH_K_GROUP_STRIDE + (0 + (k >> 0 & 31) * 8 + (k >> 5 & 7) * 1) / 8;
    }
    static __device__ __forceinline__ unsigned high_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 31) * 8 + (k >> 5 & 7) * 1) % 8;
    }
    static constexpr unsigned SCALE_BASE = 96;
    static constexpr unsigned SCALE_K_GROUP_STRIDE = 112;
    static constexpr unsigned SCALE_BITS = 4;
    static constexpr unsigned SCALE_SHIFT = 0;
    static constexpr unsigned SCALE_ROWS_PER_GROUP = 1;
    static constexpr unsigned SCALE_K_PER_GROUP = 256;
    static constexpr int SCALE_BIAS = -32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return SCALE_BASE + row / 1 * row_group_stride + k / 256 * SCALE_K_GROUP_STRIDE + (0 + (k >> 4 & 7) * 8 + (k >> 7 & 1) * 4) / 8;
    }
    static __device__ __forceinline__ unsigned scale_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 4 & 7) * 8 + (k >> 7 & 1) * 4) % 8;
    }
    static constexpr unsigned SCALE_HIGH_BASE = 104;
    static constexpr unsigned SCALE_HIGH_K_GROUP_STRIDE = 112;
    static constexpr unsigned SCALE_HIGH_BITS = 2;
    static constexpr unsigned SCALE_HIGH_SHIFT = 0;
    static constexpr unsigned SCALE_HIGH_ROWS_PER_GROUP = 1;
    static constexpr unsigned SCALE_HIGH_K_PER_GROUP = 256;
    static constexpr int SCALE_HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_high_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return SCALE_HIGH_BASE + row / 1 * row_group_stride + k / 256 * SCALE_HIGH_K_GROUP_STRIDE + (0 + (k >> 4 & 3) * 8 + (k >> 6 & 3) * 2) / 8;
    }
    static __device__ __forceinline__ unsigned scale_high_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 4 & 3) * 8 + (k >> 6 & 3) * 2) % 8;
    }
    static constexpr unsigned D_BASE = 108;
    static constexpr unsigned D_K_GROUP_STRIDE = 112;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 1;
    static constexpr unsigned D_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return D_BASE + row / 1 * row_group_stride + k / 256 * D_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedQ4K {
    static constexpr unsigned BLOCK_ELEMS = 256;
    static constexpr unsigned BLOCK_STRIDE = 144;
    static constexpr unsigned QUANT_BASE = 16;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 144;
    static constexpr unsigned QUANT_BITS = 4;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 256;
    static constexpr int QUANT_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 1 * row_group_stride + k / 256 * QUANT_K_GROUP_STRIDE + (0 + (k >> 0 & 31) * 8 + (k >> 5 & 1) * 4 + (k >> 6 & 3) * 256) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 31) * 8 + (k >> 5 & 1) * 4 + (k >> 6 & 3) * 256) % 8;
    }
    static constexpr unsigned SCALE_BASE = 4;
    static constexpr unsigned SCALE_K_GROUP_STRIDE = 144;
    static constexpr unsigned SCALE_BITS = 4;
    static constexpr unsigned SCALE_SHIFT = 0;
    static constexpr unsigned SCALE_ROWS_PER_GROUP = 1;
    static constexpr unsigned SCALE_K_PER_GROUP = 256;
    static constexpr int SCALE_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return SCALE_BASE + row / 1 * row_group_stride + k / 256 * SCALE_K_GROUP_STRIDE + (0 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 64) / 8;
    }
    static __device__ __forceinline__ unsigned scale_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 64) % 8;
    }
    static constexpr unsigned SCALE_HIGH_BASE = 4;
    static constexpr unsigned SCALE_HIGH_K_GROUP_STRIDE = 144;
    static constexpr unsigned SCALE_HIGH_BITS = 2;
    static constexpr unsigned SCALE_HIGH_SHIFT = 4;
    static constexpr unsigned SCALE_HIGH_ROWS_PER_GROUP = 1;
    static constexpr unsigned SCALE_HIGH_K_PER_GROUP = 256;
    static constexpr int SCALE_HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_high_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return SCALE_HIGH_BASE + row / 1 * row_group_stride + k / 256 * SCALE_HIGH_K_GROUP_STRIDE + (4 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 2) / 8;
    }
    static __device__ __forceinline__ unsigned scale_high_shift(uint64_t row, uint64_t k) {
        return (4 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 2) % 8;
    }
    static constexpr unsigned MIN_BASE = 8;
    static constexpr unsigned MIN_K_GROUP_STRIDE = 144;
    static constexpr unsigned MIN_BITS = 4;
    static constexpr unsigned MIN_SHIFT = 0;
    static constexpr unsigned MIN_ROWS_PER_GROUP = 1;
    static constexpr unsigned MIN_K_PER_GROUP = 256;
    static constexpr int MIN_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t min_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return MIN_BASE + row / 1 * row_group_stride + k / 256 * MIN_K_GROUP_STRIDE + (0 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 36) / 8;
    }
    static __device__ __forceinline__ unsigned min_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 36) % 8;
    }
    static constexpr unsigned MIN_HIGH_BASE = 8;
    static constexpr unsigned MIN_HIGH_K_GROUP_STRIDE = 144;
    static constexpr unsigned MIN_HIGH_BITS = 2;
    static constexpr unsigned MIN_HIGH_SHIFT = 4;
    static constexpr unsigned MIN_HIGH_ROWS_PER_GROUP = 1;
    static constexpr unsigned MIN_HIGH_K_PER_GROUP = 256;
    static constexpr int MIN_HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t min_high_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return MIN_HIGH_BASE + row / 1 * row_group_stride + k / 256 * MIN_HIGH_K_GROUP_STRIDE + (4 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 2) / 8;
    }
    static __device__ __forceinline__ unsigned min_high_shift(uint64_t row, uint64_t k) {
        return (4 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 2) % 8;
    }
    static constexpr unsigned D_BASE = 0;
    static constexpr unsigned D_K_GROUP_STRIDE = 144;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 1;
    static constexpr unsigned D_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return D_BASE + row / 1 * row_group_stride + k / 256 * D_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
    static constexpr unsigned DMIN_BASE = 2;
    static constexpr unsigned DMIN_K_GROUP_STRIDE = 144;
    static constexpr unsigned DMIN_BITS = 16;
    static constexpr unsigned DMIN_SHIFT = 0;
    static constexpr unsigned DMIN_ROWS_PER_GROUP = 1;
    static constexpr unsigned DMIN_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t dmin_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return DMIN_BASE + row / 1 * row_group_stride + k / 256 * DMIN_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned dmin_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedQ5K {
    static constexpr unsigned BLOCK_ELEMS = 256;
    static constexpr unsigned BLOCK_STRIDE = 176;
    static constexpr unsigned QUANT_BASE = 48;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 176;
    static constexpr unsigned QUANT_BITS = 4;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 256;
    static constexpr int QUANT_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 1 * row_group_stride + k / 256 * QUANT_K_GROUP_STRIDE + (0 + (k >> 0 & 31) * 8 + (k >> 5 & 1) * 4 + (k >> 6 & 3) * 256) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 31) * 8 + (k >> 5 & 1) * 4 + (k >> 6 & 3) * 256) % 8;
    }
    static constexpr unsigned HIGH_BASE = 16;
    static constexpr unsigned HIGH_K_GROUP_STRIDE = 176;
    static constexpr unsigned HIGH_BITS = 1;
    static constexpr unsigned HIGH_SHIFT = 0;
    static constexpr unsigned HIGH_ROWS_PER_GROUP = 1;
    static constexpr unsigned HIGH_K_PER_GROUP = 256;
    static constexpr int HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t high_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return HIGH_BASE + row / 1 * row_group_stride + k / 256 * HIGH_K_GROUP_STRIDE + (0 + (k >> 0 & 31) * 8 + (k >> 5 & 7) * 1) / 8;
    }
    static __device__ __forceinline__ unsigned high_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 31) * 8 + (k >> 5 & 7) * 1) % 8;
    }
    static constexpr unsigned SCALE_BASE = 4;
    static constexpr unsigned SCALE_K_GROUP_STRIDE = 176;
    static constexpr unsigned SCALE_BITS = 4;
    static constexpr unsigned SCALE_SHIFT = 0;
    static constexpr unsigned SCALE_ROWS_PER_GROUP = 1;
    static constexpr unsigned SCALE_K_PER_GROUP = 256;
    static constexpr int SCALE_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return SCALE_BASE + row / 1 * row_group_stride + k / 256 * SCALE_K_GROUP_STRIDE + (0 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 64) / 8;
    }
    static __device__ __forceinline__ unsigned scale_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 64) % 8;
    }
    static constexpr unsigned SCALE_HIGH_BASE = 4;
    static constexpr unsigned SCALE_HIGH_K_GROUP_STRIDE = 176;
    static constexpr unsigned SCALE_HIGH_BITS = 2;
    static constexpr unsigned SCALE_HIGH_SHIFT = 4;
    static constexpr unsigned SCALE_HIGH_ROWS_PER_GROUP = 1;
    static constexpr unsigned SCALE_HIGH_K_PER_GROUP = 256;
    static constexpr int SCALE_HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_high_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return SCALE_HIGH_BASE + row / 1 * row_group_stride + k / 256 * SCALE_HIGH_K_GROUP_STRIDE + (4 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 2) / 8;
    }
    static __device__ __forceinline__ unsigned scale_high_shift(uint64_t row, uint64_t k) {
        return (4 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 2) % 8;
    }
    static constexpr unsigned MIN_BASE = 8;
    static constexpr unsigned MIN_K_GROUP_STRIDE = 176;
    static constexpr unsigned MIN_BITS = 4;
    static constexpr unsigned MIN_SHIFT = 0;
    static constexpr unsigned MIN_ROWS_PER_GROUP = 1;
    static constexpr unsigned MIN_K_PER_GROUP = 256;
    static constexpr int MIN_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t min_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return MIN_BASE + row / 1 * row_group_stride + k / 256 * MIN_K_GROUP_STRIDE + (0 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 36) / 8;
    }
    static __device__ __forceinline__ unsigned min_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 36) % 8;
    }
    static constexpr unsigned MIN_HIGH_BASE = 8;
    static constexpr unsigned MIN_HIGH_K_GROUP_STRIDE = 176;
    static constexpr unsigned MIN_HIGH_BITS = 2;
    static constexpr unsigned MIN_HIGH_SHIFT = 4;
    static constexpr unsigned MIN_HIGH_ROWS_PER_GROUP = 1;
    static constexpr unsigned MIN_HIGH_K_PER_GROUP = 256;
    static constexpr int MIN_HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t min_high_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return MIN_HIGH_BASE + row / 1 * row_group_stride + k / 256 * MIN_HIGH_K_GROUP_STRIDE + (4 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 2) / 8;
    }
    static __device__ __forceinline__ unsigned min_high_shift(uint64_t row, uint64_t k) {
        return (4 + (k >> 5 & 3) * 8 + (k >> 7 & 1) * 2) % 8;
    }
    static constexpr unsigned D_BASE = 0;
    static constexpr unsigned D_K_GROUP_STRIDE = 176;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 1;
    static constexpr unsigned D_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return D_BASE + row / 1 * row_group_stride + k / 256 * D_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
    static constexpr unsigned DMIN_BASE = 2;
    static constexpr unsigned DMIN_K_GROUP_STRIDE = 176;
    static constexpr unsigned DMIN_BITS = 16;
    static constexpr unsigned DMIN_SHIFT = 0;
    static constexpr unsigned DMIN_ROWS_PER_GROUP = 1;
    static constexpr unsigned DMIN_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t dmin_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return DMIN_BASE + row / 1 * row_group_stride + k / 256 * DMIN_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned dmin_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedQ6K {
    static constexpr unsigned BLOCK_ELEMS = 256;
    static constexpr unsigned BLOCK_STRIDE = 224;
    static constexpr unsigned QUANT_BASE = 0;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 224;
    static constexpr unsigned QUANT_BITS = 4;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 256;
    static constexpr int QUANT_BIAS = -32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 1 * row_group_stride + k / 256 * QUANT_K_GROUP_STRIDE + (0 + (k >> 0 & 63) * 8 + (k >> 6 & 1) * 4 + (k >> 7 & 1) * 512) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 63) * 8 + (k >> 6 & 1) * 4 + (k >> 7 & 1) * 512) % 8;
    }
    static constexpr unsigned HIGH_BASE = 128;
    static constexpr unsigned HIGH_K_GROUP_STRIDE = 224;
    static constexpr unsigned HIGH_BITS = 2;
    static constexpr unsigned HIGH_SHIFT = 0;
    static constexpr unsigned HIGH_ROWS_PER_GROUP = 1;
    static constexpr unsigned HIGH_K_PER_GROUP = 256;
    static constexpr int HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t high_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return HIGH_BASE + row / 1 * row_group_stride + k / 256 * HIGH_K_GROUP_STRIDE + (0 + (k >> 0 & 31) * 8 + (k >> 5 & 3) * 2 + (k >> 7 & 1) * 256) / 8;
    }
    static __device__ __forceinline__ unsigned high_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 31) * 8 + (k >> 5 & 3) * 2 + (k >> 7 & 1) * 256) % 8;
    }
    static constexpr unsigned SCALE_BASE = 192;
    static constexpr unsigned SCALE_K_GROUP_STRIDE = 224;
    static constexpr unsigned SCALE_BITS = 8;
    static constexpr unsigned SCALE_SHIFT = 0;
    static constexpr unsigned SCALE_ROWS_PER_GROUP = 1;
    static constexpr unsigned SCALE_K_PER_GROUP = 256;
    static constexpr int SCALE_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return SCALE_BASE + row / 1 * row_group_stride + k / 256 * SCALE_K_GROUP_STRIDE + (0 + (k >> 4 & 15) * 8) / 8;
    }
    static __device__ __forceinline__ unsigned scale_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 4 & 15) * 8) % 8;
    }
    static constexpr unsigned D_BASE = 208;
    static constexpr unsigned D_K_GROUP_STRIDE = 224;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 1;
    static constexpr unsigned D_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return D_BASE + row / 1 * row_group_stride + k / 256 * D_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PaddedBF16 {
    static constexpr unsigned BLOCK_ELEMS = 1;
    static constexpr unsigned BLOCK_STRIDE = 2;
    static constexpr unsigned VALUE_BASE = 0;
    static constexpr unsigned VALUE_K_GROUP_STRIDE = 2;
    static constexpr unsigned VALUE_BITS = 16;
    static constexpr unsigned VALUE_SHIFT = 0;
    static constexpr unsigned VALUE_ROWS_PER_GROUP = 1;
    static constexpr unsigned VALUE_K_PER_GROUP = 1;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t value_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return VALUE_BASE + row / 1 * row_group_stride + k / 1 * VALUE_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned value_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct ExpQ6K {
    static constexpr unsigned BLOCK_STRIDE = 256;
    static constexpr unsigned QUANT_BASE = 0;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 256;
    static constexpr unsigned QUANT_BITS = 8;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 256;
    static constexpr int QUANT_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 1 * row_group_stride + k / 256 * QUANT_K_GROUP_STRIDE + (0 + (k >> 0 & 255) * 8) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 255) * 8) % 8;
    }
};

struct DscQ6K {
    static constexpr unsigned SCALE_BASE = 0;
    static constexpr unsigned SCALE_ROW_GROUP_STRIDE = 4;
    static constexpr unsigned SCALE_BITS = 32;
    static constexpr unsigned SCALE_SHIFT = 0;
    static constexpr unsigned SCALE_ROWS_PER_GROUP = 1;
    static constexpr unsigned SCALE_K_PER_GROUP = 16;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_byte(uint64_t row, uint64_t k, uint64_t k_group_stride) {
        return SCALE_BASE + row / 1 * SCALE_ROW_GROUP_STRIDE + k / 16 * k_group_stride + (0) / 8;
    }
    static __device__ __forceinline__ unsigned scale_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct EbQ4K {
    static constexpr unsigned QUANT_BASE = 0;
    static constexpr unsigned QUANT_ROW_GROUP_STRIDE = 256;
    static constexpr unsigned QUANT_BITS = 8;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 1;
    static constexpr unsigned QUANT_K_PER_GROUP = 256;
    static constexpr int QUANT_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t k_group_stride) {
        return QUANT_BASE + row / 1 * QUANT_ROW_GROUP_STRIDE + k / 256 * k_group_stride + (0 + (k >> 0 & 255) * 8) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (k >> 0 & 255) * 8) % 8;
    }
};

struct SbQ4K {
    static constexpr unsigned SCALE_BASE = 0;
    static constexpr unsigned SCALE_ROW_GROUP_STRIDE = 8;
    static constexpr unsigned SCALE_BITS = 32;
    static constexpr unsigned SCALE_SHIFT = 0;
    static constexpr unsigned SCALE_ROWS_PER_GROUP = 1;
    static constexpr unsigned SCALE_K_PER_GROUP = 32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_byte(uint64_t row, uint64_t k, uint64_t k_group_stride) {
        return SCALE_BASE + row / 1 * SCALE_ROW_GROUP_STRIDE + k / 32 * k_group_stride + (0) / 8;
    }
    static __device__ __forceinline__ unsigned scale_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
    static constexpr unsigned MIN_BASE = 4;
    static constexpr unsigned MIN_ROW_GROUP_STRIDE = 8;
    static constexpr unsigned MIN_BITS = 32;
    static constexpr unsigned MIN_SHIFT = 0;
    static constexpr unsigned MIN_ROWS_PER_GROUP = 1;
    static constexpr unsigned MIN_K_PER_GROUP = 32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t min_byte(uint64_t row, uint64_t k, uint64_t k_group_stride) {
        return MIN_BASE + row / 1 * MIN_ROW_GROUP_STRIDE + k / 32 * k_group_stride + (0) / 8;
    }
    static __device__ __forceinline__ unsigned min_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};

struct PlanarQ80 {
    static constexpr unsigned QUANT_BASE = 0;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 128;
    static constexpr unsigned QUANT_BITS = 8;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 4;
    static constexpr unsigned QUANT_K_PER_GROUP = 32;
    static constexpr int QUANT_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 4 * row_group_stride + k / 32 * QUANT_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 256 + (k >> 0 & 31) * 8) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 256 + (k >> 0 & 31) * 8) % 8;
    }
    static constexpr unsigned D_K_GROUP_STRIDE = 8;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 4;
    static constexpr unsigned D_K_PER_GROUP = 32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 32 * D_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 16) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 16) % 8;
    }
};

struct PlanarQ4K {
    static constexpr unsigned QUANT_BASE = 0;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 64;
    static constexpr unsigned QUANT_BITS = 4;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 4;
    static constexpr unsigned QUANT_K_PER_GROUP = 32;
    static constexpr int QUANT_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 4 * row_group_stride + k / 32 * QUANT_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 128 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 128 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) % 8;
    }
    static constexpr unsigned SCALE_K_GROUP_STRIDE = 8;
    static constexpr unsigned SCALE_BITS = 8;
    static constexpr unsigned SCALE_SHIFT = 0;
    static constexpr unsigned SCALE_ROWS_PER_GROUP = 4;
    static constexpr unsigned SCALE_K_PER_GROUP = 32;
    static constexpr int SCALE_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 32 * SCALE_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 16) / 8;
    }
    static __device__ __forceinline__ unsigned scale_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 16) % 8;
    }
    static constexpr unsigned MIN_K_GROUP_STRIDE = 8;
    static constexpr unsigned MIN_BITS = 8;
    static constexpr unsigned MIN_SHIFT = 0;
    static constexpr unsigned MIN_ROWS_PER_GROUP = 4;
    static constexpr unsigned MIN_K_PER_GROUP = 32;
    static constexpr int MIN_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t min_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 32 * MIN_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 16) / 8;
    }
    static __device__ __forceinline__ unsigned min_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 16) % 8;
    }
    static constexpr unsigned D_K_GROUP_STRIDE = 16;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 4;
    static constexpr unsigned D_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 256 * D_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 32) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 32) % 8;
    }
    static constexpr unsigned DMIN_K_GROUP_STRIDE = 16;
    static constexpr unsigned DMIN_BITS = 16;
    static constexpr unsigned DMIN_SHIFT = 0;
    static constexpr unsigned DMIN_ROWS_PER_GROUP = 4;
    static constexpr unsigned DMIN_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t dmin_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 256 * DMIN_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 32) / 8;
    }
    static __device__ __forceinline__ unsigned dmin_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 32) % 8;
    }
};

struct PlanarQ5K {
    static constexpr unsigned QUANT_BASE = 0;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 64;
    static constexpr unsigned QUANT_BITS = 4;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 4;
    static constexpr unsigned QUANT_K_PER_GROUP = 32;
    static constexpr int QUANT_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 4 * row_group_stride + k / 32 * QUANT_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 128 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 128 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) % 8;
    }
    static constexpr unsigned HIGH_K_GROUP_STRIDE = 16;
    static constexpr unsigned HIGH_BITS = 1;
    static constexpr unsigned HIGH_SHIFT = 0;
    static constexpr unsigned HIGH_ROWS_PER_GROUP = 4;
    static constexpr unsigned HIGH_K_PER_GROUP = 32;
    static constexpr int HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t high_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 32 * HIGH_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 32 + (k >> 0 & 3) * 8 + (k >> 2 & 7) * 1) / 8;
    }
    static __device__ __forceinline__ unsigned high_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 32 + (k >> 0 & 3) * 8 + (k >> 2 & 7) * 1) % 8;
    }
    static constexpr unsigned SCALE_K_GROUP_STRIDE = 8;
    static constexpr unsigned SCALE_BITS = 8;
    static constexpr unsigned SCALE_SHIFT = 0;
    static constexpr unsigned SCALE_ROWS_PER_GROUP = 4;
    static constexpr unsigned SCALE_K_PER_GROUP = 32;
    static constexpr int SCALE_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 32 * SCALE_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 16) / 8;
    }
    static __device__ __forceinline__ unsigned scale_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 16) % 8;
    }
    static constexpr unsigned MIN_K_GROUP_STRIDE = 8;
    static constexpr unsigned MIN_BITS = 8;
    static constexpr unsigned MIN_SHIFT = 0;
    static constexpr unsigned MIN_ROWS_PER_GROUP = 4;
    static constexpr unsigned MIN_K_PER_GROUP = 32;
    static constexpr int MIN_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t min_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 32 * MIN_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 16) / 8;
    }
    static __device__ __forceinline__ unsigned min_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 16) % 8;
    }
    static constexpr unsigned D_K_GROUP_STRIDE = 16;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 4;
    static constexpr unsigned D_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 256 * D_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 32) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 32) % 8;
    }
    static constexpr unsigned DMIN_K_GROUP_STRIDE = 16;
    static constexpr unsigned DMIN_BITS = 16;
    static constexpr unsigned DMIN_SHIFT = 0;
    static constexpr unsigned DMIN_ROWS_PER_GROUP = 4;
    static constexpr unsigned DMIN_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t dmin_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 256 * DMIN_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 32) / 8;
    }
    static __device__ __forceinline__ unsigned dmin_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 32) % 8;
    }
};

struct PlanarQ6K {
    static constexpr unsigned QUANT_BASE = 0;
    static constexpr unsigned QUANT_K_GROUP_STRIDE = 64;
    static constexpr unsigned QUANT_BITS = 4;
    static constexpr unsigned QUANT_SHIFT = 0;
    static constexpr unsigned QUANT_ROWS_PER_GROUP = 4;
    static constexpr unsigned QUANT_K_PER_GROUP = 32;
    static constexpr int QUANT_BIAS = -32;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t quant_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return QUANT_BASE + row / 4 * row_group_stride + k / 32 * QUANT_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 128 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) / 8;
    }
    static __device__ __forceinline__ unsigned quant_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 128 + (k >> 0 & 15) * 8 + (k >> 4 & 1) * 4) % 8;
    }
    static constexpr unsigned HIGH_K_GROUP_STRIDE = 32;
    static constexpr unsigned HIGH_BITS = 2;
    static constexpr unsigned HIGH_SHIFT = 0;
    static constexpr unsigned HIGH_ROWS_PER_GROUP = 4;
    static constexpr unsigned HIGH_K_PER_GROUP = 32;
    static constexpr int HIGH_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t high_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 32 * HIGH_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 64 + (k >> 0 & 3) * 8 + (k >> 2 & 3) * 2 + (k >> 4 & 1) * 32) / 8;
    }
    static __device__ __forceinline__ unsigned high_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 64 + (k >> 0 & 3) * 8 + (k >> 2 & 3) * 2 + (k >> 4 & 1) * 32) % 8;
    }
    static constexpr unsigned SCALE_K_GROUP_STRIDE = 8;
    static constexpr unsigned SCALE_BITS = 8;
    static constexpr unsigned SCALE_SHIFT = 0;
    static constexpr unsigned SCALE_ROWS_PER_GROUP = 4;
    static constexpr unsigned SCALE_K_PER_GROUP = 32;
    static constexpr int SCALE_BIAS = 0;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t scale_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 32 * SCALE_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 16 + (k >> 4 & 1) * 8) / 8;
    }
    static __device__ __forceinline__ unsigned scale_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 16 + (k >> 4 & 1) * 8) % 8;
    }
    static constexpr unsigned D_K_GROUP_STRIDE = 8;
    static constexpr unsigned D_BITS = 16;
    static constexpr unsigned D_SHIFT = 0;
    static constexpr unsigned D_ROWS_PER_GROUP = 4;
    static constexpr unsigned D_K_PER_GROUP = 256;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t d_byte(uint64_t row, uint64_t k, uint64_t base, uint64_t row_group_stride) {
        return base + row / 4 * row_group_stride + k / 256 * D_K_GROUP_STRIDE + (0 + (row >> 0 & 3) * 16) / 8;
    }
    static __device__ __forceinline__ unsigned d_shift(uint64_t row, uint64_t k) {
        return (0 + (row >> 0 & 3) * 16) % 8;
    }
};

struct Bf16 {
    static constexpr unsigned VALUE_BASE = 0;
    static constexpr unsigned VALUE_K_GROUP_STRIDE = 2;
    static constexpr unsigned VALUE_BITS = 16;
    static constexpr unsigned VALUE_SHIFT = 0;
    static constexpr unsigned VALUE_ROWS_PER_GROUP = 1;
    static constexpr unsigned VALUE_K_PER_GROUP = 1;
    // Byte of the object, and lowest bit inside it.
    static __device__ __forceinline__ uint64_t value_byte(uint64_t row, uint64_t k, uint64_t row_group_stride) {
        return VALUE_BASE + row / 1 * row_group_stride + k / 1 * VALUE_K_GROUP_STRIDE + (0) / 8;
    }
    static __device__ __forceinline__ unsigned value_shift(uint64_t row, uint64_t k) {
        return (0) % 8;
    }
};
