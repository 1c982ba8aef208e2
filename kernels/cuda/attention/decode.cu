// Attention of few queries: the positions are split over blocks, each with an online softmax of
// its own, and a second kernel puts the parts together.
//
// Layouts as in prefill.cu. A block takes one KV head, one part of the positions, one token, and up
// to NG of the query heads that share the KV head. LANES lanes hold a position's HD elements, eight
// each; the block's lane groups take positions in turn.
#include "../common.cuh"

struct DecodeJob {
  const float* q;
  const __half* k;
  const __half* v;
  const uint32_t* first_pos;
  float* part_out;   // [n_tokens, n_head, n_parts, HD]
  float2* part_ml;   // [n_tokens, n_head, n_parts]: maximum (base 2) and sum
  uint32_t shift;
  uint32_t n_tokens;
  uint32_t n_head;
  uint32_t n_head_kv;
  uint32_t n_parts;
  uint32_t window;
  float scale;
  float soft_cap;
};

constexpr float LOG2E = 1.4426950408889634f;
constexpr int THREADS = 128;

DEV void unpack8(const uint4& raw, float (&out)[8]) {
  const uint32_t w[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&w[i]));
    out[2 * i] = two.x;
    out[2 * i + 1] = two.y;
  }
}

template <int HD, int NG>
DEV void decode(const DecodeJob& job) {
  constexpr int LANES = HD <= 64 ? 8 : HD <= 128 ? 16 : 32;
  constexpr int GROUPS = THREADS / LANES;
  static_assert(LANES * 8 >= HD, "");
  const int group_heads = job.n_head / job.n_head_kv;
  const int n_rounds = (group_heads + NG - 1) / NG;
  const int kv_head = blockIdx.x / n_rounds, round = blockIdx.x % n_rounds;
  const int part = blockIdx.y, token = blockIdx.z;
  const int head0 = kv_head * group_heads + round * NG;
  const int n_heads = min(NG, group_heads - round * NG);
  const int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const bool holds = lane * 8 < HD;
  wait_for_previous();
  const int at = *job.first_pos + job.shift + token, n_kv = at + 1;
  const int start = job.window && n_kv > static_cast<int>(job.window) ? n_kv - job.window : 0;
  // Whole rounds of the block's groups, so that short sequences use few parts well.
  const int per_part = ((n_kv - start + job.n_parts - 1) / job.n_parts + GROUPS - 1) / GROUPS * GROUPS;
  const int first = start + part * per_part, end = min(n_kv, first + per_part);
  if (first >= end) {
    // Nothing here: the sum says so, and the other kernel does not look at the rest.
    for (int h = threadIdx.x; h < n_heads; h += THREADS) {
      job.part_ml[(static_cast<size_t>(token) * job.n_head + head0 + h) * job.n_parts + part] =
          make_float2(-INFINITY, 0.0f);
    }
    return;
  }
  const float factor = job.soft_cap > 0.0f ? job.scale : job.scale * LOG2E;
  float q[NG][8] = {};
#pragma unroll
  for (int h = 0; h < NG; h++) {
    if (h < n_heads && holds) {
      const float* from = job.q + (static_cast<size_t>(token) * job.n_head + head0 + h) * HD + lane * 8;
#pragma unroll
      for (int i = 0; i < 8; i++) q[h][i] = from[i] * factor;
    }
  }
  float m[NG], l[NG] = {}, out[NG][8] = {};
#pragma unroll
  for (int h = 0; h < NG; h++) m[h] = -INFINITY;
  const size_t stride = static_cast<size_t>(job.n_head_kv) * HD;
  const __half* k = job.k + kv_head * HD + lane * 8;
  const __half* v = job.v + kv_head * HD + lane * 8;
  // The next position's keys and values are on their way while this one's are used.
  uint4 k_next = make_uint4(0, 0, 0, 0), v_next = k_next;
  const auto fetch = [&](int p) {
    if (p < end && holds) {
      k_next = *reinterpret_cast<const uint4*>(k + p * stride);
      v_next = *reinterpret_cast<const uint4*>(v + p * stride);
    }
  };
  fetch(first + group);
  // All groups of a warp make the same number of rounds: shuffles need every lane.
  for (int base = first; base < end; base += GROUPS) {
    const bool there = base + group < end;
    float ks[8], vs[8];
    unpack8(k_next, ks);
    unpack8(v_next, vs);
    fetch(base + group + GROUPS);
#pragma unroll
    for (int h = 0; h < NG; h++) {
      float s = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; i++) s = fmaf(q[h][i], ks[i], s);
#pragma unroll
      for (int o = LANES / 2; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
      if (job.soft_cap > 0.0f) s = job.soft_cap * tanhf(s / job.soft_cap) * LOG2E;
      if (!there) s = -INFINITY;
      const float top = fmaxf(m[h], s);
      const float safe = top == -INFINITY ? 0.0f : top;
      const float bend = exp2f(m[h] - safe), weight = exp2f(s - safe);
      m[h] = top;
      l[h] = l[h] * bend + weight;
#pragma unroll
      for (int i = 0; i < 8; i++) out[h][i] = fmaf(weight, vs[i], out[h][i] * bend);
    }
  }
  // The block's groups, put together a head at a time.
  __shared__ float2 ml[GROUPS];
  __shared__ float sums[GROUPS][LANES * 8];
#pragma unroll
  for (int h = 0; h < NG; h++) {
    if (h >= n_heads) break;
    if (lane == 0) ml[group] = make_float2(m[h], l[h]);
#pragma unroll
    for (int i = 0; i < 8; i++) sums[group][lane * 8 + i] = out[h][i];
    __syncthreads();
    float top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) top = fmaxf(top, ml[i].x);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) sum += exp2f(ml[i].x - top) * ml[i].y;
    const size_t slot = (static_cast<size_t>(token) * job.n_head + head0 + h) * job.n_parts + part;
    for (int d = threadIdx.x; d < HD; d += THREADS) {
      float total = 0.0f;
#pragma unroll
      for (int i = 0; i < GROUPS; i++) total += exp2f(ml[i].x - top) * sums[i][d];
      job.part_out[slot * HD + d] = total;
    }
    if (threadIdx.x == 0) job.part_ml[slot] = make_float2(top, sum);
    __syncthreads();
  }
  let_next_start();
}

