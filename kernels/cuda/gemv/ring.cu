// One token times quantized matrices, for Hopper: weights come through a ring in shared memory.
//
// One block a multiprocessor, small enough that the next kernel's block fits beside it. That one is let
// in when this one has asked for nearly all of its weights (of long rows, and where activations are there in
// int8: at the start) and fills its ring with its own, which depend on nothing, while this one still works.
// Bytes under way cost no registers.
//
// Sixteen warps multiply, one feeds the ring, one puts sums together. A unit is four rows. A slot of the
// ring holds a few whole units, or of long rows up to 16 super-blocks of two; each warp takes one
// super-block of them, always the same one of a row, so that its activations stay in registers: of long
// rows those of a segment, while all units of a group have theirs multiplied. No warp waits for another:
// what they find for 32 rows the last one sums up.
//
// What a step takes is bound by the length of its chain of instructions, not by their number: whatever
// can be known before a step is (a first version looked up the matrix in each: 1,750 cycles a step, where
// memory needs 800 for its bytes).
//
// With PAIR, m[0] and m[1] are gate and up: what leaves is activation(gate) * up, in int8 too.
#include "../hopper.cuh"
#include "ring_items.cuh"
#include "ring_job.cuh"

constexpr uint32_t N_WARPS = 16, N_CONSUMERS = 32 * N_WARPS, N_THREADS = N_CONSUMERS + 64;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "ring_feed.cuh"
#include "ring_source.cuh"

// Sums of two units over the lanes of each row: row `r` of the first, and of the second, in a lane of its own.
template <bool PLANAR>
DEV float sum_lanes(float a, float b, uint32_t lane) {
  constexpr uint32_t TOP = PLANAR ? 16 : 4;
  const bool second = lane & TOP;
  float v = second ? b : a;
  v += __shfl_xor_sync(~0u, second ? a : b, TOP);
  v += __shfl_xor_sync(~0u, v, TOP / 2);
  v += __shfl_xor_sync(~0u, v, TOP / 4);
  return v;
}

// The thread's number, read anew: kept, it and what follows from it would lie in registers over all types of a launch.
DEV uint32_t thread_anew() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// What a consumer is.
struct Place {
  uint32_t team, sb, lane;
  DEV Place(const RingJob& job) {
    const uint32_t thread = thread_anew();
    team = thread / 32 * job.team_of_warp >> 16;
    sb = thread / 32 - team * job.segment;
    lane = thread % 32;
  }
};

