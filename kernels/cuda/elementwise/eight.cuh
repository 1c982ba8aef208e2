// Eight elements a thread: 16-byte accesses of bf16, pairs of them of f32.
#pragma once
#include "../common.cuh"

DEV void load8(float (&v)[8], const float* from) {
  const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

DEV void store8(float* to, const float (&v)[8]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// Elements `i..i + 8` of an operand; `i` is a multiple of eight, four lanes that follow each other have
// the 32 elements of a scale, and all four are here. The same bits as put_operand.
DEV void put_operand8(const Operand& out, size_t i, const float (&v)[8]) {
  if (out.q) {
    const uint32_t four = 0xfu << (threadIdx.x & 28);
    uint32_t top = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) top = max(top, __float_as_uint(fabsf(v[j])));
    top = max(top, __shfl_xor_sync(four, top, 1));
    const float amax = __uint_as_float(max(top, __shfl_xor_sync(four, top, 2)));
    const float inv = amax > 0.0f ? 127.0f / amax : 0.0f;
    uint32_t packed[2] = {0, 0};
    int sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int q = max(-127, min(127, __float2int_rn(v[j] * inv)));
      packed[j / 4] |= static_cast<uint32_t>(q & 0xff) << (8 * (j % 4));
      sum += q;
    }
    sum += __shfl_xor_sync(four, sum, 1);
    sum += __shfl_xor_sync(four, sum, 2);
    *reinterpret_cast<uint2*>(out.q + i) = make_uint2(packed[0], packed[1]);
    const float d = amax / 127.0f;
    if ((threadIdx.x & 3) == 0) out.ds[i / 32] = make_float2(d, d * static_cast<float>(sum));
  }
  if (out.f32) store8(out.f32 + i, v);
  if (out.bf16) {
    *reinterpret_cast<uint4*>(out.bf16 + i) = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]),
                                                         pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
  }
}
