// Training steps: batch doubling, and the time by class of operation.
#include <fmt/ranges.h>

#include <algorithm>

#include "examples/lab/lab.h"

namespace examples::lab {

namespace {

using brrr::TimeSplit;

constexpr Way kModeWays[] = {Way::Eager, Way::Graph};  // With fusion.
constexpr const char* kModes[] = {"eager", "graph"};

struct Point {
  int64_t batch = 0;
  double us[2] = {0, 0};  // Of a queued step, indexed like kModes.
  Anatomy anatomy[2];
  const TimeSplit& split(size_t mode) const { return anatomy[mode].split; }
  double per_sample(size_t mode) const { return us[mode] / static_cast<double>(batch); }
};
using Points = std::vector<Point>;

Point measure_batch(Lab& lab, const Task& task, int64_t batch) {
  const Batches batches = task.batches(batch);
  const MakeTrainer make = [&](Way way) { return make_trainer(task, batches, "adamw", way); };
  const Cells cells = measure(make, lab.seconds);
  ++lab.compared;
  if (!cells.complaint.empty()) {
    lab.complain(fmt::format("{}, batch {}", task.name, batch), cells.complaint);
  }
  lab.share = std::min(lab.share, cells.share);
  Point p;
  p.batch = batch;
  for (size_t m : {0, 1}) {
    p.us[m] = cells.of(kModeWays[m]).queued.median;
    // As many steps as take 0.1 s, from 21 to 2000.
    const auto steps = static_cast<int64_t>(std::clamp(1e5 / p.us[m], 21.0, 2000.0));
    p.anatomy[m] = dissect(*make(kModeWays[m]), p.us[m], steps);
  }
  return p;
}

// "overhead at batch 1 to 16, compute from 32 on".
std::string bounds_text(const Points& points, size_t mode) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < points.size();) {
    const std::string bound = points[i].split(mode).bound();
    size_t end = i + 1;
    while (end < points.size() && points[end].split(mode).bound() == bound) ++end;
    const int64_t first = points[i].batch, last = points[end - 1].batch;
    if (i == 0 && end == points.size()) return bound + " at every batch size measured";
    if (end == points.size()) {
      runs.push_back(fmt::format("{} from batch {} on", bound, first));
    } else if (first == last) {
      runs.push_back(fmt::format("{} at batch {}", bound, first));
    } else {
      runs.push_back(fmt::format("{} at batch {} to {}", bound, first, last));
    }
    i = end;
  }
  return fmt::format("{}", fmt::join(runs, ", "));
}

std::string answer_text(const Task& task, const Points& points) {
  const auto less = [](const Point& a, const Point& b) {
    return a.us[0] / a.us[1] < b.us[0] / b.us[1];
  };
  const auto [lo, hi] = std::minmax_element(points.begin(), points.end(), less);
  const Point& first = points.front();
  const auto between = [&](size_t mode) {
    return 100 * first.split(mode).share(first.anatomy[mode].between_us());
  };
  return fmt::format(
      "{}: eager mode is bound by {}; graph mode by {}. Graph mode is {:.2f} (batch {}) to {:.2f} "
      "(batch {}) times as fast. Of a step with batch {}, {:.0f} % lies between kernels in eager "
      "mode, {:.0f} % in graph mode.",
      short_name(task.name), bounds_text(points, 0), bounds_text(points, 1), lo->us[0] / lo->us[1],
      lo->batch, hi->us[0] / hi->us[1], hi->batch, first.batch, between(0), between(1));
}

// The ratio of a step's time to that with half the batch.
double growth(const Points& points, size_t i, size_t mode) {
  return points[i].us[mode] / points[i - 1].us[mode];
}

// The first batch whose step takes at least 1.5 times as long as that of half the batch.
std::string paid_from(const Points& points, size_t mode) {
  for (size_t i = 1; i < points.size(); ++i) {
    if (growth(points, i, mode) >= 1.5) return fmt::format("at batch {}", points[i].batch);
  }
  return "at none of these batches";
}

std::string findings_text(const Task& task, const Points& points) {
  const size_t last = points.size() - 1;
  return fmt::format(
      "{}: twice the samples take {:.2f} times as long from batch {} to {} in eager mode ({:.2f} "
      "as a graph), and {:.2f} times ({:.2f}) from {} to {}; what does not grow is overhead. A "
      "doubling first costs 1.5 times or more {} in eager mode, {} as a graph.",
      short_name(task.name), growth(points, 1, 0), points[0].batch, points[1].batch,
      growth(points, 1, 1), growth(points, last, 0), growth(points, last, 1),
      points[last - 1].batch, points[last].batch, paid_from(points, 0), paid_from(points, 1));
}

