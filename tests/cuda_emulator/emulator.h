// SPDX-License-Identifier: Apache-2.0
//
// A small SIMT emulator: runs CUDA kernels, compiled as plain C++, on the CPU.
//
// Every thread of a block is a fibre. A fibre runs until it meets a barrier or
// a warp collective, then another fibre runs; which one is chosen by the
// schedule. A kernel that lacks a barrier gives different results under
// different schedules, or reads poisoned shared memory. What CUDA leaves
// undefined (a barrier that not all threads reach, a lane that is named in a
// mask but does not arrive, a shuffle from a lane outside the mask) is an
// error that names the place.
//
// One block runs at a time, so blocks must not wait for one another.

#ifndef COMET_TF_TESTS_CUDA_EMULATOR_EMULATOR_H_
#define COMET_TF_TESTS_CUDA_EMULATOR_EMULATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace cuda_emulator {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// The order in which ready fibres, and the blocks of a grid, run.
enum class Order { kForward, kReverse, kRandom };

struct Schedule {
  Order order = Order::kForward;
  uint64_t seed = 1;  // of the random order and of the poison
};

void SetSchedule(const Schedule& schedule);

// Runs `kernel` in every thread of the grid. False if the kernel broke a rule;
// LastError() then says which one and where.
bool Launch(Dim3 grid, Dim3 block, size_t dynamic_shared_bytes,
            const std::function<void()>& kernel);
const std::string& LastError();

// Where a device function was called from.
struct Site {
  const char* file;
  int line;
};

// Those of the thread that runs now.
struct ThreadIndices {
  Dim3 thread, block, block_dim, grid_dim;
};
extern ThreadIndices indices;

enum class Collective {
  kSync,
  kBallot,
  kAny,
  kAll,
  kShuffle,
  kReduceAdd,
  kReduceOr,
  kReduceAnd,
  kReduceXor,
  kReduceMin,
  kReduceMax
};

// One warp collective: `value` is what the lane contributes, `source` the lane
// that a shuffle reads. Returns what the lane gets.
uint64_t WarpCollective(Collective kind, unsigned mask, uint64_t value,
                        int source, Site site);
void SyncThreads(Site site);
int Lane();

// The block's shared variable known by `key`, filled with garbage when the
// block first asks for it.
void* Shared(const void* key, size_t bytes, size_t alignment);
void* DynamicShared();

// Ends the launch with an error; does not return.
[[noreturn]] void Fail(const char* what, Site site, Site other = {nullptr, 0});

}  // namespace cuda_emulator

#endif  // COMET_TF_TESTS_CUDA_EMULATOR_EMULATOR_H_
