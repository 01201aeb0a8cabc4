#pragma once

// Shared by the benchmarks: run setup and header, interleaved measurement of contestants, and the
// MLP step as a user of brrr writes it.

#include <brrr/brrr.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sched.h>

#include <fstream>
#include <functional>

#include "backends/cpu/pool.h"
#include "backends/cpu/stream.h"
#include "tests/bench/floor_mlp.h"
#include "tests/bench/measure/machine.h"
#include "tests/bench/measure/timing.h"
#include "tests/bench/measure/trainer.h"
#include "tests/bench/peer.h"
#include "tests/bench/command_line.h"

namespace brrr::bench {

inline double ns_since(Clock::time_point start) { return 1e9 * seconds_since(start); }

struct RunOptions {
  int threads = 1;
  int cpu = -1;  // where the main thread is pinned; -1: the last allowed CPU

  bool take(Words& words) {
    if (words.word() == "--cpu") {
      const std::string text = words.value();
      cpu = text == "0" ? 0 : static_cast<int>(positive_number("--cpu", text));
      return true;
    }
    return words.take("--threads", threads);
  }
};

// An unpinned thread migrates between cores and finds cold caches there.
inline int pin_main_thread(int cpu) {
  cpu_set_t allowed, one;
  CPU_ZERO(&allowed);
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return -1;
  for (int c = 0; cpu < 0 && c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(CPU_SETSIZE - 1 - c, &allowed)) cpu = CPU_SETSIZE - 1 - c;
  }
  if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) {
    throw std::invalid_argument(fmt::format("--cpu: {} is not a CPU this process may use", cpu));
  }
  CPU_SET(cpu, &one);
  return sched_setaffinity(0, sizeof one, &one) == 0 ? cpu : -1;
}

struct Machine {
  Limits limits;
  std::string line, versions;
};

// Pins the main thread, sets the thread count, prints the machine line that heads every table.
inline Machine start_run(const RunOptions& o) {
  Machine m;
  cpu::num_threads();  // the pool reads the CPU mask before the main thread is pinned
  const double spin_ns = cpu::round_trip_ns();
  const int cpu = pin_main_thread(o.cpu);
  cpu::set_num_threads(o.threads);
  m.limits = measure_limits({kCPU}).front();
  m.limits.round_trip_ns = spin_ns;
  m.line = machine_line(m.limits) + fmt::format(" | main thread on CPU {}", cpu);
  m.versions = fmt::format("compiler {} | fmt {}.{}.{} | nlohmann-json {}.{}.{} | {}", __VERSION__,
                           FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100,
                           NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                           NLOHMANN_JSON_VERSION_PATCH, m.limits.blas.config);
  std::printf("%s\n%s\n", m.line.c_str(), m.versions.c_str());
  if (!m.limits.blas.warning.empty()) {
    std::printf("\n*** %s\n*** Run with: env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE\n\n",
                m.limits.blas.warning.c_str());
  }
  std::fflush(stdout);
  return m;
}

// Measures contestants in turns, A B C A B C ..., so that drift of the machine affects all alike. A
// turn is long enough to warm the caches and consists of short samples, of which the median counts,
// so that samples hit by a preemption are dropped.
class Turns {
 public:
  // `run(n)` executes the work n times; `before` is not timed and precedes every turn.
  int add(
      std::function<void(std::int64_t)> run, std::function<void()> before = [] {}) {
    all_.push_back({std::move(run), std::move(before), 1, {}});
    return static_cast<int>(all_.size()) - 1;
  }
  // The same for a call() that executes the work once.
  template <class F> int each(F call) {
    return add([call = std::move(call)](std::int64_t n) {
      while (n-- > 0) call();
    });
  }
  void measure(int rounds, double turn_ms = 4.0, double sample_us = 15.0) {
    for (Contestant& c : all_) {
      c.before();
      c.run(1);
      while (sample(c) * static_cast<double>(c.count) < sample_us * 1e3) c.count *= 2;
    }
    for (int r = 0; r < rounds; ++r) {
      for (Contestant& c : all_) {
        c.before();
        c.ns.push_back(turn(c, turn_ms));
      }
    }
  }
  double ns(int i) const { return quantiles(all_[static_cast<std::size_t>(i)].ns).median; }
  // The median of the ratios of each round, so that a slow spell cancels.
  double ratio(int i, int j) const {
    std::vector<double> r;
    const auto &a = all_[static_cast<std::size_t>(i)].ns, &b = all_[static_cast<std::size_t>(j)].ns;
    for (std::size_t k = 0; k < a.size(); ++k) r.push_back(a[k] / b[k]);
    return quantiles(std::move(r)).median;
  }

