// Few tokens times their experts' matrices, from the `padded` base: y[pair][row]. A warp a row, as in
// gemv/gemv.cu; but the weights' addresses are the router's work, so nothing is loaded before it is done.
#include "../gemv/quants.cuh"
#include "gemv.cuh"

constexpr int WARPS = 4;

template <class Q>
DEV void gemv_experts(const ExpertGemvJob& job) {
  wait_for_previous();
  const uint32_t row = blockIdx.x * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (row >= job.n_rows) return;
  const uint8_t* w = expert_rows(job) + row * job.row_stride;
  const size_t x_row = blockIdx.z / job.repeat;
  const int8_t* q = job.q + x_row * job.row_len;
  const float2* ds = job.ds + x_row * (job.row_len / 32);
  const int n_units = job.row_len / Q::U;
  constexpr int AHEAD = Q::U == 64 ? 2 : 4;
  float acc = 0.0f;
  for (int u = lane; u < n_units; u += 32 * AHEAD) {
    typename Q::W unit[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const int v = u + 32 * a;
      if (v < n_units) unit[a] = Q::load(w + static_cast<size_t>(v / Q::UNITS) * Q::STRIDE, v % Q::UNITS);
    }
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const int v = u + 32 * a;
      if (v < n_units) acc += Q::dot(unit[a], q, ds, v);
    }
  }
  let_next_start();
  acc = warp_sum(acc);
  if (lane == 0) expert_out(job)[row] = acc;
}

DEV float weight(const float* w, uint32_t k) { return w[k]; }
DEV float weight(const __half* w, uint32_t k) { return __half2float(w[k]); }
DEV float weight(const __nv_bfloat16* w, uint32_t k) { return __bfloat162float(w[k]); }

template <class T>
DEV void gemv_experts_float(const ExpertGemvJob& job) {
  wait_for_previous();
  const uint32_t row = blockIdx.x * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (row >= job.n_rows) return;
  const T* w = reinterpret_cast<const T*>(expert_rows(job) + row * job.row_stride);
  const float* x = job.f32 + static_cast<size_t>(blockIdx.z / job.repeat) * job.row_len;
  float acc = 0.0f;
  for (uint32_t k = lane; k < job.row_len; k += 32) acc += weight(w, k) * x[k];
  let_next_start();
  acc = warp_sum(acc);
  if (lane == 0) expert_out(job)[row] = acc;
}

#define QUANT(NAME, Q)                                                                     \
  extern "C" __global__ void __launch_bounds__(128)                                        \
      gemv_experts_##NAME(const __grid_constant__ ExpertGemvJob job) { gemv_experts<Q>(job); }
#define FLOAT(NAME, T)                                                                     \
  extern "C" __global__ void __launch_bounds__(128)                                        \
      gemv_experts_##NAME(const __grid_constant__ ExpertGemvJob job) { gemv_experts_float<T>(job); }

QUANT(q4_0, Q4_0)
QUANT(q4_1, Q4_1)
QUANT(q5_0, Q5_0)
QUANT(q5_1, Q5_1)
QUANT(q8_0, Q8_0)
QUANT(q2_K, Q2_K)
QUANT(q3_K, Q3_K)
QUANT(q4_K, Q4_K)
QUANT(q5_K, Q5_K)
QUANT(q6_K, Q6_K)
FLOAT(f32, float)
FLOAT(f16, __half)
FLOAT(bf16, __nv_bfloat16)
