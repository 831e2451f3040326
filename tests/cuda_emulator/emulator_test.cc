// SPDX-License-Identifier: Apache-2.0
//
// The emulator's own tests: right kernels run, wrong ones are caught.

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "cuda_runtime.h"

namespace {

using cuda_emulator::Order;
using cuda_emulator::SetSchedule;

int failures = 0;

void Check(bool condition, const char* what, int line) {
  if (condition) return;
  if (++failures <= 20) std::printf("emulator_test.cc:%d: %s\n", line, what);
}
#define CHECK(condition) Check(condition, #condition, __LINE__)

template <typename T>
T& SharedVariable() {
  static const char key = 0;
  return *static_cast<T*>(cuda_emulator::Shared(&key, sizeof(T), alignof(T)));
}

template <typename... P, typename... A>
bool Run(unsigned blocks, unsigned threads, void (*kernel)(P...), A... a) {
  cudaLaunchConfig_t config;
  config.gridDim.x = blocks;
  config.blockDim.x = threads;
  const bool ok = cudaLaunchKernelEx(&config, kernel, a...) == cudaSuccess;
  CHECK(ok == (cudaGetLastError() == cudaSuccess));
  return ok;
}

// Runs `body` under every kind of schedule.
template <typename Body>
void ForEachSchedule(Body body) {
  SetSchedule({Order::kForward, 1});
  body();
  SetSchedule({Order::kReverse, 2});
  body();
  for (uint64_t seed = 3; seed < 8; ++seed) {
    SetSchedule({Order::kRandom, seed});
    body();
  }
}

bool Failed(const std::string& part) {
  return cuda_emulator::LastError().find(part) != std::string::npos;
}

// --- Kernels that are right ---

void Collectives(unsigned* out) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned all = 0xFFFFFFFFu;
  unsigned* row = out + 16 * (blockIdx.x * blockDim.x + threadIdx.x);
  row[0] = __ballot_sync(all, lane % 3 == 0);
  row[1] = __shfl_sync(all, lane, 5);
  row[2] = __shfl_up_sync(all, lane, 4);
  row[3] = __shfl_down_sync(all, lane, 4);
  row[4] = __shfl_xor_sync(all, lane, 8);
  row[5] = __reduce_add_sync(all, lane);
  row[6] = __reduce_or_sync(all, lane);
  row[7] = __reduce_max_sync(all, lane);
  row[8] = static_cast<unsigned>(__any_sync(all, lane == 7));
  row[9] = static_cast<unsigned>(__all_sync(all, lane != 7));
  row[10] = __shfl_sync(all, lane, 1, 8);
  row[11] = __shfl_up_sync(all, lane, 1, 8);
  const uint64_t wide = __shfl_sync(all, uint64_t{lane} << 40, 3);
  row[12] = static_cast<unsigned>(wide >> 40);
  // The halves of a warp go separate ways and meet again.
  if (lane < 16) {
    row[13] = __ballot_sync(0x0000FFFFu, 1);
  } else {
    row[13] = __ballot_sync(0xFFFF0000u, lane % 2);
  }
  __syncwarp();
  row[14] = __reduce_min_sync(all, lane + 9);
  row[15] = __reduce_xor_sync(all, 1u << lane);
}

void TestCollectives() {
  ForEachSchedule([] {
    std::vector<unsigned> out(16 * 3 * 64);
    CHECK(Run(3, 64, Collectives, out.data()));
    for (unsigned thread = 0; thread < 3 * 64; ++thread) {
      const unsigned lane = thread % 32;
      const unsigned* row = &out[16 * thread];
      CHECK(row[0] == 0x49249249u);
      CHECK(row[1] == 5);
      CHECK(row[2] == (lane < 4 ? lane : lane - 4));
      CHECK(row[3] == (lane > 27 ? lane : lane + 4));
      CHECK(row[4] == (lane ^ 8));
      CHECK(row[5] == 496);
      CHECK(row[6] == 31);
      CHECK(row[7] == 31);
      CHECK(row[8] == 1);
      CHECK(row[9] == 0);
      CHECK(row[10] == lane / 8 * 8 + 1);
      CHECK(row[11] == (lane % 8 == 0 ? lane : lane - 1));
      CHECK(row[12] == 3);
      CHECK(row[13] == (lane < 16 ? 0xFFFFu : 0xAAAA0000u));
      CHECK(row[14] == 9);
      CHECK(row[15] == 0xFFFFFFFFu);
    }
  });
}

// Reverses 256 values through shared memory, with or without the barrier.
template <bool kBarrier>
void ReverseBlock(unsigned* data) {
  auto& shared = SharedVariable<unsigned[256]>();
  shared[threadIdx.x] = data[threadIdx.x];
  if (kBarrier) __syncthreads();
  data[threadIdx.x] = shared[255 - threadIdx.x];
}

template <bool kBarrier>
size_t DistinctReversals() {
  std::set<std::vector<unsigned>> results;
  ForEachSchedule([&] {
    std::vector<unsigned> data(256);
    for (unsigned i = 0; i < 256; ++i) data[i] = 1000 + i;
    CHECK(Run(1, 256, ReverseBlock<kBarrier>, data.data()));
    results.insert(data);
  });
  return results.size();
}

// Hands values to the next lane through shared memory, in a loop that needs a
// barrier after the read as well as after the write.
template <bool kBarrierAfterRead>
void Rotate(unsigned* data) {
  auto& shared = SharedVariable<unsigned[32]>();
  unsigned value = data[threadIdx.x];
  for (int i = 0; i < 5; ++i) {
    shared[threadIdx.x] = value;
    __syncwarp();
    value = shared[(threadIdx.x + 1) % 32];
    if (kBarrierAfterRead) __syncwarp();
  }
  data[threadIdx.x] = value;
}

