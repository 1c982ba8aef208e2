// Instructions of sm_80 that the MMQ kernels are made of, and their common arguments.
#pragma once
#include <cstdint>

// One product: y[token][row] = sum over k of w[row][k] * x[token][k], plus bias and residual.
// The same struct is `kernels::cuda::mmq::MmqArgs`.
struct MmqArgs {
    float* y;              // [n_tokens][ldy]
    const int8_t* xq;      // [n_tokens][row_len]; see quantize/q8.cuh
    const float2* xds;     // [n_tokens][row_len / 32]: scale, scale * sum of the integers
    const uint8_t* w;      // the object with the integers: padded, exp or eb
    const uint8_t* p;      // the object with the scales: dsc, sb, or padded
    const float* bias;     // [n_rows], or null
    const float* residual; // [n_tokens][ldy], or null; may be y
    uint64_t w_row_stride; // bytes from row to row in w
    uint64_t w_k_stride;   // bytes from (super-)block to (super-)block of a row in w
    uint64_t p_row_stride; // bytes from row to row in p
    uint64_t p_k_stride;   // bytes from group to group of scales in p (padded: from block to block)
    uint32_t n_tokens;
    uint32_t n_rows;
    uint32_t row_len;
    uint32_t ldy;
};

__device__ __forceinline__ uint32_t smem_at(const void* p) {
    return uint32_t(__cvta_generic_to_shared(p));
}

// One load of 16 bytes from shared memory, also where a part of them is not used.
__device__ __forceinline__ float4 load_shared16(const void* p) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(smem_at(p))
                 : "memory");
    return v;
}

// 16 bytes from global to shared memory, past the registers; zeros where `inside` is false (no byte
// is read then, whatever the address is).
__device__ __forceinline__ void copy16(void* to, const void* from, bool inside) {
    const int n_bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem_at(to)), "l"(from),
                 "r"(n_bytes)
                 : "memory");
}

// The same number, which the compiler knows nothing about: what is computed from it stays inside
// the loop instead of taking registers all through it.
__device__ __forceinline__ uint32_t opaque(uint32_t n) {
    asm volatile("" : "+r"(n));
    return n;
}

// Asynchronous copies of a tile of N_ROWS rows of PIECES * 16 bytes by THREADS threads: from rows
// `stride` bytes apart that start at `from`, of which `n_inside` exist, to rows TO_STRIDE apart.
template <int N_ROWS, int PIECES, int TO_STRIDE, int THREADS>
__device__ __forceinline__ void copy_rows(void* to, const void* from, uint64_t stride, uint32_t n_inside) {
    constexpr int AT_ONCE = THREADS / PIECES;
    static_assert(THREADS % PIECES == 0 && N_ROWS % AT_ONCE == 0, "pieces are spread evenly");
    const uint32_t row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    const uint8_t* source = static_cast<const uint8_t*>(from) + row * stride + piece * 16;
    uint8_t* target = static_cast<uint8_t*>(to) + row * TO_STRIDE + piece * 16;
    const uint32_t step = opaque(uint32_t(stride) * AT_ONCE);
#pragma unroll
    for (int i = 0; i < N_ROWS / AT_ONCE; ++i) {
        copy16(target + i * AT_ONCE * TO_STRIDE, source, row + i * AT_ONCE < n_inside);
        source += step;
    }
}

__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most N groups of this thread's copies are in flight. Others' copies are visible
// behind a barrier only.
template <int N> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

// Four 8 x 16 byte matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

// 16 tokens x 8 rows x 16 k, from zero.
__device__ __forceinline__ void mma_k16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
                 "{%7,%7,%7,%7};\n"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

// 16 tokens x 8 rows x 32 k, from zero.
__device__ __forceinline__ void mma_k32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%10,%10,%10,%10};\n"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// c += 16 tokens x 8 rows x 8 k of tf32.
__device__ __forceinline__ void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%8}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

// The upper 11 bits of a float's mantissa, and the rest: together 22 bits of it in tf32.
__device__ __forceinline__ void split_tf32(float v, uint32_t& high, uint32_t& low) {
    high = __float_as_uint(v) & 0xffffe000u;
    low = __float_as_uint(v - __uint_as_float(high));
}

__device__ __forceinline__ float half_at(const uint8_t* p) {
    float f;
    asm("{ .reg .b16 h; mov.b16 h, %1; cvt.f32.f16 %0, h; }\n"
        : "=f"(f)
        : "h"(*reinterpret_cast<const uint16_t*>(p)));
    return f;
}

__device__ __forceinline__ float half_bits(uint32_t bits) {
    float f;
    asm("{ .reg .b16 h; mov.b16 h, %1; cvt.f32.f16 %0, h; }\n" : "=f"(f) : "h"(uint16_t(bits)));
    return f;
}

// Stores one 16 x 8 tile of sums: this lane's two rows for two tokens.
__device__ __forceinline__ void store_tile(const MmqArgs& a, const float (&sum)[4], uint32_t token,
                                           uint32_t row) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t t = token + 8 * i;
        if (t >= a.n_tokens) continue;
        const size_t at = size_t(t) * a.ldy + row;
        float v[2] = {sum[2 * i], sum[2 * i + 1]};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            if (row + j >= a.n_rows) continue;
            if (a.bias) v[j] += a.bias[row + j];
            if (a.residual) v[j] += a.residual[at + j];
        }
        if (row + 1 < a.n_rows && at % 2 == 0) {
            *reinterpret_cast<float2*>(a.y + at) = make_float2(v[0], v[1]);
        } else {
            if (row < a.n_rows) a.y[at] = v[0];
            if (row + 1 < a.n_rows) a.y[at + 1] = v[1];
        }
    }
}
