// What the device can do at most: kernels that do nothing but read memory, or prepare for it.
#include "../common.cuh"

// Two bf16 numbers of 1 to 2, plus or minus, that depend on `i`: no pattern that a memory could pack, and
// numbers that products of any length stay finite with.
DEV uint32_t noise(uint32_t i) {
  uint32_t h = i * 0x9e3779b9u;
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  return (h & 0x807f807fu) | 0x3f803f80u;
}

// out[i] = noise(i), i below n.
extern "C" __global__ void __launch_bounds__(256) probe_fill(uint32_t* out, uint32_t n) {
  wait_for_previous();
  const uint32_t step = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) out[i] = noise(i);
  let_next_start();
}

// *sum += sum of the words of `in`, n vectors of four, wrapping. A block takes stretches of 8 vectors a thread,
// all of which are on their way at once.
extern "C" __global__ void __launch_bounds__(256)
    probe_read(const uint4* in, uint32_t n, uint32_t* sum) {
  constexpr int AT_ONCE = 8;
  wait_for_previous();
  uint32_t mine = 0;
  const uint32_t stretch = AT_ONCE * blockDim.x, step = gridDim.x * stretch;
  for (uint32_t first = blockIdx.x * stretch + threadIdx.x; first < n; first += step) {
    uint4 v[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const uint32_t i = first + k * blockDim.x;
      v[k] = i < n ? load16(in + i) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) mine += v[k].x + v[k].y + v[k].z + v[k].w;
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) mine += __shfl_xor_sync(~0u, mine, o);
  if ((threadIdx.x & 31) == 0) atomicAdd(sum, mine);
  let_next_start();
}
