// q6_K: int8 tensor cores, activations (tokens) on the A side, weights (rows) on the B side.
//
// A block computes 128 tokens x 64 rows. K runs in tiles of KDR chunks of 32, double-buffered: the
// tile t + 1 is under way while t is computed. Each chunk is two halves of 16 k, each with a weight
// scale of its own: sum += d_x * (dot0 * scale0 + dot1 * scale1).
//
// One source, template parameters (KDR, B, DSC):
//   B = PADDED        16-byte loads from the padded base, expanded on the way to shared memory
//   B = PADDED_COPIED the base's bytes copied asynchronously, expanded from shared to shared memory
//   B = EXP_LOADED    16-byte loads from the `exp` plane: nothing to expand, nothing asynchronous
//   B = EXP           asynchronous copies from the `exp` plane
//   DSC               scales copied from the `dsc` plane instead of computed from the base
// row_len % 256 == 0, which also aligns every 16 elements of the dense plane.
#include "../layout.cuh"
#include "mma.cuh"

enum Source { PADDED, PADDED_COPIED, EXP_LOADED, EXP };

constexpr int TOKENS = 128, ROWS = 64, THREADS = 256;
using Base = PaddedQ6K;

// Shared memory of one tile. Rows of 16 (mod 32) words: ldmatrix meets no bank twice.
template <int KDR, Source B> struct __align__(16) Tile {
    static constexpr int ROW = KDR * 32 + 16;
    uint8_t x[TOKENS][ROW];
    uint8_t w[ROWS][ROW];
    static constexpr int PAIRS = KDR + (KDR > 2 ? 2 : 0); // padded against bank conflicts too
    float2 xds[TOKENS][PAIRS];
    float ws[KDR * 2][ROWS];
};

// The bytes of `ql` and `qh` that 16 elements need, as they lie in the base.
struct Raw {
    uint4 low, high;
};

// Where 16 elements that start at `k` (a multiple of 16) of a super-block have theirs.
struct Place {
    int low, high, low_shift, high_shift;
    __device__ __forceinline__ explicit Place(int k) {
        const int half = k >> 7, n = k & 127;
        low = Base::QUANT_BASE + half * 64 + (n & 63);
        high = Base::HIGH_BASE + half * 32 + (k & 31);
        low_shift = 4 * (n >> 6);
        high_shift = 2 * ((n >> 5) & 3);
    }
};

__device__ __forceinline__ uint32_t centred(uint32_t low, uint32_t high, const Place& at) {
    const uint32_t v = ((low >> at.low_shift) & 0x0f0f0f0fu) | (((high >> at.high_shift) & 0x03030303u) << 4);
    // v - 32 in each byte: 0x60 more never carries, and the flipped top bit is another 0x80.
    return (v + 0x60606060u) ^ 0x80808080u;
}

__device__ __forceinline__ uint4 expand(const Raw& raw, const Place& at) {
    return make_uint4(centred(raw.low.x, raw.high.x, at), centred(raw.low.y, raw.high.y, at),
                      centred(raw.low.z, raw.high.z, at), centred(raw.low.w, raw.high.w, at));
}

__device__ __forceinline__ uint4 load16(const uint8_t* p) {
    return __ldg(reinterpret_cast<const uint4*>(p));
}

