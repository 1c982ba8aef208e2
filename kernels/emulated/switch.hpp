// From one stack to another.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace emulated {

// Where a fiber stands: its stack's top, under which lie the registers that a function must keep.
using Context = void*;
// Leaves `*from`, goes on at `to`. (`swapcontext` asks the system for its signal mask each time.)
extern "C" void emulated_switch(Context* from, Context to);
#if defined(__x86_64__)
asm(R"(
.text
.hidden emulated_switch
.globl emulated_switch
emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
inline Context context_of(uint8_t* stack, size_t size, void (*body)()) {
  void** top = reinterpret_cast<void**>(stack + size);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(body);  // where `ret` goes, the stack as after a call
  return top - 6;
}
#elif defined(__aarch64__)
asm(R"(
.text
.hidden emulated_switch
.globl emulated_switch
emulated_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
inline Context context_of(uint8_t* stack, size_t size, void (*body)()) {
  uint64_t* const top = reinterpret_cast<uint64_t*>(stack + size) - 20;
  top[11] = reinterpret_cast<uint64_t>(body);  // x30
  return top;
}
#else
#error "the emulated GPU switches stacks on x86-64 and aarch64 alone"
#endif

}  // namespace emulated
