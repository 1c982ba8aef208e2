// Few tokens times their experts' matrices, from the `padded` base: y[pair][row]. As in gemv/gemv.cu the
// lanes of a row take its units in turn; but the weights' addresses are the router's work, so nothing is
// loaded before it is done. Two rows at a time hide some of that, and short rows share a warp.
#include "../gemv/quants.cuh"
#include "gemv.cuh"

constexpr int WARPS = 4, ROWS = 2;

// The first of this lane's rows; the second is `32 / job.lanes` further.
DEV uint32_t first_row(const ExpertGemvJob& job) {
  const uint32_t lane = threadIdx.x & 31, at_once = 32 / job.lanes;
  return (blockIdx.x * WARPS + (threadIdx.x >> 5)) * ROWS * at_once + lane / job.lanes;
}

DEV void put_rows(const ExpertGemvJob& job, float (&acc)[ROWS]) {
  for (int o = job.lanes / 2; o; o >>= 1) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) acc[r] += __shfl_xor_sync(~0u, acc[r], o);
  }
  if (threadIdx.x % job.lanes) return;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const uint32_t row = first_row(job) + r * (32 / job.lanes);
    if (row < job.n_rows) expert_out(job)[row] = acc[r];
  }
}

template <class Q>
DEV void gemv_experts(const ExpertGemvJob& job) {
  wait_for_previous();
  const uint32_t first = first_row(job), step = 32 / job.lanes;
  const uint8_t* w = expert_rows(job);
  const size_t x_row = blockIdx.z / job.repeat;
  const int8_t* q = job.q + x_row * job.row_len;
  const float2* ds = job.ds + x_row * (job.row_len / 32);
  const int n_units = job.row_len / Q::U;
  float acc[ROWS] = {};
  for (int u = threadIdx.x % job.lanes; u < n_units; u += job.lanes) {
    typename Q::W unit[ROWS];
    const size_t at = static_cast<size_t>(u / Q::UNITS) * Q::STRIDE;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const uint32_t row = first + r * step;
      if (row < job.n_rows) unit[r] = Q::load(w + row * job.row_stride + at, u % Q::UNITS);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      if (first + r * step < job.n_rows) acc[r] += Q::dot(unit[r], q, ds, u);
    }
  }
  let_next_start();
  put_rows(job, acc);
}

DEV float weight(const float* w, uint32_t k) { return w[k]; }
DEV float weight(const __half* w, uint32_t k) { return __half2float(w[k]); }
DEV float weight(const __nv_bfloat16* w, uint32_t k) { return __bfloat162float(w[k]); }

template <class T>
DEV void gemv_experts_float(const ExpertGemvJob& job) {
  wait_for_previous();
  const uint32_t first = first_row(job), step = 32 / job.lanes;
  const uint8_t* w = expert_rows(job);
  const float* x = job.f32 + static_cast<size_t>(blockIdx.z / job.repeat) * job.row_len;
  float acc[ROWS] = {};
  for (uint32_t k = threadIdx.x % job.lanes; k < job.row_len; k += job.lanes) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const uint32_t row = first + r * step;
      if (row < job.n_rows)
        acc[r] += weight(reinterpret_cast<const T*>(w + row * job.row_stride), k) * x[k];
    }
  }
  let_next_start();
  put_rows(job, acc);
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
