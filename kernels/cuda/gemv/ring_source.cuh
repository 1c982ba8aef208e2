// What a block of the ring kernels keeps in shared memory, how its activations come there, and how a
// gated pair leaves.
#pragma once
#include "../elementwise/bend.cuh"
#include "ring_items.cuh"
#include "ring_job.cuh"

// The same number, which is not found anew wherever it is used.
DEV uint32_t kept(uint32_t n) {
  uint32_t same;
  asm volatile("mov.u32 %0, %1;" : "=r"(same) : "r"(n));
  return same;
}

// The host says what lies where (`RingJob`), but for what comes first: barriers, the sums of the norm, and the
// activations' integers.
struct RingMemory {
  static constexpr uint32_t EMPTY = 8 * MAX_SLOTS, DONE = 2 * EMPTY, FREE = DONE + 16, SUMS = FREE + 16;
  static constexpr uint32_t INTEGERS = SUMS + 96;
  static_assert(INTEGERS == 384, "as the host has it");
  uint8_t* start;
  uint32_t base;  // the same as an address: barriers [MAX_SLOTS] full, as many empty, [2] done, [2] free of sums

  DEV RingMemory(uint8_t* shared) : start(shared) {
    base = kept(shared_address(shared));
  }
  DEV uint32_t done(uint32_t i) const { return base + DONE + 8 * i; }
  DEV uint32_t free(uint32_t i) const { return base + FREE + 8 * i; }
  DEV float* warp_sums() const { return floats(SUMS); }
  DEV float* floats(uint32_t at) const { return reinterpret_cast<float*>(start + at); }
  DEV Activations x(const RingJob& job) const {
    return Activations{base + INTEGERS, base + job.scales_at, base + job.sums_at};
  }
};

// A barrier of the warps that multiply; number 0 is `__syncthreads`.
DEV void consumers_meet(uint32_t n_threads) { asm volatile("bar.sync 1, %0;" ::"r"(n_threads) : "memory"); }

// Eight elements a lane, from element `k` on, four lanes a chunk: integers as `put_operand` makes them.
DEV void put8(const RingJob& job, const RingMemory& mem, uint32_t k, const float (&v)[8], uint32_t lane, bool there) {
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; i++) amax = fmaxf(amax, fabsf(v[i]));
  amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 2));
  // To the last bit but one: a division is thirty instructions of which each waits for the one before.
  const float inv = amax > 0.0f ? __fdividef(127.0f, amax) : 0.0f, d = amax * (1.0f / 127.0f);
  // What is added to so large a number is rounded to an integer, in the lowest bits of its form: conversions take turns
  // in a unit that is a fourth as wide.
  constexpr float LARGE = 12582912.0f;
  uint32_t bits[8], words[2];
#pragma unroll
  for (int i = 0; i < 8; i++) bits[i] = __float_as_uint(v[i] * inv + LARGE);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t low = __byte_perm(bits[4 * i], bits[4 * i + 1], 0x0040);
    words[i] = __byte_perm(low, __byte_perm(bits[4 * i + 2], bits[4 * i + 3], 0x0040), 0x5410);
  }
  constexpr uint32_t ONES = 0x01010101;
  int sum = dot4s(ONES, words[1], dot4s(ONES, words[0], 0));
  sum += __shfl_xor_sync(~0u, sum, 1);
  if (!there) return;
  *reinterpret_cast<uint2*>(mem.start + RingMemory::INTEGERS + k) = make_uint2(words[0], words[1]);
  if (lane % 2 == 0) mem.floats(job.sums_at)[k / 16] = d * static_cast<float>(sum);
  if (lane % 4 == 0) mem.floats(job.scales_at)[k / 32] = d;
}

DEV void read8(float (&v)[8], const float* from, bool there) {
  const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const float4 a = there ? reinterpret_cast<const float4*>(from)[0] : zero;
  const float4 b = there ? reinterpret_cast<const float4*>(from)[1] : zero;
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// The norm's activations, but for the factor that all of them have in common: `rmsnorm(x) * gain` is
// `norm_factor * (x * gain)`. Whoever writes rows multiplies by it, so that no product waits for the sum of all
// squares.
template <uint32_t N_THREADS>
DEV void norm_activations(const RingJob& job, const RingMemory& mem, uint32_t thread) {
  constexpr uint32_t PER_ROUND = 8 * N_THREADS;
  const uint32_t lane = thread % 32;
  float gain[8], v[8], sum = 0.0f;
  const float* x = job.x + 8 * thread;
  read8(gain, job.gain + 8 * thread, 8 * thread < job.row_len);  // depends on no launch
  wait_for_previous();
#pragma unroll 1
  for (uint32_t first = 8 * (thread - lane); first < job.row_len; first += PER_ROUND, x += PER_ROUND) {
    const uint32_t k = first + 8 * lane;
    const bool there = k < job.row_len;
    read8(v, x, there);
    if (first >= PER_ROUND) read8(gain, job.gain + k, there);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      sum += v[i] * v[i];
      v[i] *= gain[i];
    }
    put8(job, mem, k, v, lane, there);
  }
  sum = warp_sum(sum);
  if (lane == 0) mem.warp_sums()[thread / 32] = sum;
}

