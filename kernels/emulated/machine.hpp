// A multiprocessor of the emulated GPU: threads of a block (or of a cluster of blocks) that take turns, what they
// wait for, and what arrives by itself.
//
// Threads are run a warp after another in an order that changes from round to round, and copies that a real GPU
// makes beside the threads arrive some rounds later, in any order: who reads too early reads what was poisoned.
#pragma once
#include <stdint.h>

#include <functional>

namespace emulated {

struct Index { uint32_t x, y, z; };
constexpr int WARP = 32;

// What a thread asks of where it runs.
Index thread_index();
Index block_index();
Index block_size();
Index grid_size();
uint32_t cluster_rank();
uint32_t cluster_size();
uint8_t* block_memory();
// Memory of the block for what has this key, made when it is first asked for.
void* block_variable(const void* key, uint32_t n_bytes);
template <class T, class Key>
T& shared_variable(Key) {
  static char key;
  return *static_cast<T*>(block_variable(&key, sizeof(T)));
}
// Shared memory is known by its distance from the block's beginning; other blocks of the cluster by `at_rank`.
uint32_t shared_offset(const void* p);
uint32_t at_rank(uint32_t offset, uint32_t rank);
uint8_t* shared_at(uint32_t offset, uint32_t n_bytes, uint32_t alignment);

// Ends the launch with an error.
[[noreturn]] void fail(const char* what);
// Lets others run.
void give_way();

void sync_threads();
// Barrier `id` of `n_threads`; `arrive` does not wait.
void named_barrier(uint32_t id, uint32_t n_threads, bool waits);
void cluster_arrive();
void cluster_wait();
void wait_for_previous();
void let_next_start();

// Barriers in shared memory, of arrivals and bytes.
void barrier_init(uint32_t at, uint32_t n_arrivals);
void barrier_arrive(uint32_t at);
void barrier_expect(uint32_t at, uint32_t n_bytes);
bool barrier_has_passed(uint32_t at, uint32_t parity);

// What arrives by itself: copies into shared memory whose bytes a barrier counts (a barrier of the same block).
void copy_later(uint32_t to, const void* from, uint32_t n_bytes, uint32_t barrier);
// Rows of 128 bytes, from rows `stride` bytes apart of which `n_rows` have `n_bytes`; the rest is zeros, and the bytes
// of `box_rows` rows are counted. Pieces of 16 bytes are exchanged as `swizzled` says.
struct Box { const uint8_t* from; uint64_t stride; uint32_t n_bytes, n_rows, box_rows; };
void copy_box_later(uint32_t to, const Box& box, uint32_t barrier);
inline uint32_t swizzled(uint32_t at) { return at ^ (at >> 7 & 7) << 4; }
void store_later(uint32_t to, const void* value, uint32_t n_bytes, uint32_t barrier);
// A thread's own copies, in groups: all but the last `n_left` groups are waited for.
void copy_in_group(void* to, const void* from, uint32_t n_bytes, uint32_t n_zeros);
void close_group();
void wait_groups(int n_left);
// A thread's own products, in groups as well: they run when they are waited for. A fence comes before the first.
void products_fence();
void product_later(std::function<void()> product);
void close_products();
void wait_products(int n_left);

// One value of each lane of `mask`, for all of them.
const void* exchange(uint32_t mask, const void* value, uint32_t n_bytes);
int lane_index();
template <class T>
struct WarpExchange {
  int lane = lane_index();
  const T* all;
  WarpExchange(uint32_t mask, const T& value) : all(static_cast<const T*>(exchange(mask, &value, sizeof(T)))) {}
  const T& operator[](int i) const { return all[i]; }
};

// A launch: `body` is what each thread does.
struct Launch {
  Index grid, block;
  uint32_t cluster, shared_bytes;
  std::function<void()> body;
  const char* name;
  // What must have run when a thread of this one has waited for it.
  const Launch* before;
};
// Runs it to its end. Returns what went wrong, or null.
const char* run(const Launch& launch);

}  // namespace emulated
