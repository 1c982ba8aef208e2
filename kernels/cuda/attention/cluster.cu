// Attention of one token in one launch, for Hopper: queries and key are normalized and rotated, key and
// value go into the cache, positions are split over the blocks of a cluster, and the blocks put their
// parts together through each other's shared memory. The slow twin is decode.cu: two launches.
//
// A cluster takes up to HEADS of the query heads that share a KV head. Tiles of 16 positions are dealt to
// the cluster's blocks in turn, and in a block to its warps. A block has places for as many tiles as fit
// beside a block of the ring, and asks for them before it waits for the launch before this one. So the
// cache is there before queries are: up to 3328 positions (heads of 128) with 16 blocks.
//
// What follows the wait is a chain of instructions, and their number is what it takes: a warp has few
// others beside it. A warp makes a head's query, the scores of a tile and its weights; then it adds up 16
// elements of a head over all tiles of the block, so that sums need not be put together by warps. (With
// tiles kept apart to the end, a warp each, heads of 128 took 0.9 us longer.)
//
// Scores are s = q k', queries as rows: eight of what rounding to f16 leaves, eight of what it takes away,
// which the tensor core has room for anyway; so scores are those of f32 queries. The layout of their sums
// is that of the second product's weights: out' = v' p', elements of a head as rows, weights in two parts.
//
// Every sum is made in one order: positions of a tile, tiles of a block, blocks of the cluster.
//
// The next kernel is let in when the wait has ended (`lets_in`). It must not be one of a ring of whose blocks
// two fit a multiprocessor: those that came while some of these had not ended lay two on one beside empty
// ones, and a layer took 8 us longer. Blocks of other kernels are small.
#include "cluster.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Scores of a tile with lane / 4's head: positions 2 (lane % 4), one more, and both of the tile's second half.
// Pieces of a row are 32 bytes from one product to the next, but for the exchange.
template <int HD>
DEV void multiply_keys(float (&s)[4], uint32_t queries, uint32_t keys, int lane) {
  constexpr int N = HD / 16, AT_ONCE = N < 4 ? N : 4;
  float c[2][2][4] = {};
  const uint32_t from_q = queries + piece_at<HD>(lane % 16, lane / 16);
  const uint32_t from_k = keys + piece_at<HD>((lane >> 4) * 8 + lane % 8, lane >> 3 & 1);
#pragma unroll
  for (int k = 0; k < N; k += AT_ONCE) {
    uint32_t q[AT_ONCE][4], b[AT_ONCE][4];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      load_matrices(q[i], from_q ^ 32 * (k + i));
      load_matrices(b[i], from_k ^ 32 * (k + i));
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      mma_f16(c[i & 1][0], q[i], b[i][0], b[i][1]);
      mma_f16(c[i & 1][1], q[i], b[i][2], b[i][3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; n++) {
#pragma unroll
    for (int e = 0; e < 2; e++) s[2 * n + e] = (c[0][n][e] + c[1][n][e]) + (c[0][n][e + 2] + c[1][n][e + 2]);
  }
}

// What a tile's keys leave room for when they have been multiplied: its weights, as the second product reads
// them, and of each head the maximum (base 2) and the sum of its weights.
struct TileWeights {
  uint4 parts[32];
  float2 sums[HEADS];
};

// Weights of a tile. `n_left`: positions from its first one on.
DEV void weigh_tile(const ClusterJob& job, float (&s)[4], TileWeights* to, int n_left, int lane) {
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (job.soft_cap > 0.0f) s[i] = job.soft_cap * tanhf(s[i] / job.soft_cap) * LOG2E;
    if ((i >> 1) * 8 + 2 * (lane & 3) + (i & 1) >= n_left) s[i] = -INFINITY;
    top = fmaxf(top, s[i]);
  }
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
  float sum = 0.0f;
  uint32_t high[2], low[2];
#pragma unroll
  for (int n = 0; n < 2; n++) {
    const float p = power(s[2 * n] - finite(top)), r = power(s[2 * n + 1] - finite(top));
    const __half2 h = __floats2half2_rn(p, r);
    const float2 back = __half22float2(h);
    high[n] = *reinterpret_cast<const uint32_t*>(&h);
    low[n] = pack_f16(p - back.x, r - back.y);
    sum += p + r;
  }
  to->parts[lane] = make_uint4(high[0], high[1], low[0], low[1]);
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if ((lane & 3) == 0) to->sums[lane / 4] = make_float2(top, sum);
}

// What a block has of heads 2 (lane % 4) and one more: maxima and sums; and of elements lane / 4 and 8 more of
// the warp's groups of 16: weighted values.
template <int HD>
struct BlockSums {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  float out[ClusterShape<HD>::GROUPS][4] = {};

  // Adds `n_tiles` tiles.
  DEV void add(const uint8_t* slots, int n_tiles, int warp, int lane) {
    using S = ClusterShape<HD>;
    const uint8_t* const sums = slots + sizeof(uint4) * 32 + (lane & 3) * 16;
    float now[2] = {top[0], top[1]};
#pragma unroll 4
    for (int t = 0; t < n_tiles; t++) {
      const float4 v = *reinterpret_cast<const float4*>(sums + t * S::SLOT);
      now[0] = fmaxf(now[0], v.x);
      now[1] = fmaxf(now[1], v.z);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const float bend = power(top[e] - finite(now[e]));
      top[e] = now[e];
      sum[e] *= bend;
#pragma unroll
      for (int m = 0; m < S::GROUPS; m++) out[m][e] *= bend, out[m][e + 2] *= bend;
    }
    const uint32_t values = shared_address(slots) + TILE * S::ROW +
                            (piece_at<HD>((lane >> 4) * 8 + lane % 8, lane >> 3 & 1) ^ 32 * warp);
#pragma unroll 4
    for (int t = 0; t < n_tiles; t++) {
      const float4 v = *reinterpret_cast<const float4*>(sums + t * S::SLOT);
      const uint4 p = *reinterpret_cast<const uint4*>(slots + t * S::SLOT + lane * 16);
      const float bend[2] = {power(v.x - finite(top[0])), power(v.z - finite(top[1]))};
      sum[0] = fmaf(bend[0], v.y, sum[0]);
      sum[1] = fmaf(bend[1], v.w, sum[1]);
#pragma unroll
      for (int m = 0; m < S::GROUPS; m++) {
        uint32_t a[4];
        float d[4] = {};
        load_matrices_trans(a, values + t * S::SLOT ^ 32 * S::WARPS * m);
        mma_f16(d, a, p.x, p.y);
        mma_f16(d, a, p.z, p.w);
#pragma unroll
        for (int i = 0; i < 4; i++) out[m][i] = fmaf(bend[i & 1], d[i], out[m][i]);
      }
    }
  }

  // Sends each chunk of 32 elements to the block that makes it.
  DEV void send_all(const ClusterPart& part, uint32_t values, uint32_t sums, uint32_t barrier, int warp, int lane) const {
    using S = ClusterShape<HD>;
#pragma unroll
    for (int m = 0; m < S::GROUPS; m++) {
      const int d = 16 * (warp + m * S::WARPS);
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int head = 2 * (lane & 3) + e;
        if (head >= part.n_heads) continue;
        const uint32_t chunk = head * (HD / 32) + d / 32, owner = chunk & (part.size - 1);
        const uint32_t place = chunk - owner + part.rank;
        const uint32_t to = at_block(values + place * 128 + (d % 32 + lane / 4) * 4, owner);
        const uint32_t its_barrier = at_block(barrier, owner);
        send(to, its_barrier, out[m][e]);
        send(to + 32, its_barrier, out[m][e + 2]);
        if (d % 32 == 0 && lane < 4) send(at_block(sums + place * 8, owner), its_barrier, top[e], sum[e]);
      }
    }
  }
};

