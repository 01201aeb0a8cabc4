#pragma once
// Profile::Watch, the observer that collects a profile's data, and what reports share. Internal to
// this folder.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/backend.h"
#include "core/check.h"
#include "core/context.h"
#include "graph/numerics.h"
#include "graph/profile.h"
#include "graph/step.h"
#include "graph/module_trail.h"
#include "ops/kinds/work.h"

namespace brrr {

inline void add(ProfileRow& to, const ProfileRow& row) {
  to.calls += row.calls;
  to.flops += row.flops;
  to.bytes += row.bytes;
  to.time.us += row.time.us;
  to.time.compute_us += row.time.compute_us;
  to.time.memory_us += row.time.memory_us;
  to.dtype = row.dtype;
}

/// The device limits that times are compared with, and the device that they were measured on.
std::string limits_text(Device device, const DeviceLimits& limits);

namespace graph {

/// Predicts the microseconds of a call of the recorded step from an eager call's kernels and its
/// time between them (`between_us`). Of the graph's kernels only FLOPs and bytes are used, not
/// times; the time between kernels follows from launch_costs(). A kernel that eager mode runs, too,
/// takes its eager time. Generated kernels take at least the time that their bytes or FLOPs need at
/// the device limits, and at most that plus the time by which eager kernels that memory does not
/// bound exceed that of their bytes: the prediction is the middle, at most the replaced kernels'.
double predict_graph_us(const std::vector<ProfileRow>& eager, double between_us,
                        const std::vector<ProfileRow>& graph, const StepStats& recorded,
                        Device device);

}  // namespace graph

struct Profile::Watch final : Observer {
  using Clock = std::chrono::steady_clock;
  static double us_between(Clock::time_point a, Clock::time_point b) {
    return std::chrono::duration<double, std::micro>(b - a).count();
  }

  // Row of the trace in which a span is drawn.
  enum Track : uint8_t { Host = 1, Kernels, Modules };
  struct Span {
    size_t row;
    Track track;
    double at_us, us;
    Work work;
    double gap_us;  // Host time since the previous kernel; -1: from the GPU's time stamps.
  };
  static constexpr size_t kMostSpans = 1'000'000, kMostPending = 4096;

  Watch() {
    BRRR_CHECK(!context.recorder, "profile: make it outside of the step, around calls of it");
    BRRR_CHECK(!context.observer,
               "profile: this thread has one already, or is in a step that checks numerics; end "
               "the first, and make it around calls of the step");
    limits_of(kCPU);  // May have to measure them, which must not happen during a step.
    context.observer = this;
    reset();
  }
  // Only its own thread may read the results: resuming installs the observer in the calling thread.
  void check_thread() const {
    BRRR_CHECK(std::this_thread::get_id() == thread,
               "profile: another thread's; read its results on the thread that made it");
  }
  ~Watch() override { uninstall(); }
  void uninstall() noexcept {
    if (context.observer == this) context.observer = nullptr;
    graph::CheckNumericsGuard::forget(this);
    drop_pending();
  }

  void reset() {
    drop_pending();
    rows.clear();
    row_at.clear();
    spans.clear();
    open.clear();
    kernels_us = device_us = host_us = gap_us = once_us = 0;
    begin = mark = Clock::now();
  }
  void drop_pending() noexcept {
    for (const Kernel& p : pending) {
      device_queue::drop(p.from);
      device_queue::drop(p.to);
    }
    pending.clear();
    if (base) device_queue::drop(std::exchange(base, nullptr));
  }

  // Adds the time since the last mark to the innermost running kernel, or else to the host.
  void charge(Clock::time_point now) {
    if (detached) return;
    const double us = std::max(0.0, us_between(mark, now) - clock_us);
    (open.empty() ? host_us : open.back().us) += us;
    if (open.empty()) gap_us += us;
  }
  // The least time between two consecutive clock reads, which every interval includes.
  static double measure_clock() {
    double least = 1;
    for (int i = 0; i < 100; ++i) {
      const auto before = Clock::now();
      least = std::min(least, us_between(before, Clock::now()));
    }
    return least;
  }

  void begins(Device device) override {
    charge(Clock::now());
    Kernel o{now_us(), 0};
    if (device != kCPU) {
      if (!base) {
        base_us = now_us();
        base = device_queue::mark();
      }
      o.from = device_queue::mark();
    }
    open.push_back(o);
    mark = Clock::now();
  }
  void pause() override {
    if (pauses++) return;
    paused = Clock::now();
    charge(paused);
    mark = paused;
  }
  void resume() override {
    if (pauses > 0 && --pauses > 0) return;
    mark = Clock::now();
    if (paused != Clock::time_point()) once_us += us_between(paused, mark);
    paused = {};
  }
  void failed() override {
    if (open.empty()) return;
    charge(Clock::now());
    host_us += open.back().us;
    if (open.back().from) device_queue::drop(open.back().from);
    open.pop_back();
    mark = Clock::now();
  }
  void ran(const OpCall& c) override {
    if (ended) return uninstall();
    if (c.op->is_view()) return;
    close();
    const std::string path = module_path();
    touched.set(c);
    const std::string& module = path.empty() ? trail.near(touched.in) : path;
    trail.ran(touched.all, touched.made, path);
    const Work work = work_of(c);
    note(c.op->index << 1 | uint32_t{c.into}, module, kind_of(*c.op, work), work,
         c.out[0].impl()->device,
         [&] { return fmt::format("{}{}", c.op->name, c.into ? "_" : ""); });
  }
  void ran(const KernelNote& n, Device device) override {
    if (ended) return uninstall();
    close();
    const auto name = names.emplace(n.name, kReplayed + names.size()).first;
    note(static_cast<uint32_t>(name->second), n.module, n.kind, n.work, device,
         [&] { return n.name; });
  }

