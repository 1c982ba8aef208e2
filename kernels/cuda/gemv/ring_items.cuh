// What a warp of the ring kernels multiplies at once: four rows of a super-block (256 elements, also of
// types without super-blocks), 32 elements of one row a lane, from their copies in shared memory.
//
// A type says how the copies of a slot are cut (`planar`: planes one after the other; `padded`: row by
// row), where a lane's elements lie in the row, which bytes it reads (`Places`, known before the bytes
// are there), and what they add to its sum.
#pragma once
#include <type_traits>

#include "planar.cuh"
#include "quants.cuh"

// 32 activations of a lane: two runs of 16 elements, their scales, and scale times sum of each.
struct Slice {
  uint4 lo, hi;
  float lo_scale, hi_scale, lo_sum, hi_sum;
};

// Loads from shared memory by its own addresses. (From pointers, what a block's addresses begin with is found
// anew in each step.)
DEV uint4 shared16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
DEV uint2 shared8(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
DEV uint32_t shared4(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
DEV uint32_t shared2(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
  return v;
}
DEV int32_t shared1_signed(uint32_t at) {
  int32_t v;
  asm volatile("ld.shared.s8 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
DEV float shared_float(uint32_t at) { return __uint_as_float(shared4(at)); }

// The activations in shared memory.
struct Activations {
  uint32_t q;      // int8 [row_len]
  uint32_t scale;  // f32 [row_len / 32]
  uint32_t sum;    // f32 [row_len / 16], scale times sum of the integers
  // Zeros beyond the row, where `ENDS`: it may end there.
  template <bool ENDS>
  DEV Slice slice(uint32_t lo, uint32_t hi, uint32_t row_len) const {
    Slice x{};
    if (ENDS && max(lo, hi) >= row_len) return x;
    x.lo = shared16(q + lo);
    x.hi = shared16(q + hi);
    x.lo_scale = shared_float(scale + lo / 32 * 4);
    x.hi_scale = shared_float(scale + hi / 32 * 4);
    x.lo_sum = shared_float(sum + lo / 16 * 4);
    x.hi_sum = shared_float(sum + hi / 16 * 4);
    return x;
  }
};

DEV uint4 top_nibbles(uint4 v) {
  const uint32_t m = 0xf0f0f0f0u;
  return make_uint4(v.x & m, v.y & m, v.z & m, v.w & m);
}
DEV float byte_of(uint32_t v, int i) { return static_cast<float>(v >> (8 * i) & 0xff); }

// A `planar` unit: a lane takes row `lane & 3`, chunk `lane / 4` of the super-block. Of each plane, the bytes
// of a chunk of all four rows; of the last (factors), of a super-block.
template <int QUANTS_, int HIGH_, int SCALES_, int FACTORS_>
struct PlanarItem {
  static constexpr bool PLANAR = true;
  static constexpr uint32_t QUANTS = QUANTS_, HIGH = HIGH_, SCALES = SCALES_, FACTORS = FACTORS_, STRIDE = 0;
  static DEV uint32_t lo_at(uint32_t lane) { return lane / 4 * 32; }
  static DEV uint32_t hi_at(uint32_t lane) { return lane / 4 * 32 + 16; }
  // `n` chunks are in the slot: whole super-blocks, of types that have them.
  static constexpr bool HAS_BLOCKS = FACTORS > 0;
  static DEV bool is_there(uint32_t n, uint32_t sb, uint32_t lane) { return sb * 8 + lane / 4 < n; }
  struct Places {
    uint32_t quants, high, scales, factors;
    DEV Places(uint32_t, uint32_t n, uint32_t sb, uint32_t lane) {
      const uint32_t at = sb * 32 + lane;  // four rows of a chunk lie side by side
      quants = at * (QUANTS / 4);
      high = n * QUANTS + at * (HIGH / 4);
      scales = n * (QUANTS + HIGH) + at * (SCALES / 4);
      factors = n * (QUANTS + HIGH + SCALES) + sb * FACTORS + (lane & 3) * (FACTORS / 4);
    }
  };
};

template <bool HAS_HIGH>
struct RingPlanarK45 : PlanarItem<64, HAS_HIGH ? 16 : 0, 8, 16> {
  struct Item {
    uint4 v;
    uint32_t h, s, f;
    using Places = typename PlanarItem<64, HAS_HIGH ? 16 : 0, 8, 16>::Places;
    DEV Item(uint32_t unit, const Places& at) {
      v = shared16(unit + at.quants);
      if (HAS_HIGH) h = shared4(unit + at.high);
      s = shared2(unit + at.scales);
      f = shared4(unit + at.factors);
    }
    DEV float dot(const Slice& x, uint32_t) const {
      uint4 lo = low_nibbles(v), hi = HAS_HIGH ? high_nibbles(v) : top_nibbles(v);
      if (HAS_HIGH) {
        const uint32_t m = 0x01010101u;
        lo.x |= (h & m) << 4, lo.y |= (h >> 1 & m) << 4;
        lo.z |= (h >> 2 & m) << 4, lo.w |= (h >> 3 & m) << 4;
        hi.x |= (h >> 4 & m) << 4, hi.y |= (h >> 5 & m) << 4;
        hi.z |= (h >> 6 & m) << 4, hi.w |= (h >> 7 & m) << 4;
      }
      // Without a high bit the second half is 16 times as large: no shift for each word.
      const int b = dot16(hi, x.hi), sum = dot16(lo, x.lo) + (HAS_HIGH ? b : b >> 4);
      const float scale = half_bits(f & 0xffff) * byte_of(s, 0) * x.lo_scale;
      const float min = half_bits(f >> 16) * byte_of(s, 1);
      return scale * static_cast<float>(sum) - min * (x.lo_sum + x.hi_sum);
    }
  };
};

struct RingPlanarQ6_K : PlanarItem<64, 32, 8, 8> {
  struct Item {
    uint4 v;
    uint2 h;
    uint32_t s, d;
    DEV Item(uint32_t unit, const Places& at) {
      v = shared16(unit + at.quants);
      h = shared8(unit + at.high);
      s = shared2(unit + at.scales);
      d = shared2(unit + at.factors);
    }
    DEV float dot(const Slice& x, uint32_t) const {
      const uint32_t m = 0x03030303u;
      uint4 lo = low_nibbles(v), hi = high_nibbles(v);
      lo.x |= (h.x & m) << 4, lo.y |= (h.x >> 2 & m) << 4;
      lo.z |= (h.x >> 4 & m) << 4, lo.w |= (h.x >> 6 & m) << 4;
      hi.x |= (h.y & m) << 4, hi.y |= (h.y >> 2 & m) << 4;
      hi.z |= (h.y >> 4 & m) << 4, hi.w |= (h.y >> 6 & m) << 4;
      // The integers are 32 less than these.
      const float a = x.lo_scale * static_cast<float>(dot16(lo, x.lo)) - 32.0f * x.lo_sum;
      const float b = x.hi_scale * static_cast<float>(dot16(hi, x.hi)) - 32.0f * x.hi_sum;
      return half_bits(d) * (signed_byte(s) * a + signed_byte(s >> 8) * b);
    }
  };
};

struct RingPlanarQ8_0 : PlanarItem<128, 0, 8, 0> {
  struct Item {
    uint4 lo, hi;
    uint32_t d;
    DEV Item(uint32_t unit, const Places& at) {
      lo = shared16(unit + at.quants);
      hi = shared16(unit + at.quants + 16);
      d = shared2(unit + at.scales);
    }
    DEV float dot(const Slice& x, uint32_t) const {
      const int sum = dot16_signed(lo, x.lo) + dot16_signed(hi, x.hi);
      return half_bits(d) * x.lo_scale * static_cast<float>(sum);
    }
  };
};

// `padded` rows, `pitch` bytes apart: a lane takes row `lane / 8`, part `lane & 7` of the super-block.
template <uint32_t STRIDE_>
struct PaddedItem {
  static constexpr bool PLANAR = false;
  static constexpr uint32_t STRIDE = STRIDE_;
  static constexpr bool HAS_BLOCKS = true;
  static DEV bool is_there(uint32_t n, uint32_t sb, uint32_t) { return sb * 8 < n; }
  struct Places {
    uint32_t block, part;
    DEV Places(uint32_t pitch, uint32_t, uint32_t sb, uint32_t lane) {
      block = lane / 8 * pitch + sb * STRIDE;
      part = lane & 7;
    }
  };
};

template <bool HAS_HIGH>
struct RingK45 : PaddedItem<K45<HAS_HIGH>::STRIDE> {
  // 16 bytes of quants: 16 elements of one sub-block and 16 of the next.
  static DEV uint32_t lo_at(uint32_t lane) { return (lane >> 1 & 3) * 64 + (lane & 1) * 16; }
  static DEV uint32_t hi_at(uint32_t lane) { return lo_at(lane) + 32; }
  struct Item {
    uint4 head, qs, h;
    using Places = typename PaddedItem<K45<HAS_HIGH>::STRIDE>::Places;
    DEV Item(uint32_t unit, const Places& at) {
      const uint32_t b = unit + at.block;
      head = shared16(b);
      qs = shared16(b + (HAS_HIGH ? 48 : 16) + 16 * at.part);
      if (HAS_HIGH) h = shared16(b + 16 + 16 * (at.part & 1));
    }
    DEV float dot(const Slice& x, uint32_t lane) const {
      const uint32_t pair = lane >> 1 & 3;
      uint4 lo = low_nibbles(qs), hi = HAS_HIGH ? high_nibbles(qs) : top_nibbles(qs);
      if (HAS_HIGH) {
        const uint32_t sh = 2 * pair, m = 0x01010101u;
        lo.x |= (h.x >> sh & m) << 4, lo.y |= (h.y >> sh & m) << 4;
        lo.z |= (h.z >> sh & m) << 4, lo.w |= (h.w >> sh & m) << 4;
        hi.x |= (h.x >> (sh + 1) & m) << 4, hi.y |= (h.y >> (sh + 1) & m) << 4;
        hi.z |= (h.z >> (sh + 1) & m) << 4, hi.w |= (h.w >> (sh + 1) & m) << 4;
      }
      // Scales and minimums of sub-blocks 2 pair and 2 pair + 1, two bytes each: those of the first four
      // sub-blocks lie whole in six bits, the others' in two parts.
      const bool whole = pair < 2;
      const uint32_t sh = (pair & 1) * 16, top = sh + (whole ? 0 : 2);
      const uint32_t of_top = whole ? 0x3f3f : 0x3030, of_low = whole ? 0 : 0x0f0f;
      const uint32_t sc = (head.y >> top & of_top) | (head.w >> sh & of_low);
      const uint32_t mn = (head.z >> top & of_top) | (head.w >> (sh + 4) & of_low);
      const float d = half_bits(head.x & 0xffff), dmin = half_bits(head.x >> 16);
      const float a = static_cast<float>(dot16(lo, x.lo)) * x.lo_scale;
      const float c = static_cast<float>(dot16(hi, x.hi)) * (HAS_HIGH ? x.hi_scale : x.hi_scale * 0.0625f);
      const float plus = byte_of(sc, 0) * a + byte_of(sc, 1) * c;
      const float minus = byte_of(mn, 0) * x.lo_sum + byte_of(mn, 1) * x.hi_sum;
      return d * plus - dmin * minus;
    }
  };
};

struct RingQ6_K : PaddedItem<Q6_K::STRIDE> {
  // Part v: half v / 4 of the block, runs (v / 2 & 1) and that plus 2 of it, half v & 1 of each.
  static DEV uint32_t lo_at(uint32_t lane) {
    return (lane >> 2 & 1) * 128 + (lane >> 1 & 1) * 32 + (lane & 1) * 16;
  }
  static DEV uint32_t hi_at(uint32_t lane) { return lo_at(lane) + 64; }
  struct Item {
    uint4 v, h;
    int32_t s0, s1;
    uint32_t d;
    DEV Item(uint32_t unit, const Places& at) {
      const uint32_t b = unit + at.block;
      const uint32_t it = at.part >> 2, run = at.part >> 1 & 1, half = at.part & 1;
      v = shared16(b + it * 64 + run * 32 + half * 16);
      h = shared16(b + 128 + it * 32 + half * 16);
      s0 = shared1_signed(b + 192 + it * 8 + run * 2 + half);
      s1 = shared1_signed(b + 196 + it * 8 + run * 2 + half);
      d = shared2(b + 208);
    }
    DEV float dot(const Slice& x, uint32_t lane) const {
      const uint32_t m = 0x03030303u, sh = lane & 2;
      uint4 lo = low_nibbles(v), hi = high_nibbles(v);
      lo.x |= (h.x >> sh & m) << 4, lo.y |= (h.y >> sh & m) << 4;
      lo.z |= (h.z >> sh & m) << 4, lo.w |= (h.w >> sh & m) << 4;
      hi.x |= h.x >> sh & m << 4, hi.y |= h.y >> sh & m << 4;
      hi.z |= h.z >> sh & m << 4, hi.w |= h.w >> sh & m << 4;
      const float a = x.lo_scale * static_cast<float>(dot16(lo, x.lo)) - 32.0f * x.lo_sum;
      const float c = x.hi_scale * static_cast<float>(dot16(hi, x.hi)) - 32.0f * x.hi_sum;
      return half_bits(d) * (static_cast<float>(s0) * a + static_cast<float>(s1) * c);
    }
  };
};

enum Quant : uint32_t { QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_Q8_0 };

template <class T>
struct Tag {
  using Type = T;
};

// `f` with a `Tag` of the type `quant`, one of `TYPES` (bits by `Quant`). One type needs no look at which it is.
template <bool PLANAR, uint32_t TYPES, class F>
DEV void with_type(uint32_t quant, F f) {
  const auto is = [&](uint32_t type) { return TYPES == 1u << type || (TYPES >> type & 1 && quant == type); };
  if (is(QUANT_Q4_K)) f(Tag<std::conditional_t<PLANAR, RingPlanarK45<false>, RingK45<false>>>{});
  else if (is(QUANT_Q5_K)) f(Tag<std::conditional_t<PLANAR, RingPlanarK45<true>, RingK45<true>>>{});
  else if (is(QUANT_Q6_K)) f(Tag<std::conditional_t<PLANAR, RingPlanarQ6_K, RingQ6_K>>{});
  else if (PLANAR && is(QUANT_Q8_0)) f(Tag<RingPlanarQ8_0>{});
}
