// q4_K, wide: a block computes 128 tokens x 128 rows with m16n8k32 tensor-core products.
//
// K runs in tiles of KD chunks of 32 (4 or 8). weight = d*sc * q - dmin*m, so that a chunk adds
//   d_x * (d*sc * dot) + (d_x * sum of x) * (-dmin*m):
// the minimum is a rank-1 update with the sums that the activations bring. Of four chunks it is a
// product of 4 k, which the tensor core takes as tf32 in two parts a factor: 22 bits of mantissa.
//
//   PADDED  16-byte loads of nibbles from the padded base, expanded on the way to shared memory
//   EB      asynchronous copies from `eb` (a tile of 128 rows is one span) and of pairs from `sb`
//
// STAGES = 2: the tile t + 1 is under way while t is computed. STAGES = 1: one tile of the whole
// super-block; two resident blocks hide each other's waits.
#include "../layout.cuh"
#include "mma.cuh"

enum Source { PADDED, EB };

constexpr int TOKENS = 128, ROWS = 128, THREADS = 256;
using Base = PaddedQ4K;

// Shared memory of one tile. Rows of 16 (mod 32) words: ldmatrix meets no bank twice.
template <int KD> struct __align__(16) Tile {
    static constexpr int ROW = KD * 32 + 16;
    uint8_t x[TOKENS][ROW];
    uint8_t w[ROWS][ROW];
    float2 xds[TOKENS][KD + 2]; // scale, scale * sum; padded against bank conflicts
    float2 ws[KD][ROWS + 4]; // d*sc, -dmin*m; padded too
};

template <int KD, Source B> struct Stage {
    static constexpr int NIBBLES = KD;                             // 16-byte loads a row and tile
    static constexpr int PER_THREAD = ROWS * NIBBLES / THREADS;    // of such loads
    static constexpr int PIECES = KD * 2;                          // of 16 elements, a row and tile
    using T = Tile<KD>;

    const MmqArgs& a;
    uint32_t token0, row0;
    // Between load and store of one tile.
    uint4 nibbles[B == PADDED ? PER_THREAD : 1];
    uint4 head;

    __device__ __forceinline__ Stage(const MmqArgs& args, uint32_t token, uint32_t row)
        : a(args), token0(token), row0(row) {}

    // Everything that is asynchronous, as one group of copies.
    __device__ __forceinline__ void copy(T& tile, uint32_t k0) const {
        const uint32_t n_tokens = a.n_tokens - token0, n_rows = a.n_rows - row0;
        copy_rows<TOKENS, PIECES, T::ROW, THREADS>(tile.x, a.xq + size_t(token0) * a.row_len + k0, a.row_len, n_tokens);
        const uint32_t n_chunks = a.row_len / 32;
        copy_rows<TOKENS, KD / 2, sizeof(tile.xds[0]), THREADS>(
            tile.xds, a.xds + size_t(token0) * n_chunks + k0 / 32, n_chunks * sizeof(float2), n_tokens);
        if constexpr (B == EB) {
            const uint8_t* column = a.w + size_t(k0 / 256) * a.w_k_stride + (k0 & 255);
            copy_rows<ROWS, PIECES, T::ROW, THREADS>(tile.w, column + size_t(row0) * EbQ4K::QUANT_ROW_GROUP_STRIDE, EbQ4K::QUANT_ROW_GROUP_STRIDE, n_rows);
            // Pairs of two rows; the plane has an even number of them.
            const int chunk = threadIdx.x / (ROWS / 2), row = threadIdx.x % (ROWS / 2) * 2;
            const uint8_t* pairs = a.p + size_t(k0 / 32 + chunk) * a.p_k_stride + size_t(row0 + row) * SbQ4K::SCALE_ROW_GROUP_STRIDE;
            constexpr int AT_ONCE = THREADS / (ROWS / 2);
            const uint32_t step = opaque(uint32_t(a.p_k_stride) * AT_ONCE);
#pragma unroll
            for (int i = 0; i < KD / AT_ONCE; ++i) {
                copy16(&tile.ws[chunk + i * AT_ONCE][row], pairs, row < n_rows);
                pairs += step;
            }
        }
    }

    // The row whose scales this thread decodes: the first half of the chunks of a tile or the
    // second.
    __device__ __forceinline__ int scale_row() const { return threadIdx.x % ROWS; }

    // Loads into registers; nothing waits for them here.
    __device__ __forceinline__ void load(uint32_t k0) {
        const uint32_t block_at = k0 / 256 * Base::BLOCK_STRIDE;
        const uint32_t row = threadIdx.x / NIBBLES, piece = threadIdx.x % NIBBLES;
        constexpr int AT_ONCE = THREADS / NIBBLES;
        const uint8_t* from = a.w + (row0 + row) * a.w_row_stride + block_at + Base::QUANT_BASE + (k0 & 255) / 2 + piece * 16;
        const uint32_t step = opaque(uint32_t(a.w_row_stride) * AT_ONCE);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            // What rows beyond the last hold does not matter: nothing of theirs is stored.
            nibbles[i] = row0 + row + i * AT_ONCE < a.n_rows ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
            from += step;
        }
        const uint32_t r = row0 + scale_row() < a.n_rows ? row0 + scale_row() : 0;
        head = __ldg(reinterpret_cast<const uint4*>(a.w + r * a.w_row_stride + block_at));
    }

    __device__ __forceinline__ void store(T& tile, uint32_t k0) const {
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int at = threadIdx.x + i * THREADS, row = at / NIBBLES, piece = at % NIBBLES;
            // 32 bytes of nibbles are two chunks: the low ones, then the high ones.
            uint8_t* to = &tile.w[row][piece / 2 * 64 + piece % 2 * 16];
            const uint4 n = nibbles[i];
            constexpr uint32_t LOW = 0x0f0f0f0fu;
            *reinterpret_cast<uint4*>(to) = make_uint4(n.x & LOW, n.y & LOW, n.z & LOW, n.w & LOW);
            *reinterpret_cast<uint4*>(to + 32) =
                make_uint4(n.x >> 4 & LOW, n.y >> 4 & LOW, n.z >> 4 & LOW, n.w >> 4 & LOW);
        }
        // Rows beyond the last have zeros, whatever their integers are.
        const bool inside = row0 + scale_row() < a.n_rows;
        const float d = inside ? half_bits(head.x) : 0.0f;
        const float dmin = inside ? half_bits(head.x >> 16) : 0.0f;
        // Eight 6-bit scales and minimums in bytes 4..16, here as two words each.
        const uint32_t s0 = head.y, s1 = head.z, s2 = head.w;
        const uint32_t scales[2] = {s0 & 0x3f3f3f3fu, (s2 & 0x0f0f0f0fu) | (s0 >> 2 & 0x30303030u)};
        const uint32_t mins[2] = {s1 & 0x3f3f3f3fu, (s2 >> 4 & 0x0f0f0f0fu) | (s1 >> 2 & 0x30303030u)};
        // Two threads share a row: KD / 2 chunks each.
        const int first = threadIdx.x / ROWS * (KD / 2);
