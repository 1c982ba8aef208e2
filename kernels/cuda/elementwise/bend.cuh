// What a gate does to its numbers.
#pragma once
#include "../common.cuh"

// The kind of gate: 0 is x * sigmoid(x), 1 is GELU in its tanh form.
DEV float bend(float g, uint32_t kind) {
  if (kind == 0) return g / (1.0f + expf(-g));
  const float inner = 0.79788456080286535587989211986876f * g * (1.0f + 0.044715f * g * g);
  return 0.5f * g * (1.0f + tanhf(inner));
}
