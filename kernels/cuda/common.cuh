// What every kernel here uses: loads, reductions, 8-bit products, the chaining of launches.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define DEV __device__ __forceinline__

// Programmatic dependent launch. A kernel that was launched that way may start while the one before
// it still runs; every kernel here waits before it touches an activation, so that the order of
// activations is that of the launches. Without the launch attribute both are no-ops.
DEV void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEV void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Read-only loads of weights, by width.
DEV uint4 load16(const void* p) { return __ldg(static_cast<const uint4*>(p)); }
DEV uint32_t load4(const void* p) { return __ldg(static_cast<const uint32_t*>(p)); }
DEV uint32_t load2(const void* p) { return __ldg(static_cast<const uint16_t*>(p)); }
// Four bytes at an address that is a multiple of two.
DEV uint32_t load4by2(const uint8_t* p) { return load2(p) | load2(p + 2) << 16; }

DEV float half_bits(uint32_t bits) { return __half2float(__ushort_as_half(static_cast<uint16_t>(bits))); }

// acc + sum of four products: unsigned weight bytes, signed activation bytes.
DEV int dot4u(uint32_t w, uint32_t x, int acc) {
  int out;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(w), "r"(x), "r"(acc));
  return out;
}
// The same with signed weight bytes.
DEV int dot4s(uint32_t w, uint32_t x, int acc) {
  int out;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(w), "r"(x), "r"(acc));
  return out;
}
// Every byte minus `c` (bytes below 128 and not below... any; c below 128), as signed bytes.
DEV uint32_t bytes_minus(uint32_t v, uint32_t c) {
  return ((v | 0x80808080u) - c * 0x01010101u) ^ 0x80808080u;
}
// Bits 0..3 of `b` to bit 0 of bytes 0..3.
DEV uint32_t spread4(uint32_t b) { return ((b & 0xfu) * 0x00204081u) & 0x01010101u; }

DEV float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
DEV float warp_max(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}

// Sum over a block of whole warps; `shared` holds one float a warp.
DEV float block_sum(float v, float* shared) {
  v = warp_sum(v);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  v = lane < n_warps ? shared[lane] : 0.0f;
  v = warp_sum(v);
  __syncthreads();
  return v;
}

// Where a producer of activations writes one row set, `[n_tokens, width]`; null means not wanted.
//   f32, bf16: the values; q: int8; ds: for each 32 elements (scale, scale * sum of q).
struct Operand {
  float* f32;
  __nv_bfloat16* bf16;
  int8_t* q;
  float2* ds;
};

// Writes element `i` (of all tokens' elements) of an operand. Must be called by whole warps whose
// 32 lanes hold 32 consecutive elements that start at a multiple of 32.
DEV void put_operand(const Operand& out, size_t i, float v) {
  if (out.f32) out.f32[i] = v;
  if (out.bf16) out.bf16[i] = __float2bfloat16_rn(v);
  if (out.q) {
    // Numbers without a sign are ordered as their forms are. NaN is above all, and makes the chunk NaN.
    const float amax = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(fabsf(v))));
    const float inv = amax > 0.0f ? 127.0f / amax : 0.0f;
    int q = __float2int_rn(v * inv);
    q = max(-127, min(127, q));
    const float d = amax / 127.0f;
    out.q[i] = static_cast<int8_t>(q);
    const int sum = __reduce_add_sync(~0u, q);
    if ((threadIdx.x & 31) == 0) out.ds[i / 32] = make_float2(d, d * static_cast<float>(sum));
  }
}

DEV uint32_t pack_bf16(float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&v);
}
DEV uint32_t pack_f16(float a, float b) {
  const __half2 v = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// 16 bytes from global to shared memory, asynchronously; zeros unless `there`.
DEV void copy16_async(void* shared, const void* global, bool there) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int n = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(n));
}
DEV void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int N>
DEV void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

DEV void ldmatrix4(uint32_t (&r)[4], const void* shared) {
  const uint32_t a = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a));
}
DEV void ldmatrix4_trans(uint32_t (&r)[4], const void* shared) {
  const uint32_t a = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a));
}
DEV void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