// Multiplies groups of one type, from `group` on: a warp, super-block `sb` of each segment of what its team takes.
// `WHOLE`: rows are one segment. `ONE`: all groups are of this type. Returns whether there are groups of another.
// The first to be called waits for the activations (`ready`), when everything else is known.
//
// What is not used in each step is made where it is used, not kept: with two blocks on a multiprocessor a thread
// has 56 registers, and where they do not hold what both units of a step read, the second one's loads wait
// for the first one's sum.
template <class Q, bool PAIR, bool WHOLE, bool ONE>
DEV bool consume(const RingJob& job, const RingMemory& mem, Groups<PAIR>& groups, Group& group, Cursor& at,
                 uint32_t& n_groups, bool& ready) {
  constexpr bool PLANAR = Q::PLANAR;
  const Place me(job);
  const uint32_t lane = me.lane, sb = me.sb, n_chunks = job.row_len / 32;
  const uint32_t quant = job.m[group.which].quant, unit_bytes = job.m[group.which].unit_bytes;
  const uint32_t slot_bytes = ONE ? job.m[0].slot_bytes : job.m[group.which].slot_bytes;
  const uint32_t pitch = WHOLE ? unit_bytes : job.unit_pitch;
  const uint32_t first = me.team * pitch, between = job.n_teams * pitch;
  // Of whole rows a step has units of one matrix, of a pair by turns; of segments a unit of each.
  constexpr uint32_t N_TURNS = PAIR && WHOLE ? 2 : 1;
  // Where its sums go: of two units, or of a unit of each of a pair.
  const uint32_t row = PLANAR ? lane & 3 : lane >> 3, half = PLANAR ? lane >> 4 : lane >> 2 & 1;
  const uint32_t per_unit = 4 * job.segment + 4;
  const uint32_t part = (half * (PAIR && !WHOLE ? 8 : job.n_teams) + me.team) * per_unit + sb * 4 + row;
  const bool writes = (lane & (PLANAR ? 12 : 3)) == 0;
  // Where the lane's part of a unit lies in the slot, of a last segment with fewer chunks too.
  uint32_t n = min(job.segment * 8, n_chunks);
  const typename Q::Places places(WHOLE ? unit_bytes / 4 : job.segment * Q::STRIDE, n, sb, lane);
  if (!ready) {
    wait_for_activations<N_CONSUMERS>(job, mem);
    ready = true;
    if (me.team >= job.n_teams) return false;
  }
  // Then all that its warps take lies within the row.
  constexpr bool FITS = WHOLE && Q::HAS_BLOCKS;
  Slice x;
  if (WHOLE) {
    const uint32_t lo = sb * 256 + Q::lo_at(lane), hi = sb * 256 + Q::hi_at(lane);
    x = job.q ? slice_of_row(job, lo, hi) : mem.x(job).slice<!FITS>(lo, hi, job.row_len);
  }
  do {
    if (!WHOLE && brings_segments(job)) Brought(mem, sb).ask(job, sb, lane);
    float* const first_to = mem.floats(job.parts_at) + (n_groups & 1) * job.part_floats + part;
    if (n_groups >= 2) barrier_wait(mem.free(n_groups & 1), (n_groups >> 1 & 1) ^ 1);
#pragma unroll 1
    for (uint32_t seg = 0; seg < (WHOLE ? 1 : job.n_segments); seg++) {
      if (!WHOLE) {
        const uint32_t c = seg * job.segment * 8, k = (c + sb * 8) * 32;
        n = min(job.segment * 8, n_chunks - c);
        if (brings_segments(job)) {
          const Brought brought(mem, sb);
          x = brought.wait(Q::lo_at(lane), Q::hi_at(lane));
          if (seg + 1 < job.n_segments) brought.ask(job, (seg + 1) * job.segment + sb, lane);
        } else {
          x = mem.x(job).slice<true>(k + Q::lo_at(lane), k + Q::hi_at(lane), job.row_len);
        }
      }
      float* to = first_to;
#pragma unroll 1
      for (int n_left = group.n_units; n_left > 0; n_left -= job.units_per_step, to += job.units_per_step * per_unit) {
#pragma unroll 1
        for (uint32_t turn = 0; turn < N_TURNS; turn++) {
          const uint32_t from = mem.base + job.slots_at + at.offset + first;
          float a = 0.0f, b = 0.0f;
          barrier_wait(at.full, at.parity);
          if (FITS || Q::is_there(n, sb, lane)) {
            // Of units that are not there the sums are not looked at.
            const typename Q::Item v(from, places), w(from + between, places);
            a = v.dot(x, lane);
            b = w.dot(x, lane);
          }
          __syncwarp();
          if (lane == 0) barrier_arrive(at.empty());
          at.next(job, mem, slot_bytes);
          const float v = sum_lanes<PLANAR>(a, b, lane);
          if (writes) to[turn * 8 * per_unit] = WHOLE || seg == 0 ? v : *to + v;
        }
      }
    }
    // Every lane that wrote says so itself: tools that look for races see what orders its sums.
    if (writes) barrier_arrive(mem.done(n_groups & 1));
    n_groups++;
    if (!groups.next(job, group)) return false;
  } while (ONE || job.m[group.which].quant == quant);
  return true;
}

template <bool PLANAR, bool PAIR, uint32_t TYPES>
DEV void consume_all(const RingJob& job, const RingMemory& mem) {
  constexpr bool ONE = (TYPES & (TYPES - 1)) == 0;
  Cursor at(mem);
  uint32_t n_groups = 0;
  bool ready = false;
  if (!ONE) {
    // In front of each type's products they cost registers (47 spilled).
    wait_for_activations<N_CONSUMERS>(job, mem);
    ready = true;
    if (Place(job).team >= job.n_teams) return;
  }
  Groups<PAIR> groups(job);
  Group group;
  for (bool more = groups.next(job, group); more;) {
    with_type<PLANAR, TYPES>(job.m[group.which].quant, [&](auto type) {
      using Q = typename decltype(type)::Type;
      more = job.n_segments == 1 ? consume<Q, PAIR, true, ONE>(job, mem, groups, group, at, n_groups, ready)
                                 : consume<Q, PAIR, false, ONE>(job, mem, groups, group, at, n_groups, ready);
    });
  }
}

// The sums of what the warps found for a row of each of `N` matrices, `between` floats apart.
template <int N>
DEV void sum_parts(float (&v)[N], const float* part, uint32_t between, uint32_t segment) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    // All asked for at once: the next launch waits for it.
    float sums[4] = {};
#pragma unroll
    for (uint32_t k = 0; k < N_WARPS; k++) sums[k % 4] += k < segment ? part[i * between + 4 * k] : 0.0f;
    v[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
}

