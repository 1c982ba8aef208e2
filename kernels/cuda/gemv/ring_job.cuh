// The parameter of the ring kernels.
#pragma once
#include "../common.cuh"

// Slots of a ring, at most: a lane each makes its barriers.
constexpr uint32_t MAX_SLOTS = 16;

struct RingMatrix {
  const uint8_t* w;
  float* y;             // [n_rows]
  const float* bias;    // [n_rows] or null
  uint32_t unit_bytes;  // from four rows to the next four
  uint32_t n_rows;
  uint32_t n_units;  // of four rows
  uint32_t slot_bytes;  // of a slot that holds units of this one: all alike, but where no slot is filled twice
  uint32_t quant;       // QUANT_*
  uint32_t add;    // y += instead of y =
};
struct RingJob {
  RingMatrix m[3];
  // The activations in int8, or null.
  const int8_t* q;
  const float2* ds;
  // What they are made of: rmsnorm(x) * gain.
  const float* x;
  const float* gain;
  // Where a pair goes, and a counter for each 32 rows: zero before and after.
  Operand gated;
  uint32_t* n_done;
  float eps;
  uint32_t gate;  // as in elementwise/bend.cuh
  uint32_t row_len;
  // A block's units, of all matrices or of one of a pair; `n_longer` blocks have one more.
  uint32_t n_local;
  uint32_t n_longer;
  uint32_t n_segments;      // of a row
  uint32_t segment;         // super-blocks of one
  uint32_t n_teams;         // groups of `segment` warps
  uint32_t team_of_warp;    // 65536 / segment, rounded up: what a warp's number is multiplied by
  uint32_t units_per_step;  // at most, of one matrix; of a pair's segments of each
  uint32_t group;           // units whose sums are put together at once; of a pair 8: 32 rows
  uint32_t part_floats;     // of their sums
  uint32_t unit_pitch;      // bytes of a unit in a slot, at most
  uint32_t n_slots;
  uint32_t n_flying;        // slots that are asked for and not there, at most
  uint32_t n_filling;       // the same until the ring has been full once
  // Where a block's shared memory has what: multiples of 4, slots of 128.
  uint32_t scales_at;   // [row_len / 32] of the activations
  uint32_t sums_at;     // [row_len / 16] of theirs
  uint32_t parts_at;    // [2][part_floats]; [1] where no block has a second group
  uint32_t addends_at;  // [n_addends]
  uint32_t slots_at;    // [n_slots]
  uint32_t n_addends;       // rows of a block if some have a bias or are added to, else 0
  uint32_t n_left_to_let;   // units of a block: with so few still to ask for, it lets the next kernel in
};
