// Products of every quant type from its padded base, every shape: 64 tokens x 64 rows a block, 4 chunks
// of 32 a tile, one buffer.
//
// A type says how 32 elements of a row become int8, and which scales and minimums they have; types
// with a scale for each 16 elements use two products of 16 k, the others one of 32.
#pragma once
#include "../layout.cuh"
#include "mma.cuh"

constexpr int TOKENS = 64, ROWS = 64, THREADS = 256, KD = 4, ROW = KD * 32 + 16;

struct __align__(16) Tile {
    uint8_t x[TOKENS][ROW];
    uint8_t w[ROWS][ROW];
    float xd[KD][TOKENS];
    float xs[KD * 2][TOKENS]; // d * sum, for each 16
    float ws[KD * 2][ROWS];   // for each 16
    float wm[KD * 2][ROWS];   // added minimum, for each 16
};

// What a type makes of one chunk.
struct Chunk {
    uint32_t q[8];
    float scale[2];
    float min[2];
};

// Words at addresses that are even only.
__device__ __forceinline__ uint32_t word_at(const uint8_t* p) {
    const uint16_t* h = reinterpret_cast<const uint16_t*>(p);
    return uint32_t(__ldg(h)) | uint32_t(__ldg(h + 1)) << 16;
}

// Bytes minus a small number, for bytes below 128.
template <int BIAS> __device__ __forceinline__ uint32_t minus(uint32_t v) {
    return (v + (128 - BIAS) * 0x01010101u) ^ 0x80808080u;
}

// Bits 0..4 of `bits` as the bit 4 of each byte.
__device__ __forceinline__ uint32_t fifth_bits(uint32_t bits) {
    return (bits & 1) << 4 | (bits & 2) << 11 | (bits & 4) << 18 | (bits & 8) << 25;
}

constexpr uint32_t LOW = 0x0f0f0f0fu;

// Blocks of 32: nibbles at `at`, element 16 + i in the high nibble of byte i.
template <bool FIFTH>
__device__ __forceinline__ void nibbles_32(Chunk& c, const uint8_t* at, uint32_t high) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t v = word_at(at + 4 * i);
        c.q[i] = v & LOW;
        c.q[i + 4] = v >> 4 & LOW;
        if constexpr (FIFTH) {
            c.q[i] |= fifth_bits(high >> (4 * i));
            c.q[i + 4] |= fifth_bits(high >> (16 + 4 * i));
        }
    }
}

template <int BIAS> __device__ __forceinline__ void centre(Chunk& c) {
#pragma unroll
    for (int i = 0; i < 8; ++i) c.q[i] = minus<BIAS>(c.q[i]);
}

struct Q4_0 {
    using Base = PaddedQ40;
    static constexpr bool HALVES = false, MIN = false;
    static __device__ __forceinline__ void read(Chunk& c, const uint8_t* block, int) {
        nibbles_32<false>(c, block + Base::QUANT_BASE, 0);
        centre<8>(c);
        c.scale[0] = half_at(block + Base::D_BASE);
    }
};

struct Q4_1 {
    using Base = PaddedQ41;
    static constexpr bool HALVES = false, MIN = true;
    static __device__ __forceinline__ void read(Chunk& c, const uint8_t* block, int) {
        nibbles_32<false>(c, block + Base::QUANT_BASE, 0);
        c.scale[0] = half_at(block + Base::D_BASE);
        c.min[0] = half_at(block + Base::MIN_BASE);
    }
};

struct Q5_0 {
    using Base = PaddedQ50;
    static constexpr bool HALVES = false, MIN = false;
    static __device__ __forceinline__ void read(Chunk& c, const uint8_t* block, int) {
        nibbles_32<true>(c, block + Base::QUANT_BASE, word_at(block + Base::HIGH_BASE));
        centre<16>(c);
        c.scale[0] = half_at(block + Base::D_BASE);
    }
};

struct Q5_1 {
    using Base = PaddedQ51;
    static constexpr bool HALVES = false, MIN = true;
    static __device__ __forceinline__ void read(Chunk& c, const uint8_t* block, int) {
        nibbles_32<true>(c, block + Base::QUANT_BASE, word_at(block + Base::HIGH_BASE));
        c.scale[0] = half_at(block + Base::D_BASE);
        c.min[0] = half_at(block + Base::MIN_BASE);
    }
};

