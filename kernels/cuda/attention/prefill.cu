// Causal attention of many queries: online softmax over tiles of keys, products on tensor cores
// (f16 operands, f32 sums).
//
// q [n_tokens, n_head, HD] f32; caches [position, n_head_kv, HD] f16. A block takes 64 queries of
// one head, a warp 16 of them; keys come 64 at a time (32 where heads are wide) through two
// buffers of shared memory.
#include "../common.cuh"

struct AttentionJob {
  const float* q;
  const __half* k;
  const __half* v;
  const uint32_t* first_pos;  // position of row 0, less `shift`
  float* out;                 // [n_tokens, n_head, HD] or null
  __nv_bfloat16* out_bf16;    // the same, or null
  uint32_t shift;
  uint32_t n_tokens;
  uint32_t n_head;
  uint32_t n_head_kv;
  uint32_t window;            // positions seen, its own among them; 0: all
  float scale;
  float soft_cap;             // 0: none
};

constexpr float LOG2E = 1.4426950408889634f;

template <int HD, int BN>
struct Tile {
  // Rows are 16 bytes longer than they need to be, so that eight of them lie in different banks.
  static constexpr int STRIDE = HD + 8;
  static constexpr int ELEMS = BN * STRIDE;

  static DEV void load(__half* to, const __half* cache, int first, int n_kv, uint32_t row_stride) {
    constexpr int PIECES = HD / 8;
    for (int i = threadIdx.x; i < BN * PIECES; i += 128) {
      const int row = i / PIECES, piece = i % PIECES;
      const bool there = first + row < n_kv;
      const size_t from = static_cast<size_t>(there ? first + row : 0) * row_stride + piece * 8;
      copy16_async(to + row * STRIDE + piece * 8, cache + from, there);
    }
  }
};

template <int HD>
DEV void attend(const AttentionJob& job) {
  constexpr int BN = HD > 128 ? 32 : 64;
  using T = Tile<HD, BN>;
  extern __shared__ __align__(16) uint8_t shared[];
  __half* k_tiles = reinterpret_cast<__half*>(shared);
  __half* v_tiles = k_tiles + 2 * T::ELEMS;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
  wait_for_previous();
  // The longest tiles (most keys) start first.
  const int tile = gridDim.x - 1 - blockIdx.x;
  const int head = blockIdx.y, kv_head = head / (job.n_head / job.n_head_kv);
  const int first_pos = *job.first_pos + job.shift;
  const int row0 = tile * 64 + warp * 16 + g;  // this lane's rows: row0 and row0 + 8
  const uint32_t kv_stride = job.n_head_kv * HD;
  const __half* k = job.k + kv_head * HD;
  const __half* v = job.v + kv_head * HD;
  const int last_row = min(tile * 64 + 63, static_cast<int>(job.n_tokens) - 1);
  const int n_kv = first_pos + last_row + 1;
  int first_key = 0;
  if (job.window) first_key = max(0, first_pos + tile * 64 - static_cast<int>(job.window) + 1);
  first_key = first_key / BN * BN;

  // Queries, scaled so that scores are exponents of two (where nothing bends them in between).
  const float factor = job.soft_cap > 0.0f ? job.scale : job.scale * LOG2E;
  uint32_t q[HD / 16][4];
#pragma unroll
  for (int s = 0; s < HD / 16; s++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = row0 + (i & 1) * 8, col = s * 16 + (i >> 1) * 8 + c * 2;
      float2 two = make_float2(0.0f, 0.0f);
      if (row < job.n_tokens) {
        two = *reinterpret_cast<const float2*>(
            job.q + (static_cast<size_t>(row) * job.n_head + head) * HD + col);
      }
      q[s][i] = pack_f16(two.x * factor, two.y * factor);
    }
  }
  float out[HD / 8][4] = {};
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};
  const int pos[2] = {first_pos + row0, first_pos + row0 + 8};

  T::load(k_tiles, k, first_key, n_kv, kv_stride);
  T::load(v_tiles, v, first_key, n_kv, kv_stride);
  commit_copies();
  for (int key = first_key, buffer = 0; key < n_kv; key += BN, buffer ^= 1) {
    if (key + BN < n_kv) {
      T::load(k_tiles + (buffer ^ 1) * T::ELEMS, k, key + BN, n_kv, kv_stride);
      T::load(v_tiles + (buffer ^ 1) * T::ELEMS, v, key + BN, n_kv, kv_stride);
    }
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    const __half* kt = k_tiles + buffer * T::ELEMS;
    const __half* vt = v_tiles + buffer * T::ELEMS;

    float s[BN / 8][4] = {};
#pragma unroll
    for (int d = 0; d < HD / 16; d++) {
#pragma unroll
      for (int n = 0; n < BN / 16; n++) {
        // Matrices: keys 0-7 and 8-15 of this step's lower and upper eight dimensions.
        uint32_t b[4];
        const int row = n * 16 + (lane & 7) + (lane >> 4) * 8, col = d * 16 + (lane >> 3 & 1) * 8;
        ldmatrix4(b, kt + row * T::STRIDE + col);
        mma_f16(s[2 * n], q[d], b[0], b[1]);
        mma_f16(s[2 * n + 1], q[d], b[2], b[3]);
      }
    }
    if (job.soft_cap > 0.0f) {
#pragma unroll
      for (int n = 0; n < BN / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          s[n][i] = job.soft_cap * tanhf(s[n][i] / job.soft_cap) * LOG2E;
        }
      }
    }
    // Keys after a query and keys that have left its window; tiles inside need no mask.
    const int tile_first = first_pos + tile * 64;
    const bool whole = key + BN <= tile_first + 1 &&
                       (!job.window || tile_first + 63 - key < static_cast<int>(job.window));
    if (!whole) {
#pragma unroll
      for (int n = 0; n < BN / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int p = key + n * 8 + c * 2 + (i & 1), at = pos[i >> 1];
          if (p > at || (job.window && at - p >= static_cast<int>(job.window))) s[n][i] = -INFINITY;
        }
      }
    }
    float bend[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float top = m[r];
#pragma unroll
      for (int n = 0; n < BN / 8; n++) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float base = top == -INFINITY ? 0.0f : top;
      bend[r] = exp2f(m[r] - base);
      m[r] = top;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < BN / 8; n++) {
        s[n][2 * r] = exp2f(s[n][2 * r] - base);
        s[n][2 * r + 1] = exp2f(s[n][2 * r + 1] - base);
        sum += s[n][2 * r] + s[n][2 * r + 1];
      }
      l[r] = l[r] * bend[r] + sum;
    }