template <bool kBarrierAfterRead>
size_t DistinctRotations() {
  std::set<std::vector<unsigned>> results;
  ForEachSchedule([&] {
    std::vector<unsigned> data(32);
    for (unsigned i = 0; i < 32; ++i) data[i] = i;
    CHECK(Run(1, 32, Rotate<kBarrierAfterRead>, data.data()));
    results.insert(data);
  });
  return results.size();
}

void TestMissingBarriers() {
  CHECK(DistinctReversals<true>() == 1);
  CHECK(DistinctReversals<false>() > 1);
  CHECK(DistinctRotations<true>() == 1);
  CHECK(DistinctRotations<false>() > 1);
}

void ReadUnwritten(unsigned* out) {
  out[blockIdx.x] = SharedVariable<unsigned>();
}

void TestPoison() {
  std::set<unsigned> values;
  ForEachSchedule([&] {
    std::vector<unsigned> out(2);
    CHECK(Run(2, 1, ReadUnwritten, out.data()));
    values.insert(out.begin(), out.end());
  });
  CHECK(values.size() == 14);
}

void BlocksInOrder(unsigned* ticket, unsigned* order) {
  if (threadIdx.x == 0) order[atomicAdd(ticket, 1u)] = blockIdx.x;
}

void TestBlockOrder() {
  std::set<std::vector<unsigned>> orders;
  ForEachSchedule([&] {
    unsigned ticket = 0;
    std::vector<unsigned> order(9);
    CHECK(Run(9, 32, BlocksInOrder, &ticket, order.data()));
    CHECK(std::set<unsigned>(order.begin(), order.end()).size() == 9);
    orders.insert(order);
  });
  CHECK(orders.size() > 3);
}

// --- Kernels that are wrong ---

void BarrierInBranch() {
  if (threadIdx.x < 40) __syncthreads();
}
void TwoBarriers() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
void LaneExits() {
  if (threadIdx.x == 9) return;
  __syncwarp();
}
void LaneElsewhere() {
  if (threadIdx.x == 9) {
    __syncthreads();
  } else {
    __ballot_sync(0xFFFFFFFFu, 1);
    __syncthreads();
  }
}
void NotInOwnMask() { __syncwarp(0xFFFFFFFEu); }
void OverlappingMasks() {
  if (threadIdx.x < 16) {
    __syncwarp(0x0001FFFFu);
  } else {
    __syncwarp(0xFFFF0000u);
  }
}
void ShuffleFromOutside(unsigned* out) {
  if (threadIdx.x < 16) out[0] = __shfl_sync(0x0000FFFFu, 1u, 20);
}
void DifferentCollectives() {
  if (threadIdx.x < 16) {
    __ballot_sync(0xFFFFFFFFu, 1);
  } else {
    __any_sync(0xFFFFFFFFu, 1);
  }
}

void TestBrokenRules() {
  ForEachSchedule([] {
    unsigned out = 0;
    CHECK(!Run(1, 64, BarrierInBranch) && Failed("divergence at a barrier"));
    CHECK(Failed("emulator_test.cc:"));
    CHECK(!Run(1, 64, TwoBarriers) && Failed("different barriers"));
    CHECK(!Run(1, 32, LaneExits) && Failed("missing lanes"));
    CHECK(!Run(1, 32, LaneElsewhere) && Failed("missing lanes"));
    CHECK(!Run(1, 32, NotInOwnMask) && Failed("not in its own mask"));
    CHECK(!Run(1, 32, OverlappingMasks) && Failed("missing lanes"));
    CHECK(!Run(1, 32, ShuffleFromOutside, &out) && Failed("outside the mask"));
    CHECK(!Run(1, 32, DifferentCollectives) && Failed("different coll"));
    CHECK(!Run(0, 32, NotInOwnMask) && Failed("invalid launch"));
    CHECK(!Run(1, 1025, NotInOwnMask) && Failed("invalid launch"));
    // A warp of 16 threads: the mask may not name the absent lanes.
    CHECK(!Run(1, 16, LaneExits) && Failed("missing lanes"));
    // An error leaves the emulator usable.
    std::vector<unsigned> results(16 * 32);
    CHECK(Run(1, 32, Collectives, results.data()));
    CHECK(cuda_emulator::LastError().empty());
  });
}

void TestIntrinsics() {
  CHECK(__clz(0) == 32 && __clz(1) == 31 && __clz(-1) == 0);
  CHECK(__ffs(0) == 0 && __ffs(8) == 4 && __popc(0xF0F0u) == 8);
  CHECK(__brev(1u) == 0x80000000u && __brev(0x12345678u) == 0x1E6A2C48u);
  CHECK(__byte_perm(0x33221100u, 0x77665544u, 0x7520) == 0x77552200u);
  CHECK(__byte_perm(0x00008000u, 0, 0x9999) == 0xFFFFFFFFu);
  CHECK(__funnelshift_r(0x11111111u, 0x22222222u, 4) == 0x21111111u);
  CHECK(__funnelshift_l(0x11111111u, 0x22222222u, 4) == 0x22222221u);
  CHECK(__float2int_rd(-0.5f) == -1 && __float2int_rd(NAN) == 0);
  CHECK(__float2int_rd(1e20f) == INT32_MAX);
  CHECK(__umulhi(0x80000000u, 6u) == 3);
  CHECK(__umul64hi(0x8000000000000000ull, 6ull) == 3);
}

}  // namespace

int main() {
  TestCollectives();
  TestMissingBarriers();
  TestPoison();
  TestBlockOrder();
  TestBrokenRules();
  TestIntrinsics();
  if (failures == 0) std::printf("emulator: all tests passed\n");
  return failures == 0 ? 0 : 1;
}
