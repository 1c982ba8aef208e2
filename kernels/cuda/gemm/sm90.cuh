// y[t][row] = sum_k w[row][k] x[t][k] (+ bias[row]) (+ y[t][row]) on Hopper: bf16 operands, f32 sums.
//
// A block makes tiles of 128 tokens x BN rows, one after the other. Warpgroup 0 has one thread at
// work: it lets the copy engine fill a ring of buffers with 64 elements of k of both operands.
// Warpgroups 1 and 2 multiply 64 tokens each. The blocks of a cluster (two, or one) have the same rows
// and neighbouring tokens: each fetches its part of the rows for both.
#pragma once
#include "hopper.cuh"

// One matrix of a launch.
struct Sm90Out {
  void* y;            // [n_tokens, n_rows]: f32, or bf16 where gated
  const float* bias;  // [n_rows] or null
  uint32_t n_rows;
  uint32_t first;  // tiles of rows of the matrices before it
};

struct Sm90Job {
  TensorMap x;     // [n_tokens, row_len]
  TensorMap w[3];  // [n_rows, row_len]; gated: gate, up
  Sm90Out out[3];  // `first` of what is not there is beyond all
  uint32_t n_tokens;
  uint32_t n_steps;     // 64 elements of k each
  uint32_t n_m;         // tiles of tokens, a cluster's counted once
  uint32_t n_n;         // tiles of rows, of all matrices
  uint32_t add;         // to what is in y
  uint32_t activation;  // of the gate: 0 is x * sigmoid(x), 1 GELU in its tanh form
};

constexpr int SM90_BM = 128, SM90_BK = 64, SM90_THREADS = 384;
// Tiles of tokens (of clusters) that are gone through for each tile of rows.
constexpr uint32_t SM90_GROUP = 16;

template <int BN>
struct Sm90Shape {
  static_assert(BN % 16 == 0, "halves of whole patterns of eight rows");
  static constexpr uint32_t X_BYTES = SM90_BM * SM90_BK * 2, W_BYTES = BN * SM90_BK * 2;
  static constexpr uint32_t STAGE_BYTES = X_BYTES + W_BYTES;
  // As many as there is room for beside the barriers and what aligns the first.
  static constexpr int STAGES = (227 * 1024 - 2048) / STAGE_BYTES;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Place in the ring, and how often it has gone round.
template <int STAGES>
struct Ring {
  uint32_t at = 0, parity = 0;
  DEV void next() {
    if (++at == STAGES) at = 0, parity ^= 1;
  }
};

struct Tile {
  uint32_t m, n;
};
// Tokens vary fastest, so that blocks that run together share rows, and the tokens' operand stays in
// the second-level cache.
DEV Tile tile_of(const Sm90Job& job, uint32_t i) {
  const uint32_t in_group = SM90_GROUP * job.n_n;
  const uint32_t first = i / in_group * SM90_GROUP, rest = i % in_group;
  const uint32_t n_here = min(job.n_m - first, SM90_GROUP);
  return {first + rest % n_here, rest / n_here};
}
DEV uint32_t matrix_of(const Sm90Job& job, uint32_t n) {
  return (n >= job.out[1].first) + (n >= job.out[2].first);
}

template <int BN, int CLUSTER, bool GATED>
DEV void sm90_produce(const Sm90Job& job, uint32_t buffers, uint32_t full, uint32_t empty) {
  using S = Sm90Shape<BN>;
  const uint32_t rank = CLUSTER > 1 ? cluster_rank() : 0;
  const uint32_t n_tiles = job.n_m * job.n_n;
  Ring<S::STAGES> ring;
  for (uint32_t i = blockIdx.x / CLUSTER; i < n_tiles; i += gridDim.x / CLUSTER) {
    const Tile tile = tile_of(job, i);
    const uint32_t matrix = GATED ? 0 : matrix_of(job, tile.n);
    const uint32_t row = GATED ? tile.n * (BN / 2) : (tile.n - job.out[matrix].first) * BN;
    const uint32_t token = (tile.m * CLUSTER + rank) * SM90_BM;
    for (uint32_t step = 0; step < job.n_steps; step++, ring.next()) {
      const uint32_t x = buffers + ring.at * S::STAGE_BYTES, w = x + S::X_BYTES;
      const uint32_t barrier = full + ring.at * 8;
      barrier_wait(empty + ring.at * 8, ring.parity ^ 1);
      barrier_expect(barrier, S::STAGE_BYTES);
      copy_box(x, job.x, step * SM90_BK, token, barrier);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const TensorMap* map = &job.w[GATED ? half : matrix];
        const uint32_t at = GATED ? row : row + half * (BN / 2), to = w + half * (S::W_BYTES / 2);
        if (CLUSTER == 1) {
          copy_box(to, *map, step * SM90_BK, at, barrier);
        } else if (half == rank) {
          copy_box_to(3, to, map, barrier, step * SM90_BK, at);
        }
      }
    }
  }
}

