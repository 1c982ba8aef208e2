// bf16 products of many tokens on Hopper, in the place of cuBLASLt.
#include "sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SM90_BODY(BN, CLUSTER, GATED) gemm_sm90<BN, CLUSTER, GATED>(job)
#define SM90_CLUSTER(CLUSTER) __cluster_dims__(CLUSTER, 1, 1)
#else
// Other architectures have no such instructions, and nobody launches it there.
#define SM90_BODY(BN, CLUSTER, GATED)
#define SM90_CLUSTER(CLUSTER)
#endif
#define SM90_KERNEL(NAME, BN, CLUSTER, GATED)                                         \
  extern "C" __global__ void SM90_CLUSTER(CLUSTER) __launch_bounds__(SM90_THREADS, 1) \
      NAME(const __grid_constant__ Sm90Job job) {                                     \
    SM90_BODY(BN, CLUSTER, GATED);                                                    \
  }

#define SM90_BOTH(BN)                       \
  SM90_KERNEL(gemm_sm90_##BN, BN, 1, false) \
  SM90_KERNEL(gemm_sm90_##BN##_pair, BN, 2, false)
#define SM90_GATED(BN)                           \
  SM90_KERNEL(gemm_sm90_gated_##BN, BN, 1, true) \
  SM90_KERNEL(gemm_sm90_gated_##BN##_pair, BN, 2, true)

SM90_BOTH(256)
SM90_BOTH(240)
SM90_BOTH(192)
SM90_BOTH(144)
SM90_BOTH(128)
SM90_BOTH(112)
SM90_BOTH(64)
SM90_GATED(256)
SM90_GATED(240)
SM90_GATED(144)
