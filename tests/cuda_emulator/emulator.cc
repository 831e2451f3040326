// SPDX-License-Identifier: Apache-2.0

#include "emulator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "fiber.h"

namespace cuda_emulator {

ThreadIndices indices;

namespace {

constexpr int kWarp = 32;

enum class State { kReady, kInCollective, kAtBarrier, kDone };

struct Thread {
  Fiber fiber;
  ThreadIndices position;
  int id = 0;
  State state = State::kReady;
  Site site = {nullptr, 0};  // where it waits
  uint64_t result = 0;       // of the collective it waits for
};

// A collective that some lanes have reached.
struct Gathering {
  Collective kind;
  unsigned mask = 0;
  unsigned arrived = 0;
  Site site = {nullptr, 0};
  uint64_t values[kWarp] = {};
  int sources[kWarp] = {};
};

struct Warp {
  std::vector<Gathering> gatherings;
  unsigned exited = 0;
};

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<void, FreeDeleter>;

struct Block {
  std::vector<std::unique_ptr<Thread>> threads;  // kept between launches
  int count = 0;
  std::vector<Warp> warps;
  std::deque<int> ready;
  int at_barrier = 0;
  int done = 0;
  std::map<const void*, Memory> shared;
  size_t dynamic_bytes = 0;
  const std::function<void()>* kernel = nullptr;
};

Schedule schedule;
std::string last_error;
uint64_t random_state = 1;
Fiber main_fiber;
Block block;
Thread* current = nullptr;

// The generator of Vigna's SplitMix64.
uint64_t Random() {
  uint64_t z = (random_state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

Warp& WarpOf(const Thread& thread) {
  return block.warps[static_cast<size_t>(thread.id / kWarp)];
}

std::string Where(Site site) {
  std::ostringstream out;
  if (site.file != nullptr) {
    const char* slash = std::strrchr(site.file, '/');
    out << " at " << (slash != nullptr ? slash + 1 : site.file) << ":"
        << site.line;
  }
  return out.str();
}

std::string Name(const Thread& thread) {
  std::ostringstream out;
  out << "thread " << thread.id << " of block " << thread.position.block.x
      << "," << thread.position.block.y << "," << thread.position.block.z;
  return out.str();
}

[[noreturn]] void ToMain() {
  Fiber::Switch(&current->fiber, &main_fiber);
  std::abort();  // a finished fibre is never resumed
}

// Callers leave the fibre for good with ToMain() in a statement of its own,
// when the strings that made the message are gone.
void SetError(const std::string& what) { last_error = what; }

// Threads just released run before the others. So the orders differ as much as
// they can: a warp runs as far as it can alone, first or last.
void MakeReady(std::vector<int> ids) {
  switch (schedule.order) {
    case Order::kForward:
      break;
    case Order::kReverse:
      std::reverse(ids.begin(), ids.end());
      break;
    case Order::kRandom:
      for (size_t i = ids.size(); i > 1; --i) {
        std::swap(ids[i - 1], ids[Random() % i]);
      }
      break;
  }
  for (int id : ids) {
    block.threads[static_cast<size_t>(id)]->state = State::kReady;
  }
  block.ready.insert(block.ready.begin(), ids.begin(), ids.end());
}

std::string Deadlock() {
  std::ostringstream out;
  int exited = 0;
  const Thread* barrier = nullptr;
  const Thread* collective = nullptr;
  for (int i = 0; i < block.count; ++i) {
    const Thread& thread = *block.threads[static_cast<size_t>(i)];
    exited += thread.state == State::kDone;
    if (thread.state == State::kAtBarrier && barrier == nullptr) {
      barrier = &thread;
    }
    if (thread.state == State::kInCollective && collective == nullptr) {
      collective = &thread;
    }
  }
  if (barrier != nullptr) {
    out << "divergence at a barrier: " << Name(*barrier) << " waits"
        << Where(barrier->site) << ", " << block.at_barrier << " of "
        << block.count << " threads are there, " << exited << " have exited";
  }
  if (collective != nullptr) {
    if (barrier != nullptr) out << "; ";
    for (const Gathering& g : WarpOf(*collective).gatherings) {
      out << "missing lanes: mask 0x" << std::hex << g.mask << ", arrived 0x"
          << g.arrived << std::dec << Where(g.site) << ", " << Name(*collective)
          << " waits";
    }
  }
  return out.str();
}

// Leaves the current fibre, which has noted what it waits for.
void RunAnother() {
  if (block.ready.empty()) {
    SetError(Deadlock());
    ToMain();
  }
  size_t pick = 0;
  if (schedule.order == Order::kRandom) pick = Random() % block.ready.size();
  const int id = block.ready[pick];
  block.ready.erase(block.ready.begin() + static_cast<std::ptrdiff_t>(pick));
  Thread* next = block.threads[static_cast<size_t>(id)].get();
  Thread* previous = current;
  if (next == previous) return;
  current = next;
  Fiber::Switch(&previous->fiber, &next->fiber);
  indices = previous->position;
}

void ThreadMain() {
  Fiber::Entered();
  indices = current->position;
  (*block.kernel)();
  current->state = State::kDone;
  Warp& warp = WarpOf(*current);
  const unsigned bit = 1u << (current->id % kWarp);
  warp.exited |= bit;
  for (const Gathering& g : warp.gatherings) {
    if ((g.mask & bit) == 0) continue;
    SetError("missing lanes: " + Name(*current) +
             " exited, but others wait for it" + Where(g.site));
    ToMain();
  }
  ++block.done;
  if (block.done == block.count) ToMain();
  RunAnother();
  std::abort();
}

void Poison(void* memory, size_t bytes) {
  auto* p = static_cast<uint8_t*>(memory);
  for (size_t i = 0; i < bytes; ++i) p[i] = static_cast<uint8_t>(Random());
}

Memory NewShared(size_t bytes, size_t alignment) {
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max<size_t>(alignment, sizeof(void*)),
                     std::max<size_t>(bytes, 1)) != 0) {
    std::abort();
  }
  Poison(memory, bytes);
  return Memory(memory);
}

uint64_t Reduce(Collective kind, uint64_t a, uint64_t b) {
  switch (kind) {
    case Collective::kReduceAdd:
      return static_cast<uint32_t>(a + b);
    case Collective::kReduceOr:
      return a | b;
    case Collective::kReduceAnd:
      return a & b;
    case Collective::kReduceXor:
      return a ^ b;
    case Collective::kReduceMin:
      return std::min(a, b);
    default:
      return std::max(a, b);
  }
}

void Resolve(const Gathering& g, int warp_index) {
  uint64_t all = 0;
  bool first = true;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((g.mask >> lane & 1) == 0) continue;
    const uint64_t value = g.values[lane];
    switch (g.kind) {
      case Collective::kSync:
      case Collective::kShuffle:
        break;
      case Collective::kBallot:
        all |= (value != 0 ? uint64_t{1} : 0) << lane;
        break;
      case Collective::kAny:
        all |= value != 0;
        break;
      case Collective::kAll:
        all = (first || all != 0) && value != 0;
        break;
      default:
        all = first ? value : Reduce(g.kind, all, value);
    }
    first = false;
  }
  std::vector<int> ids;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((g.mask >> lane & 1) == 0) continue;
    const int id = warp_index * kWarp + lane;
    Thread& thread = *block.threads[static_cast<size_t>(id)];
    thread.result =
        g.kind == Collective::kShuffle ? g.values[g.sources[lane]] : all;
    ids.push_back(id);
  }
  MakeReady(std::move(ids));
}

