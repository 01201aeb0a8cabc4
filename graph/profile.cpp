#include "graph/profile.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/backend.h"
#include "core/check.h"
#include "core/context.h"
#include "graph/trail.h"
#include "ops/kinds/work.h"

namespace brrr {

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double us_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::micro>(b - a).count();
}

void add(ProfileRow& to, const ProfileRow& row) {
  to.calls += row.calls;
  to.flops += row.flops;
  to.bytes += row.bytes;
  to.time.us += row.time.us;
  to.time.compute_us += row.time.compute_us;
  to.time.memory_us += row.time.memory_us;
}

void sort_by_time(std::vector<ProfileRow>& rows) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.time.us > b.time.us; });
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

}  // namespace

const char* TimeSplit::bound() const {
  if (overhead_us() >= compute_us && overhead_us() >= memory_us) return "overhead";
  return compute_us >= memory_us ? "compute" : "memory";
}

TimeSplit TimeSplit::each(double calls, double one_us) const {
  const double known = (compute_us + memory_us) / calls, scale = std::min(1.0, one_us / known);
  return {one_us, compute_us / calls * scale, memory_us / calls * scale};
}

TimeSplit split_time(double us, double flops, double bytes, const DeviceLimits& limits,
                     DType dtype) {
  const double compute = flops / limits.gflops_of(dtype) * 1e-3,
               memory = bytes > 0 ? bytes / limits.gb_per_second(bytes) * 1e-3 : 0;
  TimeSplit t{us};
  (compute >= memory ? t.compute_us : t.memory_us) = std::min(us, std::max(compute, memory));
  return t;
}

struct Profile::Watch final : Observer {
  // Where a span is drawn.
  enum Track : uint8_t { Host = 1, Kernels, Modules };
  struct Span {
    size_t row;
    Track track;
    double at_us, us;
  };
  static constexpr size_t kMostSpans = 1'000'000, kMostPending = 4096;

  Watch() {
    BRRR_CHECK(!context.recorder, "profile: make it outside of the step, around calls of it");
    BRRR_CHECK(!context.observer,
               "profile: this thread has one already, or is in a step that checks numerics; end "
               "the first, and make it around calls of the step");
    context.observer = this;
    reset();
  }
  ~Watch() override {
    if (context.observer == this) context.observer = nullptr;
    drop_pending();
  }

  void reset() {
    drop_pending();
    rows.clear();
    at.clear();
    spans.clear();
    open.clear();
    kernels_us = device_us = host_us = 0;
    begin = mark = Clock::now();
  }
  void drop_pending() noexcept {
    for (const Pending& p : pending) {
      gpu().drop_mark(p.from);
      gpu().drop_mark(p.to);
    }
    pending.clear();
    if (base) gpu().drop_mark(std::exchange(base, nullptr));
  }
  static const Backend& gpu() { return backend(DeviceType::CUDA); }

  // The time since the last mark belongs to the innermost kernel that is open, else to the host.
  void charge(Clock::time_point now) {
    (open.empty() ? host_us : open.back().us) += us_between(mark, now);
  }

  void begins(Device device) override {
    charge(Clock::now());
    Open o{now_us(), 0, nullptr};
    if (device != kCPU) {
      if (!base) {
        base_us = now_us();
        base = gpu().mark();
      }
      o.from = gpu().mark();
    }
    open.push_back(o);
    mark = Clock::now();
  }
  void pause() override { charge(Clock::now()); }
  void resume() override { mark = Clock::now(); }
  void failed() override {
    if (open.empty()) return;
    charge(Clock::now());
    host_us += open.back().us;
    if (open.back().from) gpu().drop_mark(open.back().from);
    open.pop_back();
    mark = Clock::now();
  }
  void ran(const OpCall& c) override {
    if (c.op->is_view()) return;
    close();
    const std::string path = module_path();
    const graph::CallStorages touched(c);
    const std::string module = path.empty() ? trail.near(touched.in) : path;
    trail.ran(touched.all, touched.made, path);
    const std::string name = fmt::format("{}{}", c.op->name, c.into ? "_" : "");
    const Work work = work_of(c);
    note(name, module, kind_of(*c.op, work), work, c.out[0].impl()->device);
  }
  void ran(const KernelNote& n, Device device) override {
    close();
    note(n.name, n.module, n.kind, n.work, device);
  }

  // The innermost kernel has run, or is in the queue.
  void close() {
    charge(Clock::now());
    closed = open.back();
    open.pop_back();
  }
  void note(const std::string& name, const std::string& module, const char* kind, const Work& work,
            Device device) {
    const auto [it, fresh] = at.try_emplace(name + '\n' + module, rows.size());
    if (fresh) rows.push_back({name, module, kind, 0, 0, 0, {}});
    if (closed.from) {
      host_us += closed.us;
      draw({it->second, Host, closed.at_us, closed.us});
      pending.push_back({it->second, closed.from, gpu().mark(), work});
      if (pending.size() >= kMostPending) settle();
    } else {
      kernels_us += closed.us;
      draw({it->second, Kernels, closed.at_us, closed.us});
      count(it->second, closed.us, work, device);
    }
    mark = Clock::now();
  }
  void count(size_t row, double us, const Work& work, Device device) {
    const TimeSplit t = split_time(us, work.flops, work.bytes, limits_of(device), work.dtype);
    add(rows[row], {{}, {}, {}, 1, work.flops, work.bytes, t});
  }
  void draw(const Span& s) {
    if (spans.size() < kMostSpans) spans.push_back(s);
  }

