// Threads as fibers of one thread of the system.
#include "machine.hpp"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <memory>
#include <vector>

#include "switch.hpp"

namespace emulated {
namespace {

// Of a block: dynamic shared memory, and behind it variables.
constexpr size_t STACK = 256 << 10, GUARD = 64 << 10, DYNAMIC = 228 << 10, VARIABLES = 48 << 10, SHARED = DYNAMIC + VARIABLES;
constexpr uint32_t OFFSET = (1 << 20) - 1;

struct Copy { void* to; const void* from; uint32_t n_bytes, n_zeros; };

struct Block;
struct Fiber {
  Context context = nullptr;
  uint8_t* stack = nullptr;
  Block* block = nullptr;
  uint32_t index = 0;
  bool has_ended = true;
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
  uint32_t cluster_round = 0;  // in which it arrived
};

// Values that some lanes of a warp exchange: two rounds of them, since the last one may still be read.
struct Exchange {
  uint32_t mask = 0;
  uint32_t n_there = 0, round = 0;
  alignas(16) uint8_t values[2][WARP * 32];
};
struct Warp {
  uint32_t n_lanes = WARP;
  std::vector<std::unique_ptr<Exchange>> exchanges;
};

struct Barrier { uint32_t n_there = 0, round = 0; };

struct Block {
  Index index;
  uint32_t rank;
  std::vector<uint8_t> memory_;
  uint8_t* memory;
  std::vector<std::pair<const void*, size_t>> variables;  // keys, and where they end
  std::vector<Warp> warps;
  Barrier all, named[16];
  uint32_t n_alive;
};

struct Later { std::function<void()> arrive; };

struct Machine {
  Context scheduler = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Later> later;
  Fiber* running = nullptr;
  const Launch* launch = nullptr;
  Barrier cluster;
  uint32_t n_alive = 0;
  bool has_run_before = false;
  const char* error = nullptr;

  void run_before();
};
// A launch may begin before the one before it has run: two at a time.
Machine machines[2];
Machine* machine = machines;

uint32_t next_random() {
  static uint64_t state = 0x9e3779b97f4a7c15;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return static_cast<uint32_t>(state >> 16);
}

void Machine::run_before() {
  if (has_run_before) return;
  has_run_before = true;
  Machine* const mine = machine;
  machine = machines + (mine == machines);
  const char* const failed = run(*mine->launch->before);
  machine = mine;
  if (failed) error = failed;
}

void fiber_main() {
  for (;;) {
    machine->launch->body();
    Fiber* const me = machine->running;
    me->has_ended = true;
    for (const auto& group : me->groups) me->open.insert(me->open.end(), group.begin(), group.end());
    if (!me->open.empty()) machine->error = "a thread ended before its copies were there";
    emulated_switch(&me->context, machine->scheduler);
  }
}

void begin(Fiber& fiber) {
  fiber.context = context_of(fiber.stack, STACK, fiber_main);
  fiber.has_ended = true;
}

Fiber* fiber(size_t i) {
  while (machine->fibers.size() <= i) {
    auto made = std::make_unique<Fiber>();
    void* const memory =
        mmap(nullptr, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD, PROT_NONE)) abort();
    made->stack = static_cast<uint8_t*>(memory) + GUARD;
    begin(*made);
    machine->fibers.push_back(std::move(made));
  }
  return machine->fibers[i].get();
}

Fiber& me() { return *machine->running; }

// The barrier's round ends when `n` are there.
bool arrive(Barrier& barrier, uint32_t n) {
  if (++barrier.n_there < n) return false;
  barrier.n_there = 0;
  barrier.round++;
  return true;
}

// A barrier in shared memory: 8 bytes.
struct Word {
  uint16_t n_left, n_arrivals : 15, phase : 1;
  int32_t n_bytes;
};
static_assert(sizeof(Word) == 8);
Word& word(uint32_t at) { return *reinterpret_cast<Word*>(shared_at(at, 8, 8)); }
void end_phase(Word& w) {
  if (w.n_left || w.n_bytes) return;
  w.n_left = w.n_arrivals;
  w.phase ^= 1;
}

void start(Block& block, Index index, uint32_t rank, size_t first_fiber) {
  const Launch& launch = *machine->launch;
  const uint32_t n = launch.block.x * launch.block.y * launch.block.z;
  block.index = index;
  block.rank = rank;
  block.n_alive = n;
  if (block.memory_.empty()) block.memory_.resize(SHARED + 1024);
  block.memory = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(block.memory_.data()) + 1023) & ~uintptr_t{1023});
  memset(block.memory, 0xff, SHARED);  // NaN, as floats
  block.variables.clear();
  block.all = Barrier{};
  for (Barrier& barrier : block.named) barrier = Barrier{};
  block.warps.resize((n + WARP - 1) / WARP);
  for (Warp& warp : block.warps) {
    warp.n_lanes = WARP;
    for (auto& one : warp.exchanges) one->n_there = 0;
  }
  if (n % WARP) block.warps.back().n_lanes = n % WARP;
  for (uint32_t i = 0; i < n; i++) {
    Fiber* const one = fiber(first_fiber + i);
    one->block = &block;
    one->index = i;
    one->has_ended = false;
    one->groups.clear();
    one->open.clear();
  }
}

