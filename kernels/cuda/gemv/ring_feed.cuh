// How the ring is filled: one warp that asks the copy engine for weights, which depend on no launch.
//
// Bytes come as fast as this warp asks for them: each of its instructions waits for its turn among those of sixteen
// warps, ten cycles and more, and where a step took it a hundred of them it took as long as memory does. So all that
// can be known before a step is, and of whole rows one thread asks for everything.
//
// No more than `n_flying` slots are on their way. What is asked for beyond what memory delivers only waits
// there, in front of what others need at once, and some multiprocessors come off worse than others. For the
// same reason the next kernel is let in when little is left to ask for (how much, the host says): its ring
// fills while the last steps are made, and its bytes do not stand in front of these.
#pragma once
#include "ring_items.cuh"
#include "ring_job.cuh"
#include "ring_source.cuh"

enum Quant : uint32_t { QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_Q8_0 };

// Units of one matrix, or of a pair, whose sums are put together at once.
struct Group {
  uint32_t which, unit, n_units;
};

// The groups of a block, in order. Of a pair, groups are 32 rows of the whole matrix, and rows that make 32 with
// the next block's come first: whoever is second of the two is soon there.
template <bool PAIR>
struct Groups {
  uint32_t at, end, tail;  // units of all matrices

  DEV Groups(const RingJob& job) {
    at = blockIdx.x * job.n_local + min(blockIdx.x, job.n_longer);
    end = at + job.n_local + (blockIdx.x < job.n_longer);
    tail = PAIR && end / 8 * 8 > at ? end % 8 : 0;
  }
  DEV bool next(const RingJob& job, Group& group) { return next(job, group, job.group); }
  // With no more than so many units of a matrix that is none of a pair.
  DEV bool next(const RingJob& job, Group& group, uint32_t at_most) {
    if (at >= end) return false;
    if (PAIR) {
      const uint32_t n = tail ? tail : min(end, (at / 8 + 1) * 8) - at;
      group = Group{0, tail ? end - tail : at, n};
      if (tail) {
        end -= tail, tail = 0;
      } else {
        at += n;
      }
      return true;
    }
    // Nothing is kept that a few steps find again: registers are what the products lack.
    group = Group{0, at, 0};
    uint32_t n = job.m[0].n_units;
#pragma unroll
    for (uint32_t i = 1; i < 3; i++) {
      if (group.which == i - 1 && group.unit >= n) {
        group.unit -= n;
        group.which = i;
        n = job.m[i].n_units;
      }
    }
    group.n_units = min(min(end - at, n - group.unit), at_most);
    at += group.n_units;
    return true;
  }
};

// A place in the ring, and in which of its rounds it is.
struct Cursor {
  uint32_t full, offset = 0, parity = 0;
  DEV Cursor(const RingMemory& mem) : full(mem.base) {}
  DEV uint32_t empty() const { return full + RingMemory::EMPTY; }
  DEV void next(const RingJob& job, const RingMemory& mem) {
    // Addresses are there when they are needed: a product with the slot's number would stand between the
    // barrier and the first load.
    offset += job.slot_bytes;
    full += 8;
    if (full == mem.base + 8 * job.n_slots) full = mem.base, offset = 0, parity ^= 1;
  }
};

// Bytes to shared memory by the copy engine; the barrier counts them. Multiples of 16.
DEV void copy_bulk(uint32_t to, const uint8_t* from, uint32_t n_bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(n_bytes), "r"(barrier)
      : "memory");
}

// Where the feeder is.
struct Feeder {
  Cursor at, flying;
  uint32_t n_ahead;  // slots to be asked for before one has to be there
  int32_t n_left;    // units of the block
  DEV Feeder(const RingJob& job, const RingMemory& mem, uint32_t n_units)
      : at(mem), flying(mem), n_ahead(job.n_flying), n_left(static_cast<int32_t>(n_units)) {}
  // Before units are asked for.
  DEV void take(const RingJob& job, uint32_t n_units) {
    if (n_left <= static_cast<int32_t>(job.n_left_to_let)) let_next_start();
    n_left -= static_cast<int32_t>(n_units);
  }
  // Until the next slot may be asked for.
  DEV void wait(const RingJob& job, const RingMemory& mem) {
    barrier_wait(at.empty(), at.parity ^ 1);
    if (n_ahead > 0) {
      n_ahead--;
    } else {
      barrier_wait(flying.full, flying.parity);
      flying.next(job, mem);
    }
  }
};

// Rows that are whole in a slot: units of a matrix that follow each other are a piece.
template <bool PLANAR, bool PAIR>
DEV void feed_rows(const RingJob& job, const RingMemory& mem, uint32_t lane) {
  if (lane > 0) return;
  const uint32_t slots = mem.base + job.slots_at, to_up = job.n_teams * job.unit_pitch;
  Groups<PAIR> groups(job);
  Feeder feeder(job, mem, groups.end - groups.at);
  for (Group group; groups.next(job, group, ~0u);) {
    const RingMatrix& m = job.m[group.which];
    const uint32_t unit_bytes = m.unit_bytes, step = job.units_per_step * unit_bytes;
    const uint64_t first = static_cast<uint64_t>(group.unit) * unit_bytes;
    const uint8_t* from = m.w + first;
    const uint8_t* up = PAIR ? job.m[1].w + first : nullptr;
    // The last rows of a matrix may be no whole unit, which matters where rows lie one by one.
    uint32_t left = PLANAR ? group.n_units * unit_bytes
                           : min(4 * group.n_units, m.n_rows - 4 * group.unit) * (unit_bytes / 4);
#pragma unroll 1
    while (left > 0) {
      const uint32_t size = min(step, left), to = slots + feeder.at.offset, full = feeder.at.full;
      feeder.take(job, job.units_per_step);
      feeder.wait(job, mem);
      barrier_expect(full, PAIR ? 2 * size : size);
      copy_bulk(to, from, size, full);
      from += size;
      if (PAIR) {
        copy_bulk(to + to_up, up, size, full);
        up += size;
      }
      left -= size;
      feeder.at.next(job, mem);
    }
  }
}