// Two values of each of two neighbouring groups of eight columns, in the four lanes of a row, to four
// neighbouring ones: of the first group in even lanes, of the second in odd ones.
DEV float4 exchange(float a0, float a1, float b0, float b1) {
  const bool odd = threadIdx.x & 1;
  const float r0 = __shfl_xor_sync(~0u, odd ? a0 : b0, 1);
  const float r1 = __shfl_xor_sync(~0u, odd ? a1 : b1, 1);
  return odd ? make_float4(r0, r1, b0, b1) : make_float4(a0, a1, r0, r1);
}

// Adds bias[first_col..] to the columns of 8 * N that a lane has: of each eight its two.
template <int N>
DEV void add_bias(float* sums, const float* bias, uint32_t first_col, uint32_t n_rows) {
  if (!bias) return;
#pragma unroll
  for (int j = 0; j < N; j++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const uint32_t col = first_col + j * 8 + (threadIdx.x & 3) * 2 + e;
      const float v = __ldg(bias + min(col, n_rows - 1));
      sums[j * 4 + e] += v;
      sums[j * 4 + 2 + e] += v;
    }
  }
}

// Two rows' part of a tile in f32 (`token` and the eighth after it): 4 neighbouring columns a lane and
// pair of groups. What is added goes through the memory's own adders: reading the old values first cost
// a tile 3 % (20 us where the compiler put each load right before its use).
template <int BN, bool ADD>
DEV void store_sums(const float (&sums)[BN / 2], float* y, uint32_t n_rows, uint32_t n_tokens,
                    uint32_t token, uint32_t first_col) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t my_col = first_col + (lane & 1) * 8 + (lane & 2) * 2;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const bool row_there = token + half * 8 < n_tokens;
    float* row = y + static_cast<size_t>(token + half * 8) * n_rows + my_col;
#pragma unroll
    for (int j = 0; j < BN / 16; j++) {
      const int a = j * 8 + half * 2, b = a + 4;
      const float4 v = exchange(sums[a], sums[a + 1], sums[b], sums[b + 1]);
      if (!row_there || my_col + j * 16 >= n_rows) continue;
      if (ADD) add_to_memory(row + j * 16, v);
      else *reinterpret_cast<float4*>(row + j * 16) = v;
    }
  }
}

// The same for rows that 16 bytes do not divide.
template <int BN>
DEV void store_sums_singly(const float (&sums)[BN / 2], float* y, uint32_t n_rows,
                           uint32_t n_tokens, uint32_t token, uint32_t first_col, bool add) {
#pragma unroll
  for (int i = 0; i < BN / 2; i++) {
    const uint32_t t = token + (i >> 1 & 1) * 8;
    const uint32_t col = first_col + i / 4 * 8 + (threadIdx.x & 3) * 2 + (i & 1);
    if (t >= n_tokens || col >= n_rows) continue;
    float* at = y + static_cast<size_t>(t) * n_rows + col;
    *at = add ? *at + sums[i] : sums[i];
  }
}

// Both activations are g * sigmoid(z): tanh(z / 2) = 2 sigmoid(z) - 1.
DEV float bend(float g, bool gelu) {
  const float z = gelu ? 1.5957691216057307f * g * (1.0f + 0.044715f * g * g) : g;
  return __fdividef(g, 1.0f + __expf(-z));
}

// A tile whose first half is the gate of its second: activation(gate) * up in bf16. Four groups of
// eight columns are turned round among the four lanes of a row, so that each stores 16 bytes.
template <int BN>
DEV void store_gated(const float (&sums)[BN / 2], __nv_bfloat16* y, uint32_t n_rows,
                     uint32_t n_tokens, uint32_t token, uint32_t first_col, bool gelu) {
  const uint32_t c = threadIdx.x & 3;
  const bool high = c & 2, odd = c & 1;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const bool row_there = token + half * 8 < n_tokens;
    __nv_bfloat16* row = y + static_cast<size_t>(token + half * 8) * n_rows;
#pragma unroll
    for (int j0 = 0; j0 < BN / 16; j0 += 4) {
      uint32_t v[4] = {};
#pragma unroll
      for (int j = 0; j < 4 && j0 + j < BN / 16; j++) {
        const int g = (j0 + j) * 4 + half * 2, u = g + BN / 4;
        v[j] = pack_bf16(bend(sums[g], gelu) * sums[u], bend(sums[g + 1], gelu) * sums[u + 1]);
      }
      // v[j] of lane c to v[c] of lane j: halves of the square, then neighbours.
      const uint32_t s0 = __shfl_xor_sync(~0u, high ? v[0] : v[2], 2);
      const uint32_t s1 = __shfl_xor_sync(~0u, high ? v[1] : v[3], 2);
      if (high) v[0] = s0, v[1] = s1;
      else v[2] = s0, v[3] = s1;
      const uint32_t r0 = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1);
      const uint32_t r1 = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
      if (odd) v[0] = r0, v[2] = r1;
      else v[1] = r0, v[3] = r1;
      const uint32_t col = first_col + (j0 + c) * 8;
      if (!row_there || col >= n_rows || j0 + c >= BN / 16) continue;
      *reinterpret_cast<uint4*>(row + col) = make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
}

