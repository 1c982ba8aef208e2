// Greedy sampling: the first largest logit. NaN never wins; a row without numbers gives 0.
#include "../common.cuh"

DEV uint64_t rank_of(float v, uint32_t i) {
  uint32_t bits = __float_as_uint(v);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  if (v != v) bits = 0;
  return static_cast<uint64_t>(bits) << 32 | (0xffffffffu - i);
}

// out[0]: the index, of logits[0 .. n]. `best`: one 64-bit word, zero before and after.
// `n_done`: one counter, likewise. Grid: any number of blocks.
extern "C" __global__ void __launch_bounds__(256)
    argmax(uint32_t* out, const float* logits, uint32_t n, unsigned long long* best,
           uint32_t* n_done) {
  wait_for_previous();
  uint64_t mine = 0;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const uint64_t rank = rank_of(logits[i], i);
    mine = rank > mine ? rank : mine;
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const uint64_t other = __shfl_xor_sync(~0u, mine, o);
    mine = other > mine ? other : mine;
  }
  __shared__ uint64_t warps[8];
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < 8; i++) mine = warps[i] > mine ? warps[i] : mine;
    atomicMax(best, static_cast<unsigned long long>(mine));
    __threadfence();
    if (atomicAdd(n_done, 1u) == gridDim.x - 1) {
      const uint64_t all = atomicExch(best, 0ull);
      out[0] = all >> 32 ? 0xffffffffu - static_cast<uint32_t>(all) : 0;
      *n_done = 0;
    }
  }
  let_next_start();
}
