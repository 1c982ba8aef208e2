// Attention of one token by clusters: the parameter, shared memory, what is asked for, queries and the new
// position.
#pragma once
#include "../gemm/hopper.cuh"

struct ClusterJob {
  Operand out;  // [n_head, HD]
  const float* q;
  const float* k_new;
  const float* v_new;
  __half* k_cache;  // [position][n_head_kv, HD]
  __half* v_cache;
  const uint32_t* first_pos;
  const float2* table;  // [position][n_steps]
  const float* q_gain;  // of norms over heads, or null
  const float* k_gain;
  uint32_t group;  // query heads of a KV head
  uint32_t n_head_kv;
  uint32_t window;
  float scale;
  float soft_cap;
  float eps;
  uint32_t n_steps;
  uint32_t neox;
  uint32_t lets_in;  // the next kernel, while this one runs
};

// Query heads of a cluster, positions of a tile.
constexpr int HEADS = 8, TILE = 16;
// Blocks of a cluster, at most.
constexpr int MAX_BLOCKS = 16;

template <int HD>
struct ClusterShape {
  static constexpr int WARPS = 8, THREADS = 32 * WARPS;
  // Beside a block of the ring: 18 warps of 56 registers. A multiprocessor's registers are in four parts,
  // and a warp's are all in one of them; 13 warps of 80 registers would do by their sum and do not fit.
  static constexpr int REGISTERS = 112;
  // Places for tiles, and those that a warp fills.
  static constexpr int SLOTS = HD == 64 ? 24 : HD == 128 ? 13 : 5;
  static constexpr int PER_WARP = (SLOTS + WARPS - 1) / WARPS;
  static constexpr uint32_t ROW = 2 * HD;               // bytes of a position
  static constexpr uint32_t SLOT = 2 * TILE * ROW;      // keys and values of a tile
  static constexpr uint32_t QUERIES = 2 * HEADS * ROW;  // two parts
  // Chunks of 32 elements that a cluster makes, and for each of them what a block has to say.
  static constexpr int CHUNKS = HEADS * HD / 32;
  static constexpr uint32_t VALUES = CHUNKS * 128, SUMS = CHUNKS * 8;
  static constexpr uint32_t SHARED = SLOTS * SLOT + QUERIES + 2 * ROW + VALUES + SUMS + 16;
  // Groups of 16 elements of a head that a warp adds up.
  static constexpr int GROUPS = (HD / 16 + WARPS - 1) / WARPS;
  static_assert(SHARED <= 114 * 1024, "");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr float LOG2E = 1.4426950408889634f;

DEV uint32_t cluster_size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  return size;
}
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// What lies at this address in block `rank` of the cluster.
DEV uint32_t at_block(uint32_t address, uint32_t rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
// Stores to another block; its barrier counts the bytes.
DEV void send(uint32_t to, uint32_t barrier, float v) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(v),
               "r"(barrier)
               : "memory");
}
DEV void send(uint32_t to, uint32_t barrier, float v, float w) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(v), "f"(w), "r"(barrier)
               : "memory");
}
// 2^x, results that are no normal numbers as zero.
DEV float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// What maxima are taken from, so that no infinities are: nothing has a weight then.
DEV float finite(float top) { return top == -INFINITY ? 0.0f : top; }

DEV void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
DEV void load_matrices_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// Where 16 bytes of a row lie: pieces of eight rows at the same place are in different banks.
template <int HD>
DEV uint32_t piece_at(uint32_t row, uint32_t piece) {
  return row * (2 * HD) + ((piece ^ (row & 7)) << 4);
}
template <int HD>
DEV uint8_t* element_at(uint8_t* rows, uint32_t row, uint32_t d) {
  return rows + piece_at<HD>(row, d >> 3) + 2 * (d & 7);
}
// The same place, of a row that lies alone.
DEV uint8_t* element_in(uint8_t* alone, uint32_t row, uint32_t d) {
  return alone + (((d >> 3) ^ (row & 7)) << 4) + 2 * (d & 7);
}

// Asks for the first `n_rows` rows of a tile. The next one is left alone, those behind it become zeros.
template <int HD>
DEV void ask_for_rows(uint8_t* to, const __half* from, size_t stride, int n_rows, int lane) {
  constexpr int PIECES = HD / 8, AT_ONCE = 32 / PIECES;
  int row = lane / PIECES;
  const int piece = lane % PIECES;
  const __half* p = from + row * stride + 8 * piece;
#pragma unroll
  for (int i = 0; i < TILE / AT_ONCE; i++, row += AT_ONCE, p += AT_ONCE * stride) {
    if (row != n_rows) copy16_async(to + piece_at<HD>(row, piece), p, row < n_rows);
  }
}

