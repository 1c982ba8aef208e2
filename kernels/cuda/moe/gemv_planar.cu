// Few tokens times their experts' matrices, from the `planar` form: y[pair][row]. A warp takes four rows
// of one expert, whose rows are a multiple of four; its lanes take the chunks in turn.
#include "../gemv/planar.cuh"
#include "gemv.cuh"

constexpr int WARPS = 4;

template <class Q>
DEV void gemv_experts(const ExpertGemvJob& job) {
  wait_for_previous();
  const uint32_t quad = blockIdx.x * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (quad * 4 >= job.n_rows) return;
  const uint8_t* unit = expert_rows(job) + quad * job.row_stride;
  const uint32_t n_chunks = job.row_len / 32;
  const size_t x_row = blockIdx.z / job.repeat;
  const int8_t* q = job.q + x_row * job.row_len;
  const float2* ds = job.ds + x_row * n_chunks;
  float acc[4] = {};
  for (uint32_t c = lane; c < n_chunks; c += 32) {
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
#pragma unroll
  for (int r = 0; r < 4; r++) acc[r] = warp_sum(acc[r]);
  if (lane == 0) {
    float* y = expert_out(job) + quad * 4;
#pragma unroll
    for (int r = 0; r < 4; r++) y[r] = acc[r];
  }
}

#define KERNEL(NAME, Q)                                                                    \
  extern "C" __global__ void __launch_bounds__(32 * WARPS)                                    \
      gemv_experts_planar_##NAME(const __grid_constant__ ExpertGemvJob job) { gemv_experts<Q>(job); }

KERNEL(q4_K, PlanarQ4_K)
KERNEL(q5_K, PlanarQ5_K)
KERNEL(q6_K, PlanarQ6_K)
KERNEL(q8_0, PlanarQ8_0)
