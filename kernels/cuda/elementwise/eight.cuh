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

// Elements `i..i + 8` of an operand that has no int8 form; `i` is a multiple of eight.
DEV void put_operand8(const Operand& out, size_t i, const float (&v)[8]) {
  if (out.f32) store8(out.f32 + i, v);
  if (out.bf16) {
    *reinterpret_cast<uint4*>(out.bf16 + i) = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]),
                                                         pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
  }
}
