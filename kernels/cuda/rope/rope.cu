// Rotary embeddings and the cache of keys and values.
//
// Positions are in device memory, so that a recorded launch serves every position: row t of a step
// is at position *first_pos + shift + t.
#include "../elementwise/eight.cuh"
#include "rotate.cuh"

// table[p][i] = (cos, sin) * factor of angle p * steps[i], for positions first .. first + n.
extern "C" __global__ void __launch_bounds__(256)
    rope_table(float2* table, const double* steps, uint32_t n_steps, uint32_t first, uint32_t n,
               double factor) {
  const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<uint64_t>(n) * n_steps) return;
  const uint32_t p = first + static_cast<uint32_t>(i / n_steps), s = i % n_steps;
  double sn, cs;
  sincos(static_cast<double>(p) * steps[s], &sn, &cs);
  table[static_cast<size_t>(p) * n_steps + s] =
      make_float2(static_cast<float>(cs * factor), static_cast<float>(sn * factor));
}

// Rotates every head of x [n_tokens, n_head * head_dim] in place. Grid: (pairs / 256, n_tokens).
extern "C" __global__ void __launch_bounds__(256)
    rope(float* x, const float2* table, const uint32_t* first_pos, uint32_t shift, uint32_t n_head,
         uint32_t head_dim, uint32_t n_steps, uint32_t neox) {
  let_next_start();
  wait_for_previous();
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n_head * n_steps) return;
  const uint32_t head = i / n_steps, step = i % n_steps;
  const size_t pos = *first_pos + shift + blockIdx.y;
  float* row = x + (static_cast<size_t>(blockIdx.y) * n_head + head) * head_dim;
  rotate_pair(row, step, n_steps, neox, table[pos * n_steps + step]);
}

// Cache rows [position][width], f16, from k and v [n_tokens, width]. Grid: (width / 256, n_tokens).
extern "C" __global__ void __launch_bounds__(256)
    store_kv(__half* k_cache, __half* v_cache, const float* k, const float* v,
             const uint32_t* first_pos, uint32_t width) {
  let_next_start();
  wait_for_previous();
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const size_t from = static_cast<size_t>(blockIdx.y) * width + i;
  const size_t to = static_cast<size_t>(*first_pos + blockIdx.y) * width + i;
  k_cache[to] = __float2half_rn(k[from]);
  v_cache[to] = __float2half_rn(v[from]);
}

// All of it in one launch: rotates q in place, rotates k into the cache, copies v into the cache.
// Grid: ((q pairs + k pairs + v elements) / 256, n_tokens); heads are rotated as a whole, the rest
// of a head beyond 2 n_steps passes unchanged.
extern "C" __global__ void __launch_bounds__(256)
    rope_store(float* q, const float* k, const float* v, __half* k_cache, __half* v_cache,
               const float2* table, const uint32_t* first_pos, uint32_t n_head, uint32_t n_head_kv,
               uint32_t head_dim, uint32_t n_steps, uint32_t neox) {
  let_next_start();
  wait_for_previous();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t half = head_dim / 2, width = n_head_kv * head_dim;
  const uint32_t n_q = n_head * half, n_k = n_head_kv * half;
  const size_t pos = *first_pos + blockIdx.y;
  if (i < n_q) {
    const uint32_t head = i / half, step = i % half;
    if (step < n_steps) {
      float* row = q + (static_cast<size_t>(blockIdx.y) * n_head + head) * head_dim;
      rotate_pair(row, step, n_steps, neox, table[pos * n_steps + step]);
    }
  } else if ((i -= n_q) < n_k) {
    const uint32_t head = i / half, step = i % half;
    const float* row = k + static_cast<size_t>(blockIdx.y) * width + head * head_dim;
    __half* out = k_cache + pos * width + head * head_dim;
    if (step < n_steps) {
      const float2 cs = table[pos * n_steps + step];
      const uint32_t a = neox ? step : 2 * step, b = neox ? step + n_steps : 2 * step + 1;
      out[a] = __float2half_rn(fmaf(-row[b], cs.y, row[a] * cs.x));
      out[b] = __float2half_rn(fmaf(row[a], cs.y, row[b] * cs.x));
    } else {
      out[2 * step] = __float2half_rn(row[2 * step]);
      out[2 * step + 1] = __float2half_rn(row[2 * step + 1]);
    }
  } else if ((i -= n_k) < n_k) {
    const size_t from = static_cast<size_t>(blockIdx.y) * width + 2 * i;
    const float2 two = *reinterpret_cast<const float2*>(v + from);
    *reinterpret_cast<__half2*>(v_cache + pos * width + 2 * i) = __floats2half2_rn(two.x, two.y);
  }
}