struct Q8_0 {
    using Base = PaddedQ80;
    static constexpr bool HALVES = false, MIN = false;
    static __device__ __forceinline__ void read(Chunk& c, const uint8_t* block, int) {
#pragma unroll
        for (int i = 0; i < 8; ++i) c.q[i] = word_at(block + Base::QUANT_BASE + 4 * i);
        c.scale[0] = half_at(block + Base::D_BASE);
    }
};

// The scale and minimum of q4_K and q5_K, from the 12 bytes behind d and dmin.
__device__ __forceinline__ void k_scales(Chunk& c, const uint8_t* block, int sub) {
    const float d = half_at(block), dmin = half_at(block + 2);
    const uint8_t* s = block + 4;
    uint32_t scale, min;
    if (sub < 4) {
        scale = s[sub] & 63;
        min = s[sub + 4] & 63;
    } else {
        scale = (s[sub + 4] & 15) | (s[sub - 4] >> 6 << 4);
        min = (s[sub + 4] >> 4) | (s[sub] >> 6 << 4);
    }
    c.scale[0] = d * float(scale);
    c.min[0] = -(dmin * float(min));
}

struct Q4_K {
    using Base = PaddedQ4K;
    static constexpr bool HALVES = false, MIN = true;
    static __device__ __forceinline__ void read(Chunk& c, const uint8_t* block, int sub) {
        const uint8_t* q = block + Base::QUANT_BASE + sub / 2 * 32;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            c.q[i] = __ldg(reinterpret_cast<const uint32_t*>(q) + i) >> (sub % 2 * 4) & LOW;
        k_scales(c, block, sub);
    }
};

struct Q5_K {
    using Base = PaddedQ5K;
    static constexpr bool HALVES = false, MIN = true;
    static __device__ __forceinline__ void read(Chunk& c, const uint8_t* block, int sub) {
        const uint8_t *q = block + Base::QUANT_BASE + sub / 2 * 32, *h = block + Base::HIGH_BASE;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t high = __ldg(reinterpret_cast<const uint32_t*>(h) + i) >> sub & 0x01010101u;
            c.q[i] = (__ldg(reinterpret_cast<const uint32_t*>(q) + i) >> (sub % 2 * 4) & LOW) | high << 4;
        }
        k_scales(c, block, sub);
    }
};

struct Q6_K {
    using Base = PaddedQ6K;
    static constexpr bool HALVES = true, MIN = false;
    static __device__ __forceinline__ void read(Chunk& c, const uint8_t* block, int sub) {
        const int half = sub / 4, quarter = sub % 4;
        const uint8_t* q = block + Base::QUANT_BASE + half * 64 + quarter % 2 * 32;
        const uint8_t* h = block + Base::HIGH_BASE + half * 32;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t low = __ldg(reinterpret_cast<const uint32_t*>(q) + i) >> (quarter / 2 * 4) & LOW;
            const uint32_t high = __ldg(reinterpret_cast<const uint32_t*>(h) + i) >> (quarter * 2) & 0x03030303u;
            c.q[i] = minus<32>(low | high << 4);
        }
        const float d = half_at(block + Base::D_BASE);
#pragma unroll
        for (int i = 0; i < 2; ++i) c.scale[i] = d * float(int8_t(block[Base::SCALE_BASE + 2 * sub + i]));
    }
};

