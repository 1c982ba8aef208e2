// Causal attention of many queries on Hopper: products of four warps (f16 operands, f32 sums), keys
// and values brought by the copy engine. docs/KERNELS.md, section 7, has the layout and the barriers.
//
// q [n_tokens, n_head, HD] f32; caches [position, n_head_kv, HD] f16. Blocks stay and take items (128
// queries of one head), the longest first. Two warpgroups attend 64 queries each; the third brings
// keys and values (one thread) and the next item's queries (three warps).
#include "hopper.cuh"

// Other architectures have none of this: their part of the module is empty.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct AttentionWgmmaJob {
  TensorMap k;  // [position][n_head_kv * HD], boxes of BN positions x 64 elements
  TensorMap v;
  const float* q;
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
constexpr int BM = 128;         // queries of an item
constexpr int N_CONSUMERS = 2;  // warpgroups

// Shared memory: queries, then stages of keys, then of values, each as columns of 64 elements
// (`half`s) of 128-byte rows; barriers at its end.
template <int HD>
struct Plan {
  static constexpr int BN = HD > 128 ? 64 : 128;  // keys of a tile
  static constexpr int HALVES = HD / 64;
  static constexpr int Q_BUFFERS = HD > 128 ? 1 : 2;
  static constexpr int STAGES = 2;
  static constexpr uint32_t Q_HALF = BM * 128, Q_BYTES = HALVES * Q_HALF;
  static constexpr uint32_t KV_HALF = BN * 128, KV_BYTES = HALVES * KV_HALF;
  static constexpr uint32_t Q = 0, K = Q + Q_BUFFERS * Q_BYTES, V = K + STAGES * KV_BYTES;
  static constexpr uint32_t BARRIERS = V + STAGES * KV_BYTES;
  static constexpr uint32_t Q_FULL = BARRIERS, Q_EMPTY = Q_FULL + 16, K_FULL = Q_EMPTY + 16,
                            K_EMPTY = K_FULL + 8 * STAGES, V_FULL = K_EMPTY + 8 * STAGES,
                            V_EMPTY = V_FULL + 8 * STAGES, BYTES = V_EMPTY + 8 * STAGES;
  // What a product with 64 or 128 columns adds to.
  static constexpr int ON = HD > 64 ? 128 : 64, OUTS = HD / ON;
};

// attention_wgmma.rs, which launches these, reads the numbers from here: one line a kernel.
static_assert(BM == 128 && Plan<64>::BN == 128 && Plan<64>::BYTES == 98400, "");
static_assert(BM == 128 && Plan<128>::BN == 128 && Plan<128>::BYTES == 196704, "");
static_assert(BM == 128 && Plan<256>::BN == 64 && Plan<256>::BYTES == 196704, "");

// One item: 128 queries of a head, and the tiles of keys that they see, from `top` down to `last`.
struct Item {
  int tile, head, first_pos, top, last;
};

template <int BN>
DEV Item item_at(const AttentionWgmmaJob& job, int first_pos, int index) {
  Item item;
  const int n_tiles = (job.n_tokens + BM - 1) / BM;
  item.tile = n_tiles - 1 - index / static_cast<int>(job.n_head);
  item.head = index % job.n_head;
  item.first_pos = first_pos + item.tile * BM;
  const int last_row = min((item.tile + 1) * BM, static_cast<int>(job.n_tokens)) - 1;
  item.top = (first_pos + last_row) / BN;
  item.last = 0;
  if (job.window) item.last = max(0, item.first_pos - static_cast<int>(job.window) + 1) / BN;
  return item;
}

// Blocks take one item of each round of as many items as there are blocks, in turn from the front
// and from the back: items get shorter, and so the sums are alike.
DEV int next_item(int round) {
  const int n = gridDim.x, at = blockIdx.x;
  return round * n + (round & 1 ? n - 1 - at : at);
}

// Queries as f16 times `factor` into a buffer; `thread` of `n_threads`, rows `first..first + n_rows`.
template <int HD>
DEV void load_queries(const AttentionWgmmaJob& job, const Item& item, uint8_t* to, float factor,
                      int first, int n_rows, int thread, int n_threads) {
  constexpr int PIECES = HD / 8, AT_ONCE = 4;
  const int n = n_rows * PIECES;
  for (int base = thread; base < n; base += n_threads * AT_ONCE) {
    float4 v[AT_ONCE][2];
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
      const int i = base + j * n_threads, row = item.tile * BM + first + i / PIECES;
      v[j][0] = v[j][1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (i < n && row < job.n_tokens) {
        const float4* from = reinterpret_cast<const float4*>(
            job.q + (static_cast<size_t>(row) * job.n_head + item.head) * HD + i % PIECES * 8);
        v[j][0] = from[0];
        v[j][1] = from[1];
      }
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
      const int i = base + j * n_threads, row = first + i / PIECES, piece = i % PIECES;
      if (i >= n) break;
      const uint4 packed =
          make_uint4(pack_f16(v[j][0].x * factor, v[j][0].y * factor),
                     pack_f16(v[j][0].z * factor, v[j][0].w * factor),
                     pack_f16(v[j][1].x * factor, v[j][1].y * factor),
                     pack_f16(v[j][1].z * factor, v[j][1].w * factor));
      const uint32_t at = piece / 8 * Plan<HD>::Q_HALF + row * 128 + (piece % 8 ^ row % 8) * 16;
      *reinterpret_cast<uint4*>(to + at) = packed;
    }
  }
}

