#pragma once
// Random step programs: lists of instructions that are interpreted on real tensors, eagerly or
// inside a recorded step. Every instruction runs on any pool of tensors (operands are picked modulo
// its size and fitted), so a failing program can be reduced by dropping instructions.

#include <brrr/brrr.h>

#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/error.h"
#include "ops/optimizer_ops.h"
#include "ops/kinds/pointwise.h"

namespace brrr::fuzz {

struct Machine;
struct Ins;
using Action = void (*)(Machine&, const Ins&);

/// One instruction: the action, tensors to pick, and parameters whose meaning is the action's.
struct Ins {
  std::string op;  ///< "view", "pointwise:exp".
  uint32_t a = 0, b = 0, c = 0, n = 0;
  double s = 0;
  uint8_t when = 255;  ///< Bit k: runs in call k (models a host branch that changes).
  bool no_grad = false;
  Action action = nullptr;
  const OpDef* row = nullptr;  ///< For pointwise instructions.
};
using Program = std::vector<Ins>;

/// State that a program keeps between calls; every field may be written, rebound or differentiated.
struct State {
  std::vector<Tensor> leaves, held, escaped, results;
  std::vector<Tensor> momentum;
  std::vector<AdamState> adam;
  Ref<ControlCell> lr = control_cell(0.1), decay = control_cell(0.01);
};

/// The bits of every element; all NaNs map to the same one.
inline std::vector<uint64_t> bits_of(const Tensor& t) {
  const std::vector<char> bytes = comparable_bytes(t);
  std::vector<uint64_t> bits(static_cast<size_t>(t.numel()));
  const size_t item = itemsize(t.dtype());
  for (size_t k = 0; k < bits.size(); ++k) std::memcpy(&bits[k], &bytes[k * item], item);
  return bits;
}

inline Tensor typed(const IntList& sizes, DType t) {
  if (t == kBool) return randint(0, 2, sizes).to(kBool);
  return is_floating(t) ? randn(sizes).to(t) : randint(t == kUInt8 ? 0 : -5, 9, sizes).to(t);
}

/// What programs operate on: small tensors of all kinds, or the tensors of neural nets.
enum class Kind : uint8_t { Anything, Net };
constexpr int64_t kWidth = 8;  ///< Row length of a net's tensors.

/// Most nets are float32.
inline DType net_dtype(uint64_t seed) {
  constexpr DType all[] = {kFloat32, kBFloat16, kFloat32, kFloat32, kFloat16, kFloat32, kFloat64};
  return all[seed % std::size(all)];
}

/// Deterministic in the seed.
inline State make_state(uint64_t seed, Kind kind = Kind::Anything) {
  manual_seed(seed);
  State s;
  using List = std::vector<std::pair<IntList, DType>>;
  const DType d = net_dtype(seed);
  const List leaves_of_nets{
      {{kWidth, kWidth}, d}, {{kWidth, kWidth}, d}, {{5, kWidth}, d}, {{kWidth}, d}, {{kWidth}, d}};
  const List leaves_of_all{{{6, 4}, kFloat32},
                           {{4}, kFloat32},
                           {{5, 6}, kFloat32},
                           {{4, 4}, kBFloat16},
                           {{2, 3}, kFloat64}};
  for (const auto& [sizes, dtype] : kind == Kind::Net ? leaves_of_nets : leaves_of_all) {
    s.leaves.push_back(typed(sizes, dtype).set_requires_grad());
    s.momentum.push_back(zeros(sizes, dtype));
    AdamState a{zeros(sizes, dtype), zeros(sizes, dtype), ones({}, kFloat64),
                ones({}, kFloat64),  zeros({}),           zeros({})};
    s.adam.push_back(a);
  }
  const List held_of_nets{{{512, kWidth}, d}, {{512, 1}, d}, {{512, 2 * kWidth}, d}, {{}, d}};
  const List held_of_all{{{4}, kFloat32},    {{5, 6}, kFloat32}, {{3, 4}, kBFloat16},
                         {{}, kFloat64},     {{3}, kInt64},      {{4}, kBool},
                         {{2, 2}, kUInt8},   {{7}, kInt32},      {{4, 1}, kFloat16},
                         {{0, 3}, kFloat32}, {{1, 17}, kFloat32}};
  for (const auto& [sizes, dtype] : kind == Kind::Net ? held_of_nets : held_of_all) {
    s.held.push_back(typed(sizes, dtype));
  }
  if (kind == Kind::Net) return s;
  s.held.push_back(randn({4, 6}).t());
  s.held.push_back(randn({9, 4}).slice(0, 1, 9, 2));
  return s;
}

constexpr int64_t kMostElements = 8192;  ///< Larger tensors do not enter the pool.

/// Interprets a program on one state and the step's arguments.
struct Machine {
  State& state;
  int call;
  std::vector<Tensor> pool = {};
  int errors = 0;
  size_t stop = SIZE_MAX;  ///< Throws before this instruction, as user code may.