// Runs one block; false after an error.
bool RunBlock(Dim3 index, Dim3 grid, Dim3 dim, size_t dynamic_bytes) {
  block.count = static_cast<int>(dim.x * dim.y * dim.z);
  block.warps.assign(static_cast<size_t>((block.count + kWarp - 1) / kWarp),
                     Warp());
  block.ready.clear();
  block.at_barrier = 0;
  block.done = 0;
  block.shared.clear();
  block.dynamic_bytes = dynamic_bytes;
  std::vector<int> ids;
  for (int i = 0; i < block.count; ++i) {
    if (static_cast<size_t>(i) == block.threads.size()) {
      block.threads.push_back(std::make_unique<Thread>());
    }
    Thread& thread = *block.threads[static_cast<size_t>(i)];
    const unsigned u = static_cast<unsigned>(i);
    thread.id = i;
    thread.position = {
        {u % dim.x, u / dim.x % dim.y, u / (dim.x * dim.y)}, index, dim, grid};
    thread.fiber.Reset(&ThreadMain);
    ids.push_back(i);
  }
  MakeReady(std::move(ids));
  size_t pick = 0;
  if (schedule.order == Order::kRandom) pick = Random() % block.ready.size();
  current = block.threads[static_cast<size_t>(block.ready[pick])].get();
  block.ready.erase(block.ready.begin() + static_cast<std::ptrdiff_t>(pick));
  Fiber::Switch(&main_fiber, &current->fiber);
  current = nullptr;
  block.shared.clear();
  return last_error.empty();
}

