// Few tokens times a quantized matrix in its `planar` form.
//
// A block takes four rows; its 128 threads take the 32-element chunks in turn, all four rows of a
// chunk at once.
#include "job.cuh"
#include "planar.cuh"

constexpr int THREADS = 128;

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
  let_next_start();
  wait_for_previous();
  const uint32_t row = tokens[blockIdx.x], n_chunks = row_len / 32;
  out += static_cast<size_t>(blockIdx.x) * row_len;
  for (uint32_t c = threadIdx.x; c < n_chunks; c += blockDim.x) {
    float v[32];
    weights<Q>(w, unit_bytes, row, c, n_chunks, v);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      reinterpret_cast<float4*>(out + c * 32)[i] =
          make_float4(scale * v[4 * i], scale * v[4 * i + 1], scale * v[4 * i + 2], scale * v[4 * i + 3]);
    }
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

KERNELS(q4_K, PlanarQ4_K)
KERNELS(q5_K, PlanarQ5_K)
KERNELS(q6_K, PlanarQ6_K)
KERNELS(q8_0, PlanarQ8_0)
