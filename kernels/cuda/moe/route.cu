// Which experts each token goes to, the rows in order of experts, and the way back.
#include "../common.cuh"
#include "job.cuh"

// logits[t][e] = sum_k w[e][k] x[t][k], f32 all through. A warp has four experts and eight tokens.
// `width` is a multiple of 4.
extern "C" __global__ void __launch_bounds__(128)
    moe_logits(float* logits, const uint8_t* w, uint64_t row_stride, const float* x, uint32_t n_tokens,
               uint32_t n_expert, uint32_t width) {
  constexpr int E = 4, T = 8;
  wait_for_previous();
  const uint32_t expert = (blockIdx.x * 4 + (threadIdx.x >> 5)) * E, lane = threadIdx.x & 31;
  const uint32_t token = blockIdx.y * T;
  if (expert >= n_expert) return;
  // Beyond the last of either the last is computed once more, and left out.
  const float4* rows[E];
  const float4* tokens[T];
#pragma unroll
  for (int e = 0; e < E; e++)
    rows[e] = reinterpret_cast<const float4*>(w + min(expert + e, n_expert - 1) * row_stride);
#pragma unroll
  for (int t = 0; t < T; t++)
    tokens[t] = reinterpret_cast<const float4*>(x + static_cast<size_t>(min(token + t, n_tokens - 1)) * width);
  float acc[E][T] = {};
  for (uint32_t k = lane; k < width / 4; k += 32) {
    float4 v[E];
#pragma unroll
    for (int e = 0; e < E; e++) v[e] = __ldg(rows[e] + k);
#pragma unroll
    for (int t = 0; t < T; t++) {
      const float4 u = tokens[t][k];
#pragma unroll
      for (int e = 0; e < E; e++)
        acc[e][t] += v[e].x * u.x + v[e].y * u.y + v[e].z * u.z + v[e].w * u.w;
    }
  }
  let_next_start();
#pragma unroll
  for (int e = 0; e < E; e++) {
#pragma unroll
    for (int t = 0; t < T; t++) {
      const float sum = warp_sum(acc[e][t]);
      if (lane == 0 && expert + e < n_expert && token + t < n_tokens)
        logits[static_cast<size_t>(token + t) * n_expert + expert + e] = sum;
    }
  }
}

// The same for up to four tokens, a block an expert: all of its row is asked for before the
// activations are there. `width` is a multiple of 4.
extern "C" __global__ void __launch_bounds__(256)
    moe_logits_few(float* logits, const uint8_t* w, uint64_t row_stride, const float* x, uint32_t n_tokens,
                   uint32_t n_expert, uint32_t width) {
  constexpr int AHEAD = 4;
  __shared__ float sums[8];
  const uint32_t expert = blockIdx.x, n = width / 4;
  const float4* row = reinterpret_cast<const float4*>(w + expert * row_stride);
  float acc[4] = {};
  bool waited = false;
  for (uint32_t start = threadIdx.x; start < n || !waited; start += 256 * AHEAD) {
    float4 v[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const uint32_t i = start + 256 * a;
      v[a] = i < n ? __ldg(row + i) : make_float4(0, 0, 0, 0);
    }
    if (!waited) wait_for_previous();
    waited = true;
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const uint32_t i = start + 256 * a;
      if (i >= n) break;
#pragma unroll
      for (int t = 0; t < 4; t++) {
        if (t >= n_tokens) break;
        const float4 u = reinterpret_cast<const float4*>(x + static_cast<size_t>(t) * width)[i];
        acc[t] += v[a].x * u.x + v[a].y * u.y + v[a].z * u.z + v[a].w * u.w;
      }
    }
  }
  let_next_start();
#pragma unroll
  for (int t = 0; t < 4; t++) {
    if (t >= n_tokens) break;
    const float sum = block_sum(acc[t], sums);
    if (threadIdx.x == 0) logits[t * n_expert + expert] = sum;
  }
}

// Weights are divided by their sum, but by no less than this (the CPU's bound).
constexpr float MIN_SUM = 6.103515625e-5f;

