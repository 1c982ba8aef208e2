// What Hopper (sm_90a) alone has and several kernels use: barriers in shared memory that count bytes,
// tiles by the copy engine, the sharing out of registers, the order of a warpgroup's products.
#pragma once
#include "common.cuh"

// A tensor as the copy engine sees it: 128 bytes that the driver makes (cuTensorMapEncodeTiled).
struct alignas(64) TensorMap {
  uint64_t words[16];
};

DEV uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// A barrier: `arrivals` make a phase, and all bytes that were announced.
DEV void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEV void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEV void barrier_expect(uint32_t barrier, uint32_t n_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(n_bytes)
               : "memory");
}
// Waits until the phase of this parity has ended.
DEV void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;}" ::"r"(barrier), "r"(parity)
      : "memory");
}

// A box of a tensor of two dimensions, from element `x` of row `y` on; zeros beyond its end.
DEV void copy_box(uint32_t to, const TensorMap& map, int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

// Registers of a warpgroup: more, or back to the multiprocessor.
template <int N>
DEV void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
DEV void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// Products run beside the threads. `fence` before the first of a group (registers that it reads
// were written), `commit` after its last; `wait<N>` until at most N groups run.
DEV void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
DEV void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps the compiler from moving accesses of registers over this point.
template <int N>
DEV void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
