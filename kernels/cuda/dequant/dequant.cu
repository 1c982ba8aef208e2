// Weights to bf16 (a matrix, for prefill) and to f32 (rows of an embedding).
#include "deq8.cuh"

// out[row][k], bf16, row stride `row_len`: rows `0..n_rows` of the object at `w`. One thread makes
// eight elements; the grid runs over all of them.
template <class D>
DEV void to_bf16(const uint8_t* w, uint64_t row_stride, __nv_bfloat16* out, uint32_t n_rows,
                 uint32_t row_len) {
  const uint32_t per_row = row_len / 8;
  const uint64_t n = static_cast<uint64_t>(n_rows) * per_row;
  wait_for_previous();
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
    const uint32_t row = static_cast<uint32_t>(i / per_row), k = static_cast<uint32_t>(i % per_row) * 8;
    float v[8];
    D::read(w + row * row_stride, k, v);
    uint4 packed;
    packed.x = pack_bf16(v[0], v[1]);
    packed.y = pack_bf16(v[2], v[3]);
    packed.z = pack_bf16(v[4], v[5]);
    packed.w = pack_bf16(v[6], v[7]);
    reinterpret_cast<uint4*>(out)[i] = packed;
  }
}

// out[t][k] = scale * table[tokens[t]][k], f32.
//
// A step's first kernel: it begins when all of the step before has ended (it is launched so), and lets the next one in
// at once. Later ones read, before they wait, weights, the position and the cache before it.
template <class D>
DEV void embed(const uint8_t* w, uint64_t row_stride, float* out, const uint32_t* tokens,
               uint32_t row_len, float scale) {
  let_next_start();
  wait_for_previous();
  const uint8_t* row = w + tokens[blockIdx.x] * row_stride;
  out += static_cast<size_t>(blockIdx.x) * row_len;
  for (uint32_t k = threadIdx.x * 8; k < row_len; k += blockDim.x * 8) {
    float v[8];
    D::read(row, k, v);
#pragma unroll
    for (int i = 0; i < 8; i++) out[k + i] = scale * v[i];
  }
}

#define KERNELS(NAME, D)                                                                           \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      dequant_##NAME(const uint8_t* w, uint64_t row_stride, __nv_bfloat16* out, uint32_t n_rows,   \
                     uint32_t row_len) {                                                           \
    to_bf16<D>(w, row_stride, out, n_rows, row_len);                                               \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      embed_##NAME(const uint8_t* w, uint64_t row_stride, float* out, const uint32_t* tokens,      \
                   uint32_t row_len, float scale) {                                                \
    embed<D>(w, row_stride, out, tokens, row_len, scale);                                          \
  }

using Deq4_0 = Deq32<18, false, false>;
using Deq4_1 = Deq32<20, true, false>;
using Deq5_0 = Deq32<22, false, true>;
using Deq5_1 = Deq32<24, true, true>;
using Deq4_K = DeqK45<false>;
using Deq5_K = DeqK45<true>;

KERNELS(q4_0, Deq4_0)
KERNELS(q4_1, Deq4_1)
KERNELS(q5_0, Deq5_0)
KERNELS(q5_1, Deq5_1)
KERNELS(q8_0, Deq8_0)
KERNELS(q2_K, Deq2_K)
KERNELS(q3_K, Deq3_K)
KERNELS(q4_K, Deq4_K)
KERNELS(q5_K, Deq5_K)
KERNELS(q6_K, Deq6_K)
KERNELS(f32, DeqF32)
KERNELS(f16, DeqF16)
KERNELS(bf16, DeqBf16)