 private:
  struct Contestant {
    std::function<void(std::int64_t)> run;
    std::function<void()> before;
    std::int64_t count;  // per sample
    std::vector<double> ns;
  };
  static double sample(const Contestant& c) {
    const auto start = Clock::now();
    c.run(c.count);
    return ns_since(start) / static_cast<double>(c.count);
  }
  static double turn(const Contestant& c, double turn_ms) {
    std::vector<double> samples;
    const auto start = Clock::now();
    while (samples.size() < 3 || ns_since(start) < turn_ms * 1e6) samples.push_back(sample(c));
    return quantiles(std::move(samples)).median;
  }
  std::vector<Contestant> all_;
};

// A step with the weights and batches of the floor and the peers.
class PeerRun {
 public:
  PeerRun(Learner learner, Batches batches, const std::string& optimizer, Way way,
          const StepOptions& options)
      : batches_(std::move(batches)),
        trainer_(std::move(learner), batches_, optimizer, options_of(way, options)),
        frozen_(way == Way::Frozen) {}
  virtual ~PeerRun() = default;

  // Restores the first weights: long runs on few batches would drive gradients to denormals.
  virtual void reset() = 0;
  void run(std::int64_t steps) {
    for (std::int64_t k = 0; k < steps; ++k, ++at_) {
      loss_ = trainer_.step(at_);
      if (frozen_ && at_ == 2) trainer_.freeze();
    }
  }
  float loss() const { return loss_.item<float>(); }
  StepStats stats() const { return trainer_.stats(); }
  models::Module& model() const { return trainer_.model(); }
  std::vector<Tensor> parameters() const {
    std::vector<Tensor> all;
    for (const Tensor& p : trainer_.parameters()) all.push_back(p.detach().clone());
    return all;
  }

 private:
  Batches batches_;
  Trainer trainer_;
  Tensor loss_;
  std::int64_t at_ = 0;
  bool frozen_;
};

class BrrrMlp : public PeerRun {
 public:
  BrrrMlp(const std::string& optimizer, std::int64_t batch, Way way, StepOptions options = {})
      : PeerRun(mlp_learner({.sizes = mlp_sizes}), batches(batch), optimizer, way, options) {
    reset();
  }
  void reset() override {
    const auto p = model().parameters();
    for (std::size_t l = 0; l + 1 < mlp_sizes.size(); ++l) {
      init_mlp_layer(l, p[2 * l].data<float>(), p[2 * l + 1].data<float>());
    }
  }

 private:
  static Batches batches(std::int64_t batch) {
    const MlpBatches data = make_mlp_batches(batch);
    Batches b;
    for (const auto& x : data.x) {
      b.x.push_back(from_blob(x.data(), {batch, mlp_sizes.front()}, kFloat32));
    }
    for (const auto& y : data.y) b.y.push_back(from_blob(y.data(), {batch}, kInt64));
    return b;
  }
};

// The floor on the same weights and batches.
class FloorRun {
 public:
  FloorRun(const std::string& optimizer, std::int64_t batch)
      : data_(make_mlp_batches(batch)),
        mlp_(mlp_sizes, batch, optimizer == "sgd" ? FloorOptimizer::Sgd : FloorOptimizer::AdamW,
             {.lr = optimizer == "sgd" ? sgd_lr : adamw_lr, .weight_decay = adamw_weight_decay}) {
    reset();
  }
  void reset() {
    for (std::size_t l = 0; l < mlp_.num_layers(); ++l) {
      init_mlp_layer(l, mlp_.weight(l), mlp_.bias(l));
    }
  }
  void run(std::int64_t steps) {
    for (std::int64_t k = 0; k < steps; ++k, ++at_) {
      const auto b = static_cast<std::size_t>(at_ % num_batches);
      loss_ = mlp_.step(data_.x[b].data(), data_.y[b].data());
    }
  }
  float loss() const { return loss_; }

 private:
  MlpBatches data_;
  FloorMlp mlp_;
  float loss_ = 0;
  std::int64_t at_ = 0;
};

// gelu(x * w + b) + residual with [rows, columns] streams x and residual, rows w and b.
struct GeluChain {
  using Fn = std::function<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&)>;
  Tensor x, w, b, residual;
  GeluChain(std::int64_t rows, std::int64_t columns)
      : x(randn({rows, columns})),
        w(randn({columns})),
        b(randn({columns})),
        residual(randn({rows, columns})) {}
  static Tensor apply(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& r) {
    return gelu(x * w + b) + r;
  }
};

}  // namespace brrr::bench