// Brings keys and values of all of a block's items, in the order in which they are used.
template <int HD>
DEV void bring(const AttentionWgmmaJob& job, uint32_t shared, int first_pos, int n_items) {
  using P = Plan<HD>;
  uint32_t k_step = 0, v_step = 0;
  const auto box = [&](const TensorMap& map, uint32_t to, uint32_t full, uint32_t empty, uint32_t& step,
                       int column, int tile) {
    const uint32_t stage = step % P::STAGES, turn = step / P::STAGES & 1;
    barrier_wait(shared + empty + 8 * stage, turn ^ 1);
    barrier_expect(shared + full + 8 * stage, P::KV_BYTES);
#pragma unroll
    for (int half = 0; half < P::HALVES; half++) {
      copy_box(shared + to + stage * P::KV_BYTES + half * P::KV_HALF, map, column + half * 64,
               tile * P::BN, shared + full + 8 * stage);
    }
    step++;
  };
  const int group = job.n_head / job.n_head_kv;
  for (int round = 0, index; (index = next_item(round)) < n_items; round++) {
    const Item item = item_at<P::BN>(job, first_pos, index);
    const int column = item.head / group * HD;
    box(job.k, P::K, P::K_FULL, P::K_EMPTY, k_step, column, item.top);
    for (int tile = item.top; tile >= item.last; tile--) {
      if (tile > item.last) box(job.k, P::K, P::K_FULL, P::K_EMPTY, k_step, column, tile - 1);
      box(job.v, P::V, P::V_FULL, P::V_EMPTY, v_step, column, tile);
    }
  }
}

// Queries of a block's second and later items, by three warps.
template <int HD>
DEV void bring_queries(const AttentionWgmmaJob& job, uint8_t* shared, uint32_t at, int first_pos,
                       int n_items, float factor) {
  using P = Plan<HD>;
  const int thread = threadIdx.x % 128 - 32;
  for (int round = 1, index; (index = next_item(round)) < n_items; round++) {
    const uint32_t buffer = round % P::Q_BUFFERS, turn = round / P::Q_BUFFERS & 1;
    const Item item = item_at<P::BN>(job, first_pos, index);
    barrier_wait(at + P::Q_EMPTY + 8 * buffer, turn ^ 1);
    load_queries<HD>(job, item, shared + P::Q + buffer * P::Q_BYTES, factor, 0, BM, thread, 96);
    shared_is_written();
    barrier_arrive(at + P::Q_FULL + 8 * buffer);
  }
}

DEV float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// cap * tanh(s / cap), as an exponent of two.
DEV float bend_score(float s, float cap) {
  const float e = exp2_fast(2.0f * LOG2E / cap * s);
  return cap * LOG2E * (1.0f - __fdividef(2.0f, 1.0f + e));
}

// Running maxima and sums of a lane's two rows.
struct Softmax {
  float m[2], l[2];

  // Scores become weights; returns the factors that bring older sums to the new maxima.
  template <int N>
  DEV float2 weigh(float (&s)[N]) {
    float bend[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float top = m[r];
#pragma unroll
      for (int i = 0; i < N / 4; i++) top = fmaxf(top, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float base = top == -INFINITY ? 0.0f : top;
      bend[r] = exp2_fast(m[r] - base);
      m[r] = top;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < N / 4; i++) {
        s[4 * i + 2 * r] = exp2_fast(s[4 * i + 2 * r] - base);
        s[4 * i + 2 * r + 1] = exp2_fast(s[4 * i + 2 * r + 1] - base);
        sum += s[4 * i + 2 * r] + s[4 * i + 2 * r + 1];
      }
      l[r] = l[r] * bend[r] + sum;
    }
    return make_float2(bend[0], bend[1]);
  }
};

template <int HD>
struct Consumer {
  using P = Plan<HD>;
  static constexpr int BN = P::BN;
  const AttentionWgmmaJob& job;
  uint8_t* shared;
  uint32_t at;   // its address
  int group;     // which of the two warpgroups
  uint32_t k_step = 0, v_step = 0;

