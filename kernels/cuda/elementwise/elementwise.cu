// Element by element. `n` is the number of elements; launches cover them in blocks of 256.
#include "bend.cuh"
#include "eight.cuh"

DEV uint64_t element() { return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

extern "C" __global__ void __launch_bounds__(256) add(float* x, const float* y, uint64_t n) {
  let_next_start();
  wait_for_previous();
  const uint64_t i = element();
  if (i < n) x[i] += y[i];
}

extern "C" __global__ void __launch_bounds__(256) soft_cap(float* x, float cap, uint64_t n) {
  let_next_start();
  wait_for_previous();
  const uint64_t i = element();
  if (i < n) x[i] = cap * tanhf(x[i] / cap);
}

// y[t][i] += bias[i]: after a product without an epilogue.
extern "C" __global__ void __launch_bounds__(256)
    add_bias(float* y, const float* bias, uint32_t width, uint64_t n) {
  let_next_start();
  wait_for_previous();
  const uint64_t i = element();
  if (i < n) y[i] += bias[i % width];
}

// n is a multiple of 32.
extern "C" __global__ void __launch_bounds__(256)
    gated(Operand out, const float* gate, const float* up, uint32_t kind, uint64_t n) {
  let_next_start();
  wait_for_previous();
  const uint64_t i = element();
  if (i >= n) return;
  put_operand(out, i, bend(gate[i], kind) * up[i]);
}

// The same, eight elements a thread.
extern "C" __global__ void __launch_bounds__(256)
    gated8(Operand out, const float* gate, const float* up, uint32_t kind, uint64_t n) {
  wait_for_previous();
  const uint64_t i = 8 * element();
  if (i >= n) return;
  float g[8], v[8];
  load8(g, gate + i);
  load8(v, up + i);
#pragma unroll
  for (int j = 0; j < 8; j++) v[j] *= bend(g[j], kind);
  put_operand8(out, i, v);
  let_next_start();
}

// An operand from f32 rows. n is a multiple of 32.
extern "C" __global__ void __launch_bounds__(256)
    convert(Operand out, const float* x, uint64_t n) {
  let_next_start();
  wait_for_previous();
  const uint64_t i = element();
  if (i < n) put_operand(out, i, x[i]);
}

// The same, eight elements a thread.
extern "C" __global__ void __launch_bounds__(256)
    convert8(Operand out, const float* x, uint64_t n) {
  wait_for_previous();
  const uint64_t i = 8 * element();
  if (i >= n) return;
  float v[8];
  load8(v, x + i);
  put_operand8(out, i, v);
  let_next_start();
}

// Every byte of `n_words` words of 4 bytes: what buffers hold before a test's kernel writes them.
extern "C" __global__ void __launch_bounds__(256) fill(uint32_t* out, uint32_t value, uint64_t n) {
  const uint64_t i = element();
  if (i < n) out[i] = value;
}