// A warp a token; expert 32 i + lane is number i of a lane. Softmax over all, then the largest one
// after another, of equal ones that with the lower number.
template <int N>
DEV void route(Choice* out, const float* logits, uint32_t n_tokens, uint32_t n_expert, uint32_t n_used) {
  wait_for_previous();
  const uint32_t token = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (token >= n_tokens) return;
  logits += static_cast<size_t>(token) * n_expert;
  out += static_cast<size_t>(token) * n_used;
  float p[N], largest = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; i++) {
    p[i] = 32 * i + lane < n_expert ? logits[32 * i + lane] : -INFINITY;
    largest = fmaxf(largest, p[i]);
  }
  largest = warp_max(largest);
#pragma unroll
  for (int i = 0; i < N; i++) {
    p[i] = 32 * i + lane < n_expert ? expf(p[i] - largest) : 0.0f;
    sum += p[i];
  }
  sum = warp_sum(sum);
  const float inverse = 1.0f / sum;
  uint32_t taken = 0;  // bit i: this lane's number i is chosen, or no expert
#pragma unroll
  for (int i = 0; i < N; i++) {
    p[i] *= inverse;
    if (32 * i + lane >= n_expert) taken |= 1u << i;
  }
  let_next_start();
  float chosen_sum = 0.0f;
  for (uint32_t slot = 0; slot < n_used; slot++) {
    uint32_t best = ~0u;
    float best_p = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (!(taken >> i & 1) && (best == ~0u || p[i] > best_p)) {
        best = 32 * i + lane;
        best_p = p[i];
      }
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
      const uint32_t other = __shfl_xor_sync(~0u, best, o);
      const float other_p = __shfl_xor_sync(~0u, best_p, o);
      // A NaN is larger than nothing and nothing is larger than it: the lower number it is.
      const bool larger = other_p > best_p, smaller = best_p > other_p;
      if (other != ~0u && (best == ~0u || larger || (!smaller && other < best))) {
        best = other;
        best_p = other_p;
      }
    }
    if (best % 32 == lane) taken |= 1u << (best / 32);
    chosen_sum += best_p;
    if (lane == 0) out[slot] = {best, best_p};
  }
  // Lane 0 wrote these numbers itself.
  if (lane == 0) {
    const float divisor = fmaxf(chosen_sum, MIN_SUM);
    for (uint32_t slot = 0; slot < n_used; slot++) out[slot].weight /= divisor;
  }
}

#define ROUTE(N)                                                                                   \
  extern "C" __global__ void __launch_bounds__(128) moe_route_##N(                                 \
      Choice* out, const float* logits, uint32_t n_tokens, uint32_t n_expert, uint32_t n_used) {   \
    route<N>(out, logits, n_tokens, n_expert, n_used);                                             \
  }

ROUTE(1)
ROUTE(4)
ROUTE(16)

// A block an expert: counts its pairs and those of the experts before it, then gives each of its
// pairs a row. order[row] = pair, place[pair] = row, starts[e] = first row of expert e.
extern "C" __global__ void __launch_bounds__(256)
    moe_sort(uint32_t* order, uint32_t* place, uint32_t* starts, const Choice* choices, uint32_t n_pairs) {
  __shared__ uint32_t sums[2][8];
  const uint32_t expert = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  wait_for_previous();
  uint32_t before = 0, own = 0;
  for (uint32_t i = threadIdx.x; i < n_pairs; i += 256) {
    const uint32_t e = choices[i].expert;
    before += e < expert;
    own += e == expert;
  }
  before = __reduce_add_sync(~0u, before);
  own = __reduce_add_sync(~0u, own);
  if (lane == 0) sums[0][warp] = before, sums[1][warp] = own;
  __syncthreads();
  uint32_t row = 0, n_own = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) row += sums[0][i], n_own += sums[1][i];
  if (threadIdx.x == 0) {
    starts[expert] = row;
    if (expert + 1 == gridDim.x) starts[gridDim.x] = row + n_own;
  }
  // 256 pairs at a time, in their order.
  for (uint32_t start = 0; start < n_pairs; start += 256) {
    const uint32_t pair = start + threadIdx.x;
    const bool mine = pair < n_pairs && choices[pair].expert == expert;
    const uint32_t mask = __ballot_sync(~0u, mine);
    __syncthreads();
    if (lane == 0) sums[0][warp] = __popc(mask);
    __syncthreads();
    uint32_t at = row + __popc(mask & ((1u << lane) - 1));
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (i < warp) at += sums[0][i];
      row += sums[0][i];
    }
    if (mine) {
      order[at] = pair;
      place[pair] = at;
    }
  }
  let_next_start();
}

