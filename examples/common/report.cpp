#include "examples/common/report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

namespace examples {

namespace {

using Pick = Quantiles Cell::*;

std::string cell_text(const Quantiles& s) {
  return fmt::format("{} ({})", three_figures(s.median), three_figures(s.p95));
}

double speed_up(const SizeResult& s, Pick pick, Way way) {
  return (s.of(Way::Eager).*pick).median / (s.of(way).*pick).median;
}

Datum gain(const SizeResult& s, Pick pick) { return times(speed_up(s, pick, Way::Graph)); }

std::string times_table(const Report& r, Pick pick) {
  Sheet t{
      .header = {"batch", "eager", "eager+fusion", "graph", "graph+fusion", "frozen", "gain", "n"}};
  for (const SizeResult& s : r.sizes) {
    std::vector<Datum>& row = t.rows.emplace_back();
    row.push_back(s.batch);
    for (Way way : kWays) {
      const Cell& c = s.of(way);
      row.push_back(c.counts() ? cell_text(c.*pick) : "- [3]");
      if (way == Way::Eager) row.push_back("- [1]");
    }
    row.insert(row.end(), {gain(s, pick), static_cast<int64_t>((s.of(Way::Eager).*pick).n)});
  }
  return t.text();
}

// The one-time milliseconds divided by the microseconds gained per step.
std::string break_even(const SizeResult& s, const OneTime& once) {
  const double gain = s.of(Way::Eager).queued.median - s.of(Way::Graph).queued.median;
  return gain > 0 ? fmt::format("{:.0f}", std::ceil(once.total() * 1e3 / gain)) : "never";
}

std::string once_table(const Report& r) {
  Sheet t{.header = {"batch", "record", "fuse", "plan", "build cold", "warm", "capture",
                     "total cold", "warm", "break-even step cold", "warm"}};
  for (const SizeResult& s : r.sizes) {
    t.rows.push_back({s.batch, s.cold.record, s.cold.fuse, s.cold.plan, s.cold.build, s.warm.build,
                      r.limits.on_gpu() ? Datum(s.cold.capture) : "-", s.cold.total(),
                      s.warm.total(), break_even(s, s.cold), break_even(s, s.warm)});
  }
  return t.text();
}

std::string split_table(const Report& r) {
  Sheet t{.header = {"batch", "MFLOP", "MB eager", "graph", "compute", "memory", "eager overhead",
                     "is mostly", "graph's memory", "overhead", "is mostly"}};
  for (const SizeResult& s : r.sizes) {
    auto overhead = [](const brrr::TimeSplit& p) {
      return fmt::format("{} ({:.0f} %)", three_figures(p.overhead_us()), 100 * p.overhead_share());
    };
    t.rows.push_back({s.batch, s.eager.flops() * 1e-6, s.eager.bytes() * 1e-6,
                      s.graph.bytes() * 1e-6, s.eager.split.compute_us, s.eager.split.memory_us,
                      overhead(s.eager.split), s.eager.split.bound(), s.graph.split.memory_us,
                      overhead(s.graph.split), s.graph.split.bound()});
  }
  return t.text();
}

std::string gain_text(const Report& r, Pick pick, Way way) {
  auto less = [&](const SizeResult& a, const SizeResult& b) {
    return speed_up(a, pick, way) < speed_up(b, pick, way);
  };
  const auto [lo, hi] = std::minmax_element(r.sizes.begin(), r.sizes.end(), less);
  return fmt::format("{:.2f}x (batch {}) .. {:.2f}x (batch {})", speed_up(*lo, pick, way),
                     lo->batch, speed_up(*hi, pick, way), hi->batch);
}

// The smallest batch from which on overhead is less than half of a queued step.
std::string turning_point(const Report& r, Anatomy SizeResult::*anatomy) {
  int64_t from = 0;
  for (auto s = r.sizes.rbegin(); s != r.sizes.rend(); ++s) {
    if (((*s).*anatomy).split.overhead_share() >= 0.5) break;
    from = s->batch;
  }
  return from > 0 ? fmt::format("from batch {} on", from) : "at none of these sizes";
}

// Reports of one model on several devices.
std::string devices_table(std::span<const Report> reports) {
  Sheet t{.header = {"batch"}};
  for (const Report& r : reports) {
    const std::string device = brrr::name(r.limits.device);
    t.header.insert(t.header.end(), {device + " eager", device + " graph+fusion",
                                     device + " frozen", "gain", "overhead eager", "graph+fusion"});
  }
  for (size_t i = 0; i < reports[0].sizes.size(); ++i) {
    std::vector<Datum>& row = t.rows.emplace_back();
    row.push_back(reports[0].sizes[i].batch);
    for (const Report& r : reports) {
      const SizeResult& s = r.sizes[i];
      for (Way way : {Way::Eager, Way::Graph, Way::Frozen}) row.push_back(s.of(way).queued.median);
      row.push_back(gain(s, &Cell::queued));
      for (const Anatomy* a : {&s.eager, &s.graph})
        row.push_back(percent(a->split.overhead_share()));
    }
  }
  return t.text();
}

// Other programs on the cores worsen the figures, and unequally so. Ignores GPUs: there the thread
// waits for the device.
std::string busy_text(const std::vector<Report>& all) {
  double share = 1;
  for (const Report& r : all) {
    if (r.limits.on_gpu()) continue;
    for (const SizeResult& s : r.sizes) share = std::min(share, s.share);
  }
  if (share > 0.97) return "";
  return fmt::format(
      "\nWARNING: other programs took up to {:.0f} % of the core: repeat these "
      "figures on a quiet machine\n",
      100 * (1 - share));
}

Json json_of(const Quantiles& s) { return object("median_us p95_us n", s.median, s.p95, s.n); }
Json json_of(const OneTime& o) {
  return object(
      "record_ms fuse_ms plan_ms build_ms capture_ms total_ms first_two_calls_ms from_cache",
      o.record, o.fuse, o.plan, o.build, o.capture, o.total(), o.first_calls, o.cached);
}
Json json_of(const brrr::TimeSplit& s) {
  return object("compute_us memory_us overhead_us regime", s.compute_us, s.memory_us,
                s.overhead_us(), s.bound());
}
Json json_of(const Cell& c) {
  const brrr::StepStats& s = c.stats;
  return object(
      "queued latency replays recordings fallbacks ops kernels arena_bytes lower_bound_bytes",
      json_of(c.queued), json_of(c.latency), s.replays, s.recordings, s.fallbacks, s.ops_per_replay,
      s.kernels_per_replay, s.arena_bytes, s.lower_bound_bytes);
}

Json json_of(const SizeResult& s) {
  Json cells = Json::object();
  for (Way way : kWays) {
    cells[name_of(way)] = json_of(s.of(way));
    if (way == Way::Eager) cells["eager+fusion"] = nullptr;
  }
  return object(
      "batch steps_per_mode core_share complaint cells one_time_cold one_time_warm flops_analytic "
      "bytes_analytic bytes_graph_fusion split_eager split_graph_fusion",
      s.batch, s.steps, s.share, s.complaint, cells, json_of(s.cold), json_of(s.warm),
      s.eager.flops(), s.eager.bytes(), s.graph.bytes(), json_of(s.eager.split),
      json_of(s.graph.split));
}

Json json_of(const Limits& l) {
  Json copies = Json::array();
  for (const auto& c : l.copies) copies.push_back({c.bytes, c.gb_per_second});
  Json peaks = Json::object();
  for (const auto& p : l.peaks) {
    peaks[brrr::name(p.dtype)] = object("multiply_adds product", p.gflops, p.product_gflops);
  }
  const brrr::LaunchCosts& c = l.launches;
  return object(
      "cpu clock cores cores_allowed openblas_core warning copies_bytes_gb_per_s gflops threads "
      "round_trip_ns peaks_gflops launch_ns",
      l.cpu, l.clock, l.cores, l.cores_allowed, l.blas.core, l.blas.warning, copies, l.gflops(),
      l.threads, l.round_trip_ns, peaks,
      object("eager match graph step", c.eager_ns, c.match_ns, c.graph_ns, c.step_ns));
}

Json json_of(const Report& r) {
  const Limits& l = r.limits;
  Json sizes = Json::array(), gpu;
  for (const SizeResult& s : r.sizes) sizes.push_back(json_of(s));
  if (l.on_gpu()) {
    gpu = object("name versions copy_256MB_gb_per_s matmul_gflops", l.gpu.name, l.gpu.versions,
                 l.memory_gbs(), l.gflops());
  }
  return object("model optimizer device threads gpu machine versions sizes", r.model, r.optimizer,
                brrr::name(l.device), l.threads, gpu, json_of(l), versions(), sizes);
}

// Each device's peak once.
std::string peaks_text(const std::vector<Report>& all) {
  std::vector<std::string> peaks;
  for (const Report& r : all) {
    std::string peak =
        fmt::format("{} {:.0f} GFLOP/s", brrr::name(r.limits.device), r.limits.gflops());
    if (std::find(peaks.begin(), peaks.end(), peak) == peaks.end()) peaks.push_back(peak);
  }
  return fmt::format("{}", fmt::join(peaks, ", "));
}

std::string summary_text(const Report& r) {
  std::string t = fmt::format("\n{} on {}, {} size{}", r.model, brrr::name(r.limits.device),
                              r.sizes.size(), r.sizes.size() == 1 ? "" : "s");
  if (r.sizes.size() < 5) return t + " only: too few to say what graph mode gains\n";
  // Graph mode gains least on compute-bound steps: without one the smallest gain is not measured.
  const auto bound = std::count_if(r.sizes.begin(), r.sizes.end(), [](const SizeResult& s) {
    return s.eager.split.bound() == std::string("compute");
  });
  t += bound > 0 ? fmt::format(", {} of them bound by compute", bound)
                 : ", none of them bound by compute, where the gain is least";
  t += fmt::format(":\n    graph+fusion over eager: queued {}, synchronised {}\n",
                   gain_text(r, &Cell::queued, Way::Graph),
                   gain_text(r, &Cell::latency, Way::Graph));
  return t + fmt::format("    frozen       over eager: queued {}, synchronised {}\n",
                         gain_text(r, &Cell::queued, Way::Frozen),
                         gain_text(r, &Cell::latency, Way::Frozen));
}

// Charts of the queued times and of the gains over eager.
void add_charts(const Report& r, std::vector<Picture>& pictures) {
  LineChart times{.title = fmt::format("{} on {}, {}, {} thread(s)", short_name(r.model),
                                       brrr::name(r.limits.device), r.optimizer, r.limits.threads),
                  .x_label = "batch, " + r.limits.processor(),
                  .y_label = "us a step, queued"},
      gains{.title = "gain over eager",
            .x_label = "batch",
            .y_label = "times faster",
            .log_y = false};
  for (Way way : kWays) {
    Line time{name_of(way)}, gain = time;
    for (const SizeResult& s : r.sizes) {
      if (!s.of(way).counts()) continue;
      const auto x = static_cast<double>(s.batch);
      time.points.emplace_back(x, s.of(way).queued.median);
      gain.points.emplace_back(x, speed_up(s, &Cell::queued, way));
    }
    if (time.points.empty()) continue;
    times.lines.push_back(time);
    gains.lines.push_back(gain);
  }
  Line& bound = times.lines.emplace_back(Line{"compute + memory"});
  times.limits = 1;
  for (const SizeResult& s : r.sizes) {
    bound.points.emplace_back(static_cast<double>(s.batch),
                              s.eager.split.compute_us + s.eager.split.memory_us);
  }
  pictures.push_back(draw("times", times));
  pictures.push_back(draw("gains", gains));
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
  const auto devices = static_cast<size_t>(std::count_if(
      all.begin(), all.end(), [&](const Report& r) { return r.model == all[0].model; }));
  std::string t;
  for (size_t i = 0; devices > 1 && i < all.size(); i += devices) {
    const std::span same(&all[i], devices);
    t += fmt::format("\n== {}: queued us a step, device by device\n\n{}\n", all[i].model,
                     devices_table(same));
    for (const Report& r : same) {
      t += fmt::format("    {}: overhead is less than half of a step, eager {}, graph+fusion {}\n",
                       brrr::name(r.limits.device), turning_point(r, &SizeResult::eager),
                       turning_point(r, &SizeResult::graph));
    }
  }
  return t;
}

std::string fallbacks_text(const std::vector<Report>& all) {
  std::set<std::string> reasons;
  for (const Report& r : all) {
    for (const SizeResult& s : r.sizes) {
      for (Way way : kWays) {
        const Cell& c = s.of(way);
        if (c.counts()) continue;
        reasons.insert(fmt::format("    {} on {}: {}\n", name_of(way), brrr::name(r.limits.device),
                                   c.stats.last_fallback));
      }
    }
  }
  if (reasons.empty()) return "";
  return fmt::format("[3] No figure, because steps fell back to the reference walker:\n{}",
                     fmt::join(reasons, ""));
}

std::string notes_text(const std::vector<Report>& all) {
  std::string t =
      "\n[1] Eager is eager+fusion already, as far as it goes: what is one kernel there is the\n"
      "    same kernel in every column.\n";
  std::string last;
  for (const Report& r : all) {
    if (r.model == last) continue;
    t += fmt::format("    {}: {}.\n", short_name(r.model), r.one_kernel);
    last = r.model;
  }
  t += fmt::format(
      "    gain: eager over graph+fusion. frozen: the function no longer runs.\n"
      "    Inputs rotate over 16 batches; the learning rate changes in every step.\n"
      "[2] FLOP and bytes are counted by the ops' rows, not measured: a kernel takes at least its\n"
      "    FLOP at the measured peak ({}) or its bytes at the copy bandwidth measured\n"
      "    for so many bytes, whichever is longer. Overhead is the rest of the step. A profile of\n"
      "    five more steps says which kernels they are; its own times are no figures.\n",
      peaks_text(all));
  t += fallbacks_text(all);
  t += busy_text(all);
  for (const Report& r : all) t += summary_text(r);
  return t;
}

std::string json_text(const std::vector<Report>& all) {
  if (all.size() == 1) return json_of(all[0]).dump(2) + "\n";
  Json models = Json::array();
  for (const Report& r : all) models.push_back(json_of(r));
  return Json{{"models", models}}.dump(2) + "\n";
}

std::string charts_svg(const std::vector<Report>& all) {
  std::vector<Picture> pictures;
  for (const Report& r : all) add_charts(r, pictures);
  return svg_file(pictures, 2);
}

}  // namespace examples
