#include "backends/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "core/backend.h"
#include "core/signals.h"

namespace brrr::cpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPausesPerLook = 32;  // reading the clock costs as much as a few pauses

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// A value that one thread posts and another waits for: first spinning, then asleep.
class alignas(64) Signal {
 public:
  uint32_t value() const { return value_.load(std::memory_order_relaxed); }

  void post(uint32_t value) {
    // Sequentially consistent on both sides: either the poster sees the sleeper, or the sleeper
    // sees the new value before it sleeps.
    value_.store(value, std::memory_order_seq_cst);
    if (sleeper_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
      value_.notify_one();
  }

  /// Waits until the value differs from `old`; returns the new value.
  uint32_t wait_while(uint32_t old, bool spin) {
    uint32_t now = value_.load(std::memory_order_acquire);
    if (now == old && spin) now = spin_while(old);
    if (now != old) [[likely]]
      return now;
    sleeper_.store(1, std::memory_order_seq_cst);
    value_.wait(old);
    sleeper_.store(0, std::memory_order_relaxed);
    return value_.load(std::memory_order_acquire);
  }

 private:
  uint32_t spin_while(uint32_t old) {
    const auto end = Clock::now() + kSpin;
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        const uint32_t now = value_.load(std::memory_order_acquire);
        if (now != old) return now;
        pause();
      }
    } while (Clock::now() < end);
    return old;
  }

  std::atomic<uint32_t> value_{0}, sleeper_{0};
};

// A thread's rounding and denormal modes. Workers adopt the caller's, or results would depend on
// which thread computes what when the caller's modes differ from those the workers started with.
#if defined(__x86_64__)
constexpr uint32_t kFloatFlags = 0x3f;  // Sticky exception flags in the same register (MXCSR).
uint32_t float_control() { return __builtin_ia32_stmxcsr() & ~kFloatFlags; }
void set_float_control(uint32_t control) {
  if (control != float_control()) __builtin_ia32_ldmxcsr(control);
}
#else
uint32_t float_control() { return 0; }
void set_float_control(uint32_t) {}
#endif

// The work of a region: each thread runs its chunk of [0, n).
struct Task {
  host::RangeFn fn;
  void* ctx;
  int64_t n, chunk;
  uint32_t control = float_control();
  // Returns the exception it threw, if any.
  std::exception_ptr run(int thread) const {
    const int64_t begin = thread * chunk;
    try {
      fn(ctx, begin, begin + std::min(chunk, n - begin));
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }
};

thread_local bool in_region = false;
std::atomic<int> wanted_threads{0};    // 0: not determined yet
std::atomic<bool> inline_only{false};  // in a forked child, and during process exit

// Trivially destructible: static destructors elsewhere may still use it.
struct Cpus {
  int ids[CPU_SETSIZE];
  int known = 0;
  // The main thread's mask: the calling thread may have been pinned by its owner.
  Cpus() {
    cpu_set_t set;
    if (sched_getaffinity(getpid(), sizeof set, &set) != 0) return;
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) ids[known++] = i;
    }
  }
  int count() const {
    if (known > 0) return known;
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
};

const Cpus& cpus() {
  static const Cpus cpus;
  return cpus;
}

void pin(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);  // may fail: unpinned is only slower
}

struct Worker {
  Signal go, done;
  const Task* task = nullptr;  // nullptr with a new `go`: exit
  std::exception_ptr error;
  std::atomic<bool> spin{true};  // atomic: the worker reads it between regions, too
  std::thread thread;

  void loop(int index) {
    in_region = true;
    for (uint32_t seen = 0;;) {
      seen = go.wait_while(seen, spin.load(std::memory_order_relaxed));
      if (!task) return;
      set_float_control(task->control);
      error = task->run(index);
      done.post(seen);
    }
  }
};

class Gang {
 public:
  ~Gang() {
    if (inline_only.exchange(true)) return;  // a forked child has none of the threads
    // exit() was called inside a region: its threads can never be joined.
    if (in_region) return;
    while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
    for (int i = 0; i < size_; ++i) {
      workers_[i]->task = nullptr;
      workers_[i]->go.post(workers_[i]->go.value() + 1);
    }
    for (int i = 0; i < size_; ++i) {
      workers_[i]->thread.join();
      delete workers_[i];
    }
  }