  // Starts scores of a tile: s = q k^T.
  DEV void start_scores(float (&s)[BN / 2], uint32_t q, uint32_t stage) {
    const uint32_t k = at + P::K + stage * P::KV_BYTES;
#pragma unroll
    for (int d = 0; d < HD / 16; d++) {
      Wgmma<BN>::ss(s, matrix(q + d / 4 * P::Q_HALF + d % 4 * 32), matrix(k + d / 4 * P::KV_HALF + d % 4 * 32),
                    d > 0);
    }
    products_commit();
  }

  // Starts out += weights v.
  DEV void start_out(float (&out)[P::OUTS][P::ON / 2], const uint32_t (&p)[BN / 4], uint32_t stage) {
    const uint32_t v = at + P::V + stage * P::KV_BYTES;
#pragma unroll
    for (int n = 0; n < BN / 16; n++) {
#pragma unroll
      for (int o = 0; o < P::OUTS; o++) {
        Wgmma<P::ON>::rs(out[o], p + 4 * n, matrix(v + 2 * o * P::KV_HALF + n * 2048, P::KV_HALF), true);
      }
    }
    products_commit();
  }

  // Keys after a query and keys that have left its window.
  DEV void mask(float (&s)[BN / 2], const Item& item, int tile) {
    const int low = item.first_pos + group * 64, key = tile * BN, window = job.window;
    if (job.soft_cap > 0.0f) {
#pragma unroll
      for (int i = 0; i < BN / 2; i++) s[i] = bend_score(s[i], job.soft_cap);
    }
    if (key + BN <= low + 1 && (!window || low + 63 - key < window)) return;
    const int lane = threadIdx.x & 31, pos = low + (threadIdx.x % 128 >> 5) * 16 + (lane >> 2);
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
      const int p = key + i / 4 * 8 + (lane & 3) * 2 + (i & 1), mine = pos + (i >> 1 & 1) * 8;
      if (p > mine || (window && mine - p >= window)) s[i] = -INFINITY;
    }
  }

  // Values beyond the last position are not finite, perhaps: zeros, before weights of 0 meet them.
  DEV void clear_values(const Item& item, uint32_t stage, int n_kv) {
    const int first = n_kv - item.top * BN;
    uint8_t* v = shared + P::V + stage * P::KV_BYTES;
    for (int i = threadIdx.x % 128; i < (BN - first) * 8; i += 128) {
#pragma unroll
      for (int half = 0; half < P::HALVES; half++) {
        *reinterpret_cast<uint4*>(v + half * P::KV_HALF + first * 128 + i * 16) = make_uint4(0, 0, 0, 0);
      }
    }
    shared_is_written();
    meet(3 + group, 128);
  }

  DEV void wait_values(const Item& item, int tile, int n_kv) {
    barrier_wait(at + P::V_FULL + 8 * (v_step % P::STAGES), v_step / P::STAGES & 1);
    if (tile == item.top && (tile + 1) * BN > n_kv) clear_values(item, v_step % P::STAGES, n_kv);
  }

  // One arrival a warp.
  DEV void release(uint32_t barrier) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(at + barrier);
  }

  static DEV void pack(uint32_t (&p)[BN / 4], const float (&s)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < BN / 4; i++) p[i] = pack_f16(s[2 * i], s[2 * i + 1]);
  }

  DEV void write(const Item& item, float (&out)[P::OUTS][P::ON / 2], Softmax& soft) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float l = soft.l[r];
      l += __shfl_xor_sync(~0u, l, 1);
      l += __shfl_xor_sync(~0u, l, 2);
      const float inv = l > 0.0f ? 1.0f / l : 0.0f;
      const int row = item.tile * BM + group * 64 + (threadIdx.x % 128 >> 5) * 16 + (lane >> 2) + r * 8;
      if (row >= job.n_tokens) continue;
      const size_t to = (static_cast<size_t>(row) * job.n_head + item.head) * HD + (lane & 3) * 2;
