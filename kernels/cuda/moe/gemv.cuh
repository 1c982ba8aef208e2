// The parameter of products of few tokens with their experts' matrices: a pair is one token and one
// expert, whose number is in device memory, so that a recorded launch serves every token.
#pragma once
#include "../common.cuh"
#include "job.cuh"

struct ExpertMatrix {
  const uint64_t* rows;  // address of each expert's first row
  float* y;              // [n_pairs, n_rows]
};
// Grid: rows, matrices, pairs.
struct ExpertGemvJob {
  ExpertMatrix m[2];
  const Choice* choices;  // [n_pairs]
  const int8_t* q;        // [n_pairs / repeat, row_len]
  const float2* ds;       // [n_pairs / repeat, row_len / 32]
  const float* f32;       // [n_pairs / repeat, row_len]
  uint64_t row_stride;    // `padded`: bytes from row to row; `planar`: from four rows to the next four
  uint32_t n_rows;        // of an expert
  uint32_t row_len;
  uint32_t repeat;        // consecutive pairs that read the same activations
  uint32_t lanes;         // `padded`: of a row, a power of two up to 32
};

DEV const uint8_t* expert_rows(const ExpertGemvJob& job) {
  const uint32_t expert = job.choices[blockIdx.z].expert;
  return reinterpret_cast<const uint8_t*>(job.m[blockIdx.y].rows[expert]);
}
DEV float* expert_out(const ExpertGemvJob& job) {
  return job.m[blockIdx.y].y + static_cast<size_t>(blockIdx.z) * job.n_rows;
}