// Cuts each expert's rows into tiles: block 0 of 64 rows, block 1 of 128. At most 512 experts.
extern "C" __global__ void __launch_bounds__(512)
    moe_tiles(ExpertTile* tiles64, uint32_t n_tiles64, ExpertTile* tiles128, uint32_t n_tiles128,
              const uint32_t* starts, uint32_t n_expert) {
  __shared__ uint32_t sums[16];
  ExpertTile* tiles = blockIdx.x == 0 ? tiles64 : tiles128;
  const uint32_t n_tiles = blockIdx.x == 0 ? n_tiles64 : n_tiles128;
  const uint32_t height = blockIdx.x == 0 ? 64 : 128;
  const uint32_t expert = threadIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  wait_for_previous();
  const uint32_t first = expert < n_expert ? starts[expert] : 0;
  const uint32_t n_rows = expert < n_expert ? starts[expert + 1] - first : 0;
  const uint32_t n = (n_rows + height - 1) / height;
  // Tiles of the experts before this one.
  uint32_t at = n;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const uint32_t left = __shfl_up_sync(~0u, at, o);
    if (lane >= o) at += left;
  }
  if (lane == 31) sums[warp] = at;
  __syncthreads();
  uint32_t all = 0;
  for (int i = 0; i < 16; i++) {
    if (i < warp) at += sums[i];
    all += sums[i];
  }
  at -= n;
  for (uint32_t i = 0; i < n && at + i < n_tiles; i++) {
    tiles[at + i] = {expert, first + i * height, min(height, n_rows - i * height), 0};
  }
  for (uint32_t i = all + threadIdx.x; i < n_tiles; i += 512) tiles[i] = {0, 0, 0, 0};
  let_next_start();
}

// Row i of `to` is the row of the token of pair order[i] of `from`, in the forms that `to` has. A
// block a row; `width` is a multiple of 32.
extern "C" __global__ void __launch_bounds__(128)
    moe_gather(const Operand to, const Operand from, const uint32_t* order, uint32_t n_used, uint32_t width) {
  wait_for_previous();
  const size_t row = static_cast<size_t>(blockIdx.x) * width;
  const size_t token = static_cast<size_t>(order[blockIdx.x] / n_used) * width;
  if (to.q) {
    for (uint32_t k = threadIdx.x * 16; k < width; k += 128 * 16)
      *reinterpret_cast<uint4*>(to.q + row + k) = *reinterpret_cast<const uint4*>(from.q + token + k);
    for (uint32_t k = threadIdx.x; k < width / 32; k += 128)
      to.ds[row / 32 + k] = from.ds[token / 32 + k];
  }
  if (to.bf16) {
    for (uint32_t k = threadIdx.x * 8; k < width; k += 128 * 8)
      *reinterpret_cast<uint4*>(to.bf16 + row + k) = *reinterpret_cast<const uint4*>(from.bf16 + token + k);
  }
  let_next_start();
}

// x[t] += the weighted sum of what the token's experts made of it, in the order of its choices,
// products rounded. `place`: the row of each pair, or null where pairs are rows.
extern "C" __global__ void __launch_bounds__(256)
    moe_add(float* x, const float* y, const Choice* choices, const uint32_t* place, uint32_t n_used,
            uint32_t width) {
  wait_for_previous();
  const uint32_t k = blockIdx.x * 256 + threadIdx.x, token = blockIdx.y;
  if (k >= width) return;
  float sum = 0.0f;
  for (uint32_t i = 0; i < n_used; i++) {
    const uint32_t pair = token * n_used + i, row = place ? place[pair] : pair;
    const float term = __fmul_rn(choices[pair].weight, y[static_cast<size_t>(row) * width + k]);
    sum = i == 0 ? term : __fadd_rn(sum, term);
  }
  let_next_start();
  x[static_cast<size_t>(token) * width + k] += sum;
}
