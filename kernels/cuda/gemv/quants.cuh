// How a GEMV reads each quant type from its `padded` blocks.
//
// A type cuts a row into units of U elements, UNITS of them a block of STRIDE bytes (the object's
// block stride, which the host compares with the container's layout). `load` unpacks a unit once;
// `dot` multiplies it with one token: `q` points at the token's int8 row, `ds` at its (scale, scale *
// sum) pairs, one for each 32 elements.
#pragma once
#include "../common.cuh"

DEV uint4 x16(const int8_t* q, int k) { return *reinterpret_cast<const uint4*>(q + k); }

DEV int dot16u(const uint32_t (&w)[4], const uint4& x) {
  return dot4u(w[3], x.w, dot4u(w[2], x.z, dot4u(w[1], x.y, dot4u(w[0], x.x, 0))));
}
DEV int dot16s(const uint32_t (&w)[4], const uint4& x) {
  return dot4s(w[3], x.w, dot4s(w[2], x.z, dot4s(w[1], x.y, dot4s(w[0], x.x, 0))));
}
DEV int sum16(const uint4& x) {
  const uint32_t one = 0x01010101u;
  return dot4s(one, x.w, dot4s(one, x.z, dot4s(one, x.y, dot4s(one, x.x, 0))));
}

// 32 elements with one scale and an offset: w = scale * q + offset, q in 0..255 or signed.
struct Chunk {
  uint32_t lo[4], hi[4];
  float scale, offset;
  DEV float dot(const int8_t* q, const float2* ds, int k, bool is_signed) const {
    const uint4 a = x16(q, k), b = x16(q, k + 16);
    const int sum = is_signed ? dot16s(lo, a) + dot16s(hi, b) : dot16u(lo, a) + dot16u(hi, b);
    const float2 s = ds[k / 32];
    return scale * s.x * static_cast<float>(sum) + offset * s.y;
  }
};

template <int STRIDE_, bool HAS_MIN, bool HAS_HIGH>
struct Nibbles32 {
  static constexpr int U = 32, UNITS = 1, STRIDE = STRIDE_;
  using W = Chunk;
  static DEV W load(const uint8_t* b, int) {
    W w;
    w.scale = half_bits(load2(b));
    const int qs = 2 + (HAS_MIN ? 2 : 0) + (HAS_HIGH ? 4 : 0);
    const uint32_t high = HAS_HIGH ? load4by2(b + (HAS_MIN ? 4 : 2)) : 0;
    w.offset = HAS_MIN ? half_bits(load2(b + 2)) : w.scale * (HAS_HIGH ? -16.0f : -8.0f);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t v = HAS_MIN ? load4(b + qs + 4 * i) : load4by2(b + qs + 4 * i);
      w.lo[i] = v & 0x0f0f0f0fu;
      w.hi[i] = v >> 4 & 0x0f0f0f0fu;
      if (HAS_HIGH) {
        w.lo[i] |= spread4(high >> (4 * i)) << 4;
        w.hi[i] |= spread4(high >> (16 + 4 * i)) << 4;
      }
    }
    return w;
  }
  static DEV float dot(const W& w, const int8_t* q, const float2* ds, int u) {
    return w.dot(q, ds, u * 32, false);
  }
};
using Q4_0 = Nibbles32<18, false, false>;
using Q4_1 = Nibbles32<20, true, false>;
using Q5_0 = Nibbles32<22, false, true>;
using Q5_1 = Nibbles32<24, true, true>;

struct Q8_0 {
  static constexpr int U = 32, UNITS = 1, STRIDE = 34;
  using W = Chunk;
  static DEV W load(const uint8_t* b, int) {
    W w;
    w.scale = half_bits(load2(b));
    w.offset = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      w.lo[i] = load4by2(b + 2 + 4 * i);
      w.hi[i] = load4by2(b + 18 + 4 * i);
    }
    return w;
  }
  static DEV float dot(const W& w, const int8_t* q, const float2* ds, int u) {
    return w.dot(q, ds, u * 32, true);
  }
};