  // Figures are asked for: the time of what is queued is known once it has run.
  void settle() {
    charge(Clock::now());
    mark = Clock::now();
    if (pending.empty()) return;
    synchronize(kCUDA);
    charge(Clock::now());
    for (; !pending.empty(); pending.pop_front()) {
      const Pending& p = pending.front();
      const double us = gpu().between(p.from, p.to);
      device_us += us;
      draw({p.row, Kernels, base_us + gpu().between(base, p.from), us});
      count(p.row, us, p.work, kCUDA);
      gpu().drop_mark(p.from);
      gpu().drop_mark(p.to);
    }
    mark = Clock::now();
  }

  double now_us() const { return us_between(begin, Clock::now()); }
  const DeviceLimits& limits_of(Device device) {
    auto it = limits.find(device.type);
    if (it == limits.end()) it = limits.emplace(device.type, device_limits(device)).first;
    return it->second;
  }

  struct Open {
    double at_us, us;
    DeviceMark* from;  // Null: the CPU runs it.
  };
  struct Pending {
    size_t row;
    DeviceMark *from, *to;
    Work work;
  };
  std::vector<ProfileRow> rows;
  std::unordered_map<std::string, size_t> at;  // By name and module.
  std::vector<Span> spans;
  std::vector<Open> open;
  std::deque<Pending> pending;  // Kernels of a GPU whose times are not known yet.
  DeviceMark* base = nullptr;   // Where the GPU's time begins,
  double base_us = 0;           // in that of the host.
  Open closed{};
  double kernels_us = 0, device_us = 0, host_us = 0;
  Clock::time_point begin, mark;
  graph::ModuleTrail<const Storage*> trail;
  std::map<DeviceType, DeviceLimits> limits;
};

Profile::Profile() : watch_(std::make_unique<Watch>()) {}
Profile::~Profile() = default;
void Profile::reset() { watch_->reset(); }
double Profile::kernels_us() const {
  watch_->settle();
  return watch_->kernels_us + watch_->device_us;
}

std::vector<ProfileRow> Profile::rows() const {
  watch_->settle();
  std::vector<ProfileRow> all = watch_->rows;
  sort_by_time(all);
  return all;
}

std::vector<ProfileRow> Profile::sums(std::string ProfileRow::*by) const {
  watch_->settle();
  std::vector<ProfileRow> all;
  for (const ProfileRow& row : watch_->rows) {
    auto it = std::find_if(all.begin(), all.end(), [&](auto& k) { return k.*by == row.*by; });
    if (it == all.end()) {
      it = all.insert(it, ProfileRow{});
      (*it).*by = row.*by;
    }
    add(*it, row);
  }
  sort_by_time(all);
  return all;
}
std::vector<ProfileRow> Profile::kinds() const { return sums(&ProfileRow::kind); }
std::vector<ProfileRow> Profile::modules() const { return sums(&ProfileRow::module); }

TimeSplit Profile::total() const {
  watch_->settle();
  ProfileRow sum;
  for (const ProfileRow& row : watch_->rows) add(sum, row);
  // A GPU works on while the host writes down what it did.
  sum.time.us = std::max(watch_->kernels_us + watch_->host_us, watch_->device_us);
  return sum.time;
}

// --- for people, and for programs ----------------------------------------------------------------

static std::string row_text(const ProfileRow& r, const TimeSplit& all) {
  const double calls = static_cast<double>(r.calls), us = std::max(r.time.us, 1e-3);
  return fmt::format("{:>7} {:>10.2f} {:>7} {:>10.3f} {:>10.3f} {:>8.1f} {:>7.1f}  {:<9} ", r.calls,
                     r.time.us / calls, percent(all.share(r.time.us)), r.flops / calls * 1e-6,
                     r.bytes / calls * 1e-6, r.flops / us * 1e-3, r.bytes / us * 1e-3,
                     r.time.bound());
}