struct Q3_K {
    using Base = PaddedQ3K;
    static constexpr bool HALVES = true, MIN = false;
    static __device__ __forceinline__ void read(Chunk& c, const uint8_t* block, int sub) {
        const uint8_t *q = block + Base::QUANT_BASE + sub / 4 * 32, *h = block + Base::HIGH_BASE;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t low = __ldg(reinterpret_cast<const uint32_t*>(q) + i) >> (sub % 4 * 2) & 0x03030303u;
            const uint32_t high = __ldg(reinterpret_cast<const uint32_t*>(h) + i) >> sub & 0x01010101u;
            c.q[i] = minus<4>(low | high << 2);
        }
        const float d = half_at(block + Base::D_BASE);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            // 16 scales: low nibbles in 8 bytes, low then high; two more bits each in 4 bytes.
            const int g = 2 * sub + i;
            const uint32_t low = block[Base::SCALE_BASE + g % 8] >> (g / 8 * 4) & 15;
            const uint32_t high = block[Base::SCALE_HIGH_BASE + g % 4] >> (g / 4 * 2) & 3;
            c.scale[i] = d * float(int(low | high << 4) - 32);
        }
    }
};

struct Q2_K {
    using Base = PaddedQ2K;
    static constexpr bool HALVES = true, MIN = true;
    static __device__ __forceinline__ void read(Chunk& c, const uint8_t* block, int sub) {
        const uint8_t* q = block + Base::QUANT_BASE + sub / 4 * 32;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            c.q[i] = __ldg(reinterpret_cast<const uint32_t*>(q) + i) >> (sub % 4 * 2) & 0x03030303u;
        const float d = half_at(block + Base::D_BASE), dmin = half_at(block + Base::DMIN_BASE);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t s = block[Base::SCALE_BASE + 2 * sub + i];
            c.scale[i] = d * float(s & 15);
            c.min[i] = -(dmin * float(s >> 4));
        }
    }
};

template <class Q> __device__ __forceinline__ void fill(Tile& tile, const MmqArgs& a, uint32_t token0, uint32_t row0, uint32_t chunk0) {
    const uint32_t n_chunks = a.row_len / 32;
    // 64 tokens x 4 chunks x 2 pieces of 16 bytes.
#pragma unroll
    for (int i = 0; i < TOKENS * KD * 2 / THREADS; ++i) {
        const int at = threadIdx.x + i * THREADS, row = at / (KD * 2), piece = at % (KD * 2);
        const bool inside = token0 + row < a.n_tokens && chunk0 + piece / 2 < n_chunks;
        const size_t from = inside ? size_t(token0 + row) * a.row_len + chunk0 * 32 + piece * 16 : 0;
        copy16(&tile.x[row][piece * 16], a.xq + from, inside);
    }
    {
        static_assert(TOKENS * KD == THREADS, "a thread has one scale");
        const int t = threadIdx.x / KD, chunk = threadIdx.x % KD;
        float2 ds = make_float2(0, 0);
        if (token0 + t < a.n_tokens && chunk0 + chunk < n_chunks)
            ds = a.xds[size_t(token0 + t) * n_chunks + chunk0 + chunk];
        tile.xd[chunk][t] = ds.x;
        if constexpr (!Q::HALVES) tile.xs[2 * chunk][t] = ds.y;
    }
    copies_commit();
    // One chunk of one row a thread; chunks and rows beyond the last are zero.
    static_assert(ROWS * KD == THREADS, "a thread has one chunk");
    const int row = threadIdx.x / KD, chunk = threadIdx.x % KD;
    Chunk c = {};
    if (row0 + row < a.n_rows && chunk0 + chunk < n_chunks) {
        constexpr int PER_BLOCK = Q::Base::BLOCK_ELEMS / 32;
        const uint32_t at = chunk0 + chunk;
        const uint8_t* block = a.w + size_t(row0 + row) * a.w_row_stride + at / PER_BLOCK * Q::Base::BLOCK_STRIDE;
        Q::read(c, block, at % PER_BLOCK);
    }
    uint4* to = reinterpret_cast<uint4*>(&tile.w[row][chunk * 32]);
    to[0] = make_uint4(c.q[0], c.q[1], c.q[2], c.q[3]);
    to[1] = make_uint4(c.q[4], c.q[5], c.q[6], c.q[7]);
    tile.ws[2 * chunk][row] = c.scale[0];
    if constexpr (Q::HALVES) tile.ws[2 * chunk + 1][row] = c.scale[1];
    if constexpr (Q::MIN) {
        tile.wm[2 * chunk][row] = c.min[0];
        if constexpr (Q::HALVES) tile.wm[2 * chunk + 1][row] = c.min[1];
    }
    copies_wait<0>();
}