  const Tensor& pick(uint32_t n) const { return pool[n % pool.size()]; }
  /// The first tensor from the n-th on (wrapping around) for which `ok` holds, else undefined.
  template <class F> Tensor find(uint32_t n, F ok) const {
    for (size_t k = 0; k < pool.size(); ++k) {
      if (const Tensor& t = pool[(n + k) % pool.size()]; ok(t)) return t;
    }
    return {};
  }
  Tensor floating(uint32_t n) const {
    return find(n, [](const Tensor& t) { return is_floating(t.dtype()) && t.numel() > 0; });
  }
  void push(const Tensor& t) {
    if (t.defined() && t.numel() <= kMostElements && t.dim() <= 6) pool.push_back(t);
  }
  /// `t` if it broadcasts with `sizes` (to exactly them if `to`), else a 0-d element of it.
  static Tensor fit(const Tensor& t, const IntList& sizes, bool to = false) {
    bool ok = !to || t.dim() <= sizes.size();
    int64_t n = 1;
    for (int d = 1; d <= std::max<int>(sizes.size(), static_cast<int>(t.dim())) && ok; ++d) {
      const int64_t x = d <= sizes.size() ? sizes[sizes.size() - d] : 1;
      const int64_t y = d <= t.dim() ? t.size(-d) : 1;
      ok = x == y || y == 1 || (x == 1 && !to);
      n *= x == 1 ? y : x;
    }
    if (ok && n <= 4096) return t;
    if (t.numel() == 0) return zeros({}, t.dtype());
    Tensor one = t;
    while (one.dim() > 0) one = one.select(0, one.size(0) / 2);
    return one;
  }
  /// int64 indices below `size`, of any shape.
  Tensor indices(uint32_t n, int64_t size) const {
    Tensor t = find(n, [](const Tensor& x) { return x.dtype() == kInt64 && x.numel() <= 64; });
    if (!t.defined()) t = arange(3);
    return remainder(t.detach(), size);
  }

  void run(const Program& p) {
    for (size_t at = 0; at <= p.size(); ++at) {
      if (at == stop) throw std::runtime_error("stopped");
      if (at == p.size()) break;
      const Ins& i = p[at];
      if (!(i.when >> (call % 8) & 1)) continue;
      const bool before = context.grad_enabled;
      context.grad_enabled = !i.no_grad;
      try {
        i.action(*this, i);
      } catch (const Error&) {
        ++errors;  // User code may catch it and go on; both modes must then behave alike.
      }
      context.grad_enabled = before;
    }
  }
};

struct NamedAction {
  const char* name;
  Action action;
  int weight, in_nets;  ///< Frequency in programs of each kind.
};
const std::vector<NamedAction>& actions();

/// The registry's pointwise rows, including those of gradients.
const std::vector<const OpDef*>& pointwise_rows();

inline Ins ins(const std::string& op, uint32_t a, uint32_t b = 0, uint32_t c = 0, uint32_t n = 0,
               double s = 0, int when = 255, bool no_grad = false) {
  Ins i{op, a, b, c, n, s, static_cast<uint8_t>(when), no_grad};
  const size_t colon = op.find(':');
  for (const NamedAction& x : actions()) {
    if (op.substr(0, colon) == x.name) i.action = x.action;
  }
  if (colon != std::string::npos) i.row = find_op(op.substr(colon + 1));
  if (!i.action || (colon != std::string::npos && !i.row)) throw Error("fuzz: no action " + i.op);
  return i;
}

/// The program as source text for a regression test.
inline std::string to_string(const Program& p) {
  std::string s;
  char line[200];
  for (const Ins& i : p) {
    std::snprintf(line, sizeof line, "    ins(\"%s\", %u, %u, %u, %u, %.17g, %d, %s),\n",
                  i.op.c_str(), i.a, i.b, i.c, i.n, i.s, i.when, i.no_grad ? "true" : "false");
    s += line;
  }
  return s;
}

/// Without `branches` every call is the same, so that a step makes a single recording.
inline Program generate(uint64_t seed, int length, bool branches, Kind kind = Kind::Anything) {
  std::mt19937_64 random(seed);
  std::vector<const NamedAction*> bag;
  for (const NamedAction& a : actions()) {
    bag.insert(bag.end(), static_cast<size_t>(kind == Kind::Net ? a.in_nets : a.weight), &a);
  }
  constexpr double scalars[] = {0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -0.25, 0.1, 1e-3, 7.0};
  Program p;
  const auto draw = [&] { return static_cast<uint32_t>(random() % 100003); };
  for (int k = 0; k < length; ++k) {
    const NamedAction& a = *bag[random() % bag.size()];
    const double s = scalars[random() % std::size(scalars)];
    const int when = random() % 8 || !branches ? 255 : random() % 2 ? 0b10101010 : 0b11101100;
    std::string op = a.name;
    if (op.starts_with("pointwise")) {
      op += std::string(":") + pointwise_rows()[random() % pointwise_rows().size()]->name;
    }
    p.push_back(ins(op, draw(), draw(), draw(), draw(), s, when,
                    random() % (kind == Kind::Net ? 16 : 4) == 0));
  }
  if (kind == Kind::Net) {
    for (const char* op : {"train", "optimise"})
      p.push_back(ins(op, draw(), draw(), draw(), draw()));
  }
  return p;
}

}  // namespace brrr::fuzz