// Makes 32 elements of what `n_sources` blocks sent: a warp.
DEV void make_chunk(const ClusterJob& job, size_t first, const float* values, const float2* sums, int n_sources,
                    int lane) {
  // All of them asked for at once: what follows waits for nothing else.
  float2 one[MAX_BLOCKS];
  float value[MAX_BLOCKS], top = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll
  for (int s = 0; s < MAX_BLOCKS; s++) {
    one[s] = s < n_sources ? sums[s] : make_float2(-INFINITY, 0.0f);
    value[s] = s < n_sources ? values[s * 32 + lane] : 0.0f;
  }
#pragma unroll
  for (int s = 0; s < MAX_BLOCKS; s++) top = fmaxf(top, one[s].x);
#pragma unroll
  for (int s = 0; s < MAX_BLOCKS; s++) {
    const float bend = power(one[s].x - finite(top));
    sum = fmaf(bend, one[s].y, sum);
    total = fmaf(bend, value[s], total);
  }
  put_operand(job.out, first + lane, sum != 0.0f ? __fdividef(total, sum) : 0.0f);
}

// How a cluster's work is dealt to its blocks.
struct Deal {
  int rank, size, log_size;  // of the cluster; a power of two
  int start, n_kv;           // positions: the first one seen, and behind the new one
  int n_tiles;

