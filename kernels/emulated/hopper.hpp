// What Hopper alone has: boxes of tensors by the copy engine, products of four warps from shared memory.
#pragma once
#include <array>

#include "asm.hpp"

inline void arrive_at(uint32_t barrier, uint32_t rank) { emulated::barrier_arrive(emulated::at_rank(barrier, rank)); }
inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
inline void meet(int barrier, int n) { emulated::named_barrier(barrier, n, true); }
inline void pass(int barrier, int n) { emulated::named_barrier(barrier, n, false); }
inline void shared_is_written() {}
template <int N>
inline void registers_up() {}
template <int N>
inline void registers_down() {}

// A box of 64 elements of two bytes by some rows, from element `x` of row `y` on (emulated/driver.cpp makes maps).
template <class Map>
inline void copy_box(uint32_t to, const Map& map, int x, int y, uint32_t barrier) {
  uint64_t words[6];
  memcpy(words, &map, sizeof words);
  const int64_t n_rows = static_cast<int64_t>(words[2]) - y, n = static_cast<int64_t>(words[1]) - x;
  if (x < 0 || y < 0) emulated::fail("a box that begins before its tensor");
  emulated::Box box;
  box.from = reinterpret_cast<const uint8_t*>(words[0]) + y * words[3] + 2 * x;
  box.stride = words[3];
  box.box_rows = static_cast<uint32_t>(words[5]);
  box.n_rows = n > 0 ? static_cast<uint32_t>(std::clamp<int64_t>(n_rows, 0, box.box_rows)) : 0;
  box.n_bytes = 2 * static_cast<uint32_t>(std::clamp<int64_t>(n, 0, 64));
  emulated::copy_box_later(to, box, barrier);
}
template <class Map>
inline void copy_box_to(uint16_t mask, uint32_t to, const Map* map, uint32_t barrier, uint32_t k, uint32_t row) {
  for (uint32_t rank = 0; rank < 16; rank++) {
    if (mask >> rank & 1) {
      copy_box(emulated::at_rank(to, rank), *map, static_cast<int>(k), static_cast<int>(row), emulated::at_rank(barrier, rank));
    }
  }
}
template <class Map>
inline void prefetch_map(const Map*) {}
inline void add_to_memory(float* p, float4 v) { p[0] += v.x, p[1] += v.y, p[2] += v.z, p[3] += v.w; }

// Products run when they are waited for, a lane after another: all have, when a warp has waited.
inline void products_fence() { emulated::products_fence(); }
inline void products_commit() { emulated::close_products(); }
template <int N>
inline void products_wait() {
  emulated::wait_products(N);
  __syncwarp();
}
template <class Sums>
inline void pin(Sums&) {}

// Eight rows of 128 bytes after each other, exchanged pieces; and what is written in a descriptor of such.
struct Matrix {
  uint32_t start, next;
  explicit Matrix(uint64_t descriptor)
      : start(static_cast<uint32_t>(descriptor & 0x3fff) << 4), next(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4) {
    // Patterns of 128 bytes by eight rows that follow each other, from a pattern's first row on.
    if (descriptor >> 62 != 1 || (descriptor >> 32 & 0x3fff) != 64 || (descriptor >> 49 & 7) || (start & 0x380)) {
      emulated::fail("a matrix that is not understood");
    }
  }
  // Sixteen elements of row `r`.
  template <class Half>
  void along(float (&v)[16], uint32_t r) const {
    for (uint32_t piece = 0; piece < 2; piece++) {
      Half halves[8];
      memcpy(halves, emulated::shared_at(emulated::swizzled(start + r * 128 + 16 * piece), 16, 16), 16);
      for (int k = 0; k < 8; k++) v[8 * piece + k] = halves[k];
    }
  }
  // The same where rows run along r, 64 of it in each.
  template <class Half>
  void across(float (&v)[16], uint32_t r) const {
    for (uint32_t k = 0; k < 16; k++) {
      Half half;
      memcpy(&half, emulated::shared_at(emulated::swizzled(start + r / 64 * next + k * 128 + r % 64 * 2), 2, 2), 2);
      v[k] = half;
    }
  }
};
// d[64][N] += a[64][16] b[16][N]: of each warp's 16 rows, lanes have what they have of a smaller product. `a` fills in
// a row, `b` a column.
template <int N, class A, class B>
inline void multiply_64(float* d, A a, B b, bool add) {
  const int lane = emulated::lane_index(), warp = static_cast<int>(threadIdx.x / 32 % 4);
  float x[2][16], y[16];
  for (int half = 0; half < 2; half++) a(x[half], 16 * warp + lane / 4 + 8 * half);
  for (int n = 0; n < N / 8; n++) {
    for (int e = 0; e < 2; e++) {
      b(y, 8 * n + 2 * (lane % 4) + e);
      for (int half = 0; half < 2; half++) {
        float sum = 0.0f;
        for (int k = 0; k < 16; k++) sum += x[half][k] * y[k];
        float& to = d[4 * n + 2 * half + e];
        to = add ? to + sum : sum;
      }
    }
  }
}
template <int SUMS>
inline void multiply_rows(float (&c)[SUMS], uint64_t a, uint64_t b, int add) {
  emulated::product_later([&c, x = Matrix(a), y = Matrix(b), add] {
    multiply_64<2 * SUMS>(
        c, [&](float (&v)[16], int r) { x.along<__nv_bfloat16>(v, r); },
        [&](float (&v)[16], int r) { y.along<__nv_bfloat16>(v, r); }, add);
  });
}
template <int N>
struct Wgmma {
  static void ss(float (&d)[N / 2], uint64_t a, uint64_t b, bool add) {
    emulated::product_later([&d, x = Matrix(a), y = Matrix(b), add] {
      multiply_64<N>(
          d, [&](float (&v)[16], int r) { x.along<__half>(v, r); },
          [&](float (&v)[16], int r) { y.along<__half>(v, r); }, add);
    });
  }
  static void rs(float (&d)[N / 2], const uint32_t* a, uint64_t b, bool add) {
    const emulated::WarpExchange<Operands> all(~0u, {{a[0], a[1], a[2], a[3]}, {}});
    // A lane's rows g and g + 8, of which four lanes have four words each.
    std::array<uint32_t, 16> mine;
    for (int i = 0; i < 16; i++) mine[i] = all[all.lane / 4 * 4 + i / 4].a[i % 4];
    emulated::product_later([&d, mine, y = Matrix(b), add] {
      const auto row_of = [&](float (&v)[16], int r) {
        for (int k = 0; k < 16; k++) v[k] = half_of<__half>(mine[k % 8 / 2 * 4 + k / 8 * 2 + r % 16 / 8], k);
      };
      multiply_64<N>(d, row_of, [&](float (&v)[16], int r) { y.across<__half>(v, r); }, add);
    });
  }
};
