// The parameter of every GEMV.
#pragma once
#include "../common.cuh"

struct GemvMatrix {
  const uint8_t* w;    // the object
  uint64_t row_stride; // `padded`: bytes from row to row; `planar`: from four rows to the next four
  float* y;            // [n_tokens, n_rows]
  const float* bias;   // [n_rows] or null
  uint32_t n_rows;
  uint32_t add;        // y += instead of y =
};
struct GemvJob {
  GemvMatrix m[3];
  const int8_t* q;   // [n_tokens, row_len]
  const float2* ds;  // [n_tokens, row_len / 32]
  const float* f32;  // [n_tokens, row_len]
  uint32_t row_len;
  uint32_t n_tokens; // at most the kernel's NT
};
