// Attention of few queries: the positions are split over blocks, each with an online softmax of
// its own, and a second kernel puts the parts together.
//
// The kernels named `fresh` begin a step of one token earlier: they normalize and rotate its queries
// and key themselves and store its key and value.
//
// Layouts as in prefill.cu. A block takes one KV head, one part of the positions, one token, and up
// to NG of the query heads that share the KV head. LANES lanes hold a position's HD elements, eight
// each; the block's lane groups take positions in turn.
#include "../common.cuh"
#include "../rope/rotate.cuh"

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
  // The kernels that rotate: keys and values of the one token, which go into the cache; angles; and
  // the gains of norms over queries' and keys' heads, or null.
  const float* k_new;
  const float* v_new;
  __half* k_cache;
  __half* v_cache;
  const float2* table;
  const float* q_gain;
  const float* k_gain;
  float eps;
  uint32_t n_steps;
  uint32_t neox;
};

constexpr float LOG2E = 1.4426950408889634f;
constexpr int THREADS = 128;
// Positions that a group of lanes takes at once.
constexpr int AT_ONCE = 2;

DEV void unpack8(const uint4& raw, float (&out)[8]) {
  const uint32_t w[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&w[i]));
    out[2 * i] = two.x;
    out[2 * i + 1] = two.y;
  }
}

// Asks for a line of 128 bytes to be brought to the second-level cache.
DEV void ask_for(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Queries of the block's heads, and behind them the new key if `has_key`: normalized where there are
// gains, rotated; the key and the new value go into the cache. As rmsnorm_heads and rope_store.
template <int HD>
DEV void make_fresh(const DecodeJob& job, float* fresh, int head0, int n_heads, int kv_head, int at,
                    bool has_key, float2 angle) {
  const int n_rows = n_heads + has_key, lane = threadIdx.x & 31;
  for (int h = threadIdx.x >> 5; h < n_rows; h += THREADS / 32) {
    const bool is_key = h == n_heads;
    const float* from = is_key ? job.k_new + kv_head * HD : job.q + (head0 + h) * HD;
    const float* gain = is_key ? job.k_gain : job.q_gain;
    float sum = 0.0f;
    for (int k = lane; k < HD; k += 32) {
      const float v = from[k];
      fresh[h * HD + k] = v;
      sum += v * v;
    }
    if (gain) {
      const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(static_cast<uint32_t>(HD)) + job.eps);
      for (int k = lane; k < HD; k += 32) fresh[h * HD + k] = fresh[h * HD + k] * scale * gain[k];
    }
  }
  __syncthreads();
  const int n_steps = job.n_steps;
  for (int i = threadIdx.x; i < n_rows * n_steps; i += THREADS) {
    const int step = i % n_steps;
    // Where a thread's pairs of all heads have one angle it is there already.
    const float2 cs = THREADS % n_steps == 0 ? angle : job.table[static_cast<size_t>(at) * n_steps + step];
    rotate_pair(fresh + i / n_steps * HD, step, n_steps, job.neox, cs);
  }
  __syncthreads();
  if (has_key) {
    const size_t to = (static_cast<size_t>(at) * job.n_head_kv + kv_head) * HD;
    for (int k = threadIdx.x; k < HD; k += THREADS) {
      job.k_cache[to + k] = __float2half_rn(fresh[n_heads * HD + k]);
      job.v_cache[to + k] = __float2half_rn(job.v_new[kv_head * HD + k]);
    }
    __syncthreads();
  }
}

// Positions of a part: whole rounds of a block's groups, so that short sequences use few parts well.
DEV int part_len(int n_positions, int n_parts, int n_groups) {
  return ((n_positions + n_parts - 1) / n_parts + n_groups - 1) / n_groups * n_groups;
}

