// CUDA C++ as far as the kernels speak it, for a compiler that does not: qualifiers, vector types, half and
// bfloat16, what a thread knows of itself, and exchanges within a warp.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "machine.hpp"

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
// Kernels of which two blocks make a cluster lie in a section of their own, so that the driver knows them.
#define __cluster_dims__(x, y, z) __attribute__((section("in_clusters_of_" #x)))
#define __align__(n) alignas(n)
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL 1

#define threadIdx (emulated::thread_index())
#define blockIdx (emulated::block_index())
#define blockDim (emulated::block_size())
#define gridDim (emulated::grid_size())

inline uint8_t* shared_memory() { return emulated::block_memory(); }
inline uint32_t __cvta_generic_to_shared(const void* p) { return emulated::shared_offset(p); }

struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

// CUDA's `min` and `max` take numbers of two types: the unsigned one decides. Of a number and NaN both are the number.
template <class A, class B>
inline std::common_type_t<A, B> min(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  if (x != x) return y;
  return y < x ? y : x;
}
template <class A, class B>
inline std::common_type_t<A, B> max(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  if (x != x) return y;
  return x < y ? y : x;
}

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline float __uint_as_float(uint32_t v) { return bits_as<float>(v); }
inline uint32_t __float_as_uint(float v) { return bits_as<uint32_t>(v); }

// A float's bits with `MANTISSA` of 23 bits of it left, rounded to nearest, ties to even.
inline uint32_t round_bits(uint32_t bits, int dropped) {
  const uint32_t half = 1u << (dropped - 1), rest = bits & ((1u << dropped) - 1);
  return (bits >> dropped) + (rest > half || (rest == half && (bits >> dropped & 1)));
}
struct __half {
  uint16_t bits;
  __half() = default;
  __half(float v) : bits(of(v)) {}
  static __half raw(uint16_t bits) {
    __half h;
    h.bits = bits;
    return h;
  }
  operator float() const { return floats()[bits]; }
  static float to_float(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, rest = bits & 1023;
    if (exponent == 31) return bits_as<float>(sign | 0x7f800000u | rest << 13);
    if (exponent) return bits_as<float>(sign | (exponent + 112) << 23 | rest << 13);
    const float small = static_cast<float>(rest) * 0x1p-24f;
    return sign ? -small : small;
  }
  // Of all 65536, since nothing else is done as often.
  static const float* floats() {
    static const auto* const all = [] {
      auto* const made = new float[1 << 16];
      for (uint32_t i = 0; i < 1 << 16; i++) made[i] = to_float(static_cast<uint16_t>(i));
      return made;
    }();
    return all;
  }
  static uint16_t of(float v) {
    const uint32_t word = bits_as<uint32_t>(v), sign = word >> 16 & 0x8000, all = word & 0x7fffffff;
    if (all > 0x7f800000) return 0x7fff;
    if (all >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
    if (all < 0x38800000) {  // no normal number
      return static_cast<uint16_t>(sign | static_cast<uint32_t>(nearbyintf(bits_as<float>(all) * 0x1p24f)));
    }
    return static_cast<uint16_t>(sign | round_bits(all - (112u << 23), 13));
  }
};
struct __half2 { __half x, y; };
struct __nv_bfloat16 {
  uint16_t bits;
  operator float() const { return bits_as<float>(static_cast<uint32_t>(bits) << 16); }
};
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
inline __half __ushort_as_half(uint16_t v) { return __half::raw(v); }
inline float __half2float(__half h) { return h; }
inline __half __float2half_rn(float v) { return __half(v); }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline float2 __half22float2(__half2 v) { return {v.x, v.y}; }
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  const uint32_t bits = bits_as<uint32_t>(v);
  if ((bits & 0x7fffffff) > 0x7f800000) return {0x7fff};
  return {static_cast<uint16_t>(round_bits(bits, 16))};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline float __bfloat162float(__nv_bfloat16 v) { return v; }

// Nothing here may be contracted or reassociated: the compiler is told so too.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
// Of divisors beyond 2^126 nothing is left.
inline float __fdividef(float a, float b) {
  return fabsf(b) > 0x1p126f && !std::isinf(b) ? a * 0.0f : a / b;
}
inline float __expf(float v) { return expf(v); }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline int __float2int_rn(float v) {
  if (v != v) return 0;
  if (v >= 0x1p31f) return INT32_MAX;
  if (v < -0x1p31f) return INT32_MIN;
  return static_cast<int>(nearbyintf(v));
}
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  uint32_t v = 0;
  for (int i = 0; i < 4; i++) v |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return v;
}
inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return sum;
}
inline int __popc(uint32_t v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }

template <class T>
inline T __ldg(const T* p) { return *p; }
template <class T>
inline T __ldcg(const T* p) { return *p; }
template <class T>
inline T atomicAdd(T* p, T v) {
  const T old = *p;
  *p += v;
  return old;
}
template <class T>
inline T atomicMax(T* p, T v) {
  const T old = *p;
  *p = std::max(old, v);
  return old;
}
template <class T>
inline T atomicExch(T* p, T v) {
  const T old = *p;
  *p = v;
  return old;
}
inline void __threadfence() {}

inline void __syncthreads() { emulated::sync_threads(); }
inline void __syncwarp(uint32_t mask = ~0u) { emulated::WarpExchange<uint32_t> all(mask, 0); }
template <class T>
inline T __shfl_xor_sync(uint32_t mask, T v, int o) {
  const emulated::WarpExchange<T> all(mask, v);
  return all[all.lane ^ o];
}
template <class T>
inline T __shfl_sync(uint32_t mask, T v, int from) {
  const emulated::WarpExchange<T> all(mask, v);
  return all[from & 31];
}
template <class T>
inline T __shfl_up_sync(uint32_t mask, T v, int by) {
  const emulated::WarpExchange<T> all(mask, v);
  return all[all.lane < by ? all.lane : all.lane - by];
}
template <class T>
inline T __shfl_down_sync(uint32_t mask, T v, int by) {
  const emulated::WarpExchange<T> all(mask, v);
  return all[all.lane + by > 31 ? all.lane : all.lane + by];
}
template <class T>
inline T __reduce_add_sync(uint32_t mask, T v) {
  const emulated::WarpExchange<T> all(mask, v);
  T sum = 0;
  for (int i = 0; i < 32; i++) sum += mask >> i & 1 ? all[i] : 0;
  return sum;
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t v) {
  const emulated::WarpExchange<uint32_t> all(mask, v);
  uint32_t top = 0;
  for (int i = 0; i < 32; i++) top = mask >> i & 1 && all[i] > top ? all[i] : top;
  return top;
}
inline uint32_t __ballot_sync(uint32_t mask, bool v) {
  const emulated::WarpExchange<uint32_t> all(mask, v);
  uint32_t bits = 0;
  for (int i = 0; i < 32; i++) bits |= mask >> i & 1 ? all[i] << i : 0;
  return bits;
}