template <int KDR, Source B, bool DSC> struct Stage {
    static constexpr int PIECES = KDR * 2;                       // of 16 elements, a row and tile
    static constexpr int W_PER_THREAD = ROWS * PIECES / THREADS; // of such pieces
    static_assert(ROWS * PIECES % THREADS == 0, "pieces are spread evenly");
    static constexpr bool THROUGH_REGISTERS = B == PADDED || B == EXP_LOADED || !DSC;
    using T = Tile<KDR, B>;

    const MmqArgs& a;
    uint32_t token0, row0;
    // Between load and store of one tile.
    uint4 low[B == PADDED || B == EXP_LOADED ? W_PER_THREAD : 1];
    uint4 high[B == PADDED ? W_PER_THREAD : 1];
    float scale[DSC ? 1 : W_PER_THREAD];

    __device__ __forceinline__ Stage(const MmqArgs& args, uint32_t token, uint32_t row)
        : a(args), token0(token), row0(row) {}

    // Everything that is asynchronous, as one group of copies.
    __device__ __forceinline__ void copy(T& tile, uint8_t* raw, uint32_t k0) const {
        const uint32_t n_tokens = a.n_tokens - token0, n_chunks = a.row_len / 32;
        copy_rows<TOKENS, PIECES, T::ROW, THREADS>(tile.x, a.xq + size_t(token0) * a.row_len + k0, a.row_len, n_tokens);
        constexpr int PAIR_PIECES = KDR / 2; // of two scales, a token
        if (PAIR_PIECES * TOKENS >= THREADS || threadIdx.x < PAIR_PIECES * TOKENS) {
            const uint32_t t = threadIdx.x / PAIR_PIECES, piece = threadIdx.x % PAIR_PIECES;
            copy16(&tile.xds[t][piece * 2], a.xds + size_t(token0 + t) * n_chunks + k0 / 32 + piece * 2, t < n_tokens);
        }
        static_assert(PAIR_PIECES * TOKENS <= THREADS, "a thread copies two scales at most");
        if constexpr (B == EXP)
            copy_rows<ROWS, PIECES, T::ROW, THREADS>(tile.w, a.w + row0 * a.w_row_stride + k0, a.w_row_stride, a.n_rows - row0);
        if constexpr (B == PADDED_COPIED) {
            // 16 bytes of ql and of qh for each piece, as they are.
#pragma unroll
            for (int i = 0; i < W_PER_THREAD; ++i) {
                const int at = threadIdx.x + i * THREADS, row = at / PIECES, piece = at % PIECES;
                const bool inside = row0 + row < a.n_rows;
                const Place place((k0 + piece * 16) & 255);
                const uint8_t* block = a.w + (row0 + row) * a.w_row_stride + k0 / 256 * Base::BLOCK_STRIDE;
                copy16(raw + at * 32, block + place.low, inside);
                copy16(raw + at * 32 + 16, block + place.high, inside);
            }
        }
        if constexpr (DSC) {
            constexpr int W_SCALES = KDR * 2 * ROWS / 4;
            if (threadIdx.x < W_SCALES) {
                const int group = threadIdx.x / (ROWS / 4), row = threadIdx.x % (ROWS / 4) * 4;
                const bool inside = row0 + row < a.n_rows;
                const size_t at = size_t(k0 / 16 + group) * a.p_k_stride + (row0 + row) * DscQ6K::SCALE_ROW_GROUP_STRIDE;
                copy16(&tile.ws[group][row], a.p + at, inside);
            }
        }
    }

    // Loads into registers; nothing waits for them here.
    __device__ __forceinline__ void load(uint32_t k0) {
#pragma unroll
        for (int i = 0; i < W_PER_THREAD; ++i) {
            const int at = threadIdx.x + i * THREADS, row = at / PIECES, piece = at % PIECES;
            const bool inside = row0 + row < a.n_rows;
            const size_t from = (inside ? row0 + row : 0) * a.w_row_stride;
            if constexpr (B == EXP_LOADED) {
                low[i] = inside ? load16(a.w + from + k0 + piece * 16) : make_uint4(0, 0, 0, 0);
            }
            if constexpr (B == PADDED) {
                const Place place((k0 + piece * 16) & 255);
                const uint8_t* block = a.w + from + k0 / 256 * Base::BLOCK_STRIDE;
                low[i] = load16(block + place.low);
                high[i] = load16(block + place.high);
            }
            if constexpr (!DSC) {
                // Rows beyond the last have scale 0, whatever their integers are.
                const uint8_t* block = a.p + (inside ? row0 + row : 0) * a.p_row_stride + k0 / 256 * Base::BLOCK_STRIDE;
                const int sub = (k0 & 255) / 16 + piece;
                const float product = half_at(block + Base::D_BASE) * float(int8_t(block[Base::SCALE_BASE + sub]));
                scale[i] = inside ? product : 0.0f;
            }
        }
    }

    __device__ __forceinline__ void store(T& tile, uint32_t k0) const {
#pragma unroll
        for (int i = 0; i < W_PER_THREAD; ++i) {
            const int at = threadIdx.x + i * THREADS, row = at / PIECES, piece = at % PIECES;
            if constexpr (B == EXP_LOADED) *reinterpret_cast<uint4*>(&tile.w[row][piece * 16]) = low[i];
            if constexpr (B == PADDED) {
                const Place place((k0 + piece * 16) & 255);
                *reinterpret_cast<uint4*>(&tile.w[row][piece * 16]) = expand({low[i], high[i]}, place);
            }
            if constexpr (!DSC) tile.ws[piece][row] = scale[i];
        }
    }

    // A thread expands what it copied itself, so that its own wait is enough.
    __device__ __forceinline__ void expand_raw(T& tile, const uint8_t* raw, uint32_t k0) const {
#pragma unroll
        for (int i = 0; i < W_PER_THREAD; ++i) {
            const int at = threadIdx.x + i * THREADS, row = at / PIECES, piece = at % PIECES;
            const Place place((k0 + piece * 16) & 255);
            const uint4* from = reinterpret_cast<const uint4*>(raw + at * 32);
            *reinterpret_cast<uint4*>(&tile.w[row][piece * 16]) = expand({from[0], from[1]}, place);
        }
    }
};

