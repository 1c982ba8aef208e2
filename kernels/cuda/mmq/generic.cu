// Every quant type from its padded base, every shape. This is the narrow kernel of q4_K and the
// fallback of all types.
#include "generic.cuh"

#define KERNEL(name, type)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) name(const MmqArgs a) { product<type>(a, blockIdx.x * TOKENS); }

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
