// A bf16 product where cuBLASLt is not found.
#include "tile.cuh"

extern "C" __global__ void __launch_bounds__(256)
    gemm_bf16(const __grid_constant__ GemmJob job) {
  // Tokens vary fastest, so that blocks that run together share rows of the weight.
  gemm_tile(job, blockIdx.x * BM, blockIdx.y * BN);
}
