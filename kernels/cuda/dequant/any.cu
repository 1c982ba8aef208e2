// Matrices, rows and products from any base, by its descriptors.
#include "../gemv/job.cuh"
#include "any.cuh"

// out[row][k], bf16, row stride `row_len`. Two elements a thread.
extern "C" __global__ void __launch_bounds__(256)
    dequant_any(const __grid_constant__ AnyLayout l, __nv_bfloat16* out, uint32_t n_rows, uint32_t row_len) {
  const uint64_t n = static_cast<uint64_t>(n_rows) * (row_len / 2);
  wait_for_previous();
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
    const uint32_t row = static_cast<uint32_t>(i / (row_len / 2)), k = static_cast<uint32_t>(i % (row_len / 2)) * 2;
    reinterpret_cast<uint32_t*>(out)[i] = pack_bf16(value(l, row, k), value(l, row, k + 1));
  }
}

// out[t][k] = scale * table[tokens[t]][k], f32.
//
// A step's first kernel, as in dequant.cu.
extern "C" __global__ void __launch_bounds__(256)
    embed_any(const __grid_constant__ AnyLayout l, float* out, const uint32_t* tokens, uint32_t row_len, float scale) {
  let_next_start();
  wait_for_previous();
  const uint32_t row = tokens[blockIdx.x];
  out += static_cast<size_t>(blockIdx.x) * row_len;
  for (uint32_t k = threadIdx.x; k < row_len; k += blockDim.x) out[k] = scale * value(l, row, k);
}

// y[t][row] = sum over k of w[row][k] * x[t][k] for up to four tokens: a warp a row of the job's first
// matrix. Quantized weights meet the int8 form of the activations, floats the f32 form, as elsewhere.
extern "C" __global__ void __launch_bounds__(128)
    gemv_any(const __grid_constant__ AnyLayout l, const __grid_constant__ GemvJob job) {
  const GemvMatrix& m = job.m[0];
  const uint32_t row = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  wait_for_previous();
  if (row >= m.n_rows) return;
  const bool is_float = l.fields[VALUE].encoding != 0;
  float acc[4] = {};
  for (uint32_t k = lane; k < job.row_len; k += 32) {
    const float w = value(l, row, k);
#pragma unroll
    for (uint32_t t = 0; t < 4; t++) {
      if (t >= job.n_tokens) continue;
      const size_t i = static_cast<size_t>(t) * job.row_len + k;
      acc[t] += w * (is_float ? job.f32[i] : job.ds[i / 32].x * static_cast<float>(job.q[i]));
    }
  }
#pragma unroll
  for (uint32_t t = 0; t < 4; t++) {
    float v = warp_sum(acc[t]);
    if (lane == 0 && t < job.n_tokens) {
      if (m.bias) v += m.bias[row];
      float* y = m.y + static_cast<size_t>(t) * m.n_rows + row;
      *y = m.add ? *y + v : v;
    }
  }
}
