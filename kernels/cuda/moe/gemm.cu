// Many tokens times their experts' matrices in bf16: as gemm/gemm_bf16.cu, a block takes up to 128 rows
// of activations that go to one expert (moe_tiles).
#include "../gemm/tile.cuh"
#include "job.cuh"

// Addresses and tokens in `job` are those of all rows of activations.
struct ExpertGemmJob {
  GemmJob job;
  ExpertRows rows;
  const ExpertTile* tiles;
};

extern "C" __global__ void __launch_bounds__(256)
    experts_gemm_bf16(const __grid_constant__ ExpertGemmJob e) {
  wait_for_previous();
  const ExpertTile tile = e.tiles[blockIdx.x];
  if (tile.n == 0) return;
  GemmJob job = e.job;
  job.w = reinterpret_cast<const __nv_bfloat16*>(e.rows.of(tile.expert));
  job.x += static_cast<size_t>(tile.first) * job.row_len;
  job.y += static_cast<size_t>(tile.first) * job.n_rows;
  job.n_tokens = tile.n;
  gemm_tile(job, 0, blockIdx.y * BN);
}
