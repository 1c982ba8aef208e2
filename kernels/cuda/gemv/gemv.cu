// Few tokens times a quantized matrix: y[t][row] = sum_k w[row][k] x[t][k] (+ bias[row]).
//
// A warp a row; its lanes take the row's units in turn. Up to three matrices of one type and row
// length share a launch (queries, keys and values; gate and up).
#include "job.cuh"
#include "quants.cuh"

constexpr int WARPS = 4;

// The matrix and row of a warp; -1 beyond the last.
DEV int find_row(const GemvJob& job, uint32_t& row) {
  row = blockIdx.x * WARPS + (threadIdx.x >> 5);
#pragma unroll
  for (int i = 0; i < 3; i++) {
    if (row < job.m[i].n_rows) return i;
    row -= job.m[i].n_rows;
  }
  return -1;
}

template <int NT>
DEV void put_row(const GemvJob& job, const GemvMatrix& m, uint32_t row, float (&acc)[NT]) {
#pragma unroll
  for (int t = 0; t < NT; t++) {
    float v = warp_sum(acc[t]);
    if ((threadIdx.x & 31) == 0 && t < job.n_tokens) {
      if (m.bias) v += m.bias[row];
      float* y = m.y + static_cast<size_t>(t) * m.n_rows + row;
      *y = m.add ? *y + v : v;
    }
  }
}

template <class Q, int NT>
DEV void gemv(const GemvJob& job) {
  uint32_t row;
  const int which = find_row(job, row);
  if (which < 0) {
    wait_for_previous();
    return;
  }
  const GemvMatrix& m = job.m[which];
  const int lane = threadIdx.x & 31;
  const int n_units = job.row_len / Q::U;
  const uint8_t* w = m.w + row * m.row_stride;
  float acc[NT] = {};
  bool waited = false;
  // Several units are loaded before the first is used, so that loads overlap; the first of them
  // before the kernel that makes the activations has ended.
  constexpr int AHEAD = NT == 1 ? (Q::U == 64 ? 2 : 4) : 1;
  for (int u = lane; u < n_units || !waited; u += 32 * AHEAD) {
    typename Q::W unit[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const int v = u + 32 * a;
      if (v < n_units) unit[a] = Q::load(w + static_cast<size_t>(v / Q::UNITS) * Q::STRIDE, v % Q::UNITS);
    }
    if (!waited) {
      wait_for_previous();
      waited = true;
    }
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const int v = u + 32 * a;
      if (v < n_units) {
#pragma unroll
        for (int t = 0; t < NT; t++) {
          if (t < job.n_tokens) {
            const int8_t* q = job.q + static_cast<size_t>(t) * job.row_len;
            const float2* ds = job.ds + static_cast<size_t>(t) * (job.row_len / 32);
            acc[t] += Q::dot(unit[a], q, ds, v);
          }
        }
      }
    }
  }
  let_next_start();
  put_row<NT>(job, m, row, acc);
}

DEV float weight(const float* w, uint32_t k) { return w[k]; }
DEV float weight(const __half* w, uint32_t k) { return __half2float(w[k]); }
DEV float weight(const __nv_bfloat16* w, uint32_t k) { return __bfloat162float(w[k]); }

template <class T, int NT>
DEV void gemv_float(const GemvJob& job) {
  wait_for_previous();
  uint32_t row;
  const int which = find_row(job, row);
  if (which < 0) return;
  const GemvMatrix& m = job.m[which];
  const T* w = reinterpret_cast<const T*>(m.w + row * m.row_stride);
  float acc[NT] = {};
  for (uint32_t k = threadIdx.x & 31; k < job.row_len; k += 32) {
    const float v = weight(w, k);
#pragma unroll
    for (int t = 0; t < NT; t++) {
      if (t < job.n_tokens) acc[t] += v * job.f32[static_cast<size_t>(t) * job.row_len + k];
    }
  }
  let_next_start();
  put_row<NT>(job, m, row, acc);
}

#define QUANT(NAME, Q)                                                                      \
  extern "C" __global__ void __launch_bounds__(128)                                         \
      gemv_##NAME##_1(const __grid_constant__ GemvJob job) { gemv<Q, 1>(job); }             \
  extern "C" __global__ void __launch_bounds__(128)                                         \
      gemv_##NAME##_4(const __grid_constant__ GemvJob job) { gemv<Q, 4>(job); }
#define FLOAT(NAME, T)                                                                      \
  extern "C" __global__ void __launch_bounds__(128)                                         \
      gemv_##NAME##_1(const __grid_constant__ GemvJob job) { gemv_float<T, 1>(job); }       \
  extern "C" __global__ void __launch_bounds__(128)                                         \
      gemv_##NAME##_4(const __grid_constant__ GemvJob job) { gemv_float<T, 4>(job); }

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
