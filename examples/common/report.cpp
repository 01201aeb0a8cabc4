#include "examples/common/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "examples/common/plot.h"
#include "examples/common/table.h"

namespace examples {

namespace {

// Indices into modes().
constexpr size_t kEager = 0, kFused = 2;

using Pick = Samples Cell::*;

bool on_gpu(const Report& r) {
  return r.limits.device.type == brrr::DeviceType::CUDA;
}

std::string cell_text(const Samples& s) {
  return fmt::format("{} ({})", three_figures(s.median), three_figures(s.p95));
}

double speed_up(const SizeResult& s, Pick pick, size_t mode) {
  return (s.cells.cells[kEager].*pick).median / (s.cells.cells[mode].*pick).median;
}

std::string times_table(const Report& r, Pick pick) {
  Table t({"batch", "eager", "eager+fusion", "graph", "graph+fusion", "frozen", "gain", "n"});
  for (const SizeResult& s : r.sizes) {
    std::vector<std::string> row = {std::to_string(s.batch)};
    for (size_t m = 0; m < s.cells.cells.size(); ++m) {
      const Cell& c = s.cells.cells[m];
      row.push_back(c.counts() ? cell_text(c.*pick) : "- [3]");
      if (m == kEager) row.push_back("- [1]");
    }
    row.push_back(fmt::format("{:.2f}x", speed_up(s, pick, kFused)));
    row.push_back(std::to_string((s.cells.cells[kEager].*pick).n));
    t.row(row);
  }
  return t.text();
}

// Milliseconds once over microseconds gained in every step.
std::string break_even(const SizeResult& s, const OneTime& once) {
  const double gain = s.cells.cells[kEager].queued.median - s.cells.cells[kFused].queued.median;
  return gain > 0 ? fmt::format("{:.0f}", std::ceil(once.total() * 1e3 / gain)) : "never";
}

std::string once_table(const Report& r) {
  Table t({"batch", "record", "fuse", "plan", "build cold", "warm", "capture", "total cold", "warm",
           "break-even step cold", "warm"});
  for (const SizeResult& s : r.sizes) {
    auto ms = [](double v) { return three_figures(v); };
    t.row({std::to_string(s.batch), ms(s.cold.record), ms(s.cold.fuse), ms(s.cold.plan),
           ms(s.cold.build), ms(s.warm.build), on_gpu(r) ? ms(s.cold.capture) : "-",
           ms(s.cold.total()), ms(s.warm.total()), break_even(s, s.cold), break_even(s, s.warm)});
  }
  return t.text();
}

std::string split_table(const Report& r) {
  Table t({"batch", "MFLOP", "MB", "copy GB/s", "compute", "memory", "eager overhead", "is mostly",
           "graph+fusion overhead", "is mostly"});
  for (const SizeResult& s : r.sizes) {
    auto overhead = [](const Split& p) {
      return fmt::format("{} ({:.0f} %)", three_figures(p.overhead_us), 100 * p.overhead_share());
    };
    t.row({std::to_string(s.batch), three_figures(s.flops * 1e-6), three_figures(s.bytes * 1e-6),
           three_figures(s.copy_gbs), three_figures(s.eager.compute_us),
           three_figures(s.eager.memory_us), overhead(s.eager), s.eager.regime(), overhead(s.graph),
           s.graph.regime()});
  }
  return t.text();
}

std::string gain_text(const Report& r, Pick pick, size_t mode) {
  auto less = [&](const SizeResult& a, const SizeResult& b) {
    return speed_up(a, pick, mode) < speed_up(b, pick, mode);
  };
  const auto [lo, hi] = std::minmax_element(r.sizes.begin(), r.sizes.end(), less);
  return fmt::format("{:.2f}x (batch {}) .. {:.2f}x (batch {})", speed_up(*lo, pick, mode),
                     lo->batch, speed_up(*hi, pick, mode), hi->batch);
}

std::string label(const Report& r) {
  return fmt::format("{} on {}", r.model, brrr::name(r.limits.device));
}

// The smallest batch from which on overhead is less than half of a queued step.
std::string turning_point(const Report& r, Split SizeResult::*split) {
  int64_t from = 0;
  for (auto s = r.sizes.rbegin(); s != r.sizes.rend(); ++s) {
    if (((*s).*split).overhead_share() >= 0.5) break;
    from = s->batch;
  }
  return from > 0 ? fmt::format("from batch {} on", from) : "at none of these sizes";
}

// One model; the reports differ in their devices.
std::string devices_table(const std::vector<const Report*>& reports) {
  std::vector<std::string> header = {"batch"};
  for (const Report* r : reports) {
    const std::string device = brrr::name(r->limits.device);
    for (const char* column : {" eager", " graph+fusion", " frozen"}) {
      header.push_back(device + column);
    }
    header.insert(header.end(), {"gain", "overhead eager", "graph+fusion"});
  }
  Table t(header);
  for (size_t i = 0; i < reports[0]->sizes.size(); ++i) {
    std::vector<std::string> row = {std::to_string(reports[0]->sizes[i].batch)};
    for (const Report* r : reports) {
      const SizeResult& s = r->sizes[i];
      for (size_t m : {kEager, kFused, kFused + 1}) {
        row.push_back(three_figures(s.cells.cells[m].queued.median));
      }
      row.push_back(fmt::format("{:.2f}x", speed_up(s, &Cell::queued, kFused)));
      for (const Split& p : {s.eager, s.graph}) {
        row.push_back(fmt::format("{:.0f} %", 100 * p.overhead_share()));
      }
    }
    t.row(row);
  }
  return t.text();
}

// Why cells have no figures; each reason once.
std::string fallbacks_text(const std::vector<Report>& all) {
  std::vector<std::string> reasons;
  for (const Report& r : all) {
    for (const SizeResult& s : r.sizes) {
      for (size_t m = 0; m < modes().size(); ++m) {
        const Cell& c = s.cells.cells[m];
        if (c.counts()) continue;
        reasons.push_back(fmt::format("    {} on {}: {}\n", modes()[m].name,
                                      brrr::name(r.limits.device), c.stats.last_fallback));
      }
    }
  }
  if (reasons.empty()) return "";
  std::sort(reasons.begin(), reasons.end());
  reasons.erase(std::unique(reasons.begin(), reasons.end()), reasons.end());
  return fmt::format("[3] No figure, because steps fell back to the reference walker:\n{}",
                     fmt::join(reasons, ""));
}

// Other programs on the cores make every figure worse, and unequally so. Waiting for a GPU is no
// such thing.
std::string busy_text(const std::vector<Report>& all) {
  double share = 1;
  for (const Report& r : all) {
    if (on_gpu(r)) continue;
    for (const SizeResult& s : r.sizes) share = std::min(share, s.cells.share);
  }
  if (share > 0.97) return "";
  return fmt::format(
      "\nWARNING: other programs took up to {:.0f} % of the core: repeat these "
      "figures on a quiet machine\n",
      100 * (1 - share));
}

nlohmann::ordered_json json_of(const Samples& s) {
  return {{"median_us", s.median}, {"p95_us", s.p95}, {"n", s.n}};
}
nlohmann::ordered_json json_of(const OneTime& o) {
  return {{"record_ms", o.record},
          {"fuse_ms", o.fuse},
          {"plan_ms", o.plan},
          {"build_ms", o.build},
          {"capture_ms", o.capture},
          {"total_ms", o.total()},
          {"first_two_calls_ms", o.first_calls},
          {"from_cache", o.cached}};
}
nlohmann::ordered_json json_of(const Split& s) {
  return {{"compute_us", s.compute_us},
          {"memory_us", s.memory_us},
          {"overhead_us", s.overhead_us},
          {"regime", s.regime()}};
}

nlohmann::ordered_json json_of(const SizeResult& s) {
  auto cells = nlohmann::ordered_json::object();
  for (size_t m = 0; m < s.cells.cells.size(); ++m) {
    const Cell& c = s.cells.cells[m];
    cells[modes()[m].name] = {{"queued", json_of(c.queued)},
                              {"latency", json_of(c.latency)},
                              {"replays", c.stats.replays},
                              {"recordings", c.stats.recordings},
                              {"fallbacks", c.stats.fallbacks},
                              {"ops", c.stats.ops_per_replay},
                              {"kernels", c.stats.kernels_per_replay},
                              {"arena_bytes", c.stats.arena_bytes},
                              {"lower_bound_bytes", c.stats.lower_bound_bytes}};
    if (m == kEager) cells["eager+fusion"] = nullptr;
  }
  return {{"batch", s.batch},
          {"steps_per_mode", s.cells.steps},
          {"core_share", s.cells.share},
          {"complaint", s.cells.complaint},
          {"cells", cells},
          {"one_time_cold", json_of(s.cold)},
          {"one_time_warm", json_of(s.warm)},
          {"flops_analytic", s.flops},
          {"bytes_analytic", s.bytes},
          {"copy_gb_per_s", s.copy_gbs},
          {"split_eager", json_of(s.eager)},
          {"split_graph_fusion", json_of(s.graph)}};
}

nlohmann::ordered_json json_of(const Report& r) {
  nlohmann::ordered_json sizes = nlohmann::ordered_json::array();
  for (const SizeResult& s : r.sizes) sizes.push_back(json_of(s));
  const MachineLimits& m = r.limits.machine;
  nlohmann::ordered_json gpu;
  if (on_gpu(r)) {
    gpu = {{"name", r.limits.gpu.name},
           {"versions", r.limits.gpu.versions},
           {"copy_256MB_gb_per_s", r.limits.copy_gbs},
           {"matmul_gflops", r.limits.gflops}};
  }
  return {{"model", r.model},
          {"optimizer", r.optimizer},
          {"device", brrr::name(r.limits.device)},
          {"threads", r.limits.threads},
          {"gpu", gpu},
          {"machine",
           {{"cpu", m.cpu},
            {"cores", m.cores},
            {"cores_allowed", m.cores_allowed},
            {"openblas_core", m.blas.core},
            {"warning", m.blas.warning},
            {"copy_256KB_gb_per_s", m.copy_cached_gbs},
            {"copy_256MB_gb_per_s", m.copy_memory_gbs},
            {"fma_gflops_a_core", m.fma_gflops},
            {"spin_round_trip_ns", r.limits.spin_ns}}},
          {"versions", versions()},
          {"sizes", sizes}};
}

// Each device once.
std::string peaks_text(const std::vector<Report>& all) {
  std::vector<std::string> peaks;
  for (const Report& r : all) {
    std::string peak =
        fmt::format("{} {:.0f} GFLOP/s", brrr::name(r.limits.device), r.limits.gflops);
    if (std::find(peaks.begin(), peaks.end(), peak) == peaks.end()) peaks.push_back(peak);
  }
  return fmt::format("{}", fmt::join(peaks, ", "));
}

std::string summary_text(const Report& r) {
  std::string t = fmt::format("\n{}, {} sizes", label(r), r.sizes.size());
  if (r.sizes.size() < 5) return t + " only: too few to say what graph mode gains\n";
  t += fmt::format(":\n    graph+fusion over eager: queued {}, synchronised {}\n",
                   gain_text(r, &Cell::queued, kFused), gain_text(r, &Cell::latency, kFused));
  return t + fmt::format("    frozen       over eager: queued {}, synchronised {}\n",
                         gain_text(r, &Cell::queued, kFused + 1),
                         gain_text(r, &Cell::latency, kFused + 1));
}

// Queued times, and the gains over eager.
void add_panels(const Report& r, std::vector<Panel>& panels) {
  Panel times{label(r), "batch", "us a step, queued", {}, true};
  Panel gains{"gain over eager", "batch", "times faster", {}, false};
  for (size_t m = 0; m < modes().size(); ++m) {
    Line time{modes()[m].name, {}}, gain = time;
    for (const SizeResult& s : r.sizes) {
      if (!s.cells.cells[m].counts()) continue;
      const auto x = static_cast<double>(s.batch);
      time.points.emplace_back(x, s.cells.cells[m].queued.median);
      gain.points.emplace_back(x, speed_up(s, &Cell::queued, m));
    }
    if (time.points.empty()) continue;
    times.lines.push_back(time);
    gains.lines.push_back(gain);
  }
  Line bound{"compute + memory", {}};
  for (const SizeResult& s : r.sizes) {
    bound.points.emplace_back(static_cast<double>(s.batch), s.eager.compute_us + s.eager.memory_us);
  }
  times.lines.push_back(bound);
  panels.push_back(times);
  panels.push_back(gains);
}

}  // namespace

std::string tables_text(const Report& r) {
  std::string t =
      fmt::format("\n== {}, {}, float32 on {}, written in C++ (the baseline, eager, too)\n",
                  r.model, r.optimizer, brrr::name(r.limits.device));
  t += "\nQueued: us a step of steps back to back, median (p95) of n series\n\n";
  t += times_table(r, &Cell::queued);
  t += "\nSynchronised: us a step that is waited for, median (p95) of n steps\n\n";
  t += times_table(r, &Cell::latency);
  t += "\nOnce: ms before the first compiled step (cold: nothing in the kernel cache)\n\n";
  t += once_table(r);
  return t + "\nWhere the time goes: us of a queued step [2]\n\n" + split_table(r);
}

std::string devices_text(const std::vector<Report>& all) {
  std::string t;
  std::vector<const Report*> same;
  for (size_t i = 0; i < all.size(); ++i) {
    same.push_back(&all[i]);
    if (i + 1 < all.size() && all[i + 1].model == all[i].model) continue;
    if (same.size() > 1) {
      t += fmt::format("\n== {}: queued us a step, device by device\n\n{}\n", all[i].model,
                       devices_table(same));
      for (const Report* r : same) {
        t +=
            fmt::format("    {}: overhead is less than half of a step, eager {}, graph+fusion {}\n",
                        brrr::name(r->limits.device), turning_point(*r, &SizeResult::eager),
                        turning_point(*r, &SizeResult::graph));
      }
    }
    same.clear();
  }
  return t;
}

std::string notes_text(const std::vector<Report>& all) {
  std::string t =
      "\n[1] Eager is eager+fusion already, as far as it goes: what is one kernel there is the "
      "same\n"
      "    kernel in every column.\n";
  std::string last;
  for (const Report& r : all) {
    if (r.model == last) continue;
    t += fmt::format("    {}: {}.\n", r.model.substr(0, r.model.find_first_of(" ,")), r.one_kernel);
    last = r.model;
  }
  t += fmt::format(
      "    gain: eager over graph+fusion. frozen: the function is not run any more.\n"
      "    Inputs rotate over 16 batches; the learning rate changes in every step.\n"
      "[2] FLOP and bytes are counted from the sizes, not measured: an op takes at least its FLOP\n"
      "    at the measured peak ({}) or its bytes at the copy bandwidth measured on\n"
      "    arrays of the step's working set{}, whichever is longer.\n"
      "    Overhead is the rest; there is none where caches beat that copy.\n",
      peaks_text(all), std::any_of(all.begin(), all.end(), on_gpu) ? " (a GPU: on 256 MB)" : "");
  t += fallbacks_text(all);
  t += busy_text(all);
  for (const Report& r : all) t += summary_text(r);
  return t;
}

std::string json_text(const std::vector<Report>& all) {
  if (all.size() == 1) return json_of(all[0]).dump(2) + "\n";
  auto models = nlohmann::ordered_json::array();
  for (const Report& r : all) models.push_back(json_of(r));
  return nlohmann::ordered_json{{"models", models}}.dump(2) + "\n";
}

bool draw(const std::vector<Report>& all, const std::string& path) {
  std::vector<Panel> panels;
  for (const Report& r : all) add_panels(r, panels);
  const Report& r = all.front();
  std::string processors = r.limits.machine.cpu;
  for (const Report& other : all) {
    if (on_gpu(other)) processors = r.limits.machine.cpu + ", " + other.limits.gpu.name;
  }
  return plot_svg(
      path, fmt::format("a step, {}, {} thread(s), {}", r.optimizer, r.limits.threads, processors),
      panels, 2);
}

}  // namespace examples
