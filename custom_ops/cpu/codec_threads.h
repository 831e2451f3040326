// SPDX-License-Identifier: Apache-2.0
// A small thread pool for the C interface, tests and benchmarks; inside a
// framework the framework's own threads run the codec.
#ifndef COMET_CPU_CODEC_THREADS_H_
#define COMET_CPU_CODEC_THREADS_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace comet {

class ThreadPool {
 public:
  // `threads` counts the caller, which works too.
  explicit ThreadPool(int threads) {
    for (int k = 1; k < threads; ++k) {
      workers_.emplace_back([this] { Work(); });
    }
  }

  ~ThreadPool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // A ParallelFor (codec.h). The parts are small enough to share out evenly.
  void Run(int64_t units, int64_t,
           const std::function<void(int64_t, int64_t)>& fn) {
    if (units == 0) return;
    const int64_t parts_wanted =
        workers_.empty() ? 1 : 8 * static_cast<int64_t>(workers_.size() + 1);
    const int64_t per_part = (units + parts_wanted - 1) / parts_wanted;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      fn_ = &fn;
      units_ = units;
      per_part_ = per_part;
      next_ = 0;
      running_ = static_cast<int>(workers_.size());
      ++generation_;
    }
    wake_.notify_all();
    RunParts();
    const auto finished = [this] { return running_ == 0; };
    if (Spin(finished)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, finished);
  }

 private:
  // Waking a sleeping thread takes as long as encoding a megabyte, so that
  // threads look for work a while before they sleep, as Eigen's pool does.
  template <typename Condition>
  static bool Spin(const Condition& condition) {
    constexpr auto kPatience = std::chrono::microseconds(200);
    const auto start = std::chrono::steady_clock::now();
    do {
      if (condition()) return true;
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() - start < kPatience);
    return false;
  }

  void RunParts() {
    while (true) {
      const int64_t begin = next_.fetch_add(per_part_);
      if (begin >= units_) return;
      const int64_t end = begin + per_part_;
      (*fn_)(begin, end < units_ ? end : units_);
    }
  }

  void Work() {
    int64_t seen = 0;
    const auto called = [&] { return stop_ || generation_ != seen; };
    while (true) {
      Spin(called);
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, called);
        if (stop_) return;
        seen = generation_;
      }
      RunParts();
      std::lock_guard<std::mutex> lock(mutex_);
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(int64_t, int64_t)>* fn_ = nullptr;
  int64_t units_ = 0;
  int64_t per_part_ = 1;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> generation_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace comet

#endif  // COMET_CPU_CODEC_THREADS_H_
