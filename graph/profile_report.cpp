// The results of a profile as text, as JSON, and as a trace.
#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "graph/diagnose.h"
#include "graph/watch.h"

namespace brrr {

using Json = nlohmann::ordered_json;

static std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

static std::string place_of(const std::string& module) {
  return module.empty() ? "outside of modules" : module;
}

static std::string row_text(const ProfileRow& r, const TimeSplit& all) {
  const double calls = static_cast<double>(r.calls), us = std::max(r.time.us, 1e-3);
  return fmt::format("{:>7} {:>10.2f} {:>7} {:>10.3f} {:>10.3f} {:>8.1f} {:>7.1f}  {:<9} ", r.calls,
                     r.time.us / calls, percent(all.share(r.time.us)), r.flops / calls * 1e-6,
                     r.bytes / calls * 1e-6, r.flops / us * 1e-3, r.bytes / us * 1e-3,
                     r.time.bound());
}

// A table of the `most` longest rows, and the sum of the others as its last row.
static std::string table_text(const char* what, const std::vector<ProfileRow>& rows,
                              const TimeSplit& all, size_t most, const auto& name) {
  std::string t = fmt::format("{:>7} {:>10} {:>7} {:>10} {:>10} {:>8} {:>7}  {:<9} {}\n", "calls",
                              "us", "share", "MFLOP", "MB", "GFLOP/s", "GB/s", "bound by", what);
  ProfileRow rest;
  for (size_t k = 0; k < rows.size(); ++k) {
    if (k < most) {
      t += row_text(rows[k], all) + shown(name(rows[k]), std::string::npos) + '\n';
    } else {
      add(rest, rows[k]);
    }
  }
  if (rest.calls) t += row_text(rest, all) + fmt::format("{} more\n", rows.size() - most);
  return t;
}

std::string limits_text(Device device, const DeviceLimits& l) {
  const DeviceProperties p = device_properties(device);
  const LaunchCosts c = launch_costs(device);
  std::string t =
      fmt::format("{}: {}, {} thread(s), {}; GFLOP/s of multiply-adds, products:", name(device),
                  p.name, l.threads, p.versions);
  for (const auto& peak : l.peaks) {
    t += fmt::format(" {} {:.0f}, {:.0f};", name(peak.dtype), peak.gflops, peak.product_gflops);
  }
  t += fmt::format(
      " copies {:.0f} GB/s in caches, {:.0f} beyond; a launch {:.0f} ns eager, {:.0f} in a replay",
      l.copies.front().gb_per_second, l.copies.back().gb_per_second, c.eager_ns, c.graph_ns);
  if (l.round_trip_ns > 0) t += fmt::format("; round trip {:.0f} ns", l.round_trip_ns);
  return fmt::format("{}\n", fmt::join(wrapped(t, 98), "\n  "));
}

std::string Profile::report(size_t most) const {
  const Watch::DetachGuard detached(*watch_);
  const TimeSplit all = total();
  const double kernels = kernels_us();
  std::string t;
  for (const auto& [type, l] : watch_->limits) t += limits_text(Device{type}, l);
  int64_t calls = 0;
  for (const ProfileRow& r : watch_->rows) calls += r.calls;
  t += fmt::format(
      "{:.3f} ms, {} kernels: compute {}, memory {}, overhead {} ({} in kernels, {} between "
      "them); {}-bound\n",
      all.us * 1e-3, calls, percent(all.share(all.compute_us)), percent(all.share(all.memory_us)),
      percent(all.overhead_share()), percent(all.share(kernels - all.compute_us - all.memory_us)),
      percent(all.share(std::max(0.0, all.us - kernels))), all.bound());
  if (watch_->once_us > 0.01 * all.us) {
    t += fmt::format("excluded, as it is done once: {:.3f} ms of planning and building kernels\n",
                     watch_->once_us * 1e-3);
  }
  t += table_text("kind", kinds(), all, most, [](auto& r) { return r.kind; });
  t += table_text("module", modules(), all, most / 2, [](auto& r) { return place_of(r.module); });
  return t + table_text("op, module", rows(), all, most,
                        [](auto& r) { return r.module.empty() ? r.op : r.op + ", " + r.module; });
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

static Json limits_json(const std::map<DeviceType, DeviceLimits>& all) {
  Json limits = Json::object();
  for (const auto& [type, l] : all) {
    Json copies = Json::array();
    for (const auto& c : l.copies) copies.push_back({c.bytes, c.gb_per_second});
    Json peaks = Json::object();
    for (const auto& peak : l.peaks) {
      peaks[name(peak.dtype)] = {{"gflops", peak.gflops}, {"product_gflops", peak.product_gflops}};
    }
    const DeviceProperties p = device_properties(Device{type});
    const LaunchCosts c = launch_costs(Device{type});
    limits[name(Device{type})] = {{"name", p.name},
                                  {"versions", p.versions},
                                  {"threads", l.threads},
                                  {"peaks", peaks},
                                  {"launch_ns", {{"eager", c.eager_ns}, {"graph", c.graph_ns}}},
                                  {"round_trip_ns", l.round_trip_ns},
                                  {"copies_bytes_gb_per_s", copies}};
  }
  return limits;
}

std::string Profile::json() const {
  const Watch::DetachGuard detached(*watch_);
  Json j = {{"total", json_of(total())},
            {"kernels_us", kernels_us()},
            {"limits", limits_json(watch_->limits)},
            {"kinds", json_of(kinds())},
            {"modules", json_of(modules())},
            {"rows", json_of(rows())}};
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

void Profile::write_trace(const std::string& path) const {
  const Watch::DetachGuard detached(*watch_);
  const auto text = [](const Json& j) {
    return j.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  // Regular files have a temporary name until complete; a link or /dev/stdout is written directly.
  std::error_code none;
  const auto there = std::filesystem::symlink_status(path, none);
  const bool renames = !std::filesystem::exists(there) || std::filesystem::is_regular_file(there);
  const std::string written = renames ? fmt::format("{}.{}.part", path, getpid()) : path;
  std::ofstream out(written);
  BRRR_CHECK(out.is_open(), "profile: {} cannot be written: {}", path, std::strerror(errno));
  out << "{\"displayTimeUnit\":\"ns\",\"otherData\":"
      << text({{"limits", limits_json(watch_->limits)}}) << ",\"traceEvents\":[";
  // Written one by one: one JSON document of all events would take gigabytes.
  const char* before = "\n";
  const auto event = [&](const std::string& name, const char* phase, Watch::Track track,
                         const Json& more) {
    Json e = {{"name", name}, {"ph", phase}, {"pid", 1}, {"tid", int{track}}};
    e.update(more);
    out << std::exchange(before, ",\n") << text(e);
  };
  for (const auto& [track, what] : {std::pair{Watch::Host, "host, queueing"},
                                    {Watch::Kernels, "kernels"},
                                    {Watch::Modules, "modules"}}) {
    event("thread_name", "M", track, {{"args", {{"name", what}}}});
  }
  // Consecutive kernels of one module are one span of the module track.
  double from = 0, to = 0;
  const std::string* module = nullptr;
  const auto close = [&] {
    if (!module) return;
    const Json args = {{"module", place_of(*module)}};
    event(place_of(*module), "X", Watch::Modules,
          {{"ts", from}, {"dur", to - from}, {"args", args}});
  };
  // Spans of GPU kernels were added later than the concurrent ones of the CPU.
  std::ranges::sort(watch_->spans, {}, [](const auto& s) { return std::pair(s.at_us, s.us); });
  for (const Watch::Span& s : watch_->spans) {
    const ProfileRow& r = watch_->rows[s.row];
    Json args = {{"module", place_of(r.module)},
                 {"kind", r.kind},
                 {"flops", s.work.flops},
                 {"bytes", s.work.bytes}};
    const bool kernel = s.track == Watch::Kernels;
    if (kernel) args["us_since_the_last"] = s.gap_us < 0 ? std::max(0.0, s.at_us - to) : s.gap_us;
    event(r.op, "X", s.track, {{"ts", s.at_us}, {"dur", s.us}, {"args", args}});
    if (!kernel) continue;
    if (!module || *module != r.module) {
      close();
      module = &r.module;
      from = to = s.at_us;
    }
    to = std::max(to, s.at_us + s.us);
  }
  close();
  out << "\n]}\n";
  out.close();
  if (out && (!renames || std::rename(written.c_str(), path.c_str()) == 0)) return;
  const int error = errno;
  if (renames) std::remove(written.c_str());
  fail("profile: {} cannot be written: {}", path, std::strerror(error));
}

}  // namespace brrr
