// Eight consecutive weights of a row, from the `padded` blocks of every quant type. Plain code:
// dequantizing whole matrices is bound by the bf16 that it writes.
#pragma once
#include "../common.cuh"

DEV uint32_t byte_at(const uint8_t* p) { return __ldg(p); }

template <int STRIDE, bool HAS_MIN, bool HAS_HIGH>
struct Deq32 {
  static DEV void read(const uint8_t* row, uint32_t k, float (&out)[8]) {
    const uint8_t* b = row + static_cast<size_t>(k / 32) * STRIDE;
    const float d = half_bits(load2(b));
    const float m = HAS_MIN ? half_bits(load2(b + 2)) : 0.0f;
    const uint32_t high = HAS_HIGH ? load4by2(b + (HAS_MIN ? 4 : 2)) : 0;
    const uint8_t* qs = b + 2 + (HAS_MIN ? 2 : 0) + (HAS_HIGH ? 4 : 0);
    const uint32_t e = k % 32;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t j = e + i;
      int q = byte_at(qs + j % 16) >> (j / 16 * 4) & 0xf;
      if (HAS_HIGH) q |= (high >> j & 1) << 4;
      out[i] = HAS_MIN ? d * static_cast<float>(q) + m
                       : d * static_cast<float>(q - (HAS_HIGH ? 16 : 8));
    }
  }
};

struct Deq8_0 {
  static DEV void read(const uint8_t* row, uint32_t k, float (&out)[8]) {
    const uint8_t* b = row + static_cast<size_t>(k / 32) * 34;
    const float d = half_bits(load2(b));
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = d * static_cast<float>(static_cast<int8_t>(byte_at(b + 2 + k % 32 + i)));
  }
};

template <bool HAS_HIGH>
struct DeqK45 {
  static DEV void read(const uint8_t* row, uint32_t k, float (&out)[8]) {
    const uint8_t* b = row + static_cast<size_t>(k / 256) * (HAS_HIGH ? 176 : 144);
    const uint32_t e = k % 256, n = e / 32;
    const uint8_t* s = b + 4;
    uint32_t sc, m;
    if (n < 4) {
      sc = byte_at(s + n) & 63;
      m = byte_at(s + n + 4) & 63;
    } else {
      sc = (byte_at(s + n + 4) & 0xf) | byte_at(s + n - 4) >> 6 << 4;
      m = byte_at(s + n + 4) >> 4 | byte_at(s + n) >> 6 << 4;
    }
    const float d = half_bits(load2(b)) * static_cast<float>(sc);
    const float dmin = half_bits(load2(b + 2)) * static_cast<float>(m);
    const uint8_t* qs = b + (HAS_HIGH ? 48 : 16) + n / 2 * 32 + e % 32;
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(qs));
    const uint2 h = HAS_HIGH ? __ldg(reinterpret_cast<const uint2*>(b + 16 + e % 32)) : make_uint2(0, 0);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      uint32_t q = (i < 4 ? v.x : v.y) >> (8 * (i % 4) + n % 2 * 4) & 0xf;
      if (HAS_HIGH) q |= ((i < 4 ? h.x : h.y) >> (8 * (i % 4) + n) & 1) << 4;
      out[i] = d * static_cast<float>(q) - dmin;
    }
  }
};

struct Deq6_K {
  static DEV void read(const uint8_t* row, uint32_t k, float (&out)[8]) {
    const uint8_t* b = row + static_cast<size_t>(k / 256) * 224;
    const uint32_t e = k % 256, it = e / 128, n = e % 128;
    const float d = half_bits(load2(b + 208)) *
                    static_cast<float>(static_cast<int8_t>(byte_at(b + 192 + e / 16)));
    const uint2 l = __ldg(reinterpret_cast<const uint2*>(b + it * 64 + n % 64));
    const uint2 h = __ldg(reinterpret_cast<const uint2*>(b + 128 + it * 32 + n % 32));
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t low = (i < 4 ? l.x : l.y) >> (8 * (i % 4) + n / 64 * 4) & 0xf;
      const uint32_t high = (i < 4 ? h.x : h.y) >> (8 * (i % 4) + n / 32 * 2) & 3;
      out[i] = d * static_cast<float>(static_cast<int>(low | high << 4) - 32);
    }
  }
};

struct Deq3_K {
  static DEV void read(const uint8_t* row, uint32_t k, float (&out)[8]) {
    const uint8_t* b = row + static_cast<size_t>(k / 256) * 112;
    const uint32_t e = k % 256, n = e / 16;
    const uint32_t low4 = byte_at(b + 96 + n % 8) >> (n / 8 * 4) & 0xf;
    const uint32_t high2 = byte_at(b + 104 + n % 4) >> (n / 4 * 2) & 3;
    const float d = half_bits(load2(b + 108)) * (static_cast<float>(low4 | high2 << 4) - 32.0f);
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(b + 32 + e / 128 * 32 + e % 32));
    const uint2 h = __ldg(reinterpret_cast<const uint2*>(b + e % 32));
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t low = (i < 4 ? v.x : v.y) >> (8 * (i % 4) + e / 32 % 4 * 2) & 3;
      const uint32_t high = (i < 4 ? h.x : h.y) >> (8 * (i % 4) + e / 32) & 1;
      out[i] = d * static_cast<float>(static_cast<int>(low | high << 2) - 4);
    }
  }
};

struct Deq2_K {
  static DEV void read(const uint8_t* row, uint32_t k, float (&out)[8]) {
    const uint8_t* b = row + static_cast<size_t>(k / 256) * 84;
    const uint32_t e = k % 256;
    const uint32_t sm = byte_at(b + e / 16);
    const float d = half_bits(load2(b + 80)) * static_cast<float>(sm & 0xf);
    const float dmin = half_bits(load2(b + 82)) * static_cast<float>(sm >> 4);
    const uint8_t* qs = b + 16 + e / 128 * 32 + e % 32;
    const uint32_t v[2] = {load4(qs), load4(qs + 4)};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t q = v[i / 4] >> (8 * (i % 4) + e / 32 % 4 * 2) & 3;
      out[i] = d * static_cast<float>(q) - dmin;
    }
  }
};

struct DeqF32 {
  static DEV void read(const uint8_t* row, uint32_t k, float (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = __ldg(reinterpret_cast<const float*>(row) + k + i);
  }
};
struct DeqF16 {
  static DEV void read(const uint8_t* row, uint32_t k, float (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = half_bits(load2(row + 2 * (k + i)));
  }
};
struct DeqBf16 {
  static DEV void read(const uint8_t* row, uint32_t k, float (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = __uint_as_float(load2(row + 2 * (k + i)) << 16);
  }
};