// What a lane asks for of each segment of a unit: a part of four, a plane or a row.
struct Part {
  uint32_t first, between;   // bytes from the start of the unit to the first segment's, and from one's to the next
  uint32_t to;               // in the slot
  uint32_t size, last_size;  // of all segments but the last, and of the last
};

// A plane of a `planar` unit; in the slot too one plane lies behind the other.
template <class Q>
DEV Part plane_of(const RingJob& job, uint32_t part) {
  const uint32_t n_chunks = job.row_len / 32, n = job.segment * 8, n_last = n_chunks - (job.n_segments - 1) * n;
  const uint32_t bytes[3] = {Q::QUANTS, Q::HIGH, Q::SCALES};
  uint32_t before = 0, here = 0;  // bytes of a chunk
#pragma unroll
  for (uint32_t i = 0; i < 3; i++) {
    if (i < part) before += bytes[i];
    if (i == part) here = bytes[i];
  }
  const auto size = [&](uint32_t n) {
    return ((part == 3 ? (n + 7) / 8 * Q::FACTORS : n * here) + 15) & ~15u;
  };
  return Part{n_chunks * before, size(n), n * before, size(n), size(n_last)};
}

DEV uint32_t block_stride(uint32_t quant) {
  return quant == QUANT_Q4_K ? RingK45<false>::STRIDE : quant == QUANT_Q5_K ? RingK45<true>::STRIDE : RingQ6_K::STRIDE;
}

template <bool PLANAR>
DEV Part part_of(const RingJob& job, const RingMatrix& m, uint32_t part) {
  if (PLANAR) {
    if (m.quant == QUANT_Q4_K) return plane_of<RingPlanarK45<false>>(job, part);
    if (m.quant == QUANT_Q5_K) return plane_of<RingPlanarK45<true>>(job, part);
    if (m.quant == QUANT_Q6_K) return plane_of<RingPlanarQ6_K>(job, part);
    return plane_of<RingPlanarQ8_0>(job, part);
  }
  const uint32_t stride = block_stride(m.quant), size = job.segment * stride;
  const uint32_t last = (job.row_len / 256 - (job.n_segments - 1) * job.segment) * stride;
  return Part{part * (m.unit_bytes / 4), size, part * size, size, last};
}

// Rows of several segments: a part of a unit is a lane's (of a pair, of one unit of each).
template <bool PLANAR, bool PAIR>
DEV void feed_segments(const RingJob& job, const RingMemory& mem, uint32_t lane) {
  const uint32_t place = lane / 4;
  Groups<PAIR> groups(job);
  Feeder feeder(job, mem, groups.end - groups.at);
  for (Group group; groups.next(job, group, ~0u);) {
    const RingMatrix& m = job.m[group.which];
    const Part part = part_of<PLANAR>(job, m, lane % 4);
    const uint32_t slots = mem.base + job.slots_at + place * job.unit_pitch + part.to, unit_bytes = m.unit_bytes;
    const uint8_t* w = (PAIR && place > 0 ? job.m[1].w : m.w) + static_cast<uint64_t>(group.unit) * unit_bytes;
    w += (PAIR ? 0 : place * unit_bytes) + part.first;
    // Rows of the matrix from the lane's unit on.
    uint32_t n_rows = m.n_rows - 4 * (group.unit + (PAIR ? 0 : place));
#pragma unroll 1
    for (uint32_t n_left = group.n_units; n_left > 0;) {
      const uint32_t n = min(n_left, job.units_per_step);
      const bool is_mine = place < (PAIR ? 2 * n : n) && (PLANAR || lane % 4 < n_rows);
      const uint32_t size = is_mine ? part.size : 0, last_size = is_mine ? part.last_size : 0;
      const uint32_t of_all = __reduce_add_sync(~0u, size), of_last = __reduce_add_sync(~0u, last_size);
      feeder.take(job, n);
      const uint8_t* from = w;
#pragma unroll 1
      for (uint32_t seg = job.n_segments; seg > 0; seg--) {
        const uint32_t bytes = seg > 1 ? size : last_size, full = feeder.at.full;
        feeder.wait(job, mem);
        if (lane == 0) barrier_expect(full, seg > 1 ? of_all : of_last);
        if (bytes > 0) copy_bulk(slots + feeder.at.offset, from, bytes, full);
        from += part.between;
        feeder.at.next(job, mem);
      }
      n_left -= n;
      n_rows -= 4 * n;
      w += n * unit_bytes;
    }
  }
}
