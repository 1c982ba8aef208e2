// What a multiprocessor is made of, for the files that run it.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "machine.hpp"

namespace emulated {

struct Copy { void* to; const void* from; uint32_t n_bytes, n_zeros; };
using Products = std::vector<std::function<void()>>;

struct Block;
struct Fiber {
  void* context = nullptr;
  uint8_t* stack = nullptr;
  Block* block = nullptr;
  uint32_t index = 0;
  bool has_ended = true;
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
  std::vector<Products> product_groups;
  Products products;
  bool is_fenced = false;
  uint32_t cluster_round = 0;  // in which it arrived
};

// Values that some lanes of a warp exchange: two rounds of them, since the last one may still be read.
struct Exchange {
  uint32_t mask = 0;
  uint32_t n_there = 0, round = 0, n_bytes = 0;
  alignas(16) uint8_t values[2][WARP * 32];
};
struct Warp {
  uint32_t n_lanes = WARP;
  std::vector<std::unique_ptr<Exchange>> exchanges;
};

struct Barrier { uint32_t n_there = 0, round = 0, n = 0; };

struct Block {
  Index index;
  uint32_t rank;
  uint8_t* space = nullptr;
  uint8_t *memory, *variables_at;
  std::vector<std::pair<const void*, size_t>> variables;  // keys, and where they end
  std::vector<Warp> warps;
  Barrier all, named[16];
  uint32_t n_alive;
};

struct Later { std::function<void()> arrive; };

struct Machine {
  void* scheduler = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Later> later;
  Fiber* running = nullptr;
  const Launch* launch = nullptr;
  Barrier cluster;
  uint32_t n_alive = 0;
  bool has_run_before = false;
  uint64_t round = 0, before_from = 0;  // the round in which the launch before runs at the earliest
  const char* error = nullptr;

  void run_before();
};
// The one that runs.
extern Machine* machine;
inline Fiber& me() { return *machine->running; }
uint32_t next_random();

}  // namespace emulated