// What the sums of products are multiplied by: for a warp, when products are there (then all sums of squares are).
template <uint32_t N_THREADS>
DEV float norm_factor(const RingJob& job, const RingMemory& mem, uint32_t lane) {
  if (!job.gain) return 1.0f;
  const float sum = warp_sum(lane < N_THREADS / 32 ? mem.warp_sums()[lane] : 0.0f);
  return rsqrtf(sum / static_cast<float>(job.row_len) + job.eps);
}

// Whether warps bring their activations a segment at a time: those of rows of several segments that are there in int8.
// What would hold them all holds weights.
DEV bool brings_segments(const RingJob& job) { return job.n_segments > 1 && job.q; }

// A super-block of activations of a warp's own: integers, then the eight chunks' scales with what lies beside them.
struct Brought {
  static constexpr uint32_t SCALES = 256, BYTES = SCALES + 8 * 8;
  uint8_t* to;
  uint32_t at;  // the same as an address
  DEV Brought(const RingMemory& mem, uint32_t warp)
      : to(mem.start + RingMemory::INTEGERS + warp * BYTES), at(mem.base + RingMemory::INTEGERS + warp * BYTES) {}
  // Asks for super-block `sb` of the row: of it what lies in the row.
  DEV void ask(const RingJob& job, uint32_t sb, uint32_t lane) const {
    const bool scales = lane >= 16;
    const uint32_t k = sb * 256 + (scales ? (lane - 16) * 64 : lane * 16);
    uint8_t* const place = to + (scales ? SCALES : 0) + lane % 16 * 16;
    const void* const from = scales ? static_cast<const void*>(job.ds + k / 32) : job.q + k;
    if (scales && k + 32 == job.row_len) {
      // Behind the last of an odd number of chunks there is nothing.
      if (lane < 20) *reinterpret_cast<float2*>(place) = job.ds[k / 32];
    } else if (lane < 20) {
      const bool there = k < job.row_len;
      copy16_async(place, there ? from : job.q, there);
    }
    commit_copies();
  }
  // What the last call asked for: two runs of 16 elements.
  DEV Slice wait(uint32_t lo, uint32_t hi) const {
    wait_copies<0>();
    __syncwarp();
    Slice x;
    x.lo = shared16(at + lo);
    x.hi = shared16(at + hi);
    x.lo_scale = shared_float(at + SCALES + lo / 32 * 8);
    x.hi_scale = shared_float(at + SCALES + hi / 32 * 8);
    x.lo_sum = x.lo_scale * static_cast<float>(sum16(x.lo));
    x.hi_sum = x.hi_scale * static_cast<float>(sum16(x.hi));
    __syncwarp();
    return x;
  }
};

// What waits for the previous launch; after it the block has its activations.
template <uint32_t N_THREADS>
DEV void wait_for_activations(const RingJob& job, const RingMemory& mem) {
  const uint32_t thread = threadIdx.x;
  if (job.q) return wait_for_previous();
  norm_activations<N_THREADS>(job, mem, thread);
  consumers_meet(N_THREADS);
}

// Elements `lo` to `lo` + 16 of activations that are there in int8, and as many from `hi` on; zeros beyond the row. No
// warp waits for another's.
DEV Slice slice_of_row(const RingJob& job, uint32_t lo, uint32_t hi) {
  Slice x{};
  if (max(lo, hi) >= job.row_len) return x;
  x.lo = *reinterpret_cast<const uint4*>(job.q + lo);
  x.hi = *reinterpret_cast<const uint4*>(job.q + hi);
  x.lo_scale = job.ds[lo / 32].x;
  x.hi_scale = job.ds[hi / 32].x;
  x.lo_sum = x.lo_scale * static_cast<float>(sum16(x.lo));
  x.hi_sum = x.hi_scale * static_cast<float>(sum16(x.hi));
  return x;
}

// What each row of the block's units is added to: bias and output, all at once.
DEV void read_addends(const RingJob& job, const RingMemory& mem, uint32_t first, uint32_t n_local, uint32_t lane) {
#pragma unroll 2
  for (uint32_t i = lane; i < 4 * n_local; i += 32) {
    uint32_t unit = first + i / 4, which = 0;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
      const uint32_t units = (job.m[k].n_rows + 3) / 4;
      if (which == k && unit >= units) {
        unit -= units;
        which++;
      }
    }
    const RingMatrix& m = job.m[which];
    const uint32_t row = unit * 4 + i % 4;
    float v = 0.0f;
    if (row < m.n_rows) {
      if (m.bias) v = m.bias[row];
      if (m.add) v += m.y[row];
    }
    mem.floats(job.addends_at)[i] = v;
  }
  __syncwarp();
}

// Row `chunk * 32 + lane` of a gated pair, if this block has it: `n_units` times four of the 32 are its. Where
// another block has the rest, whoever comes second makes the integers.
DEV void put_gated(const RingJob& job, uint32_t chunk, uint32_t n_units, bool mine, float v, uint32_t lane) {
  float* const f32 = job.gated.f32 + chunk * 32 + lane;
  if (mine) *f32 = v;
  if (n_units < 8) {
    __threadfence();
    __syncwarp();
    uint32_t n = 0;
    if (lane == 0) n = atomicAdd(&job.n_done[chunk], n_units) + n_units;
    if (__shfl_sync(~0u, n, 0) != 8) return;
    __threadfence();
    v = __ldcg(f32);
    if (lane == 0) job.n_done[chunk] = 0;
  }
  const Operand to{nullptr, nullptr, job.gated.q, job.gated.ds};
  put_operand(to, chunk * 32 + lane, v);
}
