// Greedy sampling: the first largest logit. NaN and banned tokens never win.
#include "../common.cuh"

// Ranks of minus and plus infinity: only what lies between them can be chosen.
constexpr uint32_t RANK_MIN = 0x007fffffu, RANK_MAX = 0xff800000u;
constexpr uint32_t NONE = 0xffffffffu;

// Larger for larger logits, and for the lower index among equals.
DEV uint64_t rank_of(float v, uint32_t i) {
  uint32_t bits = __float_as_uint(v + 0.0f);  // 0 and -0 are equal
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  if (v != v) bits = 0;
  return static_cast<uint64_t>(bits) << 32 | (0xffffffffu - i);
}

DEV uint64_t warp_largest(uint64_t v) {
  const uint32_t high = static_cast<uint32_t>(v >> 32), top = __reduce_max_sync(~0u, high);
  const uint32_t low = __reduce_max_sync(~0u, high == top ? static_cast<uint32_t>(v) : 0);
  return static_cast<uint64_t>(top) << 32 | low;
}

// Chooses among logits[0 .. n]. `banned`: a bit a token, or null. `best`: one 64-bit word, zero
// before and after. `n_done`: one counter, likewise. Grid: any number of blocks.
//
// step[0], the position, says which of the `n_slots` words of `chosen` takes the index (NONE if no
// logit is finite); then the step after this one is written to `step`: its position and its token.
extern "C" __global__ void __launch_bounds__(256)
    argmax(uint32_t* chosen, uint32_t n_slots, uint32_t* step, const float* logits, uint32_t n,
           const uint32_t* banned, unsigned long long* best, uint32_t* n_done) {
  let_next_start();
  // Nobody writes it before the last block; the launch that wrote it last has ended, or one has begun alone since.
  const uint32_t position = step[0];
  wait_for_previous();
  uint64_t mine = 0;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    if (banned && banned[i >> 5] >> (i & 31) & 1) continue;
    const uint64_t rank = rank_of(logits[i], i);
    mine = rank > mine ? rank : mine;
  }
  mine = warp_largest(mine);
  __shared__ uint64_t warps[8];
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = mine;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  mine = warp_largest(threadIdx.x < 8 ? warps[threadIdx.x] : 0);
  if (threadIdx.x == 0) {
    atomicMax(best, static_cast<unsigned long long>(mine));
    __threadfence();
    if (atomicAdd(n_done, 1u) == gridDim.x - 1) {
      const uint64_t all = atomicExch(best, 0ull);
      const uint32_t rank = static_cast<uint32_t>(all >> 32);
      const uint32_t index = 0xffffffffu - static_cast<uint32_t>(all);
      const bool found = rank > RANK_MIN && rank < RANK_MAX;
      chosen[position % n_slots] = found ? index : NONE;
      step[0] = position + 1;
      step[1] = found ? index : 0;
      *n_done = 0;
    }
  }
}