#pragma unroll
        for (int i = 0; i < KD / 2; ++i) {
            const int chunk = first + i, sub = (k0 & 255) / 32 + chunk;
            const uint32_t sc = (sub < 4 ? scales[0] : scales[1]) >> (sub % 4 * 8) & 0xff;
            const uint32_t m = (sub < 4 ? mins[0] : mins[1]) >> (sub % 4 * 8) & 0xff;
            tile.ws[chunk][scale_row()] = make_float2(d * float(sc), -(dmin * float(m)));
        }
    }
};

// A warp has 32 tokens x 64 rows: 2 x 8 tiles of the tensor core.
template <int KD> __device__ __forceinline__ void compute(const Tile<KD>& tile, float (&sum)[2][8][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int token = warp / 2 * 32, row = warp % 2 * 64;
    const uint32_t x_at = smem_at(&tile.x[token + lane % 16][lane / 16 * 16]);
    const uint32_t w_at = smem_at(&tile.w[row + lane % 8 + lane / 16 * 8][lane / 8 % 2 * 16]);
#pragma unroll
    for (int chunk = 0; chunk < KD; ++chunk) {
        uint32_t x[2][4];
        float xd[2][2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            load_matrices(x[m], x_at + m * 16 * Tile<KD>::ROW + chunk * 32);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                xd[m][i] = tile.xds[token + m * 16 + lane / 4 + 8 * i][chunk].x;
            }
        }
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            uint32_t w[4];
            load_matrices(w, w_at + pair * 16 * Tile<KD>::ROW + chunk * 32);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int n = pair * 2 + j;
                // Two rows: (scale, minimum) of each.
                const float4 s = load_shared16(&tile.ws[chunk][row + n * 8 + lane % 4 * 2]);
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    int dot[4];
                    mma_k32(dot, x[m], w[2 * j], w[2 * j + 1]);
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const float t = float(dot[e]) * (e & 1 ? s.z : s.x);
                        sum[m][n][e] = fmaf(t, xd[m][e >> 1], sum[m][n][e]);
                    }
                }
            }
        }
    }
}