#pragma unroll
      for (int d = 0; d < HD / 8; d++) {
        const float a = out[d * 8 / P::ON][d % (P::ON / 8) * 4 + 2 * r] * inv;
        const float b = out[d * 8 / P::ON][d % (P::ON / 8) * 4 + 2 * r + 1] * inv;
        if (job.out) *reinterpret_cast<float2*>(job.out + to + d * 8) = make_float2(a, b);
        if (job.out_bf16) *reinterpret_cast<uint32_t*>(job.out_bf16 + to + d * 8) = pack_bf16(a, b);
      }
    }
  }

  DEV void attend(const Item& item, uint32_t q_buffer, int n_kv) {
    const uint32_t q = at + P::Q + q_buffer * P::Q_BYTES + group * 64 * 128;
    float s[BN / 2], out[P::OUTS][P::ON / 2];
    uint32_t p[BN / 4];
    Softmax soft = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
    for (int o = 0; o < P::OUTS; o++) {
#pragma unroll
      for (int i = 0; i < P::ON / 2; i++) out[o][i] = 0.0f;
    }
    const auto k_full = [&] { barrier_wait(at + P::K_FULL + 8 * (k_step % P::STAGES), k_step / P::STAGES & 1); };
    k_full();
    products_fence();
    start_scores(s, q, k_step % P::STAGES);
    products_wait<0>();
    release(P::K_EMPTY + 8 * (k_step++ % P::STAGES));
    mask(s, item, item.top);
    soft.weigh(s);
    pack(p, s);
    for (int tile = item.top - 1; tile >= item.last; tile--) {
      k_full();
      // The other warpgroup weighs while this one's products run, and the other way round.
      meet(1 + group, 256);
      products_fence();
      start_scores(s, q, k_step % P::STAGES);
      wait_values(item, tile + 1, n_kv);
      start_out(out, p, v_step % P::STAGES);
      pass(2 - group, 256);
      products_wait<1>();
      pin(s);
      release(P::K_EMPTY + 8 * (k_step++ % P::STAGES));
      mask(s, item, tile);
      const float2 bend = soft.weigh(s);
      products_wait<0>();
      release(P::V_EMPTY + 8 * (v_step++ % P::STAGES));
#pragma unroll
      for (int o = 0; o < P::OUTS; o++) {
        pin(out[o]);
#pragma unroll
        for (int i = 0; i < P::ON / 2; i++) out[o][i] *= i & 2 ? bend.y : bend.x;
      }
      pack(p, s);
    }
    release(P::Q_EMPTY + 8 * q_buffer);
    wait_values(item, item.last, n_kv);
    products_fence();
    start_out(out, p, v_step % P::STAGES);
    products_wait<0>();
    release(P::V_EMPTY + 8 * (v_step++ % P::STAGES));
#pragma unroll
    for (int o = 0; o < P::OUTS; o++) pin(out[o]);
    write(item, out, soft);
  }

  DEV void run(int first_pos, int n_items, float factor) {
    if (group == 1) pass(1, 256);  // the first warpgroup begins
    for (int round = 0, index; (index = next_item(round)) < n_items; round++) {
      const Item item = item_at<BN>(job, first_pos, index);
      const uint32_t buffer = round % P::Q_BUFFERS;
      if (round == 0) {
        load_queries<HD>(job, item, shared + P::Q, factor, group * 64, 64, threadIdx.x % 128, 128);
        shared_is_written();
        meet(3 + group, 128);
      } else {
        barrier_wait(at + P::Q_FULL + 8 * buffer, (round / P::Q_BUFFERS & 1) ^ (buffer == 0));
      }
      attend(item, buffer, first_pos + job.n_tokens);
    }
  }
};

template <int HD>
DEV void attend_all(const AttentionWgmmaJob& job) {
  using P = Plan<HD>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t at = shared_address(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; i++) {
      barrier_init(at + P::Q_FULL + 8 * i, 96);
      barrier_init(at + P::Q_EMPTY + 8 * i, 4 * N_CONSUMERS);
    }
    for (int i = 0; i < P::STAGES; i++) {
      barrier_init(at + P::K_FULL + 8 * i, 1);
      barrier_init(at + P::K_EMPTY + 8 * i, 4 * N_CONSUMERS);
      barrier_init(at + P::V_FULL + 8 * i, 1);
      barrier_init(at + P::V_EMPTY + 8 * i, 4 * N_CONSUMERS);
    }
    shared_is_written();
  }
  __syncthreads();
  wait_for_previous();
  const int first_pos = *job.first_pos + job.shift;
  const int n_items = (job.n_tokens + BM - 1) / BM * job.n_head;
  // Scaled so that scores are exponents of two (where nothing bends them in between).
  const float factor = job.soft_cap > 0.0f ? job.scale : job.scale * LOG2E;
  const int group = threadIdx.x / 128;
  if (group == N_CONSUMERS) {
    registers_down<72>();
    if (threadIdx.x % 128 == 0) {
      bring<HD>(job, at, first_pos, n_items);
    } else if (threadIdx.x % 128 >= 32) {
      bring_queries<HD>(job, shared, at, first_pos, n_items, factor);
    }
  } else {
    registers_up<216>();
    Consumer<HD>{job, shared, at, group}.run(first_pos, n_items, factor);
  }
  let_next_start();
}

#define KERNEL(HD)                                                                   \
  extern "C" __global__ void __launch_bounds__(384, 1)                               \
      attention_wgmma_##HD(const __grid_constant__ AttentionWgmmaJob job) {          \
    attend_all<HD>(job);                                                             \
  }
KERNEL(64)
KERNEL(128)
KERNEL(256)
#endif
