// What arrives by itself, the barriers that count it, and what the lanes of a warp give each other.
#include <string.h>

#include <algorithm>

#include "parts.hpp"

namespace emulated {
namespace {

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

}  // namespace

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
  if (n_bytes && reinterpret_cast<uintptr_t>(from) % 16) fail("a copy from no multiple of 16 bytes");
  memset(to, 0xff, n_bytes + n_zeros);  // who still reads what was there is too late
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

void products_fence() { me().is_fenced = true; }
void product_later(std::function<void()> product) {
  if (!me().is_fenced) fail("a product without a fence");
  me().products.push_back(std::move(product));
}
void close_products() { me().product_groups.push_back(std::move(me().products)), me().products.clear(); }
void wait_products(int n_left) {
  auto& groups = me().product_groups;
  while (groups.size() > static_cast<size_t>(n_left)) {
    for (const auto& product : groups.front()) product();
    groups.erase(groups.begin());
  }
  me().is_fenced = false;
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
  // What is not given is no value: a lane may read of those of the mask alone.
  if (exchange.n_there == 0) memset(values, 0xff, WARP * n_bytes), exchange.n_bytes = n_bytes;
  if (exchange.n_bytes != n_bytes) fail("lanes exchange values of two sizes");
  memcpy(values + lane * n_bytes, value, n_bytes);
  if (++exchange.n_there == static_cast<uint32_t>(__builtin_popcount(mask))) {
    exchange.n_there = 0;
    exchange.round++;
  } else {
    while (exchange.round == round) give_way();
  }
  return values;
}

}  // namespace emulated
