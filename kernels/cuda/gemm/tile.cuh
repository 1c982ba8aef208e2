// y[t][row] = sum_k w[row][k] x[t][k] (+ bias[row]) (+ y[t][row]): bf16 operands, f32 sums and
// results.
//
// A block makes 128 tokens x 128 rows, a warp 64 x 32 of them; 32 elements of k at a time through
// three buffers of shared memory. row_len is a multiple of 32.
#pragma once
#include "../common.cuh"

struct GemmJob {
  const __nv_bfloat16* w;  // [n_rows, row_len], rows w_stride elements apart
  const __nv_bfloat16* x;  // [n_tokens, row_len]
  float* y;                // [n_tokens, n_rows]
  const float* bias;       // [n_rows] or null
  uint32_t n_rows;
  uint32_t n_tokens;
  uint32_t row_len;
  uint32_t w_stride;
  uint32_t add;
};

constexpr int BM = 128, BN = 128, BK = 32, STAGES = 3;
constexpr int STRIDE = BK + 8;  // 80 bytes: eight rows in different banks
constexpr int TILE = BM * STRIDE;

DEV void load_tile(__nv_bfloat16* to, const __nv_bfloat16* from, uint32_t first, uint32_t n,
                   uint32_t k, uint32_t row_len, uint32_t stride) {
#pragma unroll
  for (int j = 0; j < BM * BK / 8 / 256; j++) {
    const int i = j * 256 + threadIdx.x, row = i / 4, piece = i % 4;
    const bool there = first + row < n && k < row_len;
    const size_t at = there ? static_cast<size_t>(first + row) * stride + k + piece * 8 : 0;
    copy16_async(to + row * STRIDE + piece * 8, from + at, there);
  }
}

// One block: 128 tokens from `m0` on times 128 rows from `n0` on.
DEV void gemm_tile(const GemmJob& job, uint32_t m0, uint32_t n0) {
  extern __shared__ __align__(16) uint8_t shared[];
  __nv_bfloat16* xs = reinterpret_cast<__nv_bfloat16*>(shared);
  __nv_bfloat16* ws = xs + STAGES * TILE;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int wm = warp & 1, wn = warp >> 1;
  float acc[4][4][4] = {};
  wait_for_previous();
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    load_tile(xs + s * TILE, job.x, m0, job.n_tokens, s * BK, job.row_len, job.row_len);
    load_tile(ws + s * TILE, job.w, n0, job.n_rows, s * BK, job.row_len, job.w_stride);
    commit_copies();
  }
  const int n_steps = job.row_len / BK;
  for (int step = 0; step < n_steps; step++) {
    wait_copies<STAGES - 2>();
    __syncthreads();
    const int next = step + STAGES - 1, into = next % STAGES;
    load_tile(xs + into * TILE, job.x, m0, job.n_tokens, next * BK, job.row_len, job.row_len);
    load_tile(ws + into * TILE, job.w, n0, job.n_rows, next * BK, job.row_len, job.w_stride);
    commit_copies();
    const __nv_bfloat16* xt = xs + step % STAGES * TILE + wm * 64 * STRIDE;
    const __nv_bfloat16* wt = ws + step % STAGES * TILE + wn * 32 * STRIDE;
#pragma unroll
    for (int kk = 0; kk < BK / 16; kk++) {
      uint32_t a[4][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        ldmatrix4(a[i], xt + (i * 16 + (lane & 15)) * STRIDE + kk * 16 + (lane >> 4) * 8);
      }
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int row = j * 16 + (lane & 7) + (lane >> 4) * 8;
        ldmatrix4(b[j], wt + row * STRIDE + kk * 16 + (lane >> 3 & 1) * 8);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
          mma_bf16(acc[i][j], a[i], b[j / 2][(j & 1) * 2], b[j / 2][(j & 1) * 2 + 1]);
        }
      }
    }
  }
  wait_copies<0>();
  const int g = lane >> 2, c = lane & 3;
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const uint32_t t = m0 + wm * 64 + i * 16 + g + (e >> 1) * 8;
        const uint32_t row = n0 + wn * 32 + j * 8 + c * 2 + (e & 1);
        if (t < job.n_tokens && row < job.n_rows) {
          float v = acc[i][j][e];
          if (job.bias) v += job.bias[row];
          float* y = job.y + static_cast<size_t>(t) * job.n_rows + row;
          *y = job.add ? *y + v : v;
        }
      }
    }
  }
  let_next_start();
}