  // Ends the innermost kernel, which has run or is queued.
  void close() {
    charge(Clock::now());
    closed = open.back();
    open.pop_back();
    if (closed.from) closed.to = device_queue::mark();
  }
  // `number` identifies the name, which is built only when it is new: building it would evict the
  // kernels' code and data from the caches.
  template <class Name>
  void note(uint32_t number, const std::string& module, const char* kind, const Work& work,
            Device device, const Name& name) {
    const auto [it, fresh] = row_at[module].try_emplace(number, rows.size());
    if (fresh) it->second = row_of({name(), module, kind, 0, 0, 0, {}});
    if (closed.from) {
      host_us += closed.us;
      add_span({it->second, Host, closed.at_us, closed.us, work, -1});
      closed.row = it->second, closed.work = work;
      pending.push_back(closed);
      if (pending.size() >= kMostPending) flush_pending();
    } else {
      kernels_us += closed.us;
      add_span({it->second, Kernels, closed.at_us, closed.us, work, std::exchange(gap_us, 0)});
      count(it->second, closed.us, work, device);
    }
    mark = Clock::now();
  }
  // The row of an op; one that runs both eagerly and in replays has two numbers but one row.
  size_t row_of(ProfileRow row) {
    const auto same = [&](const ProfileRow& r) {
      return std::tie(r.op, r.module, r.kind) == std::tie(row.op, row.module, row.kind);
    };
    const auto k = static_cast<size_t>(std::ranges::find_if(rows, same) - rows.begin());
    if (k == rows.size()) rows.push_back(std::move(row));
    return k;
  }
  void count(size_t row, double us, const Work& work, Device device) {
    const TimeSplit t = split_time(us, work.flops, work.bytes, limits_of(device), work.dtype);
    add(rows[row], {{}, {}, {}, 1, work.flops, work.bytes, t, work.dtype});
  }
  void add_span(const Span& s) {
    if (spans.size() < kMostSpans) spans.push_back(s);
  }

  // Before results are read: waits for the queued kernels and adds their times.
  void flush_pending() {
    check_thread();
    if (detached) return;  // detach() has done it.
    charge(Clock::now());
    mark = Clock::now();
    if (pending.empty()) return;
    synchronize(kCUDA);
    charge(Clock::now());
    for (; !pending.empty(); pending.pop_front()) {
      const Kernel& p = pending.front();
      const double us = device_queue::between(p.from, p.to);
      device_us += us;
      add_span({p.row, Kernels, base_us + device_queue::between(base, p.from), us, p.work, -1});
      count(p.row, us, p.work, kCUDA);
      device_queue::drop(p.from);
      device_queue::drop(p.to);
    }
    mark = Clock::now();
  }

  // Pausing waits for the GPU, too, so that each queued kernel is either inside or outside.
  void detach() {
    flush_pending();
    detached = true;
    context.observer = nullptr;
  }
  void attach() {
    if (base) synchronize(kCUDA);
    detached = false;
    mark = Clock::now();
    context.observer = this;
  }
  // Pauses the watch while a report is made, which may have to measure the device's limits.
  class DetachGuard : NotCopied {
   public:
    explicit DetachGuard(Watch& w) : watch_(w), was_attached_(!w.detached) {
      w.check_thread();
      if (was_attached_) watch_.detach();
    }
    ~DetachGuard() {
      if (was_attached_) watch_.attach();
    }

   private:
    Watch& watch_;
    const bool was_attached_;
  };

  double now_us() const { return us_between(begin, Clock::now()); }
  const DeviceLimits& limits_of(Device device) {
    auto it = limits.find(device.type);
    if (it == limits.end()) it = limits.emplace(device.type, device_limits(device)).first;
    return it->second;
  }

  struct Kernel {
    double at_us, us;
    device_queue::Mark *from = nullptr, *to = nullptr;  // Null: the CPU runs it.
    size_t row = 0;
    Work work = {};
  };
  std::vector<ProfileRow> rows;
  std::unordered_map<std::string, std::unordered_map<uint32_t, size_t>> row_at;  // By module, name.
  static constexpr size_t kReplayed = size_t{1} << 31;
  std::unordered_map<std::string, size_t> names;  // Numbers of replays' kernels, from kReplayed on.
  std::vector<Span> spans;
  std::vector<Kernel> open;
  std::deque<Kernel> pending;          // Kernels of a GPU whose times are not known yet.
  device_queue::Mark* base = nullptr;  // Origin of the GPU's times,
  double base_us = 0;                  // and the host's time there.
  Kernel closed{};
  double kernels_us = 0, device_us = 0, host_us = 0;
  double gap_us = 0, once_us = 0;  // Since the last kernel; excluded one-time work.
  int pauses = 0;                  // Nesting depth.
  Clock::time_point begin, mark, paused;
  bool detached = false;  // Paused by detach().
  // Another thread has destroyed the Profile. This thread may be inside a callback, so its next
  // kernel uninstalls the watch.
  std::atomic<bool> ended = false;
  struct Own : std::shared_ptr<Watch> {};
  static std::shared_ptr<Watch>& own() { return thread_own<Own>(); }
  const double clock_us = measure_clock();
  const std::thread::id thread = std::this_thread::get_id();
  graph::ModuleTrail<const Storage*> trail;
  graph::CallStorages touched;
  std::map<DeviceType, DeviceLimits> limits;
};

}  // namespace brrr