template <int HD, int NG, bool FRESH>
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
  let_next_start();
  // A step begins when the one before it has ended, so its position, and the cache before that
  // position, are there already.
  if (!FRESH) wait_for_previous();
  const int at = *job.first_pos + job.shift + token, n_kv = at + 1;
  const int start = job.window && n_kv > static_cast<int>(job.window) ? n_kv - job.window : 0;
  const int per_part = part_len(n_kv - start, job.n_parts, AT_ONCE * GROUPS);
  const int first = start + part * per_part, end = min(n_kv, first + per_part);
  if (first >= end) return;  // attention_combine knows how many parts there are
  const size_t stride = static_cast<size_t>(job.n_head_kv) * HD;
  const __half* k = job.k + kv_head * HD + lane * 8;
  const __half* v = job.v + kv_head * HD + lane * 8;
  // The next positions' keys and values are on their way while these are used.
  uint4 k_next[AT_ONCE] = {}, v_next[AT_ONCE] = {};
  const auto fetch = [&](int base, int end) {
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      const int p = base + u * GROUPS;
      if (p < end && holds) {
        k_next[u] = *reinterpret_cast<const uint4*>(k + p * stride);
        v_next[u] = *reinterpret_cast<const uint4*>(v + p * stride);
      }
    }
  };
  float2 angle{};
  if (FRESH) {
    angle = job.table[static_cast<size_t>(at) * job.n_steps + threadIdx.x % job.n_steps];
    fetch(first + group, min(end, at));
    for (int p = first + group + AT_ONCE * GROUPS; p < min(end, at); p += GROUPS) {
      if (lane % 8 == 0 && holds) {
        ask_for(k + p * stride);
        ask_for(v + p * stride);
      }
    }
    wait_for_previous();
  }
  __shared__ float fresh[FRESH ? (NG + 1) * HD : 1];
  if (FRESH) make_fresh<HD>(job, fresh, head0, n_heads, kv_head, at, end == n_kv, angle);
  const float factor = job.soft_cap > 0.0f ? job.scale : job.scale * LOG2E;
  float q[NG][8] = {};
#pragma unroll
  for (int h = 0; h < NG; h++) {
    if (h < n_heads && holds) {
      const float* from = FRESH ? fresh + h * HD + lane * 8
                                : job.q + (static_cast<size_t>(token) * job.n_head + head0 + h) * HD + lane * 8;
#pragma unroll
      for (int i = 0; i < 8; i++) q[h][i] = from[i] * factor;
    }
  }
  float m[NG], l[NG] = {}, out[NG][8] = {};
#pragma unroll
  for (int h = 0; h < NG; h++) m[h] = -INFINITY;
  // Again, if the new position is among the first: it is there now.
  if (!FRESH || at < first + AT_ONCE * GROUPS) fetch(first + group, end);
  // All groups of a warp make the same number of rounds: shuffles need every lane.
  for (int base = first; base < end; base += AT_ONCE * GROUPS) {
    float scores[AT_ONCE][NG];
    uint4 v_now[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      float ks[8];
      unpack8(k_next[u], ks);
      v_now[u] = v_next[u];
#pragma unroll
      for (int h = 0; h < NG; h++) {
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) s = fmaf(q[h][i], ks[i], s);
        scores[u][h] = s;
      }
    }
    fetch(base + group + AT_ONCE * GROUPS, end);
#pragma unroll
    for (int o = LANES / 2; o; o >>= 1) {
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
#pragma unroll
        for (int h = 0; h < NG; h++) scores[u][h] += __shfl_xor_sync(~0u, scores[u][h], o);
      }
    }
#pragma unroll
    for (int h = 0; h < NG; h++) {
      float top = m[h];
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        float& s = scores[u][h];
        if (job.soft_cap > 0.0f) s = job.soft_cap * tanhf(s / job.soft_cap) * LOG2E;
        if (base + u * GROUPS + group >= end) s = -INFINITY;
        top = fmaxf(top, s);
      }
      const float safe = top == -INFINITY ? 0.0f : top;
      const float bend = exp2f(m[h] - safe);
      m[h] = top;
      l[h] *= bend;
#pragma unroll
      for (int i = 0; i < 8; i++) out[h][i] *= bend;
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        scores[u][h] = exp2f(scores[u][h] - safe);
        l[h] += scores[u][h];
      }
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      float vs[8];
      unpack8(v_now[u], vs);