void turn(Fiber* one) {
  machine->running = one;
  emulated_switch(&machine->scheduler, one->context);
  if (!one->has_ended) return;
  machine->n_alive--;
  Block& block = *one->block;
  // Those that have ended are no longer waited for.
  if (--block.n_alive && block.all.n_there >= block.n_alive) {
    block.all.n_there = 0;
    block.all.round++;
  }
}

// Some of what is on its way arrives.
void deliver() {
  for (size_t i = 0; i < machine->later.size();) {
    if (next_random() % 3) {
      i++;
      continue;
    }
    const Later one = std::move(machine->later[i]);
    machine->later[i] = std::move(machine->later.back());
    machine->later.pop_back();
    one.arrive();
  }
}

// Runs the blocks of a cluster to their ends.
void run_cluster(uint32_t first, uint32_t n_threads) {
  const Launch& launch = *machine->launch;
  const uint32_t per_row = launch.grid.x, per_plane = per_row * launch.grid.y;
  while (machine->blocks.size() < launch.cluster) machine->blocks.push_back(std::make_unique<Block>());
  for (uint32_t r = 0; r < launch.cluster; r++) {
    const uint32_t i = first + r;
    start(*machine->blocks[r], Index{i % per_row, i % per_plane / per_row, i / per_plane}, r, r * n_threads);
  }
  machine->n_alive = n_threads * launch.cluster;
  machine->cluster = Barrier{};
  machine->later.clear();
  std::vector<uint32_t> warps((n_threads + WARP - 1) / WARP * launch.cluster);
  for (uint32_t i = 0; i < warps.size(); i++) warps[i] = i;
  const uint32_t per_block = (n_threads + WARP - 1) / WARP;
  for (uint64_t round = 0; machine->n_alive && !machine->error; round++) {
    if (round > 20'000'000) machine->error = "threads wait for what never comes";
    for (size_t i = warps.size(); i > 1; i--) std::swap(warps[i - 1], warps[next_random() % i]);
    for (const uint32_t w : warps) {
      if (warps.size() > 1 && next_random() % 4 == 0) continue;
      const uint32_t from = w / per_block * n_threads + w % per_block * WARP;
      const uint32_t to = std::min(from + WARP, (w / per_block + 1) * n_threads);
      for (uint32_t i = from; i < to && !machine->error; i++) {
        if (!machine->fibers[i]->has_ended) turn(machine->fibers[i].get());
      }
    }
    deliver();
  }
  if (!machine->later.empty() && !machine->error) machine->error = "a block ended before what it asked for was there";
}

}  // namespace

Index thread_index() { return Index{me().index % machine->launch->block.x, me().index / machine->launch->block.x, 0}; }
Index block_index() { return me().block->index; }
Index block_size() { return machine->launch->block; }
Index grid_size() { return machine->launch->grid; }
uint32_t cluster_rank() { return me().block->rank; }
uint32_t cluster_size() { return machine->launch->cluster; }
uint8_t* block_memory() { return me().block->memory; }
int lane_index() { return static_cast<int>(me().index % WARP); }