#pragma unroll
    for (int d = 0; d < HD / 8; d++) {
      out[d][0] *= bend[0];
      out[d][1] *= bend[0];
      out[d][2] *= bend[1];
      out[d][3] *= bend[1];
    }
#pragma unroll
    for (int n = 0; n < BN / 16; n++) {
      const uint32_t p[4] = {pack_f16(s[2 * n][0], s[2 * n][1]), pack_f16(s[2 * n][2], s[2 * n][3]),
                             pack_f16(s[2 * n + 1][0], s[2 * n + 1][1]),
                             pack_f16(s[2 * n + 1][2], s[2 * n + 1][3])};
#pragma unroll
      for (int d = 0; d < HD / 16; d++) {
        // Matrices: keys 0-7 and 8-15 of dimensions 0-7, then of 8-15, transposed.
        uint32_t b[4];
        const int row = n * 16 + (lane & 15), col = d * 16 + (lane >> 4) * 8;
        ldmatrix4_trans(b, vt + row * T::STRIDE + col);
        mma_f16(out[2 * d], p, b[0], b[1]);
        mma_f16(out[2 * d + 1], p, b[2], b[3]);
      }
    }
    // Nobody refills this buffer before everybody has read it.
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    l[r] += __shfl_xor_sync(~0u, l[r], 1);
    l[r] += __shfl_xor_sync(~0u, l[r], 2);
    const float inv = l[r] > 0.0f ? 1.0f / l[r] : 0.0f;
    const int row = row0 + r * 8;
    if (row >= job.n_tokens) continue;
    const size_t at = (static_cast<size_t>(row) * job.n_head + head) * HD + c * 2;
#pragma unroll
    for (int d = 0; d < HD / 8; d++) {
      const float a = out[d][2 * r] * inv, b = out[d][2 * r + 1] * inv;
      if (job.out) *reinterpret_cast<float2*>(job.out + at + d * 8) = make_float2(a, b);
      if (job.out_bf16) {
        *reinterpret_cast<uint32_t*>(job.out_bf16 + at + d * 8) = pack_bf16(a, b);
      }
    }
  }
  let_next_start();
}

#define KERNEL(HD)                                                            \
  extern "C" __global__ void __launch_bounds__(128)                           \
      attention_prefill_##HD(const __grid_constant__ AttentionJob job) {      \
    attend<HD>(job);                                                          \
  }
KERNEL(64)
KERNEL(80)
KERNEL(96)
KERNEL(128)
KERNEL(256)
