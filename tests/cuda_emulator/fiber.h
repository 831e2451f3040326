// SPDX-License-Identifier: Apache-2.0
//
// Fibres: stacks that one OS thread switches between. AddressSanitizer is told
// of every switch.

#ifndef COMET_TF_TESTS_CUDA_EMULATOR_FIBER_H_
#define COMET_TF_TESTS_CUDA_EMULATOR_FIBER_H_

#include <cstddef>

namespace cuda_emulator {

class Fiber {
 public:
  // The fibre of the calling OS thread, which already runs.
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes the next switch here start `entry`, on a fresh stack. `entry` must
  // never return.
  void Reset(void (*entry)());

  // Leaves `from`, the running fibre, and goes on in `to`.
  static void Switch(Fiber* from, Fiber* to);

  // The first thing a fibre's entry must call.
  static void Entered();

 private:
  void* stack_pointer_ = nullptr;
  void* fake_stack_ = nullptr;
  char* memory_ = nullptr;  // guard page, then the stack
  const void* stack_bottom_ = nullptr;
  size_t stack_bytes_ = 0;
};

}  // namespace cuda_emulator

#endif  // COMET_TF_TESTS_CUDA_EMULATOR_FIBER_H_
