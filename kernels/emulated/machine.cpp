// Threads as fibers of one thread of the system.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "parts.hpp"
#include "switch.hpp"

namespace emulated {

// Of a block: dynamic shared memory, which ends (but for its alignment) where no access is allowed, and variables.
constexpr size_t STACK = 256 << 10, GUARD = 64 << 10, DYNAMIC = 256 << 10, VARIABLES = 64 << 10, PATTERN = 1024;
constexpr size_t MOST_VARIABLES = 48 << 10, SPACING = 16;
constexpr uint32_t OFFSET = (1 << 20) - 1;

// A launch may begin before the one before it has run: two at a time.
static Machine machines[2];
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

namespace {

void fiber_main() {
  for (;;) {
    machine->launch->body();
    Fiber* const me = machine->running;
    me->has_ended = true;
    for (const auto& group : me->groups) me->open.insert(me->open.end(), group.begin(), group.end());
    if (!me->open.empty()) machine->error = "a thread ended before its copies were there";
    if (!me->products.empty() || !me->product_groups.empty()) machine->error = "a thread ended before its products";
    emulated_switch(&me->context, machine->scheduler);
  }
}

void begin(Fiber& fiber) {
  fiber.context = context_of(fiber.stack, STACK, fiber_main);
  fiber.has_ended = true;
}

// Memory between two places that must not be touched.
uint8_t* guarded(size_t n) {
  void* const memory =
      mmap(nullptr, GUARD + n + GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  uint8_t* const first = static_cast<uint8_t*>(memory) + GUARD;
  if (mprotect(first, n, PROT_READ | PROT_WRITE)) abort();
  return first;
}

Fiber* fiber(size_t i) {
  while (machine->fibers.size() <= i) {
    auto made = std::make_unique<Fiber>();
    made->stack = guarded(STACK);
    begin(*made);
    machine->fibers.push_back(std::move(made));
  }
  return machine->fibers[i].get();
}

void start(Block& block, Index index, uint32_t rank, size_t first_fiber) {
  const Launch& launch = *machine->launch;
  const uint32_t n = launch.block.x * launch.block.y * launch.block.z;
  block.index = index;
  block.rank = rank;
  block.n_alive = n;
  if (!block.space) {
    block.space = guarded(DYNAMIC + GUARD + VARIABLES);
    block.variables_at = block.space + DYNAMIC + GUARD;
    if (mprotect(block.space + DYNAMIC, GUARD, PROT_NONE)) abort();
  }
  const size_t n_dynamic = (launch.shared_bytes + PATTERN - 1) / PATTERN * PATTERN;
  block.memory = block.space + DYNAMIC - n_dynamic;
  memset(block.memory, 0xff, n_dynamic);  // NaN, as floats
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
    one->product_groups.clear();
    one->products.clear();
  }
}

bool is_poison(const uint8_t* from, const uint8_t* to) {
  return std::all_of(from, to, [](uint8_t byte) { return byte == 0xff; });
}
// What lies behind what the block has asked for has not been written.
void check(const Block& block) {
  bool is_clean = is_poison(block.memory + machine->launch->shared_bytes, block.space + DYNAMIC);
  for (const auto& [key, end] : block.variables) {
    const uint8_t* const to = block.variables_at + end;
    is_clean &= is_poison(to, to + SPACING);
  }
  if (!is_clean && !machine->error) machine->error = "shared memory was written that the block does not have";
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
  machine->before_from = 0;
  for (machine->round = 1; machine->n_alive && !machine->error; machine->round++) {
    if (machine->round > 2'000'000) machine->error = "threads wait for what never comes";
    for (size_t i = warps.size(); i > 1; i--) std::swap(warps[i - 1], warps[next_random() % i]);
    for (const uint32_t w : warps) {
      if (warps.size() > 1 && next_random() % 4 == 0) continue;
      const uint32_t from = w / per_block * n_threads + w % per_block * WARP;
      const uint32_t to = std::min(from + WARP, (w / per_block + 1) * n_threads);
      // From its first lane on, or from its last.
      const bool forwards = next_random() % 2;
      for (uint32_t i = 0; i < to - from && !machine->error; i++) {
        Fiber* const one = machine->fibers[forwards ? from + i : to - 1 - i].get();
        if (!one->has_ended) turn(one);
      }
    }
    deliver();
  }
  if (!machine->later.empty() && !machine->error) machine->error = "a block ended before what it asked for was there";
  for (uint32_t r = 0; r < launch.cluster; r++) check(*machine->blocks[r]);
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
  uint8_t* const first = me().block->variables_at;
  size_t at = 0;
  for (const auto& [known, end] : all) {
    if (known == key) return first + at;
    at = (end + SPACING + 127) & ~size_t{127};
  }
  if (at + n_bytes > MOST_VARIABLES) fail("more than 48 KiB of shared variables");
  all.emplace_back(key, at + n_bytes);
  memset(first + at, 0xff, n_bytes + SPACING);
  return first + at;
}

uint32_t shared_offset(const void* p) {
  const auto at = static_cast<const uint8_t*>(p) - me().block->memory;
  if (at < 0 || at > me().block->variables_at + VARIABLES - me().block->memory) fail("an address outside of shared memory");
  return static_cast<uint32_t>(at);
}
uint32_t at_rank(uint32_t offset, uint32_t rank) { return (offset & OFFSET) | (rank + 1) << 20; }
uint8_t* shared_at(uint32_t offset, uint32_t n_bytes, uint32_t alignment) {
  if (offset >> 20 > machine->launch->cluster) fail("a block outside of the cluster");
  Block& block = offset >> 20 ? *machine->blocks[(offset >> 20) - 1] : *me().block;
  const uint32_t at = offset & OFFSET;
  if (at % alignment) fail("a misaligned address in shared memory");
  const bool is_dynamic = at + n_bytes <= machine->launch->shared_bytes;
  const auto variables = static_cast<size_t>(block.variables_at - block.memory);
  const bool is_variable =
      at >= variables && !block.variables.empty() && at - variables + n_bytes <= block.variables.back().second;
  if (!is_dynamic && !is_variable) fail("an access outside of shared memory");
  return block.memory + at;
}

void fail(const char* what) {
  if (!machine->error) machine->error = what;
  for (;;) give_way();
}
void give_way() { emulated_switch(&me().context, machine->scheduler); }

// The barrier's round ends when `n` are there.
static bool arrive(Barrier& barrier, uint32_t n) {
  if (++barrier.n_there < n) return false;
  barrier.n_there = 0;
  barrier.round++;
  return true;
}

void sync_threads() {
  Block& block = *me().block;
  const uint32_t round = block.all.round;
  if (arrive(block.all, block.n_alive)) return;
  while (block.all.round == round) give_way();
}
void named_barrier(uint32_t id, uint32_t n_threads, bool waits) {
  if (id >= 16 || n_threads == 0 || n_threads % WARP) fail("a named barrier that a GPU does not have");
  Barrier& barrier = me().block->named[id];
  if (barrier.n_there && barrier.n != n_threads) fail("a named barrier of two sizes");
  barrier.n = n_threads;
  const uint32_t round = barrier.round;
  if (arrive(barrier, n_threads) || !waits) return;
  while (barrier.round == round) give_way();
}
void cluster_arrive() {
  me().cluster_round = machine->cluster.round;
  const Index& block = machine->launch->block;
  arrive(machine->cluster, block.x * block.y * block.z * machine->launch->cluster);
}
void cluster_wait() {
  while (machine->cluster.round == me().cluster_round) give_way();
}
// Some rounds after the first thread began to wait the launch before runs: at times so many that a thread which does
// not wait has come far by then.
void wait_for_previous() {
  if (machine->has_run_before) return;
  if (!machine->before_from) machine->before_from = machine->round + (next_random() % 8 ? next_random() % 4 : 60);
  while (!machine->has_run_before && machine->round < machine->before_from) give_way();
  machine->run_before();
}
void let_next_start() {}

// Says whose access it was, and lets the program end of it.
void on_fault(int signal_of_it) {
  fprintf(stderr, "emulated GPU: %s: an access outside of memory\n", machine->launch ? machine->launch->name : "no kernel");
  signal(signal_of_it, SIG_DFL);
}

const char* run(const Launch& launch) {
  static const auto before = signal(SIGSEGV, on_fault);
  static_cast<void>(before);
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