void* block_variable(const void* key, uint32_t n_bytes) {
  auto& all = me().block->variables;
  size_t at = DYNAMIC;
  for (const auto& [known, end] : all) {
    if (known == key) return me().block->memory + at;
    at = (end + 127) & ~size_t{127};
  }
  if (at + n_bytes > SHARED) fail("more than 48 KiB of shared variables");
  all.emplace_back(key, at + n_bytes);
  return me().block->memory + at;
}

uint32_t shared_offset(const void* p) {
  const auto at = static_cast<const uint8_t*>(p) - me().block->memory;
  if (at < 0 || at > static_cast<ptrdiff_t>(SHARED)) fail("an address outside of shared memory");
  return static_cast<uint32_t>(at);
}
uint32_t at_rank(uint32_t offset, uint32_t rank) { return (offset & OFFSET) | (rank + 1) << 20; }
uint8_t* shared_at(uint32_t offset, uint32_t n_bytes, uint32_t alignment) {
  if (offset >> 20 > machine->launch->cluster) fail("a block outside of the cluster");
  Block& block = offset >> 20 ? *machine->blocks[(offset >> 20) - 1] : *me().block;
  const uint32_t at = offset & OFFSET;
  if (at % alignment) fail("a misaligned address in shared memory");
  const bool is_dynamic = at + n_bytes <= machine->launch->shared_bytes;
  const bool is_variable = at >= DYNAMIC && at + n_bytes <= SHARED;
  if (!is_dynamic && !is_variable) fail("an access outside of shared memory");
  return block.memory + at;
}

void fail(const char* what) {
  if (!machine->error) machine->error = what;
  for (;;) give_way();
}
void give_way() { emulated_switch(&me().context, machine->scheduler); }

void sync_threads() {
  Block& block = *me().block;
  const uint32_t round = block.all.round;
  if (arrive(block.all, block.n_alive)) return;
  while (block.all.round == round) give_way();
}
void named_barrier(uint32_t id, uint32_t n_threads, bool waits) {
  Barrier& barrier = me().block->named[id];
  const uint32_t round = barrier.round;
  if (arrive(barrier, n_threads) || !waits) return;
  while (barrier.round == round) give_way();
}
void cluster_arrive() {
  me().cluster_round = machine->cluster.round;
  arrive(machine->cluster, machine->launch->block.x * machine->launch->cluster);
}
void cluster_wait() {
  while (machine->cluster.round == me().cluster_round) give_way();
}
// The first thread that waits runs the launch before, some rounds later.
void wait_for_previous() {
  if (!machine->launch->before) return;
  for (uint32_t n = next_random() % 4; n; n--) give_way();
  machine->run_before();
}
void let_next_start() {}

void barrier_init(uint32_t at, uint32_t n_arrivals) {
  Word& w = word(at);
  w.n_left = w.n_arrivals = static_cast<uint16_t>(n_arrivals);
  w.phase = 0;
  w.n_bytes = 0;
}
void barrier_arrive(uint32_t at) {
  Word& w = word(at);
  if (!w.n_left) fail("more arrivals than a barrier counts");
  w.n_left--;
  end_phase(w);
}
void barrier_expect(uint32_t at, uint32_t n_bytes) {
  word(at).n_bytes += static_cast<int32_t>(n_bytes);
  barrier_arrive(at);
}
bool barrier_has_passed(uint32_t at, uint32_t parity) { return word(at).phase != (parity & 1); }

