// The fixed cost of small calls, and brrr::diagnose's verdicts.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/context.h"
#include "examples/lab/lab.h"
#include "ops/kinds/pointwise.h"

namespace examples::lab {

namespace {

constexpr int kChain = 100;

// Nanoseconds per call, timed in series of 500 calls: the median is that of undisturbed series.
std::vector<double> call_times(const std::vector<std::function<void()>>& calls, double seconds) {
  constexpr int series = 500;
  std::vector<std::function<void()>> many;
  for (const auto& call : calls) {
    many.push_back([&call] {
      for (int i = 0; i < series; ++i) call();
    });
  }
  std::vector<double> t = times_in_turns(many, seconds);
  for (double& v : t) v *= 1e9 / series;
  return t;
}

Tensor chain(const Tensor& x, const Tensor& one) {
  Tensor y = x + one;
  for (int i = 1; i < kChain; ++i) y = y + one;
  return y;
}

// In nanoseconds.
struct AddTimes {
  std::vector<double> calls;  // An add without and with gradient; an empty step, eager and graph.
  std::vector<double> steps;  // An add in a step: eager, unfused, fused, frozen.
};

AddTimes measure_adds(Lab& lab) {
  const Tensor x = brrr::ones({1}), one = brrr::ones({1});
  Tensor leaf = brrr::ones({1});
  leaf.set_requires_grad(true);
  auto eager = brrr::step(chain, brrr::Mode::Eager);
  auto unfused = brrr::step(chain, brrr::StepOptions{.fuse = false});
  auto fused = brrr::step(chain);
  auto frozen = brrr::step(chain);
  const auto nothing = [](const Tensor&) {};
  auto empty_eager = brrr::step(nothing, brrr::Mode::Eager);
  auto empty_graph = brrr::step(nothing);
  for (int i = 0; i < 3; ++i) unfused(x, one), fused(x, one), frozen(x, one), empty_graph(x);
  frozen.freeze();
  const Tensor expected = chain(x, one);
  check_same(lab, "100 adds, unfused", {unfused(x, one)}, {expected}, unfused.stats());
  check_same(lab, "100 adds, fused", {fused(x, one)}, {expected}, fused.stats());
  check_same(lab, "100 adds, frozen", {frozen(x, one)}, {expected}, frozen.stats());
  if (empty_graph.stats().fallbacks > 0) {
    lab.complain("a step of nothing", empty_graph.stats().last_fallback);
  }

  const std::vector<double> adds =
      call_times({[&] {
                    const brrr::NoGradGuard guard;
                    (void)(x + one);
                  },
                  [&] { (void)(leaf + one); }, [&] { empty_eager(x); }, [&] { empty_graph(x); }},
                 lab.seconds);
  std::vector<double> steps = call_times({[&] { eager(x, one); }, [&] { unfused(x, one); },
                                          [&] { fused(x, one); }, [&] { frozen(x, one); }},
                                         lab.seconds);
  for (double& v : steps) v /= kChain;
  return {adds, steps};
}

// The purposes of the instructions of an add with its gradient recorded.
enum AddPart { Checks, Room, Kernel, Tape, kAddParts };

AddPart part_of(const std::string& function) {
  const auto has = [&](const char* word) { return function.find(word) != std::string::npos; };
  if (has("pointwise_")) return Kernel;
  if (has("tape") || has("Node") || has("history")) return Tape;
  const bool shared = function.empty();  // In the C library: memory allocation.
  if (shared || has("lloc") || has("torage") || has("mpl") || has("free") || has("Cache"))
    return Room;
  return Checks;
}

using Parts = std::array<int64_t, kAddParts>;

// Empty if instructions cannot be counted, e.g. because brrr is a shared library, or stripped.
std::optional<Parts> count_parts(const std::function<void()>& call) {
  Parts parts{};
  for (const auto& [function, n] : instructions(call).value_or(Instructions())) {
    parts[part_of(function)] += n;
  }
  return parts[Kernel] > 0 ? std::optional(parts) : std::nullopt;
}

struct AddParts {
  double room_ns = 0, kernel_ns = 0, general_ns = 0;
  std::optional<Parts> instructions, general;
};

// The row of the op that x + y runs.
const brrr::OpDef& row_of_add(const Tensor& x, const Tensor& y) {
  struct Watcher : brrr::Observer {
    using Observer::ran;
    void ran(const brrr::OpCall& call) override { op = call.op; }
    const brrr::OpDef* op = nullptr;
  } watcher;
  brrr::context.observer = &watcher;
  (void)(x + y);
  brrr::context.observer = nullptr;
  return *watcher.op;
}

AddParts take_apart(const Lab& lab) {
  const Tensor x = brrr::ones({1}), one = brrr::ones({1}), leaf = brrr::ones({1}),
               column = brrr::ones({1, 1});
  leaf.set_requires_grad(true);
  const auto& add = static_cast<const brrr::PointwiseOp&>(row_of_add(x, one));
  const auto kernel = add.direct[static_cast<int>(brrr::kFloat32)];
  const auto recorded = [&] { (void)(leaf + one); };
  const auto general = [&] {
    const brrr::NoGradGuard guard;
    (void)(column + one);
  };
  const auto room = [&] { brrr::raw_empty({1}, brrr::kFloat32, brrr::kCPU); };
  const auto alone = [&, in = x.data<float>(), other = one.data<float>()] {
    static constexpr int64_t step[] = {1, 1};
    float out;
    const char* from[] = {reinterpret_cast<const char*>(in), reinterpret_cast<const char*>(other)};
    auto* to = reinterpret_cast<char*>(&out);
    kernel(&to, from, step, 1);
  };
  const std::vector<double> ns = call_times({room, alone, general}, lab.seconds);
  return {ns[0], ns[1], ns[2], count_parts(recorded), count_parts(general)};
}

Sheet parts_sheet(const AddParts& p, double plain_ns, double recorded_ns) {
  Sheet s{"anatomy", "an add of two numbers taken apart", {"part", "instructions", "ns by itself"}};
  const auto part = [&](AddPart k) {
    return p.instructions ? Datum((*p.instructions)[k]) : Datum("-");
  };
  const auto all = [](const std::optional<Parts>& parts) {
    return parts ? Datum(std::accumulate(parts->begin(), parts->end(), int64_t{0})) : Datum("-");
  };
  s.rows = {{"call and checks", part(Checks), "-"},
            {"room for the result", part(Room), p.room_ns},
            {"kernel", part(Kernel), p.kernel_ns},
            {"a node of the tape", part(Tape), recorded_ns - plain_ns},
            {"all of it", all(p.instructions), recorded_ns},
            {"of shapes that differ, no gradient", all(p.general), p.general_ns}};
  return s;
}

// --- verdicts ------------------------------------------------------------------------------------

struct Verdict {
  std::string name, expected;
  brrr::Diagnosis d;
};

void judge(Lab& lab, std::vector<Verdict>& all, const std::string& name,
           const std::string& expected, const brrr::Diagnosis& d) {
  if (d.graph_us == 0) lab.complain(name, "its graph fell back");
  all.push_back({name, expected, d});
}

template <class F> brrr::Diagnosis diagnose_eager(F fn, const Tensor& x, const Tensor& y) {
  auto step = brrr::step(std::move(fn), brrr::Mode::Eager);
  return diagnose(step, x, y);
}

void judge_constructed(Lab& lab, std::vector<Verdict>& all) {
  const auto adds = [](const Tensor& x, const Tensor& y) {
    Tensor sum = x + y;
    for (int i = 1; i < 64; ++i) sum = sum + y;
    return sum;
  };
  const Tensor one = brrr::ones({1});
  judge(lab, all, "64 adds of one element", "overhead", diagnose_eager(adds, one, one));
  const auto chain = [](const Tensor& x, const Tensor& y) { return relu(x * y + 1.0); };
  const int64_t mb = lab.megabytes(64);
  judge(lab, all, fmt::format("relu(x * y + 1) of {} MB", mb), "memory",
        diagnose_eager(chain, brrr::randn({mb << 18}), brrr::randn({mb << 18})));
  const auto product = [](const Tensor& x, const Tensor& y) { return matmul(x, y); };
  const int64_t n = lab.quick ? 128 : 1024;
  judge(lab, all, fmt::format("product of {0} x {0}", n), "compute",
        diagnose_eager(product, brrr::randn({n, n}), brrr::randn({n, n})));
}

void judge_training(Lab& lab, std::vector<Verdict>& all, const Task& task, int64_t batch,
                    const std::string& expected = "-") {
  const Batches batches = task.batches(batch);
  judge(lab, all,
        fmt::format("{}, batch {}", expected == "-" ? short_name(task.name) : task.name, batch),
        expected, make_trainer(task, batches, "adamw", Way::Eager)->diagnose());
}

double prediction_error(const brrr::Diagnosis& d) {
  return d.gain() > 0 ? std::abs(d.predicted_gain() / d.gain() - 1) : 0;
}

}  // namespace

Section anatomy(Lab& lab) {
  const auto [adds, steps] = measure_adds(lab);
  Sheet sheet{"one-element-add", "a one-element add", {"how", "ns an add", "adds a second"}};
  BarChart c{.title = "Time of a one-element add",
             .x_label = "ns",
             .parts = {{"eager", kEager}, {"graph", kGraph}}};
  const std::pair<const char*, double> all[] = {
      {"eager, no gradient", adds[0]}, {"eager, gradient", adds[1]},
      {"in an eager step", steps[0]},  {"graph, not fused", steps[1]},
      {"graph, fused", steps[2]},      {"graph, fused, frozen", steps[3]}};
  for (const auto& [name, ns] : all) {
    sheet.rows.push_back({name, ns, {fmt::format("{:.1f} million", 1e3 / ns), 1e9 / ns}});
    c.bars.push_back(mode_bar(name, ns));
  }
  Sheet empty{"step-of-nothing", "a step of nothing", {"mode", "ns a call"}};
  empty.rows = {{"eager", adds[2]}, {"graph", adds[3]}};
  Section s{.title = "Anatomy of a small call"};
  s.findings = {
      fmt::format(
          "Adding two numbers takes {:.0f} ns eagerly, {:.0f} ns with its gradient recorded: "
          "{:.1f} million adds a second; in the time of one the processor could do {:.0f} "
          "float operations.",
          adds[0], adds[1], 1e3 / adds[0], adds[0] * lab.limits.gflops()),
      fmt::format(
          "In a graph of {} adds each takes {:.0f} ns unfused, {:.1f} ns fused and {:.1f} ns "
          "frozen. A step that does nothing costs {:.0f} ns eagerly, {:.0f} ns as a graph.",
          kChain, steps[1], steps[2], steps[3], adds[2], adds[3])};
  const AddParts add = take_apart(lab);
  const Sheet parts = parts_sheet(add, adds[0], adds[1]);
  BarChart split{.title = "An add with its gradient recorded, taken apart",
                 .x_label = "instructions",
                 .parts = {{"instructions", kGraph}}};
  for (size_t k = 0; add.instructions && k < kAddParts; ++k) {
    const auto n = static_cast<double>((*add.instructions)[k]);
    split.bars.push_back({parts.rows[k][0].text, {n}, parts.rows[k][1].text});
  }
  s.pictures = {draw("one-element-add", c)};
  if (add.instructions) {
    s.findings.push_back(fmt::format(
        "Of the {} instructions of an add with a gradient {} compute it; the others find out what "
        "is to be done, make room for the result and keep what backward needs.",
        parts.rows[kAddParts][1].text, parts.rows[Kernel][1].text));
    s.pictures.insert(s.pictures.begin(), draw("anatomy", split));
  }
  s.sheets = {parts, sheet, empty};
  s.note = fmt::format(
      "Steps are chains of {} adds, their time divided by as many; the step's own cost is in it. "
      "In a graph that is not frozen the function runs, too, and each add is compared with the "
      "recorded one. {}; the parts' times do not add up, as a processor works on several at once.",
      kChain,
      add.instructions
          ? "Instructions are counted by stepping through a copy of the process"
          : "Instructions cannot be counted here: that takes Linux on x86-64, leave to "
            "trace a process, and a program with its symbols");
  return s;
}

Section verdicts(Lab& lab) {
  std::vector<Verdict> all;
  judge_constructed(lab, all);
  // The user's own model, in sizes for which each of the three is the bound.
  judge_training(lab, all, own_task({.width = 8}), 1, "overhead");
  if (!lab.quick) {
    judge_training(lab, all, own_task({.width = 16, .scales = 1 << 22}), 1, "memory");
    judge_training(lab, all, own_task({.width = 1024}), 256, "compute");
  }
  judge_training(lab, all, tasks("mlp").front(), 1);
  if (!lab.quick) {
    for (int64_t batch : {8, 32, 128, 512}) judge_training(lab, all, tasks("mlp").front(), batch);
    for (int64_t batch : {1, 8, 64}) judge_training(lab, all, tasks("gpt").front(), batch);
  }
  Sheet sheet{"verdicts",
              "brrr::diagnose of eager steps",
              {"step", "built to be", "verdict", "compute", "memory", "overhead", "eager us",
               "graph us", "gain", "predicted", "off by"}};
  BarChart c{.title = "What diagnose finds, eager mode",
             .x_label = "% of the step",
             .parts = {{"compute", kCompute}, {"memory", kMemory}, {"overhead", kOverhead}},
             .most = 100,
             .figures = true};
  size_t right = 0, built = 0;
  double worst = 0, worst_built = 0;
  for (const Verdict& v : all) {
    const brrr::TimeSplit& t = v.d.split;
    sheet.rows.push_back({v.name, v.expected, t.bound(), percent(t.share(t.compute_us)),
                          percent(t.share(t.memory_us)), percent(t.overhead_share()), v.d.eager_us,
                          v.d.graph_us, times(v.d.gain()), times(v.d.predicted_gain()),
                          percent(prediction_error(v.d))});
    double& most = v.expected == "-" ? worst : worst_built;
    most = std::max(most, prediction_error(v.d));
    const auto part = [&](double us) { return 100 * t.share(us); };
    c.bars.push_back(
        {v.name, {part(t.compute_us), part(t.memory_us), part(t.overhead_us())}, t.bound()});
    built += v.expected != "-";
    right += v.expected == t.bound();
  }
  Section s{.title = "Verdicts"};
  s.findings = {fmt::format(
      "Of {} steps built to be bound by one thing, {} are found to be. Of {} brrr::diagnose says "
      "\"{}\"; of {}, \"{}\". The gain that it predicts for models before graph mode is tried is "
      "off by at most {:.0f} %, for the steps built to be bound by one thing by at most {:.0f} %.",
      built, right, all[built].name, all[built].d.text.substr(0, all[built].d.text.find('\n')),
      all.back().name, all.back().d.text.substr(0, all.back().d.text.find('\n')), 100 * worst,
      100 * worst_built)};
  s.pictures = {draw("verdicts", c)};
  s.sheets = {sheet};
  s.note =
      "brrr::diagnose splits the eager step's time by a profile, predicts what graph mode takes "
      "from what eager kernels reach of the limits, the bytes of the fused ones and the cost of "
      "launches, and then measures both modes in turns: the gain is eager mode's time over graph "
      "mode's.";
  return s;
}

}  // namespace examples::lab