// A warp has 32 tokens x 32 rows: 2 x 4 tiles of the tensor core.
template <int KDR, Source B>
__device__ __forceinline__ void compute(const Tile<KDR, B>& tile, float (&sum)[2][4][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int token = warp / 2 * 32, row = warp % 2 * 32;
    const uint32_t x_at = smem_at(&tile.x[token + lane % 16][lane / 16 * 16]);
    const uint32_t w_at = smem_at(&tile.w[row + lane % 8 + lane / 16 * 8][lane / 8 % 2 * 16]);
#pragma unroll
    for (int chunk = 0; chunk < KDR; ++chunk) {
        uint32_t x[2][4];
        float xd[2][2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            load_matrices(x[m], x_at + m * 16 * Tile<KDR, B>::ROW + chunk * 32);
            xd[m][0] = tile.xds[token + m * 16 + lane / 4][chunk].x;
            xd[m][1] = tile.xds[token + m * 16 + lane / 4 + 8][chunk].x;
        }
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            uint32_t w[4];
            load_matrices(w, w_at + pair * 16 * Tile<KDR, B>::ROW + chunk * 32);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int n = pair * 2 + j, column = row + n * 8 + lane % 4 * 2;
                const float2 s0 = *reinterpret_cast<const float2*>(&tile.ws[2 * chunk][column]);
                const float2 s1 = *reinterpret_cast<const float2*>(&tile.ws[2 * chunk + 1][column]);
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    int d0[4], d1[4];
                    mma_k16(d0, x[m][0], x[m][1], w[2 * j]);
                    mma_k16(d1, x[m][2], x[m][3], w[2 * j + 1]);
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        float t = float(d0[e]) * (e & 1 ? s0.y : s0.x);
                        t = fmaf(float(d1[e]), e & 1 ? s1.y : s1.x, t);
                        sum[m][n][e] = fmaf(t, xd[m][e >> 1], sum[m][n][e]);
                    }
                }
            }
        }
    }
}

