// RMS norms. Rows are f32; results go where the operand wants them.
#include "../elementwise/eight.cuh"

// out = x / sqrt(mean(x^2) + eps) * gain; a block a row of `width` (a multiple of 32).
extern "C" __global__ void __launch_bounds__(1024)
    rmsnorm(Operand out, const float* x, const float* gain, uint32_t width, float eps) {
  __shared__ float shared[32];
  let_next_start();
  wait_for_previous();
  const size_t first = static_cast<size_t>(blockIdx.x) * width;
  const float* row = x + first;
  float sum = 0.0f;
  for (uint32_t k = threadIdx.x; k < width; k += blockDim.x) sum += row[k] * row[k];
  const float scale = rsqrtf(block_sum(sum, shared) / static_cast<float>(width) + eps);
  for (uint32_t k = threadIdx.x; k < width; k += blockDim.x) {
    put_operand(out, first + k, row[k] * scale * gain[k]);
  }
}

// The same, eight elements a thread, each read once.
extern "C" __global__ void __launch_bounds__(1024)
    rmsnorm8(Operand out, const float* x, const float* gain, uint32_t width, float eps) {
  __shared__ float shared[32];
  wait_for_previous();
  const size_t first = static_cast<size_t>(blockIdx.x) * width;
  const uint32_t k = threadIdx.x * 8;
  float v[8] = {}, by[8] = {};
  if (k < width) {
    load8(v, x + first + k);
    load8(by, gain + k);
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; j++) sum += v[j] * v[j];
  const float scale = rsqrtf(block_sum(sum, shared) / static_cast<float>(width) + eps);
#pragma unroll
  for (int j = 0; j < 8; j++) v[j] = v[j] * scale * by[j];
  if (k < width) put_operand8(out, first + k, v);
  let_next_start();
}

// x += rmsnorm(y) * gain; a block a row.
extern "C" __global__ void __launch_bounds__(1024)
    add_rmsnorm(float* x, const float* y, const float* gain, uint32_t width, float eps) {
  __shared__ float shared[32];
  let_next_start();
  wait_for_previous();
  const size_t first = static_cast<size_t>(blockIdx.x) * width;
  float sum = 0.0f;
  for (uint32_t k = threadIdx.x; k < width; k += blockDim.x) sum += y[first + k] * y[first + k];
  const float scale = rsqrtf(block_sum(sum, shared) / static_cast<float>(width) + eps);
  for (uint32_t k = threadIdx.x; k < width; k += blockDim.x) {
    x[first + k] += y[first + k] * scale * gain[k];
  }
}

// Each head of `head_dim` elements: x = rmsnorm(x) * gain. A warp a head, `n_heads` in all.
extern "C" __global__ void __launch_bounds__(256)
    rmsnorm_heads(float* x, const float* gain, uint32_t n_heads, uint32_t head_dim, float eps) {
  let_next_start();
  wait_for_previous();
  const uint32_t head = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (head >= n_heads) return;
  float* row = x + static_cast<size_t>(head) * head_dim;
  float sum = 0.0f;
  for (uint32_t k = lane; k < head_dim; k += 32) sum += row[k] * row[k];
  const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(head_dim) + eps);
  for (uint32_t k = lane; k < head_dim; k += 32) row[k] = row[k] * scale * gain[k];
}