Sheet sheet_of(const Task& task, const Points& points) {
  std::string file = short_name(task.name);
  std::transform(file.begin(), file.end(), file.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  Sheet s{"batch-doubling-" + file,
          task.name + ", AdamW, queued steps",
          {"batch", "mode", "us a step", "us a sample", "of half the batch", "compute", "memory",
           "overhead", "between kernels", "bound by", "profile's sum"}};
  for (size_t i = 0; i < points.size(); ++i) {
    for (size_t m : {0, 1}) {
      const Point& p = points[i];
      const TimeSplit& t = p.split(m);
      s.rows.push_back({p.batch, kModes[m], p.us[m], p.per_sample(m),
                        i > 0 ? times(growth(points, i, m)) : Datum("-"),
                        percent(t.share(t.compute_us)), percent(t.share(t.memory_us)),
                        percent(t.overhead_share()), percent(t.share(p.anatomy[m].between_us())),
                        t.bound(), times(p.anatomy[m].profile_ratio)});
    }
  }
  return s;
}

// A bar's length is its step's time relative to the eager step's.
BarChart parts_chart(const std::string& name, const Points& points) {
  BarChart c{.title = name + ": what a training step's time is",
             .x_label = "% of the eager step's time",
             .y_label = "batch, mode",
             .parts = {{"compute", kCompute},
                       {"memory", kMemory},
                       {"overhead in kernels", kOverhead},
                       {"overhead between kernels", kBetween}},
             .group = 2,
             .figures = true};
  for (size_t i = 0; i < points.size(); i += 2) {  // Every second; the table has all.
    const Point& p = points[i];
    for (size_t m : {0, 1}) {
      const TimeSplit& t = p.split(m);
      const double between = p.anatomy[m].between_us();
      BarChart::Bar bar{
          m == 0 ? fmt::format("{} eager", p.batch) : "graph",
          {t.compute_us, t.memory_us, t.overhead_us() - between, between},
          m == 0 ? three_figures(p.us[0]) + " us" : times(p.us[0] / p.us[1]).text + " as fast"};
      for (double& v : bar.values) v *= 100 / p.us[0];
      c.bars.push_back(bar);
    }
  }
  return c;
}

LineChart times_chart(const std::string& name, const Points& points) {
  LineChart c{.title = name + ": time of a step",
              .x_label = "batch",
              .y_label = "us a step",
              .lines = {{kModes[0]}, {kModes[1]}, {"compute + memory alone"}},
              .limits = 1};
  for (const Point& p : points) {
    const TimeSplit& t = p.split(1);
    const double us[] = {p.us[0], p.us[1], t.compute_us + t.memory_us};
    for (size_t i : {0, 1, 2}) c.lines[i].points.emplace_back(static_cast<double>(p.batch), us[i]);
  }
  return c;
}

// --- where the time goes -------------------------------------------------------------------------

// The share of one class in the time or the FLOPs; 0 if the mode has no such kernel.
double share_of(const Anatomy& a, const std::string& kind, bool of_time) {
  double all = of_time ? a.profiled_us : 0, own = 0;
  for (const auto& row : a.kinds) {
    if (!of_time) all += row.flops;
    if (row.kind == kind) own = of_time ? row.time.us : row.flops;
  }
  return all > 0 ? own / all : 0;
}

Sheet kinds_sheet(const Anatomy& a, const char* mode) {
  Sheet s{fmt::format("classes-{}", mode),
          fmt::format("classes of operations, {} mode", mode),
          {"class", "kernels a step", "us a step", "FLOPs", "time", "GFLOP/s", "GB/s", "bound by"}};
  const auto steps = static_cast<double>(a.steps);
  for (const auto& row : a.kinds) {
    s.rows.push_back({row.kind, row.calls / a.steps, row.time.us / steps,
                      percent(share_of(a, row.kind, false)), percent(row.time.us / a.profiled_us),
                      row.flops / row.time.us * 1e-3, row.bytes / row.time.us * 1e-3,
                      row.time.bound()});
  }
  const double between = a.profiled_us - a.kernels_us;
  s.rows.push_back({"between kernels", int64_t{0}, between / steps, percent(0),
                    percent(between / a.profiled_us), "-", "-", "overhead"});
  return s;
}

Sheet kernels_sheet(const Anatomy& a) {
  Sheet s{"kernels-graph",
          "the ten longest kernels, graph mode",
          {"kernel", "module", "calls a step", "us a step", "time", "GFLOP/s", "GB/s", "bound by"}};
  const auto steps = static_cast<double>(a.steps);
  for (const brrr::ProfileRow& row : a.kernels) {
    s.rows.push_back({row.op, row.module.empty() ? "-" : row.module, row.calls / a.steps,
                      row.time.us / steps, percent(row.time.us / a.profiled_us),
                      row.flops / row.time.us * 1e-3, row.bytes / row.time.us * 1e-3,
                      row.time.bound()});
  }
  return s;
}

BarChart shares_chart(const Anatomy& eager, const Anatomy& graph) {
  BarChart c{.title = "Where the FLOPs are, and where the time goes",
             .x_label = "%",
             .parts = {{"contraction", kCompute},
                       {"pointwise", kMemory},
                       {"normalisation", kEager},
                       {"other", kOther},
                       {"between kernels", kBetween}},
             .group = 2,
             .most = 100,
             .figures = true};
  const std::pair<const char*, const Anatomy*> bars[] = {{"eager FLOPs", &eager},
                                                         {"eager time", &eager},
                                                         {"graph FLOPs", &graph},
                                                         {"graph time", &graph}};
  for (const auto& [label, a] : bars) {
    const bool of_time = std::string(label).ends_with("time");
    BarChart::Bar bar{label, {}, ""};
    for (size_t i = 0; i + 1 < c.parts.size(); ++i) {
      bar.values.push_back(100 * share_of(*a, c.parts[i].first, of_time));
    }
    bar.values.push_back(of_time ? 100 * (1 - a->kernels_us / a->profiled_us) : 0);
    c.bars.push_back(bar);
  }
  return c;
}

// The kernels of kernels_sheet(), split into compute, memory and overhead.
BarChart kernels_chart(const Anatomy& a) {
  BarChart c{.title = "The ten longest kernels, graph mode",
             .x_label = "us a step",
             .parts = {{"compute", kCompute}, {"memory", kMemory}, {"overhead", kOverhead}}};
  const auto steps = static_cast<double>(a.steps);
  for (const brrr::ProfileRow& row : a.kernels) {
    std::string name = row.module + " " + row.op;
    if (name.size() > 44) name = name.substr(0, 41) + "...";
    const TimeSplit& t = row.time;
    c.bars.push_back({name,
                      {t.compute_us / steps, t.memory_us / steps, t.overhead_us() / steps},
                      percent(t.us / a.profiled_us).text});
  }
  return c;
}

}  // namespace

