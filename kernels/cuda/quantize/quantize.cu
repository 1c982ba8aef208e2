// Quantizes rows of f32 activations; norm and activation kernels do the same in their epilogue.
#include "q8.cuh"

// Grid (ceil(row_len / 1024), n_tokens), 256 threads: a thread has 4 elements. row_len % 32 == 0.
extern "C" __global__ void __launch_bounds__(256)
    quantize_q8(int8_t* q, float2* ds, const float* x, uint32_t row_len) {
    const uint32_t token = blockIdx.y;
    const uint32_t k = (blockIdx.x * 256 + threadIdx.x) * 4;
    const bool inside = k < row_len; // whole chunks: eight lanes agree
    const size_t at = size_t(token) * row_len + k;
    float4 v = make_float4(0, 0, 0, 0);
    if (inside) v = *reinterpret_cast<const float4*>(x + at);
    float2 scale;
    const uint32_t packed = q8_quantize4(v, scale);
    if (!inside) return;
    *reinterpret_cast<uint32_t*>(q + at) = packed;
    if (threadIdx.x % 8 == 0) ds[at / 32] = scale;
}