#pragma unroll
      for (int h = 0; h < NG; h++) {
#pragma unroll
        for (int i = 0; i < 8; i++) out[h][i] = fmaf(scores[u][h], vs[i], out[h][i]);
      }
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
    const float safe = top == -INFINITY ? 0.0f : top;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) sum += exp2f(ml[i].x - safe) * ml[i].y;
    const size_t slot = (static_cast<size_t>(token) * job.n_head + head0 + h) * job.n_parts + part;
    for (int d = threadIdx.x; d < HD; d += THREADS) {
      float total = 0.0f;
#pragma unroll
      for (int i = 0; i < GROUPS; i++) total += exp2f(ml[i].x - safe) * sums[i][d];
      job.part_out[slot * HD + d] = total;
    }
    if (threadIdx.x == 0) job.part_ml[slot] = make_float2(top, sum);
    __syncthreads();
  }
}

// Puts the parts together, for ELEMS elements of the rows [n_tokens, n_head * head_dim] a block;
// `width` is n_head * head_dim, a multiple of 32. SPLIT threads share an element's parts, so that many
// loads are on their way at once. Grid: (width / ELEMS rounded up, n_tokens).
constexpr int ELEMS = 64, SPLIT = 4;

extern "C" __global__ void __launch_bounds__(ELEMS * SPLIT)
    attention_combine(Operand out, const float* part_out, const float2* part_ml, uint32_t n_parts,
                      uint32_t head_dim, uint32_t width, const uint32_t* first_pos, uint32_t shift,
                      uint32_t window, uint32_t n_groups) {
  wait_for_previous();
  const uint32_t element = threadIdx.x % ELEMS, split = threadIdx.x / ELEMS;
  const uint32_t i = blockIdx.x * ELEMS + element;
  const uint32_t n_kv = *first_pos + shift + blockIdx.y + 1;
  const int n_seen = window && n_kv > window ? window : n_kv;
  // Parts that have positions; there is nothing in the others.
  const int len = part_len(n_seen, n_parts, n_groups);
  const uint32_t n_used = (n_seen + len - 1) / len;
  __shared__ float tops[SPLIT][ELEMS], sums[SPLIT][ELEMS], totals[SPLIT][ELEMS];
  float top = -INFINITY, sum = 0.0f, total = 0.0f;
  if (i < width) {
    const uint32_t head = i / head_dim, d = i % head_dim, n_head = width / head_dim;
    const size_t slot = (static_cast<size_t>(blockIdx.y) * n_head + head) * n_parts;
    // Several parts' loads are on their way at once, and none waits for another.
#pragma unroll 8
    for (uint32_t p = split; p < n_used; p += SPLIT) {
      const float2 ml = part_ml[slot + p];
      const float value = part_out[(slot + p) * head_dim + d];
      const float higher = fmaxf(top, ml.x);
      // Nothing in either has a weight, if so: no difference of infinities.
      const float safe = higher == -INFINITY ? 0.0f : higher;
      const float before = exp2f(top - safe), bend = exp2f(ml.x - safe);
      sum = sum * before + bend * ml.y;
      total = total * before + bend * value;
      top = higher;
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
  // Not before: ring blocks found multiprocessors unlike each other, and two of one launch lay on one. (Those
  // of the output's product cannot any more; nobody measured this earlier since.)
  let_next_start();
}

#define KERNEL(HD, NG)                                                      \
  extern "C" __global__ void __launch_bounds__(128)                         \
      attention_decode_##HD##_##NG(const __grid_constant__ DecodeJob job) { \
    decode<HD, NG, false>(job);                                             \
  }                                                                         \
  extern "C" __global__ void __launch_bounds__(128)                         \
      attention_fresh_##HD##_##NG(const __grid_constant__ DecodeJob job) {  \
    decode<HD, NG, true>(job);                                              \
  }
#define KERNELS(HD) KERNEL(HD, 1) KERNEL(HD, 4)
KERNELS(64)
KERNELS(80)
KERNELS(96)
KERNELS(128)
KERNELS(256)