// The 6-bit scale and minimum of sub-block `i` of a q4_K or q5_K block; `s`: its 12 packed bytes.
DEV void k_scale_min(const uint32_t (&s)[3], int i, float& scale, float& min) {
  uint32_t sc, m;
  const int sh = (i & 3) * 8;
  if (i < 4) {
    sc = s[0] >> sh & 63;
    m = s[1] >> sh & 63;
  } else {
    sc = (s[2] >> sh & 0xf) | (s[0] >> (sh + 6) & 3) << 4;
    m = (s[2] >> (sh + 4) & 0xf) | (s[1] >> (sh + 6) & 3) << 4;
  }
  scale = static_cast<float>(sc);
  min = static_cast<float>(m);
}

// q4_K and q5_K. Unit `v` of a block: 16 bytes of nibbles, bytes 16 v .. 16 v + 16 of `qs`: half
// `v & 1` of sub-blocks `2 p` (low nibbles) and `2 p + 1` (high nibbles), p = v / 2.
template <bool HAS_HIGH>
struct K45 {
  static constexpr int U = 32, UNITS = 8, STRIDE = HAS_HIGH ? 176 : 144;
  struct W {
    uint32_t lo[4], hi[4];
    float lo_scale, hi_scale, min;
  };
  static DEV W load(const uint8_t* b, int v) {
    W w;
    const int p = v >> 1, half = v & 1;
    const uint4 head = load16(b);
    const uint4 qs = load16(b + (HAS_HIGH ? 48 : 16) + 16 * v);
    const uint32_t scales[3] = {head.y, head.z, head.w};
    const float d = half_bits(head.x & 0xffff), dmin = half_bits(head.x >> 16);
    float lo_min, hi_min;
    k_scale_min(scales, 2 * p, w.lo_scale, lo_min);
    k_scale_min(scales, 2 * p + 1, w.hi_scale, hi_min);
    w.lo_scale *= d;
    w.hi_scale *= d;
    // Each lane of a pair subtracts the minimum of one of the two sub-blocks, whole.
    w.min = dmin * (half ? hi_min : lo_min);
    const uint32_t q[4] = {qs.x, qs.y, qs.z, qs.w};
    uint32_t high[4] = {0, 0, 0, 0};
    if (HAS_HIGH) {
      const uint4 qh = load16(b + 16 + 16 * half);
      high[0] = qh.x, high[1] = qh.y, high[2] = qh.z, high[3] = qh.w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      w.lo[i] = q[i] & 0x0f0f0f0fu;
      w.hi[i] = q[i] >> 4 & 0x0f0f0f0fu;
      if (HAS_HIGH) {
        w.lo[i] |= (high[i] >> (2 * p) & 0x01010101u) << 4;
        w.hi[i] |= (high[i] >> (2 * p + 1) & 0x01010101u) << 4;
      }
    }
    return w;
  }
  static DEV float dot(const W& w, const int8_t* q, const float2* ds, int u) {
    const int pair = u >> 1, half = u & 1;
    const int k = pair * 64 + half * 16;
    const float2 a = ds[pair * 2], b = ds[pair * 2 + 1];
    const int lo = dot16u(w.lo, x16(q, k)), hi = dot16u(w.hi, x16(q, k + 32));
    float sum = w.lo_scale * a.x * static_cast<float>(lo) + w.hi_scale * b.x * static_cast<float>(hi);
    return sum - w.min * (half ? b.y : a.y);
  }
};
using Q4_K = K45<false>;
using Q5_K = K45<true>;

// Types whose unit is 64 elements, 16 of each of four runs of 32: unit `v` of a block is half
// `v >> 1` of the block and half `v & 1` of each run.
struct Runs {
  uint32_t q[4][4];
  float scale[4];
};
DEV int run_start(int u, int j) { return (u >> 1) * 128 + j * 32 + (u & 1) * 16; }
DEV float runs_dot(const Runs& w, const int8_t* q, const float2* ds, int u) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const int k = run_start(u, j);
    sum += w.scale[j] * ds[k / 32].x * static_cast<float>(dot16s(w.q[j], x16(q, k)));
  }
  return sum;
}
DEV float signed_byte(uint32_t bits) { return static_cast<float>(static_cast<int8_t>(bits)); }

