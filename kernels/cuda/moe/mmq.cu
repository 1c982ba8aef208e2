// Many tokens times their experts' matrices in int8, from the padded base: a block takes up to 64 rows
// of activations that go to one expert (moe_tiles), and 64 of its rows. Which expert that is, no host
// knows; blocks behind the last tile have nothing to do.
#include "../mmq/generic.cuh"
#include "job.cuh"

// Addresses and tokens in `a` are those of all rows of activations.
struct ExpertMmqArgs {
    MmqArgs a;
    ExpertRows rows;
    const ExpertTile* tiles;
};

template <class Q> __device__ __forceinline__ void product_of_expert(const ExpertMmqArgs& job) {
    const ExpertTile tile = job.tiles[blockIdx.x];
    if (tile.n == 0) return;
    MmqArgs a = job.a;
    a.w = a.p = job.rows.of(tile.expert);
    a.y += size_t(tile.first) * a.ldy;
    a.xq += size_t(tile.first) * a.row_len;
    a.xds += size_t(tile.first) * (a.row_len / 32);
    a.n_tokens = tile.n;
    product<Q>(a, 0);
}

#define KERNEL(name, type)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                                       \
        experts_##name(const __grid_constant__ ExpertMmqArgs job) { product_of_expert<type>(job); }

KERNEL(mmq_q4_0, Q4_0)
KERNEL(mmq_q4_1, Q4_1)
KERNEL(mmq_q5_0, Q5_0)
KERNEL(mmq_q5_1, Q5_1)
KERNEL(mmq_q8_0, Q8_0)
KERNEL(mmq_q2_k, Q2_K)
KERNEL(mmq_q3_k, Q3_K)
KERNEL(mmq_q4_k_narrow, Q4_K)
KERNEL(mmq_q5_k, Q5_K)
KERNEL(mmq_q6_k_narrow, Q6_K)