Section batch_doubling(Lab& lab) {
  Section s{.title = "Twice the batch, twice the time?"};
  for (const Task& task : tasks(lab.model)) {
    const int64_t most = lab.quick ? 2 : task.sizes.back();
    Points points;
    for (int64_t batch = 1; batch <= most; batch *= 2) {
      fmt::print("  {}, batch {}\n", short_name(task.name), batch);
      std::fflush(stdout);
      points.push_back(measure_batch(lab, task, batch));
    }
    s.answer.push_back(answer_text(task, points));
    s.findings.push_back(findings_text(task, points));
    const Sheet sheet = sheet_of(task, points);
    s.answer_pictures.push_back(draw(sheet.name, parts_chart(short_name(task.name), points)));
    s.pictures.push_back(draw(sheet.name + "-time", times_chart(short_name(task.name), points)));
    s.sheets.push_back(sheet);
  }
  s.note =
      "Training steps with AdamW, back to back, medians; the modes take turns and end with the "
      "same parameters, bit for bit, or this page says that they did not. Graph is with fusion. "
      "Compute and memory are what a kernel's FLOPs take at the measured peak or its bytes at the "
      "measured bandwidth, whichever is longer; overhead is the rest of the step: in kernels that "
      "take longer than that, and between kernels, where the host works. What grows with the batch "
      "is of the first kind. A bar of graph mode is shorter by what graph mode removes.";
  return s;
}

Section where_time_goes(Lab& lab) {
  const Task task = tasks(lab.model).back();
  const int64_t batch = lab.quick ? 1 : 8, steps = lab.quick ? 2 : 30;
  const Batches batches = task.batches(batch);
  Anatomy all[2];
  std::vector<Tensor> ends[2];
  brrr::StepStats stats;  // In the end graph mode's.
  for (size_t m : {0, 1}) {
    const auto trainer = make_trainer(task, batches, "adamw", kModeWays[m]);
    all[m] = dissect(*trainer, 1, steps);
    ends[m] = trainer->parameters();
    stats = trainer->stats();
  }
  check_same(lab, fmt::format("the classes of {}", task.name), ends[1], ends[0], stats);
  const auto contraction = [&](size_t m, bool time) {
    return 100 * share_of(all[m], "contraction", time);
  };
  Section s{.title = "Where the step goes"};
  s.findings = {fmt::format(
      "{} at batch {}: contractions are {:.1f} % of the FLOPs, and {:.0f} % of the time in eager "
      "mode, {:.0f} % in graph mode. What is left of the time does {:.1f} % of the arithmetic.",
      short_name(task.name), batch, contraction(0, false), contraction(0, true),
      contraction(1, true), 100 - contraction(0, false))};
  s.pictures = {draw("classes", shares_chart(all[0], all[1])),
                draw("kernels-graph", kernels_chart(all[1]))};
  s.sheets = {kinds_sheet(all[0], "eager"), kinds_sheet(all[1], "graph"), kernels_sheet(all[1])};
  s.note = fmt::format(
      "A profile of {} steps: it sees every kernel, and eager calls take a longer way than usual "
      "while it looks. A fused kernel belongs to the class of its operations.",
      steps);
  return s;
}

}  // namespace examples::lab