// Four pairs of a head from `step` on, rotated: u and v are their first and second elements.
DEV void rotate4(float (&u)[4], float (&v)[4], const float* head, uint32_t step, uint32_t n_steps,
                 uint32_t neox, const float2* angles) {
  const float4 a = *reinterpret_cast<const float4*>(head + (neox ? step : 2 * step));
  const float4 b = *reinterpret_cast<const float4*>(head + (neox ? n_steps + step : 2 * step + 4));
  const float4 cs[2] = {reinterpret_cast<const float4*>(angles + step)[0],
                        reinterpret_cast<const float4*>(angles + step)[1]};
  const float x[4] = {a.x, neox ? a.y : a.z, neox ? a.z : b.x, neox ? a.w : b.z};
  const float y[4] = {neox ? b.x : a.y, neox ? b.y : a.w, neox ? b.z : b.y, b.w};
  const float c[4] = {cs[0].x, cs[0].z, cs[1].x, cs[1].z}, s[4] = {cs[0].y, cs[0].w, cs[1].y, cs[1].w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u[i] = fmaf(-y[i], s[i], x[i] * c[i]);
    v[i] = fmaf(x[i], s[i], y[i] * c[i]);
  }
}

// Eight elements, rounded to f16.
DEV void store8(__half* to, const float* from) {
  float v[8];
  load8(v, from);
  *reinterpret_cast<uint4*>(to) =
      make_uint4(pack_f16(v[0], v[1]), pack_f16(v[2], v[3]), pack_f16(v[4], v[5]), pack_f16(v[6], v[7]));
}

DEV uint2 pack4(float a, float b, float c, float d) { return make_uint2(pack_f16(a, b), pack_f16(c, d)); }

// As rope_store, four pairs or eight values a thread. Half a head and n_steps are multiples of four.
// Grid: ((q pairs + k pairs + v pairs) / 4 / 256, n_tokens).
extern "C" __global__ void __launch_bounds__(256)
    rope_store4(float* q, const float* k, const float* v, __half* k_cache, __half* v_cache,
                const float2* table, const uint32_t* first_pos, uint32_t n_head, uint32_t n_head_kv,
                uint32_t head_dim, uint32_t n_steps, uint32_t neox) {
  wait_for_previous();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t quads = head_dim / 8, width = n_head_kv * head_dim;
  const uint32_t n_q = n_head * quads, n_k = n_head_kv * quads;
  const size_t pos = *first_pos + blockIdx.y, row = blockIdx.y;
  const float2* angles = table + pos * n_steps;
  float a[4], b[4];
  if (i < n_q) {
    const uint32_t step = i % quads * 4;
    if (step < n_steps) {
      float* head = q + row * n_head * head_dim + i / quads * head_dim;
      rotate4(a, b, head, step, n_steps, neox, angles);
      float4* first = reinterpret_cast<float4*>(head + (neox ? step : 2 * step));
      float4* second = reinterpret_cast<float4*>(head + (neox ? n_steps + step : 2 * step + 4));
      *first = neox ? make_float4(a[0], a[1], a[2], a[3]) : make_float4(a[0], b[0], a[1], b[1]);
      *second = neox ? make_float4(b[0], b[1], b[2], b[3]) : make_float4(a[2], b[2], a[3], b[3]);
    }
  } else if ((i -= n_q) < n_k) {
    const uint32_t step = i % quads * 4;
    const float* head = k + row * width + i / quads * head_dim;
    __half* to = k_cache + pos * width + i / quads * head_dim;
    if (step < n_steps) {
      rotate4(a, b, head, step, n_steps, neox, angles);
      uint2* first = reinterpret_cast<uint2*>(to + (neox ? step : 2 * step));
      uint2* second = reinterpret_cast<uint2*>(to + (neox ? n_steps + step : 2 * step + 4));
      *first = neox ? pack4(a[0], a[1], a[2], a[3]) : pack4(a[0], b[0], a[1], b[1]);
      *second = neox ? pack4(b[0], b[1], b[2], b[3]) : pack4(a[2], b[2], a[3], b[3]);
    } else {
      store8(to + 2 * step, head + 2 * step);
    }
  } else if ((i -= n_k) < n_k) {
    store8(v_cache + pos * width + 8 * i, v + row * width + 8 * i);
  }
  let_next_start();
}
