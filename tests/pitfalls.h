#pragma once
// Shared by the pitfall tests: traces to compare, and one scenario run in several modes.

#include <brrr/brrr.h>
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/error_text.h"

namespace brrr::test {

/// Live tensor memory of the default device.
inline size_t live_bytes() { return memory_stats(default_device()).live; }

/// A bitwise log of a run, in order.
struct Trace {
  std::vector<std::vector<char>> log;
  void add(const Tensor& t) { log.push_back(comparable_bytes(t)); }
  void add(const std::vector<Tensor>& all) {
    for (const Tensor& t : all) add(t);
  }
  /// Values, gradients and flags.
  void add_leaves(const std::vector<Tensor>& leaves) {
    for (const Tensor& t : leaves) {
      add(t);
      add(t.grad());
      const char flags[] = {static_cast<char>(t.requires_grad()), t.grad().defined(), t.is_leaf()};
      log.emplace_back(flags, flags + sizeof flags);
      note(t.version());
    }
  }
  void add_state(const StateDict& dict) {
    for (const auto& [name, t] : dict) add(t);
  }
  void add_rng() {
    const RngState s = rng_state();
    note(s.seed);
    note(s.draw);
  }
  void note(uint64_t n) {
    const char* p = reinterpret_cast<const char*>(&n);
    log.emplace_back(p, p + sizeof n);
  }
};

/// The first position where two traces differ, or -1.
inline int first_difference(const Trace& a, const Trace& b) {
  for (size_t i = 0; i < a.log.size() && i < b.log.size(); ++i) {
    if (a.log[i] != b.log[i]) return static_cast<int>(i);
  }
  return a.log.size() == b.log.size() ? -1 : static_cast<int>(std::min(a.log.size(), b.log.size()));
}

/// Runs `scenario(options, trace)` eagerly and in graph mode (kernels from the second call on, and
/// from the first) with the same seed: all traces must be equal to the bit.
template <class F> void same_in_all_modes(const F& scenario) {
  const auto run = [&](const StepOptions& options) {
    Trace t;
    manual_seed(7);
    scenario(options, t);
    t.add_rng();
    return t;
  };
  const Trace eager = run({.mode = Mode::Eager});
  REQUIRE(!eager.log.empty());
  CHECK(first_difference(eager, run({.mode = Mode::Graph})) == -1);
  CHECK(first_difference(eager, run({.build_at_first_call = true})) == -1);
}

/// Linear layers with relu or gelu between them, small enough to build quickly.
inline models::MLPOptions small_mlp(double dropout = 0) {
  return {.sizes = {6, 8, 3}, .activation = "gelu", .dropout = dropout};
}

/// A model, its optimiser and a whole training step.
template <class Opt, class Options> struct Trainer {
  models::MLP model;
  Opt opt;
  Trainer(const Options& o, double dropout = 0)
      : model(small_mlp(dropout)), opt(model.parameters(), o) {}

  Tensor train(const Tensor& x, const Tensor& y, double clip = 0) {
    Tensor loss = cross_entropy(model(x), y);
    opt.zero_grad();
    loss.backward();
    if (clip > 0) optim::clip_grad_norm_(model.parameters(), clip);
    opt.step();
    return loss;
  }
  void log(Trace& t, const Tensor& loss) {
    t.add(loss);
    t.add_leaves(model.parameters());
    t.add_state(opt.state_dict());
  }
};

/// A step that changes every kind of state, with points at which it can be made to throw.
struct Everything {
  models::MLP model{small_mlp(0.3)};
  optim::Adam opt{model.parameters(), {.lr = 1e-2}};
  Tensor running = zeros({6}), count = zeros({}), kept;
  int points = 0, throw_at = -1;

  void point() {
    if (points++ == throw_at) throw std::runtime_error("user");
  }
  Tensor run(const Tensor& x, const Tensor& y) {
    points = 0;
    point();
    running.mul_(0.9);
    point();
    running.view({2, 3}).select(0, 0).add_(x.sum({0}).slice(0, 0, 3));
    point();
    const Tensor noise = randn({6});
    point();
    model.parameters()[1].set_requires_grad(false);
    point();
    kept = dropout(x + noise, 0.5, true);
    point();
    opt.set_lr(opt.lr() * 0.99);
    opt.set_weight_decay(0.01);
    point();
    opt.zero_grad();
    point();
    const Tensor loss = cross_entropy(model(kept), y);
    point();
    loss.backward();
    point();
    optim::clip_grad_norm_(model.parameters(), 0.1);
    point();
    opt.step();
    point();
    model.parameters()[0].set_grad(zeros({8, 6}));
    count.add_(1.0);
    x.mul_(2.0);
    point();
    return loss.detach();
  }
  /// All state that a failed step must leave unchanged.
  Trace state(const Tensor& x) {
    Trace t;
    t.add_leaves(model.parameters());
    t.add_state(opt.state_dict());
    t.add({running, count, x});
    for (const Tensor& s : {running, count, x}) t.note(s.version());
    t.add_rng();
    return t;
  }
};

inline const Tensor& labels() {
  static const Tensor t = tensor(std::vector<int64_t>{0, 1, 2, 1});
  return t;
}

inline const StepOptions kEarly{.build_at_first_call = true};

}  // namespace brrr::test
