// Small calls: what each costs whatever it does; and the verdicts that follow.
#include <algorithm>

#include "examples/lab/lab.h"

namespace examples::lab {

namespace {

constexpr int kChain = 100;

// Nanoseconds a call, in series of about a millisecond: the median is of undisturbed ones.
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

// All in nanoseconds.
struct AddTimes {
  std::vector<double> calls;  // An add without and with its gradient; an empty step, eager, graph.
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
  check_same(lab, "100 adds, unfused", unfused(x, one), expected, unfused.stats());
  check_same(lab, "100 adds, fused", fused(x, one), expected, fused.stats());
  check_same(lab, "100 adds, frozen", frozen(x, one), expected, frozen.stats());
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

// --- verdicts ------------------------------------------------------------------------------------

struct Verdict {
  std::string name, expected;
  brrr::Diagnosis d;
};

template <class F>
void judge(Lab& lab, std::vector<Verdict>& all, const std::string& name,
           const std::string& expected, F fn, const Tensor& x, const Tensor& y) {
  auto step = brrr::step(std::move(fn), brrr::Mode::Eager);
  Verdict v{name, expected, diagnose(step, x, y)};
  if (v.d.graph_us == 0) lab.complain(name, "its graph fell back");
  all.push_back(std::move(v));
}

void judge_constructed(Lab& lab, std::vector<Verdict>& all) {
  const Tensor one = brrr::ones({1});
  judge(
      lab, all, "64 adds of one element", "overhead",
      [](const Tensor& x, const Tensor& y) {
        Tensor sum = x + y;
        for (int i = 1; i < 64; ++i) sum = sum + y;
        return sum;
      },
      one, one);
  const int64_t mb = lab.megabytes(64);
  judge(
      lab, all, fmt::format("relu(x * y + 1) of {} MB", mb), "memory",
      [](const Tensor& x, const Tensor& y) { return relu(x * y + 1.0); }, brrr::randn({mb << 18}),
      brrr::randn({mb << 18}));
  const int64_t n = lab.quick ? 128 : 1024;
  judge(
      lab, all, fmt::format("product of {0} x {0}", n), "compute",
      [](const Tensor& x, const Tensor& y) { return matmul(x, y); }, brrr::randn({n, n}),
      brrr::randn({n, n}));
}

void judge_training(Lab& lab, std::vector<Verdict>& all, const char* model, int64_t batch) {
  const Task task = tasks(model).front();
  brrr::manual_seed(42);
  const Learner learner = task.learner();
  const auto optimizer = make_optimizer("adamw", *learner.model);
  const Batches batches = task.batches(batch);
  judge(
      lab, all, fmt::format("{}, batch {}", short_name(task), batch), "-",
      [&](const Tensor& x, const Tensor& y) {
        Tensor loss = learner.loss(x, y);
        optimizer->zero_grad();
        loss.backward();
        optimizer->step();
        return loss.detach();
      },
      batches.x[0], batches.y[0]);
}

}  // namespace

Section one_element_add(Lab& lab) {
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
  Section s{.title = "Anatomy of a small call", .seen = {}};
  s.seen = fmt::format(
      "Adding two numbers takes {:.0f} ns eagerly, {:.0f} ns with its gradient recorded: {:.1f} "
      "million adds a second; in the time of one the processor could do {:.0f} float operations.\n"
      "In a graph of {} adds each takes {:.0f} ns unfused, {:.1f} ns "
      "fused and {:.1f} ns frozen. A step that does nothing costs {:.0f} ns eagerly, {:.0f} ns as "
      "a graph.",
      adds[0], adds[1], 1e3 / adds[0], adds[0] * lab.limits.gflops, kChain, steps[1], steps[2],
      steps[3], adds[2], adds[3]);
  s.pictures = {draw("one-element-add", c)};
  s.sheets = {sheet, empty};
  s.note = fmt::format(
      "Steps are chains of {} adds, their time divided by as many; the step's own cost is in it. "
      "In "
      "a graph that is not frozen the function runs, too, and each add is compared with the "
      "recorded one.",
      kChain);
  return s;
}

Section verdicts(Lab& lab) {
  std::vector<Verdict> all;
  judge_constructed(lab, all);
  judge_training(lab, all, "mlp", 1);
  if (!lab.quick) {
    for (int64_t batch : {32, 512}) judge_training(lab, all, "mlp", batch);
    judge_training(lab, all, "gpt", 8);
  }
  Sheet sheet{"verdicts",
              "brrr::diagnose of eager steps",
              {"step", "built to be", "verdict", "compute", "memory", "overhead", "eager us",
               "graph us", "gain"}};
  BarChart c{.title = "What diagnose finds, eager mode",
             .x_label = "% of the step",
             .parts = {{"compute", kCompute}, {"memory", kMemory}, {"overhead", kOverhead}},
             .most = 100,
             .figures = true};
  size_t right = 0, built = 0;
  for (const Verdict& v : all) {
    const brrr::TimeSplit& t = v.d.split;
    sheet.rows.push_back({v.name, v.expected, t.bound(), percent(t.share(t.compute_us)),
                          percent(t.share(t.memory_us)), percent(t.overhead_share()), v.d.eager_us,
                          v.d.graph_us, times(v.d.gain())});
    const auto part = [&](double us) { return 100 * t.share(us); };
    c.bars.push_back(
        {v.name, {part(t.compute_us), part(t.memory_us), part(t.overhead_us())}, t.bound()});
    built += v.expected != "-";
    right += v.expected == t.bound();
  }
  Section s{.title = "Verdicts", .seen = {}};
  s.seen = fmt::format(
      "Of {} steps built to be bound by one thing, {} are found to be. Of {} brrr::diagnose says "
      "\"{}\"; of {}, \"{}\".",
      built, right, all[built].name, all[built].d.text.substr(0, all[built].d.text.find('\n')),
      all.back().name, all.back().d.text.substr(0, all.back().d.text.find('\n')));
  s.pictures = {draw("verdicts", c)};
  s.sheets = {sheet};
  s.note =
      "brrr::diagnose measures both modes in turns, and a profile splits the eager step's time. "
      "The "
      "gain is the measured one: eager mode's time over graph mode's.";
  return s;
}

}  // namespace examples::lab