  // How many of `n` from the block's rank on, `size` apart, are its own: tiles, chunks.
  DEV int own(int n) const { return (n - rank + size - 1) >> log_size; }
  // The first position of the block's tile `t`.
  DEV int tile_at(int t) const { return (rank + t * size) * TILE; }
};

template <int HD>
DEV void deal_out(const ClusterJob& job, ClusterPart& part, Deal& deal) {
  part.rank = cluster_rank();
  part.size = cluster_size();
  deal.rank = part.rank, deal.size = part.size, deal.log_size = __ffs(deal.size) - 1;
  const int item = blockIdx.x >> deal.log_size, n_rounds = (job.group + HEADS - 1) / HEADS;
  part.kv_head = item / n_rounds;
  const int skipped = item % n_rounds * HEADS;
  part.head0 = part.kv_head * job.group + skipped;
  part.n_heads = min(HEADS, static_cast<int>(job.group) - skipped);
  part.stride = static_cast<size_t>(job.n_head_kv) * HD;
  // A step begins when the one before it has ended, so its position, and the cache before that position,
  // are there already.
  part.at = *job.first_pos;
  deal.n_kv = part.at + 1;
  deal.start = job.window && deal.n_kv > static_cast<int>(job.window) ? deal.n_kv - job.window : 0;
  deal.n_tiles = (deal.n_kv - deal.start + TILE - 1) / TILE;
}

// Asks for the warp's tiles among the block's from `base` on.
template <int HD>
DEV void ask_for_tiles(const ClusterJob& job, const ClusterPart& part, const Deal& deal, uint8_t* slots, int base,
                       int n_mine, int warp, int lane) {
  using S = ClusterShape<HD>;
  const auto ask_for = [&](int j, const __half* cache, uint8_t* to) {
    const int from = deal.start + deal.tile_at(base + j);
    if (base + j < n_mine && j < S::SLOTS) {
      ask_for_rows<HD>(to + j * S::SLOT, cache + from * part.stride + part.kv_head * HD, part.stride,
                       min(TILE, part.at - from), lane);
    }
  };
#pragma unroll 1
  for (int j = warp; j < S::PER_WARP * S::WARPS; j += S::WARPS) {
    ask_for(j, job.k_cache, slots);
    commit_copies();
  }
#pragma unroll 1
  for (int j = warp; j < S::PER_WARP * S::WARPS; j += S::WARPS) ask_for(j, job.v_cache, slots + TILE * S::ROW);
  commit_copies();
  // Of the next round, which there is no room for yet.
  const int n_next = min(n_mine - base - S::SLOTS, S::SLOTS);
#pragma unroll 1
  for (int j = warp; j < n_next; j += S::WARPS) {
    const int from = deal.start + deal.tile_at(base + S::SLOTS + j), n_rows = min(TILE, part.at - from);
    const size_t first = from * part.stride + part.kv_head * HD;
    bring_rows_near<HD>(job.k_cache + first, part.stride, n_rows, lane);
    bring_rows_near<HD>(job.v_cache + first, part.stride, n_rows, lane);
  }
}

// A warp moves the new key and value from where they lie alone to their tile.
template <int HD>
DEV void settle(const NewRow& fresh, uint8_t* tile, int lane) {
  using S = ClusterShape<HD>;
  uint8_t* const place = tile + fresh.row * S::ROW;
  for (int i = lane; i < HD / 4; i += 32) {
    const int k = i % (HD / 8);
    const bool second = i >= HD / 8;
    reinterpret_cast<uint4*>(place + (second ? TILE * S::ROW : 0))[k] =
        reinterpret_cast<const uint4*>(second ? fresh.value : fresh.key)[k];
  }
}

