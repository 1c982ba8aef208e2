// How the ring is filled: one warp that asks the copy engine for weights, which depend on no launch.
//
// Bytes come as fast as this warp asks for them: each of its instructions waits for its turn among those of sixteen
// warps, ten cycles and more, and where a step took it a hundred of them it took as long as memory does. So all that
// can be known before a step is, and one thread asks for everything, from registers that all of its warp share.
//
// No more than `n_flying` slots are on their way. What is asked for beyond what memory delivers only waits
// there, in front of what others need at once, and some multiprocessors come off worse than others. For the
// same reason the next kernel is let in when little is left to ask for (how much, the host says): its ring
// fills while the last steps are made, and its bytes do not stand in front of these. Until the ring has been full
// once, less is on its way (`n_filling`).
#pragma once
#include "ring_items.cuh"
#include "ring_job.cuh"
#include "ring_source.cuh"

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
  DEV void next(const RingJob& job, const RingMemory& mem, uint32_t slot_bytes) {
    // Addresses are there when they are needed: a product with the slot's number would stand between the
    // barrier and the first load.
    offset += slot_bytes;
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

// One of the warp's threads, of which the compiler knows that there is one. Behind other conditions it makes a loop
// over all threads that meet them of each copy, and keeps what copies need in registers that they cannot read.
DEV bool is_elected() {
  uint32_t is;
  asm volatile("{.reg .pred it;\n elect.sync _|it, 0xffffffff;\n selp.u32 %0, 1, 0, it;}" : "=r"(is));
  return is != 0;
}

// Where the feeder is.
struct Feeder {
  Cursor at, flying;
  uint32_t n_ahead;  // slots to be asked for before one has to be there
  uint32_t to_fill;  // slots until the ring has been full once
  int32_t n_left;    // units of the block
  DEV Feeder(const RingJob& job, const RingMemory& mem, uint32_t n_units)
      : at(mem), flying(mem), n_ahead(job.n_filling), to_fill(job.n_slots), n_left(static_cast<int32_t>(n_units)) {}
  // Before units are asked for.
  DEV void take(const RingJob& job, uint32_t n_units) {
    if (n_left <= static_cast<int32_t>(job.n_left_to_let)) let_next_start();
    n_left -= static_cast<int32_t>(n_units);
  }
  // Until the next slot may be asked for.
  DEV void wait(const RingJob& job, const RingMemory& mem) {
    barrier_wait(at.empty(), at.parity ^ 1);
    if (to_fill-- == 0) n_ahead += job.n_flying - job.n_filling;
    if (n_ahead > 0) {
      n_ahead--;
    } else {
      barrier_wait(flying.full, flying.parity);
      flying.next(job, mem, 0);
    }
  }
  // Asks for one piece into the next slot.
  DEV void ask(const RingJob& job, const RingMemory& mem, uint32_t slots, const uint8_t* from, uint32_t size,
               uint32_t slot_bytes) {
    wait(job, mem);
    barrier_expect(at.full, size);
    copy_bulk(slots + at.offset, from, size, at.full);
    at.next(job, mem, slot_bytes);
  }
};

// Rows that are whole in a slot: units of a matrix that follow each other are a piece. Of a pair they come by turns:
// memory gives pieces of 16 KiB 2 % faster than two of 8.
template <bool PLANAR, bool PAIR>
DEV void feed_rows(const RingJob& job, const RingMemory& mem) {
  const uint32_t slots = mem.base + job.slots_at;
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
      const uint32_t size = min(step, left);
      feeder.take(job, job.units_per_step);
      feeder.ask(job, mem, slots, from, size, m.slot_bytes);
      if (PAIR) feeder.ask(job, mem, slots, up, size, m.slot_bytes);
      from += size;
      if (PAIR) up += size;
      left -= size;
    }
  }
}