  bool acquire() {
    return !in_region && !inline_only.load(std::memory_order_relaxed) &&
           !busy_.load(std::memory_order_relaxed) &&
           !busy_.exchange(true, std::memory_order_acquire);
  }
  void release() { busy_.store(false, std::memory_order_release); }

  /// Starts workers until there are `threads` threads; returns how many of these exist: fewer if
  /// the system refuses to create one.
  int grow(int threads) {
    while (size_ < threads - 1 && add_worker(threads)) {}
    return std::min(threads, size_ + 1);
  }

  /// Runs the task on threads [0, threads), thread 0 being the caller, which has acquired the gang.
  void run(int threads, const Task& task) {
    const bool spin = threads <= cpus().count();  // oversubscribed, spinning would delay the others
    for (int i = 0; i < threads - 1; ++i) {
      Worker& worker = *workers_[i];
      worker.task = &task;
      worker.spin.store(spin, std::memory_order_relaxed);
      worker.go.post(worker.go.value() + 1);
    }
    in_region = true;
    std::exception_ptr error = task.run(0);
    in_region = false;
    for (int i = 0; i < threads - 1; ++i) {
      Worker& worker = *workers_[i];
      const uint32_t ticket = worker.go.value();
      worker.done.wait_while(ticket - 1, spin);
      std::exception_ptr caught = std::exchange(worker.error, nullptr);
      if (!error) error = std::move(caught);
    }
    if (error) [[unlikely]]
      std::rethrow_exception(error);
  }

 private:
  bool add_worker(int threads) {
    const int index = size_;
    if (index == 0) prepare();
    auto worker = std::make_unique<Worker>();
    worker->spin = threads <= cpus().count();
    try {
      const SignalsBlocked blocked;
      worker->thread = std::thread([w = worker.get(), index] { w->loop(index + 1); });
    } catch (const std::system_error&) {
      return false;
    }
    // Workers beyond the number of CPUs are not pinned.
    if (index + 1 < cpus().known) {
      pin(worker->thread.native_handle(), cpus().ids[(first_ + 1 + index) % cpus().known]);
    }
    workers_[index] = worker.release();
    ++size_;
    return true;
  }

  // Workers are pinned from the CPU after the caller's on, so that the caller keeps its own.
  void prepare() {
    const int* ids = cpus().ids;
    const int* end = ids + cpus().known;
    const int* at = std::find(ids, end, sched_getcpu());
    first_ = at == end ? 0 : static_cast<int>(at - ids);
    pthread_atfork(nullptr, nullptr, [] { inline_only.store(true); });
  }

  std::atomic<bool> busy_{false};
  int size_ = 0;  // accessed only by the thread that has acquired the gang
  int first_ = 0;
  Worker* workers_[kMaxThreads - 1] = {};
};

// Constant-initialised: usable before main and, running inline, after its destructor.
constinit Gang gang;

int start_threads() {
  const int all = std::min(cpus().count(), kMaxThreads);
  if (const char* text = std::getenv("BRRR_NUM_THREADS"); text && *text) {
    char* end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (!*end && n > 0 && n <= kMaxThreads) return static_cast<int>(n);
    std::fprintf(stderr, "brrr: BRRR_NUM_THREADS is '%s', not a number from 1 to %d; using %d\n",
                 text, kMaxThreads, all);
  }
  return all;
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

}  // namespace

int num_cpus() noexcept { return cpus().count(); }

int num_threads() noexcept {
  const int wanted = wanted_threads.load(std::memory_order_relaxed);
  if (wanted > 0) [[likely]]
    return wanted;
  int unset = 0;
  const int start = start_threads();
  return wanted_threads.compare_exchange_strong(unset, start) ? start : unset;
}

void set_num_threads(int n) noexcept {
  wanted_threads.store(std::clamp(n, 1, kMaxThreads), std::memory_order_relaxed);
}

}  // namespace brrr::cpu

namespace brrr::host {

using namespace cpu;

void run_ranges(int64_t n, int64_t grain, RangeFn fn, void* ctx) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t grains = ceil_div(n, grain);
  const auto most = static_cast<int>(std::min<int64_t>(grains, num_threads()));
  if (most < 2 || !gang.acquire()) return fn(ctx, 0, n);
  const struct Release {
    ~Release() { gang.release(); }
  } release;
  const int64_t chunk = ceil_div(grains, gang.grow(most)) * grain;
  gang.run(static_cast<int>(ceil_div(n, chunk)), {fn, ctx, n, chunk});
}

}  // namespace brrr::host
