// What the kernels of mixtures of experts share. Each token has `n_used` pairs, one for each of its
// experts; pair `t * n_used + i` is the i-th of token `t`.
//
// Few tokens: rows of what an expert reads and writes are pairs, in that order. Many tokens: rows are
// sorted by expert, and by pair within one, so that an expert's rows are a matrix.
#pragma once
#include <cstdint>

// The expert of a pair, and the factor on what it makes of the token.
struct Choice {
  uint32_t expert;
  float weight;
};

// Up to a tile's height of rows of one expert. `n` is 0 behind the last tile.
struct ExpertTile {
  uint32_t expert;
  uint32_t first;
  uint32_t n;
  uint32_t unused;
};

// Where the experts' rows are: at addresses from a table, or at equal distances.
struct ExpertRows {
  const uint64_t* table;
  const uint8_t* base;
  uint64_t step;
  __device__ __forceinline__ const uint8_t* of(uint32_t expert) const {
    return table ? reinterpret_cast<const uint8_t*>(table[expert]) : base + expert * step;
  }
};
