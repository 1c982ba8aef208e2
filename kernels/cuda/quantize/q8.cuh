// Activations as the MMQ kernels read them: int8 with a scale for each 32 elements.
//
//   q   int8    [n_tokens][row_len]
//   ds  float2  [n_tokens][row_len / 32]   scale = amax / 127 of the chunk, scale * sum of its q
//
// The integers are those of the CPU kernels, bit for bit: q = round_to_even(x * (127 / amax)).
#pragma once
#include <cstdint>

// Four consecutive elements of a chunk that eight consecutive lanes hold together. Every lane of
// the warp takes part. Returns the packed integers; ds is the chunk's, in all its lanes.
__device__ __forceinline__ uint32_t q8_quantize4(float4 x, float2& ds) {
    float amax = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2)
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, offset));
    const float inverse = amax > 0.0f ? __fdiv_rn(127.0f, amax) : 0.0f;
    const float v[4] = {x.x, x.y, x.z, x.w};
    uint32_t packed = 0;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        int q = __float2int_rn(__fmul_rn(v[i], inverse));
        q = max(-127, min(127, q)); // only inputs that are not finite get here otherwise
        sum += q;
        packed |= uint32_t(q & 0xff) << (8 * i);
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    const float d = __fdiv_rn(amax, 127.0f);
    ds = make_float2(d, d * float(sum));
    return packed;
}