// What is asked for of a unit: `n` chunks of its rows from chunk `at` on, which the slot has room for `room` of.
template <class Q>
struct PlanarPieces {
  uint32_t n_chunks;  // of a row
  DEV PlanarPieces(const RingJob& job, const RingMatrix&) : n_chunks(job.row_len / 32) {}
  // Copies are of multiples of 16 bytes; chunks come by eights where there are super-blocks.
  static DEV uint32_t bytes_of_scales(uint32_t n) { return Q::HAS_BLOCKS ? n * Q::SCALES : (n * Q::SCALES + 15) & ~15u; }
  static DEV uint32_t bytes_of_factors(uint32_t n) { return ((n + 7) / 8 * Q::FACTORS + 15) & ~15u; }
  DEV uint32_t bytes(uint32_t n, uint32_t) const {
    return n * (Q::QUANTS + Q::HIGH) + bytes_of_scales(n) + bytes_of_factors(n);
  }
  // In the slot too one plane lies behind the other.
  DEV void ask(const uint8_t* unit, uint32_t to, uint32_t at, uint32_t n, uint32_t room, uint32_t, uint32_t full) const {
    copy_bulk(to, unit + at * Q::QUANTS, n * Q::QUANTS, full);
    if (Q::HIGH) copy_bulk(to + room * Q::QUANTS, unit + n_chunks * Q::QUANTS + at * Q::HIGH, n * Q::HIGH, full);
    constexpr uint32_t BEFORE = Q::QUANTS + Q::HIGH;
    copy_bulk(to + room * BEFORE, unit + n_chunks * BEFORE + at * Q::SCALES, bytes_of_scales(n), full);
    constexpr uint32_t ALL = BEFORE + Q::SCALES;
    if (Q::FACTORS) copy_bulk(to + room * ALL, unit + n_chunks * ALL + at / 8 * Q::FACTORS, bytes_of_factors(n), full);
  }
};

// Of rows that lie one by one, those that are there.
template <class Q>
struct PaddedPieces {
  uint32_t stride;
  DEV PaddedPieces(const RingJob&, const RingMatrix& m) : stride(m.unit_bytes / 4) {}
  DEV uint32_t bytes(uint32_t n, uint32_t n_rows) const { return min(n_rows, 4) * (n / 8 * Q::STRIDE); }
  DEV void ask(const uint8_t* unit, uint32_t to, uint32_t at, uint32_t n, uint32_t room, uint32_t n_rows,
               uint32_t full) const {
#pragma unroll
    for (uint32_t r = 0; r < 4; r++) {
      const uint32_t from = r * stride + at / 8 * Q::STRIDE;
      if (r < n_rows) copy_bulk(to + r * (room / 8 * Q::STRIDE), unit + from, n / 8 * Q::STRIDE, full);
    }
  }
};

// A group of rows of several segments: of a segment all units, two a step, or one of each of a pair.
template <class Q, bool PAIR>
DEV void feed_segments(const RingJob& job, const RingMemory& mem, Feeder& feeder, const Group& group) {
  using Pieces = std::conditional_t<Q::PLANAR, PlanarPieces<Q>, PaddedPieces<Q>>;
  const RingMatrix& m = job.m[group.which];
  const Pieces pieces(job, m);
  const uint32_t slots = mem.base + job.slots_at, room = 8 * job.segment, n_chunks = job.row_len / 32;
  const uint64_t first = static_cast<uint64_t>(group.unit) * m.unit_bytes;
  const uint8_t* one = m.w + first;
  const uint8_t* other = PAIR ? job.m[1].w + first : one + m.unit_bytes;
  const uint32_t n = job.units_per_step, step = n * m.unit_bytes;
  feeder.take(job, group.n_units);
#pragma unroll 1
  for (uint32_t at = 0; at < n_chunks; at += room) {
    const uint32_t n_here = min(room, n_chunks - at);
    uint32_t n_rows = m.n_rows - 4 * group.unit;  // from the step's first unit on
    uint64_t before = 0;
#pragma unroll 1
    for (int n_left = group.n_units; n_left > 0; n_left -= n) {
      const bool both = PAIR || n_left > 1;
      const uint32_t n_others = PAIR ? n_rows : n_rows - 4, full = feeder.at.full, to = slots + feeder.at.offset;
      feeder.wait(job, mem);
      barrier_expect(full, pieces.bytes(n_here, n_rows) + (both ? pieces.bytes(n_here, n_others) : 0));
      pieces.ask(one + before, to, at, n_here, room, n_rows, full);
      if (both) pieces.ask(other + before, to + job.unit_pitch, at, n_here, room, n_others, full);
      feeder.at.next(job, mem, m.slot_bytes);
      n_rows -= 4 * n;
      before += step;
    }
  }
}

template <bool PLANAR, bool PAIR, uint32_t TYPES>
DEV void feed(const RingJob& job, const RingMemory& mem) {
  if (!is_elected()) return;
  if (job.n_segments == 1) return feed_rows<PLANAR, PAIR>(job, mem);
  Groups<PAIR> groups(job);
  Feeder feeder(job, mem, groups.end - groups.at);
  for (Group group; groups.next(job, group);) {
    with_type<PLANAR, TYPES>(job.m[group.which].quant, [&](auto type) {
      feed_segments<typename decltype(type)::Type, PAIR>(job, mem, feeder, group);
    });
  }
}