struct Q6_K {
  static constexpr int U = 64, UNITS = 4, STRIDE = 224;
  using W = Runs;
  static DEV W load(const uint8_t* b, int v) {
    W w;
    const int it = v >> 1, half = v & 1;
    const uint4 a = load16(b + it * 64 + half * 16), c = load16(b + it * 64 + 32 + half * 16);
    const uint4 h = load16(b + 128 + it * 32 + half * 16);
    const uint4 scales = load16(b + 192);
    const float d = half_bits(load2(b + 208));
    const uint32_t l0[4] = {a.x, a.y, a.z, a.w}, l1[4] = {c.x, c.y, c.z, c.w};
    const uint32_t hs[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      w.q[0][i] = bytes_minus((l0[i] & 0x0f0f0f0fu) | (hs[i] & 0x03030303u) << 4, 32);
      w.q[1][i] = bytes_minus((l1[i] & 0x0f0f0f0fu) | (hs[i] >> 2 & 0x03030303u) << 4, 32);
      w.q[2][i] = bytes_minus((l0[i] >> 4 & 0x0f0f0f0fu) | (hs[i] >> 4 & 0x03030303u) << 4, 32);
      w.q[3][i] = bytes_minus((l1[i] >> 4 & 0x0f0f0f0fu) | (hs[i] >> 6 & 0x03030303u) << 4, 32);
    }
    // Scale of run j: byte 8 it + 2 j + half.
    const uint32_t s0 = it ? scales.z : scales.x, s1 = it ? scales.w : scales.y;
    w.scale[0] = d * signed_byte(s0 >> (8 * half));
    w.scale[1] = d * signed_byte(s0 >> (16 + 8 * half));
    w.scale[2] = d * signed_byte(s1 >> (8 * half));
    w.scale[3] = d * signed_byte(s1 >> (16 + 8 * half));
    return w;
  }
  static DEV float dot(const W& w, const int8_t* q, const float2* ds, int u) {
    return runs_dot(w, q, ds, u);
  }
};

struct Q3_K {
  static constexpr int U = 64, UNITS = 4, STRIDE = 112;
  using W = Runs;
  static DEV W load(const uint8_t* b, int v) {
    W w;
    const int it = v >> 1, half = v & 1;
    const uint4 m = load16(b + half * 16), s = load16(b + 32 + it * 32 + half * 16);
    const uint4 tail = load16(b + 96);  // 12 bytes of scales, d, padding
    const float d = half_bits(tail.w & 0xffff);
    const uint32_t ms[4] = {m.x, m.y, m.z, m.w}, qs[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t low = qs[i] >> (2 * j) & 0x03030303u;
        const uint32_t high = ms[i] >> (it * 4 + j) & 0x01010101u;
        w.q[j][i] = bytes_minus(low | high << 2, 4);
      }
      const int n = it * 8 + j * 2 + half;  // sub-block of 16
      const uint32_t word = n & 4 ? tail.y : tail.x;
      const uint32_t low = word >> ((n & 3) * 8 + (n >> 3) * 4) & 0xf;
      const uint32_t high = tail.z >> ((n & 3) * 8 + (n >> 2) * 2) & 3;
      w.scale[j] = d * (static_cast<float>(low | high << 4) - 32.0f);
    }
    return w;
  }
  static DEV float dot(const W& w, const int8_t* q, const float2* ds, int u) {
    return runs_dot(w, q, ds, u);
  }
};

struct Q2_K {
  static constexpr int U = 64, UNITS = 4, STRIDE = 84;
  struct W : Runs {
    float min[4];
  };
  static DEV W load(const uint8_t* b, int v) {
    W w;
    const int it = v >> 1, half = v & 1;
    const uint32_t dd = load4(b + 80);
    const float d = half_bits(dd & 0xffff), dmin = half_bits(dd >> 16);
    const uint32_t s0 = load4(b + it * 8), s1 = load4(b + it * 8 + 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t qs = load4(b + 16 + it * 32 + half * 16 + 4 * i);
#pragma unroll
      for (int j = 0; j < 4; j++) w.q[j][i] = qs >> (2 * j) & 0x03030303u;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t sm = (j & 2 ? s1 : s0) >> ((j & 1) * 16 + half * 8);
      w.scale[j] = d * static_cast<float>(sm & 0xf);
      w.min[j] = dmin * static_cast<float>(sm >> 4 & 0xf);
    }
    return w;
  }
  static DEV float dot(const W& w, const int8_t* q, const float2* ds, int u) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int k = run_start(u, j);
      const uint4 x = x16(q, k);
      const float d = ds[k / 32].x;
      sum += w.scale[j] * d * static_cast<float>(dot16s(w.q[j], x));
      sum -= w.min[j] * d * static_cast<float>(sum16(x));
    }
    return sum;
  }
};
