// Few tokens times a quantized matrix in its `planar` form: four rows interleaved, quants, high
// bits, scales and factors in planes of their own.
//
// A block takes four rows; its 128 threads take the 32-element chunks in turn, all four rows of a
// chunk at once: quants in 16-byte loads, everything else of the four rows in one load each.
#include "job.cuh"

constexpr int THREADS = 128;

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

template <class Q, int NT>
DEV void gemv(const GemvJob& job) {
  uint32_t quad = blockIdx.x;
  int which = 0;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t n_quads = (job.m[i].n_rows + 3) / 4;
    if (which == i && quad >= n_quads) {
      quad -= n_quads;
      which++;
    }
  }
  const GemvMatrix& m = job.m[which];
  const uint8_t* unit = m.w + quad * m.row_stride;
  const uint32_t n_chunks = job.row_len / 32;
  float acc[4][NT] = {};
  bool waited = false;
  for (uint32_t c = threadIdx.x; c < n_chunks || !waited; c += THREADS) {
    typename Q::Chunk v;
    if (c < n_chunks) v = Q::load(unit, c, n_chunks);
    if (!waited) {
      wait_for_previous();
      waited = true;
    }
    if (c >= n_chunks) break;
    uint4 lo[NT], hi[NT];
    float2 ds[NT];
#pragma unroll
    for (int t = 0; t < NT; t++) {
      const uint32_t token = t < job.n_tokens ? t : 0;
      const int8_t* q = job.q + static_cast<size_t>(token) * job.row_len + c * 32;
      lo[t] = *reinterpret_cast<const uint4*>(q);
      hi[t] = *reinterpret_cast<const uint4*>(q + 16);
      ds[t] = job.ds[static_cast<size_t>(token) * n_chunks + c];
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const Row row = Q::row(v, r);
#pragma unroll
      for (int t = 0; t < NT; t++) {
        const int a = Q::SIGNED ? dot16_signed(row.lo, lo[t]) : dot16(row.lo, lo[t]);
        const int b = Q::SIGNED ? dot16_signed(row.hi, hi[t]) : dot16(row.hi, hi[t]);
        acc[r][t] += ds[t].x * (row.lo_scale * static_cast<float>(a) +
                                row.hi_scale * static_cast<float>(b));
        acc[r][t] -= row.min * ds[t].y;
      }
    }
  }
  let_next_start();
  __shared__ float sums[THREADS / 32][4][NT];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
  for (int r = 0; r < 4; r++) {
#pragma unroll
    for (int t = 0; t < NT; t++) {
      const float sum = warp_sum(acc[r][t]);
      if (lane == 0) sums[warp][r][t] = sum;
    }
  }
  __syncthreads();
  const uint32_t r = threadIdx.x & 3, t = threadIdx.x >> 2, row = quad * 4 + r;
  if (t < NT && t < job.n_tokens && row < m.n_rows) {
    float v = sums[0][r][t] + sums[1][r][t] + sums[2][r][t] + sums[3][r][t];
    if (m.bias) v += m.bias[row];
    float* y = m.y + static_cast<size_t>(t) * m.n_rows + row;
    *y = m.add ? *y + v : v;
  }
}

// The weights of one chunk of one row.
template <class Q>
DEV void weights(const uint8_t* w, uint64_t unit_bytes, uint32_t row, uint32_t c, uint32_t n_chunks,
                 float (&out)[32]) {
  const typename Q::Chunk v = Q::load(w + row / 4 * unit_bytes, c, n_chunks);
  Row four[4];
#pragma unroll
  for (int r = 0; r < 4; r++) four[r] = Q::row(v, r);
  const Row one = row % 4 == 0 ? four[0] : row % 4 == 1 ? four[1] : row % 4 == 2 ? four[2] : four[3];
  const uint32_t words[8] = {one.lo.x, one.lo.y, one.lo.z, one.lo.w,
                             one.hi.x, one.hi.y, one.hi.z, one.hi.w};
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const uint32_t byte = words[i / 4] >> (8 * (i % 4)) & 0xff;
    const float q = Q::SIGNED ? static_cast<float>(static_cast<int8_t>(byte)) : static_cast<float>(byte);
    out[i] = (i < 16 ? one.lo_scale : one.hi_scale) * q - one.min;
  }
}

// As the kernels of the same names without `planar` in dequant.cu; a thread makes a chunk.
template <class Q>
DEV void to_bf16(const uint8_t* w, uint64_t unit_bytes, __nv_bfloat16* out, uint32_t n_rows,
                 uint32_t row_len) {
  const uint32_t n_chunks = row_len / 32;
  const uint64_t n = static_cast<uint64_t>(n_rows) * n_chunks;
  wait_for_previous();
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
    float v[32];
    weights<Q>(w, unit_bytes, static_cast<uint32_t>(i / n_chunks), static_cast<uint32_t>(i % n_chunks), n_chunks, v);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      reinterpret_cast<uint4*>(out)[i * 4 + j] =
          make_uint4(pack_bf16(v[8 * j], v[8 * j + 1]), pack_bf16(v[8 * j + 2], v[8 * j + 3]),
                     pack_bf16(v[8 * j + 4], v[8 * j + 5]), pack_bf16(v[8 * j + 6], v[8 * j + 7]));
    }
  }
}

template <class Q>
DEV void embed(const uint8_t* w, uint64_t unit_bytes, float* out, const uint32_t* tokens,
               uint32_t row_len, float scale) {
  wait_for_previous();
  const uint32_t row = tokens[blockIdx.x], n_chunks = row_len / 32;
  out += static_cast<size_t>(blockIdx.x) * row_len;
  for (uint32_t c = threadIdx.x; c < n_chunks; c += blockDim.x) {
    float v[32];
    weights<Q>(w, unit_bytes, row, c, n_chunks, v);
#pragma unroll
    for (int i = 0; i < 32; i++) out[c * 32 + i] = scale * v[i];
  }
}

#define KERNELS(NAME, Q)                                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS)                                           \
      gemv_planar_##NAME##_1(const __grid_constant__ GemvJob job) { gemv<Q, 1>(job); }            \
  extern "C" __global__ void __launch_bounds__(THREADS)                                           \
      gemv_planar_##NAME##_4(const __grid_constant__ GemvJob job) { gemv<Q, 4>(job); }            \
  extern "C" __global__ void __launch_bounds__(256)                                               \
      dequant_planar_##NAME(const uint8_t* w, uint64_t unit_bytes, __nv_bfloat16* out,            \
                            uint32_t n_rows, uint32_t row_len) {                                  \
    to_bf16<Q>(w, unit_bytes, out, n_rows, row_len);                                              \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(256)                                               \
      embed_planar_##NAME(const uint8_t* w, uint64_t unit_bytes, float* out,                      \
                          const uint32_t* tokens, uint32_t row_len, float scale) {                \
    embed<Q>(w, unit_bytes, out, tokens, row_len, scale);                                         \
  }

using PlanarQ4_K = PlanarK45<false>;
using PlanarQ5_K = PlanarK45<true>;

KERNELS(q4_K, PlanarQ4_K)
KERNELS(q5_K, PlanarQ5_K)
KERNELS(q6_K, PlanarQ6_K)
KERNELS(q8_0, PlanarQ8_0)