// d * sum of the activations, for each 16 elements.
__device__ __forceinline__ void sum_halves(Tile& tile) {
    for (int at = threadIdx.x; at < TOKENS * KD * 2; at += THREADS) {
        const int token = at % TOKENS, half = at / TOKENS;
        const uint32_t* x = reinterpret_cast<const uint32_t*>(&tile.x[token][half * 16]);
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) sum = __dp4a(int(x[i]), 0x01010101, sum);
        tile.xs[half][token] = tile.xd[half / 2][token] * float(sum);
    }
}

// A warp has 16 tokens x 32 rows: four tiles of the tensor core.
template <class Q> __device__ __forceinline__ void compute(const Tile& tile, float (&sum)[4][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int token = warp / 2 * 16, row = warp % 2 * 32;
    const uint32_t x_at = smem_at(&tile.x[token + lane % 16][lane / 16 * 16]);
    const uint32_t w_at = smem_at(&tile.w[row + lane % 8 + lane / 16 * 8][lane / 8 % 2 * 16]);
#pragma unroll
    for (int chunk = 0; chunk < KD; ++chunk) {
        uint32_t x[4];
        load_matrices(x, x_at + chunk * 32);
        const int t = token + lane / 4;
        const float xd[2] = {tile.xd[chunk][t], tile.xd[chunk][t + 8]};
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            uint32_t w[4];
            load_matrices(w, w_at + pair * 16 * ROW + chunk * 32);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int n = pair * 2 + j, column = row + n * 8 + lane % 4 * 2;
                const float2 s0 = *reinterpret_cast<const float2*>(&tile.ws[2 * chunk][column]);
                if constexpr (Q::HALVES) {
                    const float2 s1 = *reinterpret_cast<const float2*>(&tile.ws[2 * chunk + 1][column]);
                    int d0[4], d1[4];
                    mma_k16(d0, x[0], x[1], w[2 * j]);
                    mma_k16(d1, x[2], x[3], w[2 * j + 1]);
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        float p = float(d0[e]) * (e & 1 ? s0.y : s0.x);
                        p = fmaf(float(d1[e]), e & 1 ? s1.y : s1.x, p);
                        sum[n][e] = fmaf(p, xd[e >> 1], sum[n][e]);
                    }
                } else {
                    int dot[4];
                    mma_k32(dot, x, w[2 * j], w[2 * j + 1]);
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        sum[n][e] = fmaf(float(dot[e]) * (e & 1 ? s0.y : s0.x), xd[e >> 1], sum[n][e]);
                }
                if constexpr (Q::MIN) {
#pragma unroll
                    for (int half = 0; half < (Q::HALVES ? 2 : 1); ++half) {
                        const float2 m = *reinterpret_cast<const float2*>(&tile.wm[2 * chunk + half][column]);
                        const float xs[2] = {tile.xs[2 * chunk + half][t], tile.xs[2 * chunk + half][t + 8]};
#pragma unroll
                        for (int e = 0; e < 4; ++e)
                            sum[n][e] = fmaf(e & 1 ? m.y : m.x, xs[e >> 1], sum[n][e]);
                    }
                }
            }
        }
    }
}

// One block: tokens from `token0` on, the rows of blockIdx.y.
template <class Q> __device__ __forceinline__ void product(const MmqArgs& a, uint32_t token0) {
    __shared__ Tile tile;
    const uint32_t row0 = blockIdx.y * ROWS, n_chunks = a.row_len / 32;
    float sum[4][4] = {};
    for (uint32_t chunk0 = 0; chunk0 < n_chunks; chunk0 += KD) {
        fill<Q>(tile, a, token0, row0, chunk0);
        __syncthreads();
        if constexpr (Q::MIN && Q::HALVES) {
            sum_halves(tile);
            __syncthreads();
        }
        compute<Q>(tile, sum);
        __syncthreads();
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < 4; ++n)
        store_tile(a, sum[n], token0 + warp / 2 * 16 + lane / 4, row0 + warp % 2 * 32 + n * 8 + lane % 4 * 2);
}
