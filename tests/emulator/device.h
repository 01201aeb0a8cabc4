#pragma once
// What the emulated device holds. All of it is used under one mutex.

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

/// Work that is noted, or an await: of the first `until` nodes of another branch.
struct Node {
  std::function<void()> work;
  size_t branch = 0, until = 0;
};
/// A branch for each stream of the capture, its own first.
using Nodes = std::vector<std::vector<Node>>;

struct Capture {
  Nodes nodes = Nodes(1);
  std::vector<Stream*> streams;  // by branch
  std::vector<size_t> joined;    // by branch: so many nodes of it the first one has awaited
  std::set<Module*> modules;
  size_t bytes = 0;
  std::string spoilt;  // by what
};

struct Stream {
  std::deque<std::function<void()>> queue;
  uint64_t queued = 0, done = 0;  // items so far
  uint64_t known = 0;             // of those done, what the host has waited for
  bool first = false;             // of the device's
  std::shared_ptr<Capture> capture;
  size_t branch = 0;  // in it
};

struct Graph {
  std::shared_ptr<const Nodes> nodes;  // launches that wait hold them too
  std::set<Module*> modules;
  size_t bytes;
  bool ready = false;  // and charged for
};

struct Event {
  Stream* stream = nullptr;
  uint64_t until = 0;  // finished when the stream has done so many items
  bool timer = false;
  double at_ms = 0;                     // of a timer: when it was recorded
  std::weak_ptr<Capture> capture = {};  // in which it was recorded, after `until` nodes of a
  size_t branch = 0;                    // branch
  bool captured = false;
};

struct Function {
  Module* module;
  const brrr_emulator::Program* program;
  const brrr_emulator::Kernel* kernel;
  const emulator::ptx::Kernel* ptx;  // where it is PTX
  size_t shared_bytes;
};

struct Module {
  void* handle;
  const brrr_emulator::Program* program;
  std::shared_ptr<emulator::ptx::Program> ptx;  // instead of the two
  size_t bytes;
  std::vector<Function*> functions;
  std::map<Stream*, uint64_t> used;  // up to which item
};

struct Gemm {
  GemmShape shape;
  size_t workspace_bytes;
};

}  // namespace brrr::cuda

namespace brrr::emulator {

using cuda::Failure;

/// Objects that callers hold pointers to; knows which of those are valid.
template <class T> class Handles {
 public:
  T* add(T value = {}) {
    auto owned = std::make_unique<T>(std::move(value));
    T* p = owned.get();
    objects_.emplace(p, std::move(owned));
    return p;
  }
  T& get(T* p, const char* what) {
    BRRR_CHECK(objects_.count(p), "{} is no {}, or was released", static_cast<void*>(p), what);
    return *p;
  }
  void remove(T* p, const char* what) {
    BRRR_CHECK(objects_.erase(p), "{} is no {}, or was released", static_cast<void*>(p), what);
  }
  template <class F> void each(F f) {
    for (auto& [p, owned] : objects_) f(*p);
  }

 private:
  std::unordered_map<T*, std::unique_ptr<T>> objects_;
};

/// From the environment, read by open().
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
  int fail_in = 0;  // steps of captures and graphs; 0: no failure is asked for

  /// The stream, unless it is not this thread's to use because of a capture.
  cuda::Stream& stream(cuda::Stream* s);
  /// Fails if a test wants this step to fail.
  void step(const char* what);

  /// Notes work in the capture of its stream; otherwise counts and queues it.
  template <class F> void enqueue(cuda::Stream& s, unsigned long& counter, F work) {
    if (!s.capture) {
      ++counter;
      return push(s, std::move(work));
    }
    step("a node");
    s.capture->bytes += sizeof work;
    s.capture->nodes[s.branch].push_back({std::move(work)});
  }
  /// Runs work now, or lets it wait in its stream when the device is lazy, or only that stream.
  template <class F> void push(cuda::Stream& s, F work) {
    ++s.queued;
    if (settings.lazy == 0 || (settings.lazy == 2 && !s.first)) {
      ++s.done;  // also of work that fails
      return work();
    }
    s.queue.push_back(std::move(work));
    // The queues of a real device are as finite.
    constexpr size_t most_waiting = 1024;
    if (s.queue.size() > most_waiting) run(s, s.done + 1);
  }
  /// Runs what waits in a stream, `until` so many items are done.
  void run(cuda::Stream& s, uint64_t until);
  /// The same, and the host knows that it is done.
  void wait(cuda::Stream& s, uint64_t until);
  void wait_all();
};

/// Never destroyed: programs may end in any order.
Device& device();

/// The stream that this thread captures; null: none.
cuda::Stream*& captured();

/// The words of a failure, which also spoils a capture of this thread.
Failure keep(const char* words);

/// Runs the body of a boundary function, with the device to itself if it asks for it, which a
/// thread that captures may not.
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
    return keep(e.what());
  }
}

/// The same for what is queued on `s`, which a capture of this thread notes.
template <class F> Failure queueing(cuda::Stream* s, F body) {
  try {
    Device& d = device();
    const std::lock_guard lock(d.mutex);
    body(d, d.stream(s));
    return nullptr;
  } catch (const std::exception& e) {
    return keep(e.what());
  }
}

}  // namespace brrr::emulator
