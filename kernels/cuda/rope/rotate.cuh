// How a pair of a head is rotated.
#pragma once
#include "../common.cuh"

DEV void rotate_pair(float* head, uint32_t i, uint32_t n_steps, uint32_t neox, float2 cs) {
  const uint32_t a = neox ? i : 2 * i, b = neox ? i + n_steps : 2 * i + 1;
  const float u = head[a], v = head[b];
  head[a] = fmaf(-v, cs.y, u * cs.x);
  head[b] = fmaf(u, cs.y, v * cs.x);
}
