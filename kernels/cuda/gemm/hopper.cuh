// What bf16 products add to ../hopper.cuh: clusters, additions by the memory, products of a warpgroup.
#pragma once
#include "../hopper.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// At the same barrier of block `rank` of the cluster. Not `.release.cluster`: nothing that this thread
// wrote is handed over, and the fence that it compiles to waits for all its stores.
DEV void arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
DEV uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
DEV void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// After barriers were initialized, for the copy engine and the other blocks of the cluster.
DEV void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// As `copy_box`, to every block of the cluster in `mask`, at the same place of each.
DEV void copy_box_to(uint16_t mask, uint32_t to, const TensorMap* map, uint32_t barrier, uint32_t k,
                     uint32_t row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(k), "r"(row), "r"(barrier), "h"(mask)
      : "memory");
}
DEV void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Adds to four numbers in memory, by the memory itself: nothing is waited for.
DEV void add_to_memory(float* p, float4 v) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x),
               "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

// An operand in shared memory: rows of 64 bf16 (128 bytes), eight rows a 1024-byte pattern whose
// 16-byte chunks are exchanged (chunk c of row r lies at c ^ r % 8), as the copy engine writes them.
// Bits: 0 address / 16; 16 distance along k, unused with this swizzle; 32 distance of eight rows /
// 16; 62 the swizzle. The next 16 elements of k are 32 bytes, that is 2, further.
DEV uint64_t operand_at(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// clang-format off
#define SUMS4(i) "+f"(c[i]), "+f"(c[(i) + 1]), "+f"(c[(i) + 2]), "+f"(c[(i) + 3])
#define SUMS16(i) SUMS4(i), SUMS4((i) + 4), SUMS4((i) + 8), SUMS4((i) + 12)

// c = a b^T (+ c, if `add`): 64 rows of a, twice as many rows of b as c has elements, 16 elements of
// each.
DEV void multiply_rows(float (&c)[128], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
      "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
      "}, %128, %129, p, 1, 1, 0, 0;\n}"
      : SUMS16(0), SUMS16(16), SUMS16(32), SUMS16(48), SUMS16(64), SUMS16(80), SUMS16(96), SUMS16(112)
      : "l"(a), "l"(b), "r"(add));
}
DEV void multiply_rows(float (&c)[120], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %122, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n240k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
      "%112,%113,%114,%115,%116,%117,%118,%119"
      "}, %120, %121, p, 1, 1, 0, 0;\n}"
      : SUMS16(0), SUMS16(16), SUMS16(32), SUMS16(48), SUMS16(64), SUMS16(80), SUMS16(96), SUMS4(112), SUMS4(116)
      : "l"(a), "l"(b), "r"(add));
}
DEV void multiply_rows(float (&c)[96], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
      "}, %96, %97, p, 1, 1, 0, 0;\n}"
      : SUMS16(0), SUMS16(16), SUMS16(32), SUMS16(48), SUMS16(64), SUMS16(80)
      : "l"(a), "l"(b), "r"(add));
}
DEV void multiply_rows(float (&c)[72], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %74, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71"
      "}, %72, %73, p, 1, 1, 0, 0;\n}"
      : SUMS16(0), SUMS16(16), SUMS16(32), SUMS16(48), SUMS4(64), SUMS4(68)
      : "l"(a), "l"(b), "r"(add));
}
DEV void multiply_rows(float (&c)[64], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, %64, %65, p, 1, 1, 0, 0;\n}"
      : SUMS16(0), SUMS16(16), SUMS16(32), SUMS16(48)
      : "l"(a), "l"(b), "r"(add));
}
DEV void multiply_rows(float (&c)[56], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %58, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55"
      "}, %56, %57, p, 1, 1, 0, 0;\n}"
      : SUMS16(0), SUMS16(16), SUMS16(32), SUMS4(48), SUMS4(52)
      : "l"(a), "l"(b), "r"(add));
}
DEV void multiply_rows(float (&c)[32], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, %32, %33, p, 1, 1, 0, 0;\n}"
      : SUMS16(0), SUMS16(16)
      : "l"(a), "l"(b), "r"(add));
}
// clang-format on

#endif
