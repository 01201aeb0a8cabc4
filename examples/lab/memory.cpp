// Elementwise kernels on large tensors: the machine's limits, and how close kernels come.
#include <algorithm>

#include "backends/cpu/stream.h"
#include "examples/common/roof.h"
#include "examples/lab/lab.h"

namespace examples::lab {

using brrr::cpu::stream_like;

constexpr int64_t kMB = 1 << 20;

static Tensor random_tensor(int64_t bytes) {
  return brrr::randn({bytes / static_cast<int64_t>(sizeof(float))});
}

// Times f in both modes and checks the results.
static BothModes time_checked(Lab& lab, const char* what, Tensor (*f)(const Tensor&),
                              const Tensor& x) {
  const BothModes t = time_both(f, x, lab.seconds);
  ++lab.compared;
  if (!t.complaint.empty()) lab.complain(what, t.complaint);
  return t;
}

Section limits_of_machine(Lab& lab) {
  const Limits& l = lab.limits;
  Section s{.title = "What this machine can do"};
  s.findings = {fmt::format(
      "{:.0f} GFLOP/s of float32 multiply-adds on {} thread{}; copies at {:.0f} GB/s where they "
      "fit a cache ({}), {:.1f} GB/s from main memory ({}), bytes read and written. While a float "
      "is read from main memory and one is written there, {:.0f} operations could be done.",
      l.gflops(), l.threads, l.threads > 1 ? "s" : "", l.copies.front().gb_per_second,
      bytes_text(l.copies.front().bytes), l.memory_gbs(), bytes_text(l.copies.back().bytes),
      8 * l.gflops() / l.memory_gbs())};
  LineChart c{.title = "Bandwidth of a copy",
              .x_label = "bytes read and written",
              .y_label = "GB/s",
              .lines = {{"copy"}},
              .log_y = false,
              .x_text = bytes_text};
  Sheet copies{"copy-bandwidth", "copies by size", {"bytes", "size", "GB/s"}};
  for (const auto& copy : l.copies) {
    c.lines[0].points.emplace_back(copy.bytes, copy.gb_per_second);
    copies.rows.push_back(
        {static_cast<int64_t>(copy.bytes), bytes_text(copy.bytes), copy.gb_per_second});
  }
  Sheet facts{"machine", "the machine", {"what", "figure"}};
  facts.rows = {{"processor", l.cpu},
                {"clock", l.clock},
                {"cores, usable", int64_t{l.cores_allowed}},
                {"threads", int64_t{l.threads}},
                {"eager launch, ns", l.launches.eager_ns},
                {"launch in a replay, ns", l.launches.graph_ns},
                {"matching a recorded op, ns", l.launches.match_ns},
                {"a recorded step of nothing, ns", l.launches.step_ns},
                {"spin round trip, ns", l.round_trip_ns > 0 ? Datum(l.round_trip_ns) : Datum("-")},
                {"OpenBLAS core", l.blas.core},
                {"versions", versions()}};
  Sheet peaks{"peaks", "peaks by dtype, GFLOP/s", {"dtype", "multiply-adds", "a large product"}};
  for (const auto& p : l.peaks) {
    peaks.rows.push_back({brrr::name(p.dtype), p.gflops, p.product_gflops});
  }
  s.pictures = {draw("copy-bandwidth", c)};
  s.sheets = {facts, peaks, copies};
  s.note = l.round_trip_ns > 0
               ? "The spin round trip is an empty parallel region."
               : "On one thread nothing is handed to others: there is no spin round trip.";
  return s;
}

Section roofline(Lab& lab) {
  const int64_t mb = lab.megabytes(64);
  std::vector<int64_t> repeats;
  for (int64_t k = 1; k <= (lab.quick ? 4 : 256); k *= 2) repeats.push_back(k);
  const Roofline r(lab.limits, random_tensor(mb * kMB), repeats, lab.seconds);
  lab.compared += static_cast<int64_t>(r.points.size());
  if (!r.complaint.empty()) lab.complain("roofline", r.complaint);
  return {.title = "More arithmetic a byte",
          .findings = {r.findings()},
          .pictures = r.pictures(),
          .sheets = {r.sheet()},
          .note = r.note()};
}

Section fusion(Lab& lab) {
  const int64_t mb = lab.megabytes(64);
  const Tensor x = random_tensor(mb * kMB);
  const BothModes one = time_checked(lab, "cos(x)", brrr::cos, x);
  const BothModes two = time_checked(
      lab, "cos(cos(x))", [](const Tensor& v) { return cos(cos(v)); }, x);
  const double copy = stream_like(1, static_cast<size_t>(mb * kMB), lab.gang()).seconds;
  Sheet sheet{"fusion",
              fmt::format("cos of {} MB", mb),
              {"what", "ms", "GB/s of one reading and writing", "of the copy"}};
  BarChart c{.title = fmt::format("Time of cos(x) and cos(cos(x)), {} MB", mb),
             .x_label = "ms",
             .parts = {{"eager", kEager}, {"graph", kGraph}},
             .mark = copy * 1e3,
             .mark_name = "a copy"};
  const std::pair<const char*, double> all[] = {{"copy", copy},
                                                {"cos(x) eager", one.eager},
                                                {"cos(x) graph", one.graph},
                                                {"cos(cos(x)) eager", two.eager},
                                                {"cos(cos(x)) graph", two.graph}};
  for (const auto& [name, seconds] : all) {
    const double gbs = 2 * static_cast<double>(mb * kMB) / seconds * 1e-9;
    sheet.rows.push_back({name, seconds * 1e3, gbs, times(seconds / copy)});
    c.bars.push_back(mode_bar(name, seconds * 1e3));
  }
  const auto second = [](double alone, double both) -> std::string {
    if (both <= alone) return "nothing that could be measured";
    return fmt::format("{:.2f} times the first", both / alone - 1);
  };
  Section s{.title = "Fusion"};
  s.findings = {fmt::format(
      "The second cos of cos(cos(x)) costs {} in eager mode, and as a graph, where both are one "
      "kernel, {}. The graph takes {:.2f} times as long as copying the {} MB, eager mode {:.2f} "
      "times.",
      second(one.eager, two.eager), second(one.graph, two.graph), two.graph / copy, mb,
      two.eager / copy)};
  if (one.graph > 2 * copy) {
    s.findings.back() += fmt::format(
        " One cos takes {:.1f} times as long as the copy: on this processor its arithmetic bounds "
        "it, so that fusion saves the reading and writing only.",
        one.graph / copy);
  }
  c.bars.erase(c.bars.begin());  // The copy is drawn as the mark.
  s.pictures = {draw("fusion", c)};
  s.sheets = {sheet};
  s.note = "The dashed line is the copy: what any kernel that reads and writes so much takes.";
  return s;
}

namespace {

using Function = std::function<Tensor(const Tensor&)>;

std::vector<std::pair<const char*, Function>> activation_functions() {
  return {{"none", [](const Tensor& v) { return v; }},
          {"relu", [](const Tensor& v) { return relu(v); }},
          {"leaky relu", [](const Tensor& v) { return leaky_relu(v); }},
          {"sqrt of abs", [](const Tensor& v) { return sqrt(abs(v)); }},
          {"exp", [](const Tensor& v) { return exp(v); }},
          {"sigmoid", [](const Tensor& v) { return sigmoid(v); }},
          {"silu", [](const Tensor& v) { return silu(v); }},
          {"tanh", [](const Tensor& v) { return tanh(v); }},
          {"gelu (tanh)", [](const Tensor& v) { return gelu(v, "tanh"); }},
          {"gelu (erf)", [](const Tensor& v) { return gelu(v); }},
          {"cos", [](const Tensor& v) { return cos(v); }}};
}

struct ActivationTimes {
  double bare = 0;                   // Seconds of a loop that adds two tensors.
  std::vector<double> graph, eager;  // Seconds of act(x * w + b) + r, by activation.
  std::vector<int64_t> kernels;
};

// Times all activations alternately, because they are compared with each other.
ActivationTimes time_activations(Lab& lab, int64_t mb) {
  const int64_t width = 1024, rows = mb * kMB / (4 * width);
  const Tensor x = brrr::randn({rows, width}), r = brrr::randn({rows, width}),
               w = brrr::randn({width}), b = brrr::randn({width});
  const auto all = activation_functions();
  std::vector<std::pair<Function, brrr::Step<Function>>> both;
  ActivationTimes t;
  for (const auto& [name, act] : all) {
    const Function fn = [=, act = act](const Tensor& v) { return act(v * w + b) + r; };
    both.emplace_back(fn, brrr::step(fn));
    auto& step = both.back().second;
    for (int i = 0; i < 3; ++i) step(x);
    check_same(lab, name, {step(x)}, {fn(x)}, step.stats());
    t.kernels.push_back(static_cast<int64_t>(step.stats().kernels_per_replay));
    if (t.kernels.back() != 1) {
      lab.complain(name, fmt::format("{} kernels, not one", t.kernels.back()));
    }
  }
  std::vector<std::function<void()>> graphs, eagers;
  for (auto& [fn, step] : both) {
    graphs.emplace_back([&x, &step = step] { step(x); });
    eagers.emplace_back([&x, &fn = fn] { fn(x); });
  }
  t.bare = stream_like(2, static_cast<size_t>(mb * kMB), lab.gang()).seconds;
  t.graph = times_in_turns(graphs, 2 * lab.seconds);
  t.eager = times_in_turns(eagers, lab.seconds);
  return t;
}

}  // namespace

Section activations(Lab& lab) {
  const int64_t mb = lab.megabytes(64);
  const auto all = activation_functions();
  const ActivationTimes t = time_activations(lab, mb);
  Section s{.title = "Activations"};
  Sheet sheet{"activations",
              fmt::format("act(x * w + b) + r, {} MB each of x and r", mb),
              {"activation", "graph ms", "of the bare sum", "kernels", "eager ms", "eager/graph"}};
  BarChart c{.title = "act(x * w + b) + r in one kernel",
             .x_label = "times as long as reading and writing alone",
             .parts = {{"graph", kGraph}},
             .mark = 1,
             .mark_name = "reading and writing alone"};
  for (size_t i = 0; i < all.size(); ++i) {
    const Datum of_bare = times(t.graph[i] / t.bare);
    sheet.rows.push_back({all[i].first, t.graph[i] * 1e3, of_bare, t.kernels[i], t.eager[i] * 1e3,
                          times(t.eager[i] / t.graph[i])});
    c.bars.push_back({all[i].first, {t.graph[i] / t.bare}, of_bare.text});
  }
  const auto [lo, hi] = std::minmax_element(t.graph.begin(), t.graph.end());
  const char *fastest = all[static_cast<size_t>(lo - t.graph.begin())].first,
             *slowest = all[static_cast<size_t>(hi - t.graph.begin())].first;
  s.findings = {fmt::format(
      "The slowest, {}, takes {:.2f} times as long as the fastest, {}; {} takes {:.2f} times as "
      "long as adding the same tensors and nothing else. Where a bar ends near 1, memory hides the "
      "function's cost.",
      slowest, *hi / *lo, fastest, slowest, *hi / t.bare)};
  s.pictures = {draw("activations", c)};
  s.sheets = {sheet};
  s.note = fmt::format(
      "Each is one fused kernel that reads two tensors of {} MB and writes one; beside it, in the "
      "same process, a hand-written loop that reads two and writes one: the dashed line. The "
      "activations are timed in turns.",
      mb);
  return s;
}

}  // namespace examples::lab
