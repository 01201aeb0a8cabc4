#pragma once

// Row kernels over 64 MB relative to a copy with as many streams: softmax, layer norm, and its
// backward with the gradients of its weights. And the cost of short rows.

#include "tests/bench/bench.h"
#include "tests/bench/report.h"

namespace brrr::bench {

struct RowFigure {
  const char* what;
  const char* op;  // Part of the op's name in the profile's rows.
  int reads;       // Input streams; there is one output stream.
  double bar;      // Percent of the streams' speed.
};

// Microseconds per call of the kernels whose op contains this name.
inline double kernel_us(const Profile& profile, const std::string& op) {
  double us = 0, calls = 0;
  for (const ProfileRow& row : profile.rows()) {
    if (row.op.find(op) == std::string::npos) continue;
    us += row.time.us;
    calls += static_cast<double>(row.calls);
  }
  return us / calls;
}

// Times kernels of 64 MB arrays and their streams, all from memory: an L3 of hundreds of MB keeps
// the streams' arrays between passes, but not a step's, whose kernels evict each other's. So each
// measurement follows a walk over 512 MB, which evicts both.
class FromMemory {
 public:
  static constexpr std::size_t bytes = std::size_t{64} << 20;
  static constexpr int rounds = 5;

  double streams_us(int reads) const {
    return cpu::stream_like(reads, bytes, false, [&] { evict_caches(); }).seconds * 1e6;
  }
  // Microseconds of the kernels with this name in calls of `run`.
  template <class F> double kernel_us(const std::string& op, const F& run) const {
    for (int k = 0; k < 3; ++k) run();
    Profile profile;
    for (int k = 0; k < 5; ++k) {
      evict_caches();
      run();
    }
    return bench::kernel_us(profile, op);
  }

 private:
  void evict_caches() const { sum(evicting_); }

  Tensor evicting_ = ones({1 << 27});
};

class RowSteps {
 public:
  static constexpr std::int64_t width = 1024, rows = 16384;

  explicit RowSteps(Mode mode)
      : softmax_([](const Tensor& x) { return x.softmax(-1); }, {.mode = mode}),
        norm_([](const Tensor& x, const Tensor& w,
                 const Tensor& b) { return layer_norm(x, {width}, w, b); },
              {.mode = mode}),
        gradient_(
            [](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& g) {
              for (const Tensor& t : {x, w, b}) t.set_grad({});
              const Tensor y = layer_norm(x, {width}, w, b);
              // Depends on all of y, so that backward is a kernel of its own, as in a model.
              y.backward(g * (1.0 + 1e-3 * y.detach().mean()));
              return y.detach();
            },
            {.mode = mode}) {
    for (const Tensor& t : {x_, w_, b_}) leaves_.push_back(t.clone().set_requires_grad(true));
  }
  void run(int which) {
    NoGradGuard guard;
    if (which == 0) softmax_(x_);
    if (which == 1) norm_(x_, w_, b_);
    if (which == 2) {
      EnableGradGuard enabled;
      gradient_(leaves_[0], leaves_[1], leaves_[2], g_);
    }
  }
  StepStats stats(int which) const {
    return which == 0 ? softmax_.stats() : which == 1 ? norm_.stats() : gradient_.stats();
  }

 private:
  Tensor x_ = randn({rows, width}), g_ = randn({rows, width}), w_ = randn({width}),
         b_ = randn({width});
  std::vector<Tensor> leaves_;
  Step<std::function<Tensor(const Tensor&)>> softmax_;
  Step<std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>> norm_;
  Step<std::function<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&)>> gradient_;
};

// Times eager kernels, forward and backward, for the same elements in rows of 64 and of 1024.
inline void short_rows(Report& report) {
  using Op = std::function<Tensor(const Tensor& x)>;
  const auto figure = [&](const char* op, double bar, const std::function<Op(std::int64_t)>& make) {
    double us[2];
    for (const bool wide : {false, true}) {
      const std::int64_t n = wide ? 1024 : 64;
      const Op run = make(n);
      const Tensor x = randn({65536 / n, n}).set_requires_grad(true);
      std::vector<double> each;
      for (int round = 0; round < 15; ++round) {
        Profile profile;
        for (int k = 0; k < 10; ++k) run(x).backward();
        each.push_back(kernel_us(profile, op));
      }
      us[wide] = median(each);
    }
    report.at_most(
        fmt::format("{} in rows of 64, over rows of 1024", op), bar, us[0] / us[1], "x",
        fmt::format("eager, 65,536 elements, {:.1f} and {:.1f} us a kernel", us[0], us[1]));
  };
  // These ops are timed alone, so any gradient of y will do.
  const auto summed = [](const Tensor& y) { return sum(y); };
  figure("softmax", 1.5,
         [&](std::int64_t) { return [&](const Tensor& x) { return summed(x.softmax(-1)); }; });
  figure("log_softmax", 1.5,
         [&](std::int64_t) { return [&](const Tensor& x) { return summed(x.log_softmax(-1)); }; });
  figure("layer_norm", 1.6, [&](std::int64_t n) {
    return [&, n, w = randn({n}), b = randn({n})](const Tensor& x) {
      return summed(layer_norm(x, {n}, w, b));
    };
  });
  figure("cross_entropy", 1.6, [](std::int64_t n) {
    return [ids = randint(0, n, {65536 / n})](const Tensor& x) { return cross_entropy(x, ids); };
  });
}

inline void rows_part(Report& report) {
  constexpr RowFigure figures[] = {
      {"softmax", "softmax", 1, 80},
      {"layer norm", "layer_norm", 1, 85},
      {"layer norm's backward, weights too", "layer_norm_backward", 2, 80}};
  static_assert(RowSteps::rows * RowSteps::width * sizeof(float) == FromMemory::bytes);
  const FromMemory memory;
  RowSteps eager(Mode::Eager), graph(Mode::Graph);
  for (int which = 0; which < 3; ++which) {
    const RowFigure& f = figures[which];
    std::vector<double> of_eager, of_graph;
    for (int round = 0; round < FromMemory::rounds; ++round) {
      const double least = memory.streams_us(f.reads);
      for (auto* side : {&eager, &graph}) {
        const double us = memory.kernel_us(f.op, [&] { side->run(which); });
        (side == &eager ? of_eager : of_graph).push_back(100 * least / us);
      }
    }
    report.at_least(fmt::format("{} over 64 MB, of the speed of its streams", f.what), f.bar,
                    median(of_graph), "%", fmt::format("eager {:.1f} %", median(of_eager)));
    if (graph.stats(which).fallbacks > 0)
      report.wrong(std::string(f.what) + ": a replay fell back");
  }
  short_rows(report);
}

}  // namespace brrr::bench