// What a block that has tiles does: asks for them, makes queries and the new position, adds up and sends.
template <int HD>
DEV void attend_to_tiles(const ClusterJob& job, const ClusterPart& part, const Deal& deal, uint8_t* slots, int n_mine,
                         uint32_t barrier, int warp, int lane) {
  using S = ClusterShape<HD>;
  uint8_t* const queries = slots + S::SLOTS * S::SLOT;
  uint8_t* const alone = queries + S::QUERIES;
  const uint32_t sums = barrier - S::SUMS, values = sums - S::VALUES;
  ask_for_tiles<HD>(job, part, deal, slots, 0, n_mine, warp, lane);
  clear_queries<HD>(queries, part.n_heads);
  Pairs<HD> angle, gain{};
#pragma unroll
  for (int i = 0; i < Pairs<HD>::N; i++) {
    const uint32_t pair = lane + 32 * i;
    angle.v[i] = pair < job.n_steps ? job.table[static_cast<size_t>(part.at) * job.n_steps + pair]
                                    : make_float2(1.0f, 0.0f);
  }
  if (job.q_gain) gain.read(job, warp == part.n_heads ? job.k_gain : job.q_gain, lane);
  // The new position is in the last tile: in its place, if that is the place's first.
  const bool has_new = ((deal.n_tiles - 1) & (deal.size - 1)) == deal.rank, waits = n_mine > S::SLOTS;
  NewRow fresh{nullptr, nullptr, static_cast<uint32_t>(part.at - deal.start) % TILE};
  if (has_new) {
    uint8_t* const place = slots + (n_mine - 1) % S::SLOTS * S::SLOT + fresh.row * S::ROW;
    fresh.key = waits ? alone : place;
    fresh.value = waits ? alone + S::ROW : place + TILE * S::ROW;
  }
  cluster_wait();
  wait_for_previous();
  if (job.lets_in) let_next_start();
  make_rows<HD>(job, part, queries, fresh, angle, gain, warp, lane);
  __syncthreads();
  BlockSums<HD> block;
#pragma unroll 1
  for (int base = 0; base < n_mine; base += S::SLOTS) {
    const int n_now = min(S::SLOTS, n_mine - base);
    if (waits && has_new && base + n_now == n_mine && warp == (n_now - 1) % S::WARPS) {
      settle<HD>(fresh, slots + (n_now - 1) * S::SLOT, lane);
    }
    wait_copies<S::PER_WARP>();
#pragma unroll 1
    for (int j = warp; j < n_now; j += S::WARPS) {
      if (j != warp) wait_copies<1>();
      __syncwarp();
      float s[4];
      multiply_keys<HD>(s, shared_address(queries), shared_address(slots) + j * S::SLOT, lane);
      __syncwarp();
      weigh_tile(job, s, reinterpret_cast<TileWeights*>(slots + j * S::SLOT),
                 deal.n_kv - deal.start - deal.tile_at(base + j), lane);
    }
    wait_copies<0>();
    __syncthreads();
    if (warp < HD / 16) block.add(slots, n_now, warp, lane);
    if (base + n_now < n_mine) {
      __syncthreads();
      ask_for_tiles<HD>(job, part, deal, slots, base + n_now, n_mine, warp, lane);
    }
  }
  if (warp < HD / 16) block.send_all(part, values, sums, barrier, warp, lane);
}

// Shared memory: places for tiles, queries, the new key and value until their tile is there, what other blocks
// send (values, sums), a barrier.
template <int HD>
DEV void attend(const ClusterJob& job) {
  using S = ClusterShape<HD>;
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const received = shared + S::SLOTS * S::SLOT + S::QUERIES + 2 * S::ROW;
  const uint32_t barrier = shared_address(received) + S::VALUES + S::SUMS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  ClusterPart part;
  Deal deal;
  deal_out<HD>(job, part, deal);
  const int n_sources = min(deal.size, deal.n_tiles);
  const int n_mine = deal.own(deal.n_tiles), n_made = deal.own(part.n_heads * (HD / 32));
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    publish_barriers();
    barrier_expect(barrier, n_made * n_sources * (128 + 8));
  }
  // Nobody sends to a block that has not come so far.
  cluster_arrive();
  if (n_mine > 0) {
    attend_to_tiles<HD>(job, part, deal, shared, n_mine, barrier, warp, lane);
  } else {
    cluster_wait();
    wait_for_previous();
    if (job.lets_in) let_next_start();
  }
  for (int i = warp; i < n_made; i += S::WARPS) {
    barrier_wait(barrier, 0);
    make_chunk(job, static_cast<size_t>(part.head0) * HD + (i * deal.size + deal.rank) * 32,
               reinterpret_cast<const float*>(received) + i * deal.size * 32,
               reinterpret_cast<const float2*>(received + S::VALUES) + i * deal.size, n_sources, lane);
  }
}
#define CLUSTER_BODY(HD) attend<HD>(job)
#else
// Other architectures have no clusters, and nobody launches it there.
#define CLUSTER_BODY(HD)
#endif

#define KERNEL(HD)                                                      \
  extern "C" __global__ void __maxnreg__(ClusterShape<HD>::REGISTERS)   \
      attention_cluster_##HD(const __grid_constant__ ClusterJob job) {  \
    CLUSTER_BODY(HD);                                                   \
  }
KERNEL(64)
KERNEL(128)
KERNEL(256)