std::string Profile::report(size_t most) const {
  const TimeSplit all = total();
  const double kernels = kernels_us();
  std::string t;
  for (const auto& [type, l] : watch_->limits) {
    t += fmt::format(
        "{}: {:.0f} GFLOP/s, copies {:.0f} GB/s in caches, {:.0f} beyond ({}, {} "
        "thread(s))\n",
        name(Device{type}), l.gflops, l.copies.front().gb_per_second, l.copies.back().gb_per_second,
        device_properties(Device{type}).name, l.threads);
  }
  int64_t calls = 0;
  for (const ProfileRow& r : watch_->rows) calls += r.calls;
  t += fmt::format(
      "{:.3f} ms, {} kernels: compute {}, memory {}, overhead {} ({} in kernels, {} between "
      "them); {}-bound\n",
      all.us * 1e-3, calls, percent(all.share(all.compute_us)), percent(all.share(all.memory_us)),
      percent(all.overhead_share()), percent(all.share(kernels - all.compute_us - all.memory_us)),
      percent(all.share(std::max(0.0, all.us - kernels))), all.bound());
  const std::string header =
      fmt::format("{:>7} {:>10} {:>7} {:>10} {:>10} {:>8} {:>7}  {:<9} ", "calls", "us", "share",
                  "MFLOP", "MB", "GFLOP/s", "GB/s", "bound by");
  t += header + "kind\n";
  for (const ProfileRow& r : kinds()) t += row_text(r, all) + r.kind + '\n';
  t += header + "module\n";
  const std::vector<ProfileRow> parts = modules();
  for (size_t k = 0; k < std::min(most / 2, parts.size()); ++k) {
    t += row_text(parts[k], all) + (parts[k].module.empty() ? "-" : parts[k].module) + '\n';
  }
  t += header + "op, module\n";
  const std::vector<ProfileRow> list = rows();
  ProfileRow rest;
  for (size_t k = 0; k < list.size(); ++k) {
    if (k >= most) {
      add(rest, list[k]);
      continue;
    }
    const std::string where = list[k].module.empty() ? "" : ", " + list[k].module;
    t += row_text(list[k], all) + list[k].op + where + '\n';
  }
  if (rest.calls) t += row_text(rest, all) + fmt::format("{} more\n", list.size() - most);
  watch_->mark = Clock::now();
  return t;
}

static Json json_of(const TimeSplit& t) {
  return {{"us", t.us},
          {"compute_us", t.compute_us},
          {"memory_us", t.memory_us},
          {"overhead_us", t.overhead_us()},
          {"bound_by", t.bound()}};
}
static Json json_of(const std::vector<ProfileRow>& rows) {
  Json list = Json::array();
  for (const ProfileRow& r : rows) {
    Json j = {{"op", r.op},       {"module", r.module}, {"kind", r.kind},
              {"calls", r.calls}, {"flops", r.flops},   {"bytes", r.bytes}};
    j.update(json_of(r.time));
    list.push_back(j);
  }
  return list;
}

std::string Profile::json() const {
  watch_->settle();
  Json limits = Json::object();
  for (const auto& [type, l] : watch_->limits) {
    Json copies = Json::array();
    for (const auto& c : l.copies) copies.push_back({c.bytes, c.gb_per_second});
    const DeviceProperties p = device_properties(Device{type});
    limits[name(Device{type})] = {{"name", p.name},
                                  {"versions", p.versions},
                                  {"threads", l.threads},
                                  {"gflops", l.gflops},
                                  {"round_trip_ns", l.round_trip_ns},
                                  {"copies_bytes_gb_per_s", copies}};
  }
  Json j = {
      {"total", json_of(total())}, {"kernels_us", kernels_us()},    {"limits", limits},
      {"kinds", json_of(kinds())}, {"modules", json_of(modules())}, {"rows", json_of(rows())}};
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

void Profile::write_trace(const std::string& path) const {
  watch_->settle();
  Json events = Json::array();
  for (const auto& [track, what] : {std::pair{Watch::Host, "host, queueing"},
                                    {Watch::Kernels, "kernels"},
                                    {Watch::Modules, "modules"}}) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 1},
                      {"tid", int{track}},
                      {"args", {{"name", what}}}});
  }
  const auto span = [&](const std::string& name, Watch::Track track, double at,
                        double us) -> Json& {
    events.push_back(
        {{"name", name}, {"ph", "X"}, {"pid", 1}, {"tid", int{track}}, {"ts", at}, {"dur", us}});
    return events.back();
  };
  // Neighbours of one module are one span of the last row.
  double from = 0, to = 0;
  const std::string* module = nullptr;
  const auto close = [&] {
    const std::string name = module && !module->empty() ? *module : "-";
    if (module) span(name, Watch::Modules, from, to - from)["args"] = {{"module", name}};
  };
  for (const Watch::Span& s : watch_->spans) {
    const ProfileRow& r = watch_->rows[s.row];
    const double calls = static_cast<double>(std::max<int64_t>(1, r.calls));
    span(r.op, s.track, s.at_us, s.us)["args"] = {{"module", r.module.empty() ? "-" : r.module},
                                                  {"kind", r.kind},
                                                  {"flops", r.flops / calls},
                                                  {"bytes", r.bytes / calls}};
    if (s.track != Watch::Kernels) continue;
    if (!module || *module != r.module) {
      close();
      module = &r.module;
      from = s.at_us;
    }
    to = s.at_us + s.us;
  }
  close();
  std::ofstream out(path);
  out << Json{{"displayTimeUnit", "ns"}, {"traceEvents", events}}.dump(
             1, ' ', false, Json::error_handler_t::replace)
      << '\n';
  out.close();
  BRRR_CHECK(out, "profile: {} cannot be written", path);
}

}  // namespace brrr
