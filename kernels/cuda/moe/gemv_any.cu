// Few tokens times their experts' matrices, from bases of any kind: y[pair][row]. A warp a row.
#include "../dequant/any.cuh"
#include "gemv.cuh"

// `layouts`: that of a stack of all experts, or one an expert, which may differ in type.
extern "C" __global__ void __launch_bounds__(128)
    gemv_experts_any(const AnyLayout* layouts, uint32_t is_stack, const __grid_constant__ ExpertGemvJob job) {
  wait_for_previous();
  const uint32_t row = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (row >= job.n_rows) return;
  const uint32_t expert = job.choices[blockIdx.z].expert;
  const AnyLayout& l = layouts[is_stack ? 0 : expert];
  const uint32_t at = is_stack ? expert * job.n_rows + row : row;
  const bool is_float = l.fields[VALUE].encoding != 0;
  const size_t x_row = static_cast<size_t>(blockIdx.z / job.repeat) * job.row_len;
  float acc = 0.0f;
  for (uint32_t k = lane; k < job.row_len; k += 32) {
    const size_t i = x_row + k;
    acc += value(l, at, k) * (is_float ? job.f32[i] : job.ds[i / 32].x * static_cast<float>(job.q[i]));
  }
  let_next_start();
  acc = warp_sum(acc);
  if (lane == 0) expert_out(job)[row] = acc;
}
