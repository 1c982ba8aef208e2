// Few tokens times their experts' matrices, from the `planar` form: y[pair][row]. A block takes four rows
// of one expert, whose rows are a multiple of four.
#include "../gemv/planar.cuh"
#include "gemv.cuh"

constexpr int THREADS = 128;

template <class Q>
DEV void gemv_experts(const ExpertGemvJob& job) {
  wait_for_previous();
  const uint8_t* unit = expert_rows(job) + blockIdx.x * job.row_stride;
  const uint32_t n_chunks = job.row_len / 32;
  const size_t x_row = blockIdx.z / job.repeat;
  const int8_t* q = job.q + x_row * job.row_len;
  const float2* ds = job.ds + x_row * n_chunks;
  float acc[4] = {};
  for (uint32_t c = threadIdx.x; c < n_chunks; c += THREADS) {
    const typename Q::Chunk v = Q::load(unit, c, n_chunks);
    const uint4 lo = *reinterpret_cast<const uint4*>(q + c * 32);
    const uint4 hi = *reinterpret_cast<const uint4*>(q + c * 32 + 16);
    const float2 d = ds[c];
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const Row row = Q::row(v, r);
      const int a = Q::SIGNED ? dot16_signed(row.lo, lo) : dot16(row.lo, lo);
      const int b = Q::SIGNED ? dot16_signed(row.hi, hi) : dot16(row.hi, hi);
      acc[r] += d.x * (row.lo_scale * static_cast<float>(a) + row.hi_scale * static_cast<float>(b));
      acc[r] -= row.min * d.y;
    }
  }
  let_next_start();
  __shared__ float sums[THREADS / 32][4];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const float sum = warp_sum(acc[r]);
    if (lane == 0) sums[warp][r] = sum;
  }
  __syncthreads();
  const uint32_t r = threadIdx.x, row = blockIdx.x * 4 + r;
  if (r < 4 && row < job.n_rows) expert_out(job)[row] = sums[0][r] + sums[1][r] + sums[2][r] + sums[3][r];
}

#define KERNEL(NAME, Q)                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS)                                    \
      gemv_experts_planar_##NAME(const __grid_constant__ ExpertGemvJob job) { gemv_experts<Q>(job); }

KERNEL(q4_K, PlanarQ4_K)
KERNEL(q5_K, PlanarQ5_K)
KERNEL(q6_K, PlanarQ6_K)
KERNEL(q8_0, PlanarQ8_0)