// Minimums: [tokens][4 chunks] x [4 chunks][rows], the upper parts of the sums as k 0..4 of the
// tensor core and the lower ones as k 4..8, times the upper parts of the minimums, then the lower.
template <int KD> __device__ __forceinline__ void add_minimums(const Tile<KD>& tile, float (&sum)[2][8][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int token = warp / 2 * 32 + lane / 4, row = warp % 2 * 64 + lane / 4;
#pragma unroll
    for (int first = 0; first < KD; first += 4) {
        const int chunk = first + lane % 4;
        uint32_t x[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                split_tf32(tile.xds[token + m * 16 + 8 * i][chunk].y, x[m][i], x[m][i + 2]);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            uint32_t high, low;
            split_tf32(tile.ws[chunk][row + n * 8].y, high, low);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                mma_tf32(sum[m][n], x[m], high);
                mma_tf32(sum[m][n], x[m], low);
            }
        }
    }
}

template <int KD, Source B, int STAGES> __device__ __forceinline__ void product(const MmqArgs& a) {
    using T = Tile<KD>;
    constexpr int K = KD * 32;
    extern __shared__ __align__(16) uint8_t shared[];
    T* tiles = reinterpret_cast<T*>(shared);
    const uint32_t token0 = blockIdx.x * TOKENS, row0 = blockIdx.y * ROWS;
    const uint32_t n_tiles = a.row_len / K;
    Stage<KD, B> stage(a, token0, row0);
    float sum[2][8][4] = {};

    if constexpr (STAGES == 1) {
        if constexpr (B == PADDED) stage.load(0);
        for (uint32_t t = 0; t < n_tiles; ++t) {
            stage.copy(tiles[0], t * K);
            copies_commit();
            if constexpr (B == PADDED) {
                stage.store(tiles[0], t * K);
                if (t + 1 < n_tiles) stage.load((t + 1) * K);
            }
            copies_wait<0>();
            __syncthreads();
            compute<KD>(tiles[0], sum);
            add_minimums<KD>(tiles[0], sum);
            __syncthreads();
        }
    } else {
        stage.copy(tiles[0], 0);
        copies_commit();
        if constexpr (B == PADDED) {
            stage.load(0);
            stage.store(tiles[0], 0);
        }
        for (uint32_t t = 0; t < n_tiles; ++t) {
            const bool more = t + 1 < n_tiles;
            T& next = tiles[(t + 1) & 1];
            if (more) {
                stage.copy(next, (t + 1) * K);
                copies_commit();
                if constexpr (B == PADDED) stage.load((t + 1) * K);
                copies_wait<1>();
            } else {
                copies_wait<0>();
            }
            __syncthreads(); // everybody's copies and stores of this tile are visible
            compute<KD>(tiles[t & 1], sum);
            add_minimums<KD>(tiles[t & 1], sum);
            if constexpr (B == PADDED) {
                if (more) stage.store(next, (t + 1) * K);
            }
            __syncthreads(); // nobody reads this tile any more: it may be refilled
        }
    }

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 8; ++n)
            store_tile(a, sum[m][n], token0 + warp / 2 * 32 + m * 16 + lane / 4,
                       row0 + warp % 2 * 64 + n * 8 + lane % 4 * 2);
}

// The host knows these sizes (`MmqKernel` in kernels/src/cuda/mmq.rs).
static_assert(sizeof(Tile<4>) == 47232 && sizeof(Tile<8>) == 88320, "shared memory");

#define KERNEL(name, kd, source, stages)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) name(const MmqArgs a) {               \
        product<kd, source, stages>(a);                                                            \
    }

KERNEL(mmq_q4_k_kd4_padded, 4, PADDED, 2)
KERNEL(mmq_q4_k_kd4_eb, 4, EB, 2)
KERNEL(mmq_q4_k_kd8_padded, 8, PADDED, 1)
KERNEL(mmq_q4_k_kd8_eb, 8, EB, 1)
