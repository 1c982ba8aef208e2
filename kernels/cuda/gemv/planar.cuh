// How quantized rows are read from their `planar` form: four rows interleaved, quants, high bits,
// scales and factors in planes of their own.
//
// A type loads one chunk of 32 elements of all four rows at once: quants in 16-byte loads, everything
// else of the four rows in one load each.
#pragma once
#include "../common.cuh"

DEV uint2 load8(const void* p) { return __ldg(static_cast<const uint2*>(p)); }
DEV uint32_t part(const uint4& v, int r) { return r == 0 ? v.x : r == 1 ? v.y : r == 2 ? v.z : v.w; }
DEV uint32_t half_of(const uint2& v, int r) { return (r < 2 ? v.x : v.y) >> (r & 1) * 16 & 0xffff; }

DEV int dot16(uint4 w, uint4 x) {
  return dot4u(w.w, x.w, dot4u(w.z, x.z, dot4u(w.y, x.y, dot4u(w.x, x.x, 0))));
}
DEV int dot16_signed(uint4 w, uint4 x) {
  return dot4s(w.w, x.w, dot4s(w.z, x.z, dot4s(w.y, x.y, dot4s(w.x, x.x, 0))));
}
DEV uint4 low_nibbles(uint4 v) {
  const uint32_t m = 0x0f0f0f0fu;
  return make_uint4(v.x & m, v.y & m, v.z & m, v.w & m);
}
DEV uint4 high_nibbles(uint4 v) {
  const uint32_t m = 0x0f0f0f0fu;
  return make_uint4(v.x >> 4 & m, v.y >> 4 & m, v.z >> 4 & m, v.w >> 4 & m);
}

// One chunk of one row: elements 0..16 and 16..32 as bytes, and what they are multiplied with:
// w = lo_scale * q (hi_scale for the second half) - min.
struct Row {
  uint4 lo, hi;
  float lo_scale, hi_scale, min;
};

// q4_K and q5_K.
template <bool HAS_HIGH>
struct PlanarK45 {
  static constexpr bool SIGNED = false;
  struct Chunk {
    uint4 q[4], high, factors;
    uint2 scales;
  };
  static DEV Chunk load(const uint8_t* unit, uint32_t c, uint32_t n_chunks) {
    Chunk v;
#pragma unroll
    for (int r = 0; r < 4; r++) v.q[r] = load16(unit + (static_cast<size_t>(c) * 4 + r) * 16);
    const uint8_t* p = unit + static_cast<size_t>(n_chunks) * 64;
    if (HAS_HIGH) {
      v.high = load16(p + static_cast<size_t>(c) * 16);
      p += static_cast<size_t>(n_chunks) * 16;
    }
    v.scales = load8(p + static_cast<size_t>(c) * 8);
    v.factors = load16(p + static_cast<size_t>(n_chunks) * 8 + static_cast<size_t>(c / 8) * 16);
    return v;
  }
  static DEV Row row(const Chunk& v, int r) {
    Row out;
    out.lo = low_nibbles(v.q[r]);
    out.hi = high_nibbles(v.q[r]);
    if (HAS_HIGH) {
      // Byte i of the word holds, at bit 4 h + j, the fifth bit of element 16 h + 4 j + i.
      const uint32_t h = part(v.high, r), m = 0x01010101u;
      out.lo.x |= (h & m) << 4, out.lo.y |= (h >> 1 & m) << 4;
      out.lo.z |= (h >> 2 & m) << 4, out.lo.w |= (h >> 3 & m) << 4;
      out.hi.x |= (h >> 4 & m) << 4, out.hi.y |= (h >> 5 & m) << 4;
      out.hi.z |= (h >> 6 & m) << 4, out.hi.w |= (h >> 7 & m) << 4;
    }
    const uint32_t s = half_of(v.scales, r), f = part(v.factors, r);
    out.lo_scale = out.hi_scale = half_bits(f & 0xffff) * static_cast<float>(s & 0xff);
    out.min = half_bits(f >> 16) * static_cast<float>(s >> 8);
    return out;
  }
};

struct PlanarQ6_K {
  static constexpr bool SIGNED = true;
  struct Chunk {
    uint4 q[4], high[2];
    uint2 scales, factors;
  };
  static DEV Chunk load(const uint8_t* unit, uint32_t c, uint32_t n_chunks) {
    Chunk v;
#pragma unroll
    for (int r = 0; r < 4; r++) v.q[r] = load16(unit + (static_cast<size_t>(c) * 4 + r) * 16);
    const uint8_t* p = unit + static_cast<size_t>(n_chunks) * 64;
    v.high[0] = load16(p + static_cast<size_t>(c) * 32);
    v.high[1] = load16(p + static_cast<size_t>(c) * 32 + 16);
    p += static_cast<size_t>(n_chunks) * 32;
    v.scales = load8(p + static_cast<size_t>(c) * 8);
    v.factors = load8(p + static_cast<size_t>(n_chunks) * 8 + static_cast<size_t>(c / 8) * 8);
    return v;
  }
  // Word of four elements, centred.
  static DEV uint32_t word(uint32_t low, uint32_t high, int j) {
    return bytes_minus(low | (high >> (2 * j) & 0x03030303u) << 4, 32);
  }
  static DEV Row row(const Chunk& v, int r) {
    Row out;
    const uint4 lo = low_nibbles(v.q[r]), hi = high_nibbles(v.q[r]);
    // Bytes 4 h + i of the row's eight: bit pair j belongs to element 16 h + 4 j + i.
    const uint4 both = v.high[r >> 1];
    const uint32_t h0 = r & 1 ? both.z : both.x, h1 = r & 1 ? both.w : both.y;
    out.lo = make_uint4(word(lo.x, h0, 0), word(lo.y, h0, 1), word(lo.z, h0, 2), word(lo.w, h0, 3));
    out.hi = make_uint4(word(hi.x, h1, 0), word(hi.y, h1, 1), word(hi.z, h1, 2), word(hi.w, h1, 3));
    const uint32_t s = half_of(v.scales, r);
    const float d = half_bits(half_of(v.factors, r));
    out.lo_scale = d * static_cast<float>(static_cast<int8_t>(s & 0xff));
    out.hi_scale = d * static_cast<float>(static_cast<int8_t>(s >> 8));
    out.min = 0.0f;
    return out;
  }
};

struct PlanarQ8_0 {
  static constexpr bool SIGNED = true;
  struct Chunk {
    uint4 q[8];
    uint2 factors;
  };
  static DEV Chunk load(const uint8_t* unit, uint32_t c, uint32_t n_chunks) {
    Chunk v;
#pragma unroll
    for (int i = 0; i < 8; i++) v.q[i] = load16(unit + static_cast<size_t>(c) * 128 + i * 16);
    v.factors = load8(unit + static_cast<size_t>(n_chunks) * 128 + static_cast<size_t>(c) * 8);
    return v;
  }
  static DEV Row row(const Chunk& v, int r) {
    Row out;
    out.lo = v.q[2 * r];
    out.hi = v.q[2 * r + 1];
    out.lo_scale = out.hi_scale = half_bits(half_of(v.factors, r));
    out.min = 0.0f;
    return out;
  }
};

using PlanarQ4_K = PlanarK45<false>;
using PlanarQ5_K = PlanarK45<true>;