// Puts the parts together, for ELEMS elements of the rows [n_tokens, n_head * head_dim] a block;
// `width` is n_head * head_dim, a multiple of 32. SPLIT threads share an element's parts, so that many
// loads are on their way at once. Grid: (width / ELEMS rounded up, n_tokens).
constexpr int ELEMS = 64, SPLIT = 4;

extern "C" __global__ void __launch_bounds__(ELEMS * SPLIT)
    attention_combine(Operand out, const float* part_out, const float2* part_ml, uint32_t n_parts,
                      uint32_t head_dim, uint32_t width) {
  wait_for_previous();
  const uint32_t element = threadIdx.x % ELEMS, split = threadIdx.x / ELEMS;
  const uint32_t i = blockIdx.x * ELEMS + element;
  __shared__ float tops[SPLIT][ELEMS], sums[SPLIT][ELEMS], totals[SPLIT][ELEMS];
  float top = -INFINITY, sum = 0.0f, total = 0.0f;
  if (i < width) {
    const uint32_t head = i / head_dim, d = i % head_dim, n_head = width / head_dim;
    const size_t slot = (static_cast<size_t>(blockIdx.y) * n_head + head) * n_parts;
#pragma unroll 8
    for (uint32_t p = split; p < n_parts; p += SPLIT) top = fmaxf(top, part_ml[slot + p].x);
#pragma unroll 8
    for (uint32_t p = split; p < n_parts; p += SPLIT) {
      const float2 ml = part_ml[slot + p];
      const bool has = ml.y > 0.0f;
      // What a part without positions left there is not looked at.
      const float value = has ? part_out[(slot + p) * head_dim + d] : 0.0f;
      const float bend = has ? exp2f(ml.x - top) : 0.0f;
      sum += bend * ml.y;
      total += bend * value;
    }
  }
  tops[split][element] = top;
  sums[split][element] = sum;
  totals[split][element] = total;
  __syncthreads();
  if (split > 0 || i >= width) return;
#pragma unroll
  for (int s = 1; s < SPLIT; s++) top = fmaxf(top, tops[s][element]);
  sum = total = 0.0f;
#pragma unroll
  for (int s = 0; s < SPLIT; s++) {
    const float bend = sums[s][element] > 0.0f ? exp2f(tops[s][element] - top) : 0.0f;
    sum += bend * sums[s][element];
    total += bend * totals[s][element];
  }
  put_operand(out, static_cast<size_t>(blockIdx.y) * width + i, sum > 0.0f ? total / sum : 0.0f);
  let_next_start();
}

#define KERNEL(HD, NG)                                                      \
  extern "C" __global__ void __launch_bounds__(128)                         \
      attention_decode_##HD##_##NG(const __grid_constant__ DecodeJob job) { \
    decode<HD, NG>(job);                                                    \
  }
#define KERNELS(HD) KERNEL(HD, 1) KERNEL(HD, 4) KERNEL(HD, 8)
KERNELS(64)
KERNELS(80)
KERNELS(96)
KERNELS(128)
KERNELS(256)
