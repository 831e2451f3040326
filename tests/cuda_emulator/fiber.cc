// SPDX-License-Identifier: Apache-2.0

#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define COMET_EMULATOR_ASAN 1
#else
#define COMET_EMULATOR_ASAN 0
#endif

// swapcontext() makes two system calls a switch, and a kernel switches some
// millions of times a second; this keeps only the callee-saved registers.
#if defined(__x86_64__)
asm(R"(
.text
.globl comet_emulator_switch_stack
.type comet_emulator_switch_stack, @function
comet_emulator_switch_stack:
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
.size comet_emulator_switch_stack, .-comet_emulator_switch_stack
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl comet_emulator_switch_stack
.type comet_emulator_switch_stack, @function
comet_emulator_switch_stack:
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
.size comet_emulator_switch_stack, .-comet_emulator_switch_stack
)");
#else
#error "the emulator's fibres know x86-64 and aarch64"
#endif

extern "C" void comet_emulator_switch_stack(void** save, void* load);

namespace cuda_emulator {
namespace {

constexpr size_t kGuardBytes = 1 << 16;  // a multiple of any page size
constexpr size_t kStackBytes = 1 << 17;

Fiber* switched_from = nullptr;

}  // namespace

Fiber::~Fiber() {
  if (memory_ != nullptr) munmap(memory_, kGuardBytes + kStackBytes);
}

void Fiber::Reset(void (*entry)()) {
  if (memory_ == nullptr) {
    void* memory =
        mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
      std::perror("cannot map the stack of a fibre");
      std::abort();
    }
    memory_ = static_cast<char*>(memory);
    stack_bottom_ = memory_ + kGuardBytes;
    stack_bytes_ = kStackBytes;
  }
#if COMET_EMULATOR_ASAN
  // A fibre abandoned in the middle of a kernel left its red zones behind.
  ASAN_UNPOISON_MEMORY_REGION(stack_bottom_, stack_bytes_);
#endif
  auto* top = reinterpret_cast<uint64_t*>(memory_ + kGuardBytes + kStackBytes);
#if defined(__x86_64__)
  *--top = 0;  // a return address, so that the stack is aligned as after a call
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
#else
  top -= 20;
  for (int i = 0; i < 20; ++i) top[i] = 0;
  top[11] = reinterpret_cast<uint64_t>(entry);
#endif
  stack_pointer_ = top;
  fake_stack_ = nullptr;
}

void Fiber::Switch(Fiber* from, Fiber* to) {
  switched_from = from;
#if COMET_EMULATOR_ASAN
  __sanitizer_start_switch_fiber(&from->fake_stack_, to->stack_bottom_,
                                 to->stack_bytes_);
#endif
  comet_emulator_switch_stack(&from->stack_pointer_, to->stack_pointer_);
#if COMET_EMULATOR_ASAN
  Fiber* back_from = switched_from;
  __sanitizer_finish_switch_fiber(from->fake_stack_, &back_from->stack_bottom_,
                                  &back_from->stack_bytes_);
#endif
}

void Fiber::Entered() {
#if COMET_EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &switched_from->stack_bottom_,
                                  &switched_from->stack_bytes_);
#endif
}

}  // namespace cuda_emulator