// Two buffers: the tile t + 1 is under way while t is computed, and a second barrier keeps it from
// overtaking readers.
template <int KDR, Source B, bool DSC>
__device__ __forceinline__ void run_2(Stage<KDR, B, DSC>& stage, Tile<KDR, B>* tiles, uint32_t n_tiles, float (&sum)[2][4][4]) {
    using S = Stage<KDR, B, DSC>;
    constexpr int K = KDR * 32;
    uint8_t* raw = reinterpret_cast<uint8_t*>(tiles + 2); // B == PADDED_COPIED: two tiles of raw bytes
    constexpr int RAW = B == PADDED_COPIED ? ROWS * KDR * 2 * 32 : 0;
    stage.copy(tiles[0], raw, 0);
    copies_commit();
    if constexpr (S::THROUGH_REGISTERS) {
        stage.load(0);
        stage.store(tiles[0], 0);
    }
    for (uint32_t t = 0; t < n_tiles; ++t) {
        Tile<KDR, B>& tile = tiles[t & 1];
        Tile<KDR, B>& next = tiles[(t + 1) & 1];
        const bool more = t + 1 < n_tiles;
        if (more) {
            stage.copy(next, raw + ((t + 1) & 1) * RAW, (t + 1) * K);
            copies_commit();
            if constexpr (S::THROUGH_REGISTERS) stage.load((t + 1) * K);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        if constexpr (B == PADDED_COPIED) stage.expand_raw(tile, raw + (t & 1) * RAW, t * K);
        __syncthreads(); // everybody's copies and stores of this tile are visible
        compute<KDR, B>(tile, sum);
        if constexpr (S::THROUGH_REGISTERS) {
            if (more) stage.store(next, (t + 1) * K);
        }
        __syncthreads(); // nobody reads this tile any more: it may be refilled
    }
}

// Three buffers: copies run two tiles ahead, and the one barrier of a tile also proves that nobody
// reads the buffer any more that is refilled behind it.
template <int KDR, Source B, bool DSC>
__device__ __forceinline__ void run_3(Stage<KDR, B, DSC>& stage, Tile<KDR, B>* tiles, uint32_t n_tiles, float (&sum)[2][4][4]) {
    using S = Stage<KDR, B, DSC>;
    constexpr int K = KDR * 32;
    static_assert(B != PADDED_COPIED, "raw bytes have two buffers");
    // row_len is a multiple of 256: there are two tiles at least.
    stage.copy(tiles[0], nullptr, 0);
    copies_commit();
    stage.copy(tiles[1], nullptr, K);
    copies_commit();
    if constexpr (S::THROUGH_REGISTERS) {
        stage.load(0);
        stage.store(tiles[0], 0);
    }
    uint32_t now = 0;
    for (uint32_t t = 0; t < n_tiles; ++t) {
        const uint32_t next = now == 2 ? 0 : now + 1, free = now == 0 ? 2 : now - 1;
        copies_wait<1>();
        __syncthreads();
        if (t + 2 < n_tiles) stage.copy(tiles[free], nullptr, (t + 2) * K);
        copies_commit(); // an empty group at the end: the count of the wait stays right
        const bool more = t + 1 < n_tiles;
        if constexpr (S::THROUGH_REGISTERS) {
            if (more) stage.load((t + 1) * K);
        }
        compute<KDR, B>(tiles[now], sum);
        if constexpr (S::THROUGH_REGISTERS) {
            if (more) stage.store(tiles[next], (t + 1) * K);
        }
        now = next;
    }
    copies_wait<0>();
}

template <int KDR, Source B, bool DSC, int BUFFERS> __device__ __forceinline__ void product(const MmqArgs& a) {
    extern __shared__ __align__(16) uint8_t shared[];
    Tile<KDR, B>* tiles = reinterpret_cast<Tile<KDR, B>*>(shared);
    const uint32_t token0 = blockIdx.x * TOKENS, row0 = blockIdx.y * ROWS;
    const uint32_t n_tiles = a.row_len / (KDR * 32);
    Stage<KDR, B, DSC> stage(a, token0, row0);
    float sum[2][4][4] = {};
    if constexpr (BUFFERS == 2) {
        run_2(stage, tiles, n_tiles, sum);
    } else {
        run_3(stage, tiles, n_tiles, sum);
    }

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n)
            store_tile(a, sum[m][n], token0 + warp / 2 * 32 + m * 16 + lane / 4,
                       row0 + warp % 2 * 32 + n * 8 + lane % 4 * 2);
}

// The host knows these sizes (`MmqKernel` in kernels/src/cuda/mmq.rs).
static_assert(sizeof(Tile<2, EXP>) == 18432 && sizeof(Tile<4, EXP>) == 35840, "shared memory");
static_assert(sizeof(MmqArgs) == 104, "arguments");

#define KERNEL(name, kdr, source, dsc, buffers)                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, 3) name(const MmqArgs a) {               \
        product<kdr, source, dsc, buffers>(a);                                                     \
    }

KERNEL(mmq_q6_k_kdr2_padded, 2, PADDED, false, 3)
KERNEL(mmq_q6_k_kdr2_padded_copied, 2, PADDED_COPIED, false, 2)
KERNEL(mmq_q6_k_kdr2_exp_loaded, 2, EXP_LOADED, false, 3)
KERNEL(mmq_q6_k_kdr2_exp, 2, EXP, false, 3)
KERNEL(mmq_q6_k_kdr2_exp_dsc, 2, EXP, true, 3)
KERNEL(mmq_q6_k_kdr2_padded_dsc, 2, PADDED, true, 3)
KERNEL(mmq_q6_k_kdr4_padded, 4, PADDED, false, 2)
KERNEL(mmq_q6_k_kdr4_exp, 4, EXP, false, 2)
KERNEL(mmq_q6_k_kdr4_exp_dsc, 4, EXP, true, 2)