void copy_later(uint32_t to, const void* from, uint32_t n_bytes, uint32_t barrier) {
  if (n_bytes % 16 || reinterpret_cast<uintptr_t>(from) % 16) fail("a copy of no multiple of 16 bytes");
  uint8_t* const place = shared_at(to, n_bytes, 16);
  memset(place, 0xff, n_bytes);
  Word* const w = &word(barrier);
  machine->later.push_back({[=] {
    memcpy(place, from, n_bytes);
    w->n_bytes -= static_cast<int32_t>(n_bytes);
    end_phase(*w);
  }});
}
void copy_box_later(uint32_t to, const Box& box, uint32_t barrier) {
  const uint32_t n_bytes = 128 * box.box_rows;
  uint8_t* const first = shared_at(to, n_bytes, 1024);
  memset(first, 0xff, n_bytes);
  Word* const w = &word(barrier);
  machine->later.push_back({[=] {
    for (uint32_t row = 0; row < box.box_rows; row++) {
      uint8_t bytes[128] = {};
      if (row < box.n_rows) memcpy(bytes, box.from + row * box.stride, box.n_bytes);
      // A box begins at a multiple of 1024 bytes, so that its own places tell which pieces are exchanged.
      for (uint32_t piece = 0; piece < 128; piece += 16) memcpy(first + swizzled(row * 128 + piece), bytes + piece, 16);
    }
    w->n_bytes -= static_cast<int32_t>(n_bytes);
    end_phase(*w);
  }});
}
void store_later(uint32_t to, const void* value, uint32_t n_bytes, uint32_t barrier) {
  uint8_t* const place = shared_at(to, n_bytes, n_bytes);
  Word* const w = &word(barrier);
  uint64_t kept = 0;
  memcpy(&kept, value, n_bytes);
  machine->later.push_back({[=] {
    memcpy(place, &kept, n_bytes);
    w->n_bytes -= static_cast<int32_t>(n_bytes);
    end_phase(*w);
  }});
}
void copy_in_group(void* to, const void* from, uint32_t n_bytes, uint32_t n_zeros) {
  shared_at(shared_offset(to), n_bytes + n_zeros, 16);
  me().open.push_back({to, from, n_bytes, n_zeros});
}
void close_group() { me().groups.push_back(std::move(me().open)), me().open.clear(); }
void wait_groups(int n_left) {
  auto& groups = me().groups;
  const size_t n = groups.size() - std::min(groups.size(), static_cast<size_t>(n_left));
  for (size_t i = 0; i < n; i++) {
    for (const Copy& copy : groups[i]) {
      memcpy(copy.to, copy.from, copy.n_bytes);
      memset(static_cast<uint8_t*>(copy.to) + copy.n_bytes, 0, copy.n_zeros);
    }
  }
  groups.erase(groups.begin(), groups.begin() + static_cast<ptrdiff_t>(n));
}

const void* exchange(uint32_t mask, const void* value, uint32_t n_bytes) {
  Fiber& fiber = me();
  Warp& warp = fiber.block->warps[fiber.index / WARP];
  const uint32_t lane = fiber.index % WARP;
  if (n_bytes > 32) fail("an exchange of more than 32 bytes");
  if (!(mask >> lane & 1)) fail("an exchange by a lane that its mask leaves out");
  if (warp.n_lanes < WARP) mask &= (1u << warp.n_lanes) - 1;
  size_t i = 0;
  while (i < warp.exchanges.size() && warp.exchanges[i]->mask != mask) i++;
  if (i == warp.exchanges.size()) {
    warp.exchanges.push_back(std::make_unique<Exchange>());
    warp.exchanges[i]->mask = mask;
  }
  Exchange& exchange = *warp.exchanges[i];
  const uint32_t round = exchange.round;
  uint8_t* const values = exchange.values[round & 1];
  memcpy(values + lane * n_bytes, value, n_bytes);
  if (++exchange.n_there == static_cast<uint32_t>(__builtin_popcount(mask))) {
    exchange.n_there = 0;
    exchange.round++;
  } else {
    while (exchange.round == round) give_way();
  }
  return values;
}

const char* run(const Launch& launch) {
  machine->launch = &launch;
  machine->error = nullptr;
  machine->has_run_before = launch.before == nullptr;
  const uint32_t n_threads = launch.block.x * launch.block.y * launch.block.z;
  const uint32_t n_clusters = launch.grid.x * launch.grid.y * launch.grid.z / launch.cluster;
  // In an order of its own: no block may count on another.
  const uint32_t shift = next_random() % n_clusters;
  for (uint32_t i = 0; i < n_clusters && !machine->error; i++) {
    run_cluster((i + shift) % n_clusters * launch.cluster, n_threads);
  }
  if (!machine->error && !machine->has_run_before) machine->error = "a kernel ended without waiting for the one before";
  if (machine->error) {
    for (auto& fiber : machine->fibers) begin(*fiber);
  }
  return machine->error;
}

}  // namespace emulated
