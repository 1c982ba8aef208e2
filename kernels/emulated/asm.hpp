// What the kernels say in PTX, under the names of the functions that say it.
#pragma once
#include "cuda.hpp"

inline void wait_for_previous() { emulated::wait_for_previous(); }
inline void let_next_start() { emulated::let_next_start(); }

inline int dot4u(uint32_t w, uint32_t x, int acc) {
  for (int i = 0; i < 32; i += 8) acc += static_cast<uint8_t>(w >> i) * static_cast<int8_t>(x >> i);
  return acc;
}
inline int dot4s(uint32_t w, uint32_t x, int acc) { return __dp4a(static_cast<int>(w), static_cast<int>(x), acc); }

inline void ask_for(const void*) {}  // a line of the second-level cache

// Loads from shared memory by its own addresses.
template <class T>
inline T shared_load(uint32_t at) {
  T v;
  memcpy(&v, emulated::shared_at(at, sizeof(T), sizeof(T)), sizeof(T));
  return v;
}
inline uint4 shared16(uint32_t at) { return shared_load<uint4>(at); }
inline uint2 shared8(uint32_t at) { return shared_load<uint2>(at); }
inline uint32_t shared4(uint32_t at) { return shared_load<uint32_t>(at); }
inline uint32_t shared2(uint32_t at) { return shared_load<uint16_t>(at); }
inline int32_t shared1_signed(uint32_t at) { return shared_load<int8_t>(at); }
inline uint32_t thread_anew() { return threadIdx.x; }
inline bool is_elected() { return threadIdx.x % 32 == 0; }
inline uint32_t kept(uint32_t n) { return n; }

// Copies of a thread.
inline void copy16_async(void* shared, const void* global, bool there) {
  emulated::copy_in_group(shared, global, there ? 16 : 0, there ? 0 : 16);
}
inline void commit_copies() { emulated::close_group(); }
template <int N>
inline void wait_copies() { emulated::wait_groups(N); }

// Barriers in shared memory, and copies that they count.
inline uint32_t shared_address(const void* p) { return emulated::shared_offset(p); }
inline void barrier_init(uint32_t barrier, uint32_t arrivals) { emulated::barrier_init(barrier, arrivals); }
inline void barrier_arrive(uint32_t barrier) { emulated::barrier_arrive(barrier); }
inline void barrier_expect(uint32_t barrier, uint32_t n_bytes) { emulated::barrier_expect(barrier, n_bytes); }
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (!emulated::barrier_has_passed(barrier, parity)) emulated::give_way();
}
inline void publish_barriers() {}
inline void copy_bulk(uint32_t to, const uint8_t* from, uint32_t n_bytes, uint32_t barrier) {
  emulated::copy_later(to, from, n_bytes, barrier);
}
inline void consumers_meet(uint32_t n_threads) { emulated::named_barrier(1, n_threads, true); }

inline void bring_near(const void*) {}

// Clusters.
inline uint32_t cluster_rank() { return emulated::cluster_rank(); }
inline uint32_t cluster_size() { return emulated::cluster_size(); }
inline void cluster_arrive() { emulated::cluster_arrive(); }
inline void cluster_wait() { emulated::cluster_wait(); }
inline uint32_t at_block(uint32_t address, uint32_t rank) { return emulated::at_rank(address, rank); }
inline void send(uint32_t to, uint32_t barrier, float v) { emulated::store_later(to, &v, 4, barrier); }
inline void send(uint32_t to, uint32_t barrier, float v, float w) {
  const float both[2] = {v, w};
  emulated::store_later(to, both, 8, barrier);
}

inline float exp2_to_zero(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}
inline float power(float x) { return exp2_to_zero(x); }
inline float exp2_fast(float x) { return exp2_to_zero(x); }