DEV void bring_near(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Brings the first `n_rows` rows of a tile to the second-level cache.
template <int HD>
DEV void bring_rows_near(const __half* from, size_t stride, int n_rows, int lane) {
  constexpr int LINES = HD / 64;  // of a row
#pragma unroll 1
  for (int i = lane; i < n_rows * LINES; i += 32) bring_near(from + i / LINES * stride + i % LINES * 64);
}

// The elements of a head that a lane has: pairs that are rotated together. What is not rotated makes pairs
// of neighbours.
template <int HD>
struct Pairs {
  static constexpr int N = HD / 64;
  float2 v[N];

  DEV static int first(const ClusterJob& job, int i) {
    return job.neox && i < static_cast<int>(job.n_steps) ? i : 2 * i;
  }
  DEV static int second(const ClusterJob& job, int i) {
    return job.neox && i < static_cast<int>(job.n_steps) ? i + job.n_steps : 2 * i + 1;
  }
  DEV void read(const ClusterJob& job, const float* head, int lane) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      v[i] = make_float2(head[first(job, lane + 32 * i)], head[second(job, lane + 32 * i)]);
    }
  }
  // As rmsnorm_heads.
  DEV void norm(const Pairs& gain, float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) sum += v[i].x * v[i].x;
#pragma unroll
    for (int i = 0; i < N; i++) sum += v[i].y * v[i].y;
    const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(static_cast<uint32_t>(HD)) + eps);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = make_float2(v[i].x * scale * gain.v[i].x, v[i].y * scale * gain.v[i].y);
  }
  // As rotate_pair.
  DEV void rotate(const Pairs& angle) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      const float a = v[i].x, b = v[i].y;
      v[i].x = fmaf(-b, angle.v[i].y, a * angle.v[i].x);
      v[i].y = fmaf(a, angle.v[i].y, b * angle.v[i].x);
    }
  }
};

// What a block knows of its cluster's work.
struct ClusterPart {
  int kv_head, head0, n_heads;  // the KV head, and its query heads here
  int at;                       // the new position
  uint32_t rank, size;
  size_t stride;  // elements from position to position in the cache
};

// Where the new position's key and value go in shared memory, as row `row` of a tile; null: not in this block.
struct NewRow {
  uint8_t* key;
  uint8_t* value;
  uint32_t row;
};

// Rows of queries that no head has are zeros.
template <int HD>
DEV void clear_queries(uint8_t* queries, int n_heads) {
  constexpr int PIECES = HD / 8;
  for (int i = threadIdx.x; i < (HEADS - n_heads) * PIECES; i += ClusterShape<HD>::THREADS) {
    const int row = n_heads + i / PIECES;
#pragma unroll
    for (int part = 0; part < 2; part++) {
      *reinterpret_cast<uint4*>(queries + piece_at<HD>(row + part * HEADS, i % PIECES)) = make_uint4(0, 0, 0, 0);
    }
  }
}

// The next number that is finite as f16; NaN stays NaN.
DEV float within_half(float v) { return v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v; }

// Makes the queries, a warp a head, and the new key and value, which go into the cache too.
template <int HD>
DEV void make_rows(const ClusterJob& job, const ClusterPart& part, uint8_t* queries, const NewRow& fresh,
                   const Pairs<HD>& angle, Pairs<HD>& gain, int warp, int lane) {
  using S = ClusterShape<HD>;
  const float factor = job.soft_cap > 0.0f ? job.scale : job.scale * LOG2E;
  const size_t new_at = part.at * part.stride + part.kv_head * HD;
  const bool has_value = fresh.value && threadIdx.x < HD / 2;
  float2 value{};
  if (has_value) value = reinterpret_cast<const float2*>(job.v_new + part.kv_head * HD)[threadIdx.x];
#pragma unroll 1
  for (int r = warp; r < part.n_heads + (fresh.key ? 1 : 0); r += S::WARPS) {
    const bool is_key = r == part.n_heads;
    Pairs<HD> x;
    x.read(job, is_key ? job.k_new + part.kv_head * HD : job.q + (part.head0 + r) * HD, lane);
    const float* const gains = is_key ? job.k_gain : job.q_gain;
    if (gains) {
      if (r != warp) gain.read(job, gains, lane);
      x.norm(gain, job.eps);
    }
    x.rotate(angle);
#pragma unroll
    for (int i = 0; i < Pairs<HD>::N; i++) {
      const int ds[2] = {Pairs<HD>::first(job, lane + 32 * i), Pairs<HD>::second(job, lane + 32 * i)};
      const float vs[2] = {x.v[i].x, x.v[i].y};
#pragma unroll
      for (int j = 0; j < 2; j++) {
        if (is_key) {
          const __half v = __float2half_rn(vs[j]);
          job.k_cache[new_at + ds[j]] = v;
          *reinterpret_cast<__half*>(element_in(fresh.key, fresh.row, ds[j])) = v;
        } else {
          // Two parts hold up to twice 65504; queries beyond that (scaled) stay there.
          const float v = vs[j] * factor;
          const __half high = __float2half_rn(within_half(v));
          const __half low = __float2half_rn(within_half(v - __half2float(high)));
          *reinterpret_cast<__half*>(element_at<HD>(queries, r, ds[j])) = high;
          *reinterpret_cast<__half*>(element_at<HD>(queries, r + HEADS, ds[j])) = low;
        }
      }
    }
  }
  if (has_value) {
    const __half2 v = __floats2half2_rn(value.x, value.y);
    reinterpret_cast<__half2*>(job.v_cache + new_at)[threadIdx.x] = v;
    *reinterpret_cast<__half2*>(element_in(fresh.value, fresh.row, 2 * threadIdx.x)) = v;
  }
}

#endif