std::vector<uint64_t> BlockOrder(uint64_t count) {
  std::vector<uint64_t> order(count);
  for (uint64_t i = 0; i < count; ++i) {
    order[i] = schedule.order == Order::kReverse ? count - 1 - i : i;
  }
  if (schedule.order == Order::kRandom) {
    for (uint64_t i = count; i > 1; --i)
      std::swap(order[i - 1], order[Random() % i]);
  }
  return order;
}

}  // namespace

void SetSchedule(const Schedule& next) {
  schedule = next;
  random_state = next.seed;
}

bool Launch(Dim3 grid, Dim3 dim, size_t dynamic_shared_bytes,
            const std::function<void()>& kernel) {
  last_error.clear();
  const uint64_t threads = uint64_t{dim.x} * dim.y * dim.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (threads == 0 || threads > 1024 || blocks == 0 || grid.x > 0x7FFFFFFFu ||
      grid.y > 65535 || grid.z > 65535) {
    last_error = "invalid launch: " + std::to_string(blocks) + " blocks of " +
                 std::to_string(threads) + " threads";
    return false;
  }
  block.kernel = &kernel;
  for (uint64_t i : BlockOrder(blocks)) {
    const Dim3 index = {static_cast<unsigned>(i % grid.x),
                        static_cast<unsigned>(i / grid.x % grid.y),
                        static_cast<unsigned>(i / grid.x / grid.y)};
    if (!RunBlock(index, grid, dim, dynamic_shared_bytes)) return false;
  }
  return true;
}

const std::string& LastError() { return last_error; }

int Lane() { return current->id % kWarp; }

uint64_t WarpCollective(Collective kind, unsigned mask, uint64_t value,
                        int source, Site site) {
  Warp& warp = WarpOf(*current);
  const int lane = current->id % kWarp;
  const unsigned bit = 1u << lane;
  if ((mask & bit) == 0) {
    Fail("the calling lane is not in its own mask", site);
  }
  if (kind == Collective::kShuffle && (mask >> source & 1) == 0) {
    Fail("shuffle from a lane outside the mask", site);
  }
  if ((mask & warp.exited) != 0) {
    Fail("missing lanes: the mask names a lane that has exited", site);
  }
  Gathering* mine = nullptr;
  for (Gathering& g : warp.gatherings) {
    if (g.mask == mask) mine = &g;
  }
  if (mine == nullptr) {
    warp.gatherings.emplace_back();
    mine = &warp.gatherings.back();
    mine->kind = kind;
    mine->mask = mask;
    mine->site = site;
  }
  if (mine->kind != kind || mine->site.line != site.line ||
      std::strcmp(mine->site.file, site.file) != 0) {
    Fail("lanes of one mask meet in different collectives", site, mine->site);
  }
  mine->arrived |= bit;
  mine->values[lane] = value;
  mine->sources[lane] = source;
  current->state = State::kInCollective;
  current->site = site;
  if (mine->arrived == mask) {
    const Gathering complete = *mine;
    warp.gatherings.erase(warp.gatherings.begin() +
                          (mine - warp.gatherings.data()));
    Resolve(complete, current->id / kWarp);
  }
  RunAnother();
  return current->result;
}

void SyncThreads(Site site) {
  for (int i = 0; i < block.count && block.at_barrier > 0; ++i) {
    const Thread& other = *block.threads[static_cast<size_t>(i)];
    if (other.state != State::kAtBarrier) continue;
    if (other.site.line != site.line ||
        std::strcmp(other.site.file, site.file) != 0) {
      Fail("divergence: threads of a block meet at different barriers", site,
           other.site);
    }
    break;
  }
  current->state = State::kAtBarrier;
  current->site = site;
  ++block.at_barrier;
  if (block.at_barrier == block.count) {
    block.at_barrier = 0;
    std::vector<int> ids;
    for (int i = 0; i < block.count; ++i) ids.push_back(i);
    MakeReady(std::move(ids));
  }
  RunAnother();
}

void* Shared(const void* key, size_t bytes, size_t alignment) {
  Memory& memory = block.shared[key];
  if (memory == nullptr) memory = NewShared(bytes, alignment);
  return memory.get();
}

void* DynamicShared() {
  return Shared(&block.dynamic_bytes, block.dynamic_bytes, 16);
}

void Fail(const char* what, Site site, Site other) {
  SetError(what + (": " + Name(*current)) + Where(site) +
           (other.file != nullptr ? "; the other ones" + Where(other) : ""));
  ToMain();
}

}  // namespace cuda_emulator