// Matrices of 8 x 8 halves: lane `8 i + r` says where row r of matrix i lies.
inline void matrices(uint32_t (&r)[4], uint32_t address, bool transposed) {
  const emulated::WarpExchange<uint32_t> rows(~0u, address);
  const int lane = rows.lane;
  for (int i = 0; i < 4; i++) {
    uint16_t pair[2];
    for (int j = 0; j < 2; j++) {
      const int row = transposed ? 2 * (lane % 4) + j : lane / 4, column = transposed ? lane / 4 : 2 * (lane % 4) + j;
      memcpy(pair + j, emulated::shared_at(rows[8 * i + row], 16, 16) + 2 * column, 2);
    }
    r[i] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
  }
}
inline void load_matrices(uint32_t (&r)[4], uint32_t address) { matrices(r, address, false); }
inline void load_matrices_trans(uint32_t (&r)[4], uint32_t address) { matrices(r, address, true); }
inline void ldmatrix4(uint32_t (&r)[4], const void* shared) { matrices(r, shared_address(shared), false); }
inline void ldmatrix4_trans(uint32_t (&r)[4], const void* shared) { matrices(r, shared_address(shared), true); }

inline float4 load_shared16(const void* p) {
  float4 v;
  memcpy(&v, emulated::shared_at(shared_address(p), 16, 16), 16);
  return v;
}
inline void copy16(void* to, const void* from, bool inside) { copy16_async(to, from, inside); }
inline void copies_commit() { commit_copies(); }
template <int N>
inline void copies_wait() { wait_copies<N>(); }
inline uint32_t opaque(uint32_t n) { return n; }
inline float half_bits(uint32_t bits) { return __half::raw(static_cast<uint16_t>(bits)); }
inline float half_at(const uint8_t* p) { return half_bits(p[0] | static_cast<uint32_t>(p[1]) << 8); }

// What a lane has of a product's operands.
struct Operands { uint32_t a[4], b[2]; };

// c = a b of bytes: a [16][K], b [K][8], c [16][8]; four that follow each other along k in a word. Lane 4 g + t has
// of a rows g and g + 8, of b column g, of c rows g and g + 8, columns 2 t and 2 t + 1.
template <int K>
inline void multiply_bytes(int (&c)[4], const Operands& mine) {
  const emulated::WarpExchange<Operands> all(~0u, mine);
  const int g = all.lane / 4, t = all.lane % 4;
  for (int i = 0; i < 4; i++) {
    const int column = 2 * t + i % 2;
    c[i] = 0;
    for (int k = 0; k < K; k += 4) {
      const int of = k % 16 / 4, half = k / 16;
      c[i] = dot4s(all[g * 4 + of].a[2 * half + i / 2], all[column * 4 + of].b[half], c[i]);
    }
  }
}
inline void mma_k16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) { multiply_bytes<16>(c, {{a0, a1}, {b}}); }
inline void mma_k32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_bytes<32>(c, {{a[0], a[1], a[2], a[3]}, {b0, b1}});
}
// c += a b of tf32, eight along k, of which b has the same four twice.
inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b) {
  const emulated::WarpExchange<Operands> all(~0u, {{a[0], a[1], a[2], a[3]}, {b, b}});
  const auto value = [](uint32_t word) { return bits_as<float>(word & 0xffffe000u); };
  const int g = all.lane / 4, t = all.lane % 4;
  for (int i = 0; i < 4; i++) {
    float sum = 0.0f;
    for (int k = 0; k < 8; k++) {
      sum += value(all[g * 4 + k % 4].a[k / 4 * 2 + i / 2]) * value(all[(2 * t + i % 2) * 4 + k % 4].b[k / 4]);
    }
    c[i] += sum;
  }
}

// c += a b: a [16][16], b [16][8], c [16][8]. Lanes as above, pairs along k in a word.
template <class Half>
inline float half_of(uint32_t word, int k) {
  Half h;
  const uint16_t bits = static_cast<uint16_t>(word >> 16 * (k & 1));
  memcpy(&h, &bits, 2);
  return h;
}
template <class Half>
inline void multiply_16x8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const emulated::WarpExchange<Operands> all(~0u, {{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const int g = all.lane / 4, t = all.lane % 4;
  for (int i = 0; i < 4; i++) {
    const int row = g + i / 2 * 8, column = 2 * t + i % 2;
    float sum = 0.0f;
    for (int k = 0; k < 16; k++) {
      const int of = k % 8 / 2, word = k / 8;
      const float x = half_of<Half>(all[row % 8 * 4 + of].a[2 * word + row / 8], k);
      const float y = half_of<Half>(all[column * 4 + of].b[word], k);
      sum += x * y;
    }
    c[i] += sum;
  }
}
inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_16x8<__half>(c, a, b0, b1);
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_16x8<__nv_bfloat16>(c, a, b0, b1);
}
