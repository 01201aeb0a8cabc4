#pragma once
// The state of the emulated device, all of it guarded by one mutex.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backends/cuda/driver.h"
#include "core/check.h"
#include "tests/emulator/interface.h"
#include "tests/emulator/memory.h"
#include "tests/emulator/probe.h"
#include "tests/emulator/ptx.h"

namespace brrr::cuda {

/// Captured work or, without `work`, an await of the first `until` nodes of another branch.
struct Node {
  std::function<void()> work;
  size_t branch = 0, until = 0;
};
/// One branch per stream of the capture, the capturing stream's first.
using Nodes = std::vector<std::vector<Node>>;

struct Capture {
  Nodes nodes = Nodes(1);
  std::vector<Stream*> streams;  // by branch
  std::vector<size_t> joined;    // by branch: how many of its nodes the first branch has awaited
  std::set<Module*> modules;
  size_t bytes = 0;
  std::string failure;  // the first one, which has invalidated the capture
};

struct Stream {
  std::deque<std::function<void()>> queue;
  uint64_t queued = 0, done = 0;  // number of items so far
  uint64_t known = 0;             // how many of those done the host has waited for
  bool first = false;             // the device's first stream
  std::shared_ptr<Capture> capture;
  size_t branch = 0;  // of the capture
};

struct Graph {
  std::shared_ptr<const Nodes> nodes;  // queued launches hold them too
  std::set<Module*> modules;
  size_t bytes;
  bool ready = false;  // uploaded, and `bytes` counted as used
};

struct Event {
  Stream* stream = nullptr;
  uint64_t until = 0;  // reached when the stream has done this many items
  bool timer = false;
  double at_ms = 0;                     // of a timer: when it was recorded
  std::weak_ptr<Capture> capture = {};  // the capture in which it was recorded, after the first
  size_t branch = 0;                    // `until` nodes of this branch
  bool captured = false;
};

struct Function {
  Module* module;
  const brrr_emulator::Program* program;
  const brrr_emulator::Kernel* kernel;
  const emulator::ptx::Kernel* ptx;  // null unless the module is PTX
  size_t shared_bytes;
};

struct Module {
  void* handle;
  const brrr_emulator::Program* program;
  std::shared_ptr<emulator::ptx::Program> ptx;  // for PTX, instead of `handle` and `program`
  size_t bytes;
  std::vector<Function*> functions;
  std::map<Stream*, uint64_t> used;  // by stream: the last item that uses the module
};

struct Gemm {
  GemmShape shape;
  size_t workspace_bytes;
};

}  // namespace brrr::cuda

namespace brrr::emulator {

using cuda::Failure;

/// Owns objects that callers hold pointers to, and checks that such a pointer is valid.
template <class T> class Handles {
 public:
  T* add(T value = {}) {
    auto owned = std::make_unique<T>(std::move(value));
    T* p = owned.get();
    objects_.emplace(p, std::move(owned));
    return p;
  }
  T& get(T* p, const char* what) {
    BRRR_CHECK(objects_.count(p), "{} is not a valid {}", static_cast<void*>(p), what);
    return *p;
  }
  void remove(T* p, const char* what) {
    BRRR_CHECK(objects_.erase(p), "{} is not a valid {}", static_cast<void*>(p), what);
  }
  template <class F> void each(F f) {
    for (auto& [p, owned] : objects_) f(*p);
  }

 private:
  std::unordered_map<T*, std::unique_ptr<T>> objects_;
};

/// Settings from the environment, read by open().
struct Settings {
  size_t memory = size_t{2} << 30;  // BRRR_EMULATOR_MEMORY
  unsigned long lazy = 0;           // BRRR_EMULATOR_LAZY
  unsigned long order = 0;          // BRRR_EMULATOR_ORDER
  unsigned long capability = 90;    // BRRR_EMULATOR_CAPABILITY, times 10
};

struct Device {
  std::mutex mutex;
  Settings settings;
  Memory memory;
  Handles<cuda::Stream> streams;
  Handles<cuda::Event> events;
  Handles<cuda::Module> modules;
  Handles<cuda::Function> functions;
  Handles<cuda::Gemm> gemms;
  Handles<cuda::Graph> graphs;
  Counters counters{};
  int fail_in = 0;  // the step of captures and graphs that is to fail, from 1; 0: none

  /// The stream; fails if a capture forbids this thread to use it.
  cuda::Stream& stream(cuda::Stream* s);
  /// Fails if a test injected a failure of this step.
  void step(const char* what);

  /// Adds work to the capture of its stream; without a capture, counts and queues it.
  template <class F> void enqueue(cuda::Stream& s, unsigned long& counter, F work) {
    if (!s.capture) {
      ++counter;
      return push(s, std::move(work));
    }
    step("a node");
    s.capture->bytes += sizeof work;
    s.capture->nodes[s.branch].push_back({std::move(work)});
  }
  /// Runs work now or, if the device or the stream is lazy, queues it in its stream.
  template <class F> void push(cuda::Stream& s, F work) {
    ++s.queued;
    if (settings.lazy == 0 || (settings.lazy == 2 && !s.first)) {
      ++s.done;  // even if the work fails
      return work();
    }
    s.queue.push_back(std::move(work));
    // Bounded, as the queues of a real device are.
    constexpr size_t most_waiting = 1024;
    if (s.queue.size() > most_waiting) run(s, s.done + 1);
  }
  /// Runs queued work of a stream until `until` items are done.
  void run(cuda::Stream& s, uint64_t until);
  /// The same, and records that the host has waited for them.
  void wait(cuda::Stream& s, uint64_t until);
  void wait_all();
};

/// Never destroyed, as the order in which modules are unloaded at exit is unknown.
Device& device();

/// The stream that this thread captures; null if none.
cuda::Stream*& captured();

/// A copy of `message`, valid until the thread's next failure. Invalidates the thread's capture.
Failure store_failure(const char* message);

/// Runs the body of a boundary function; an exception becomes the failure. A body that takes the
/// device runs under its mutex, and fails if the thread captures.
template <class F> Failure guarded(F body, const char* call = __builtin_FUNCTION()) {
  try {
    if constexpr (std::is_invocable_v<F, Device&>) {
      Device& d = device();
      const std::lock_guard lock(d.mutex);
      d.counters.refused += captured() != nullptr;
      BRRR_CHECK(!captured(), "{}: not while this thread captures", call);
      body(d);
    } else {
      body();
    }
    return nullptr;
  } catch (const std::exception& e) {
    return store_failure(e.what());
  }
}

/// The same for a body that queues work on `s`, or adds it to this thread's capture.
template <class F> Failure queueing(cuda::Stream* s, F body) {
  try {
    Device& d = device();
    const std::lock_guard lock(d.mutex);
    body(d, d.stream(s));
    return nullptr;
  } catch (const std::exception& e) {
    return store_failure(e.what());
  }
}

}  // namespace brrr::emulator