template <int BN, bool GATED>
DEV void sm90_store(const Sm90Job& job, float (&sums)[BN / 2], uint32_t token, uint32_t n) {
  if (GATED) {
    const Sm90Out& out = job.out[0];
    const uint32_t col = n * (BN / 2);
    add_bias<BN / 16>(sums, out.bias, col, out.n_rows);
    add_bias<BN / 16>(sums + BN / 4, job.out[1].bias, col, out.n_rows);
    store_gated<BN>(sums, static_cast<__nv_bfloat16*>(out.y), out.n_rows, job.n_tokens, token, col,
                    job.activation == 1);
    return;
  }
  const Sm90Out& out = job.out[matrix_of(job, n)];
  const uint32_t col = (n - out.first) * BN;
  float* y = static_cast<float*>(out.y);
  add_bias<BN / 8>(sums, out.bias, col, out.n_rows);
  if (out.n_rows % 4 != 0) {
    store_sums_singly<BN>(sums, y, out.n_rows, job.n_tokens, token, col, job.add);
  } else if (job.add) {
    store_sums<BN, true>(sums, y, out.n_rows, job.n_tokens, token, col);
  } else {
    store_sums<BN, false>(sums, y, out.n_rows, job.n_tokens, token, col);
  }
}

template <int BN, int CLUSTER, bool GATED>
DEV void sm90_consume(const Sm90Job& job, uint32_t buffers, uint32_t full, uint32_t empty) {
  using S = Sm90Shape<BN>;
  const uint32_t rank = CLUSTER > 1 ? cluster_rank() : 0;
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4;
  const uint32_t group = threadIdx.x / 128 - 1;
  const auto release = [&](uint32_t at) {
    // A buffer is free when every warp of the cluster has read it.
    if (CLUSTER == 1) {
      if (lane == 0) barrier_arrive(empty + at * 8);
    } else if (lane < CLUSTER) {
      arrive_at(empty + at * 8, lane);
    }
  };
  Ring<S::STAGES> ring;
  float sums[BN / 2];
  const uint32_t n_tiles = job.n_m * job.n_n;
  for (uint32_t i = blockIdx.x / CLUSTER; i < n_tiles; i += gridDim.x / CLUSTER) {
    uint32_t before = 0;
    for (uint32_t step = 0; step < job.n_steps; step++) {
      const uint32_t x = buffers + ring.at * S::STAGE_BYTES + group * (S::X_BYTES / 2);
      const uint64_t a = operand_at(x);
      const uint64_t b = operand_at(buffers + ring.at * S::STAGE_BYTES + S::X_BYTES);
      barrier_wait(full + ring.at * 8, ring.parity);
      products_fence();
#pragma unroll
      for (int kk = 0; kk < SM90_BK / 16; kk++) {
        multiply_rows(sums, a + 2 * kk, b + 2 * kk, step > 0 || kk > 0);
      }
      products_commit();
      products_wait<1>();
      if (step > 0) release(before);
      before = ring.at;
      ring.next();
    }
    products_wait<0>();
    pin(sums);
    release(before);
    const Tile tile = tile_of(job, i);
    const uint32_t token = (tile.m * CLUSTER + rank) * SM90_BM + group * 64 + warp * 16 + lane / 4;
    sm90_store<BN, GATED>(job, sums, token, tile.n);
  }
}

template <int BN, int CLUSTER, bool GATED>
DEV void gemm_sm90(const Sm90Job& job) {
  using S = Sm90Shape<BN>;
  extern __shared__ uint8_t shared[];
  // The swizzle goes by address: patterns of 1024 bytes.
  const uint32_t buffers = (shared_address(shared) + 1023) & ~1023u;
  const uint32_t full = buffers + S::STAGES * S::STAGE_BYTES, empty = full + S::STAGES * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::STAGES; i++) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, 8 * CLUSTER);
    }
    publish_barriers();
    prefetch_map(&job.x);
    prefetch_map(&job.w[0]);
  }
  if (CLUSTER > 1) cluster_sync();
  else __syncthreads();
  wait_for_previous();
  if (threadIdx.x < 128) {
    registers_down<40>();
    if (threadIdx.x == 0) sm90_produce<BN, CLUSTER, GATED>(job, buffers, full, empty);
  } else {
    registers_up<232>();
    sm90_consume<BN, CLUSTER, GATED>(job, buffers, full, empty);
  }
  // Before it ends, nobody may write to this block or arrive here any more.
  if (CLUSTER > 1) cluster_sync();
  let_next_start();
}

#endif