// Puts sums together and writes rows, a group of units at a time: one warp.
template <bool PAIR>
DEV void finish(const RingJob& job, const RingMemory& mem, uint32_t lane) {
  wait_for_previous();
  const uint32_t per_unit = 4 * job.segment + 4;
  Groups<PAIR> groups(job);
  if (!PAIR && job.n_addends) read_addends(job, mem, groups.at, groups.end - groups.at, lane);
  const float* addends = mem.floats(job.addends_at);
  uint32_t n_groups = 0;
  float factor = 0.0f;
  for (Group group; groups.next(job, group); n_groups++) {
    const RingMatrix m = job.m[group.which];
    const float* parts = mem.floats(job.parts_at) + (n_groups & 1) * job.part_floats;
    barrier_wait(mem.done(n_groups & 1), n_groups >> 1 & 1);
    if (n_groups == 0) factor = norm_factor<N_CONSUMERS>(job, mem, lane);
    if (PAIR) {
      const uint32_t mine = group.unit / 8 * 8 + lane / 4;
      const bool there = mine >= group.unit && mine < group.unit + group.n_units;
      const float* from = parts + (there ? mine - group.unit : 0) * per_unit + (lane & 3);
      float v[2];
      sum_parts(v, from, 8 * per_unit, job.segment);
      barrier_arrive(mem.free(n_groups & 1));
      put_gated(job, group.unit / 8, group.n_units, there, bend(v[0] * factor, job.gate) * (v[1] * factor), lane);
    } else {
#pragma unroll 1
      for (uint32_t o = lane; o < 4 * group.n_units; o += 32) {
        float v[1];
        sum_parts(v, parts + o / 4 * per_unit + (o & 3), 0, job.segment);
        const uint32_t row = 4 * group.unit + o;
        if (row < m.n_rows) m.y[row] = v[0] * factor + (job.n_addends ? addends[o] : 0.0f);
      }
      barrier_arrive(mem.free(n_groups & 1));
      addends += 4 * group.n_units;
    }
  }
}

template <bool PLANAR, bool PAIR, uint32_t TYPES>
DEV void gemv_ring(const RingJob& job) {
  extern __shared__ __align__(128) uint8_t shared[];
  const RingMemory mem(shared);
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (warp == N_WARPS) {
    const uint32_t n_warps = job.n_teams * job.segment;
    if (lane < job.n_slots) {
      barrier_init(mem.base + 8 * lane, 1);
      barrier_init(mem.base + 8 * lane + RingMemory::EMPTY, n_warps);
    }
    if (lane < 2) {
      barrier_init(mem.done(lane), n_warps * 8);
      barrier_init(mem.free(lane), 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (warp == N_WARPS) {
    return feed<PLANAR, PAIR, TYPES>(job, mem);
  }
  if (warp > N_WARPS) return finish<PAIR>(job, mem, lane);
  consume_all<PLANAR, PAIR, TYPES>(job, mem);
}
#define RING_BODY(PLANAR, PAIR, TYPES) gemv_ring<PLANAR, PAIR, TYPES>(job)
#else
// Other architectures have no such instructions, and nobody launches it there.
#define RING_BODY(PLANAR, PAIR, TYPES)
#endif

#define KERNEL(NAME, PLANAR, PAIR, TYPES)                    \
  extern "C" __global__ void __launch_bounds__(N_THREADS, 2) \
      NAME(const __grid_constant__ RingJob job) {            \
    RING_BODY(PLANAR, PAIR, TYPES);                          \
  }
#define KERNELS(NAME, TYPES)                               \
  KERNEL(gemv_ring_planar_##NAME, true, false, TYPES)      \
  KERNEL(gemv_ring_padded_##NAME, false, false, TYPES)
#define GATED(NAME, TYPES)                                  \
  KERNEL(gemv_ring_planar_gated_##NAME, true, true, TYPES)  \
  KERNEL(gemv_ring_padded_gated_##NAME, false, true, TYPES)
#define BOTH(NAME, TYPES) KERNELS(NAME, TYPES) GATED(NAME, TYPES)

// Code for several types holds more registers, and so has less on its way: one type has its own.
BOTH(q4_K, 1u << QUANT_Q4_K)
BOTH(q5_K, 1u << QUANT_Q5_K)
BOTH(q6_K, 1u << QUANT_Q6_K)
KERNELS(q4_K_q6_K, 1u << QUANT_Q4_K | 1u << QUANT_Q6_K)
KERNELS(mixed, ~0u)
KERNEL(gemv_ring_planar_q8_0, true, false, 1u << QUANT_Q8_0)
KERNEL(gemv_ring_planar_gated_q8_0, true, true, 1u << QUANT_Q8_0)
