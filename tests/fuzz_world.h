#pragma once
// The state of fuzzed programs, and the comparison of two copies of it.

#include <map>

#include "tests/fuzz_steps.h"

namespace brrr::fuzz {

/// Every tensor that a user can reach, by name.
inline std::vector<std::pair<std::string, Tensor>> reachable(const State& s) {
  std::vector<std::pair<std::string, Tensor>> all;
  const auto add = [&](const char* name, const std::vector<Tensor>& list) {
    for (size_t k = 0; k < list.size(); ++k) {
      all.emplace_back(name + std::to_string(k), list[k]);
      all.emplace_back(name + std::to_string(k) + ".grad",
                       list[k].is_leaf() ? list[k].grad() : Tensor());
    }
  };
  add("leaf", s.leaves);
  add("held", s.held);
  add("escaped", s.escaped);
  add("result", s.results);
  add("momentum", s.momentum);
  for (const AdamState& a : s.adam) {
    add("adam", {a.exp_avg, a.exp_avg_sq, a.beta1_power, a.step_factor, a.root_factor});
  }
  return all;
}

inline std::string layout(const Tensor& t, std::map<const void*, size_t>& storages, bool version) {
  IntList strides = t.strides();
  for (int d = 0; d < strides.size(); ++d) {
    if (t.size(d) == 1) strides[d] = 0;  // The stride of a dim of size 1 is meaningless.
  }
  const auto number = storages.emplace(t.impl()->storage, storages.size()).first->second;
  return std::string(name(t.dtype())) + brrr::to_string(t.sizes()) + " strides " +
         brrr::to_string(strides) + " at " + std::to_string(t.storage_offset()) + " of storage " +
         std::to_string(number) + (version ? " version " + std::to_string(t.version()) : "") +
         (t.requires_grad() ? " requires grad" : "") + (t.is_leaf() ? " leaf" : "");
}

/// The first difference, or "".
inline std::string compare(const State& eager, const State& graph, bool frozen) {
  const auto a = reachable(eager), b = reachable(graph);
  if (a.size() != b.size()) return "different numbers of tensors";
  std::map<const void*, size_t> storages_a, storages_b;
  for (size_t k = 0; k < a.size(); ++k) {
    const auto& [name, x] = a[k];
    const Tensor& y = b[k].second;
    if (x.defined() != y.defined()) return name + ": defined in one mode only";
    if (!x.defined()) continue;
    // A frozen step binds final gradients that were never written, so their versions differ.
    const bool version = !frozen || !name.ends_with(".grad");
    const std::string p = layout(x, storages_a, version), q = layout(y, storages_b, version);
    if (p != q) return name + ": eager " + p + ", graph " + q;
    if (same_bits(x, y)) continue;
    const auto u = bits_of(x), v = bits_of(y);
    for (size_t i = 0; i < u.size(); ++i) {
      if (u[i] == v[i]) continue;
      return name + " " + p + ": element " + std::to_string(i) + ": eager " +
             std::to_string(x.to_vector<double>()[i]) + ", graph " +
             std::to_string(y.to_vector<double>()[i]);
    }
  }
  return "";
}

/// One mode's copy of the programs' whole state.
struct World {
  std::vector<State> states;
  Tensor data, ids;
  int call = 0;
  std::vector<int> errors;
  size_t stop = SIZE_MAX;  ///< Throws before this instruction.

  int64_t rows;  ///< Of a batch, which is a moving slice of the data.

  World(size_t programs, uint64_t seed, Kind kind = Kind::Anything) {
    for (size_t k = 0; k < programs; ++k) states.push_back(make_state(seed + k, kind));
    rows = kind == Kind::Net ? 512 : 4;
    data = randn({4 * rows, kind == Kind::Net ? kWidth : 6});
    ids = randint(0, 4, {4 * rows});
  }
  std::vector<Tensor> batch(int which, bool smaller = false) const {
    const int64_t n = smaller ? rows - 1 : rows;
    return {data.narrow(0, which % 3 * rows, n), ids.narrow(0, which % 3 * rows, n)};
  }
  std::vector<Tensor> run(const std::vector<Program>& programs, const Tensor& x, const Tensor& y) {
    std::vector<Tensor> results;
    errors.clear();
    for (size_t k = 0; k < programs.size(); ++k) {
      State& s = states[k];
      s.results.clear();
      Machine m{s, call, {x, y}};
      for (const auto* list : {&s.leaves, &s.held}) {
        for (const Tensor& t : *list) m.push(t);
      }
      m.stop = stop;
      m.run(programs[k]);
      errors.push_back(m.errors);
      s.results.insert(s.results.end(), m.pool.end() - std::min<int64_t>(3, std::ssize(m.pool)),
                       m.pool.end());
      results.insert(results.end(), s.results.begin(), s.results.end());
    }
    return results;
  }
};

inline std::string compare(const World& eager, const World& graph, bool frozen = false) {
  for (size_t k = 0; k < eager.states.size(); ++k) {
    if (auto d = compare(eager.states[k], graph.states[k], frozen); !d.empty()) return d;
  }
  return same_bits(eager.data, graph.data) ? "" : "the data set differs";
}

}  // namespace brrr::fuzz
