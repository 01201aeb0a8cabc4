#pragma once
// Inputs for pointwise rows where formulas go wrong: ends of ranges, zeros, NaN.

#include "tests/op_cases.h"

namespace brrr::test {

inline bool is_number_row(const OpDef& op) { return op.pointwise->loop(kInt64); }

// The number of operations in the row's formula.
inline int operations(const OpDef& op) {
  Statements list;
  SymScope scope(list, kFloat32);
  Sym in[kMaxOperands];
  int out[kMaxOutputs];
  for (int i = 0; i < op.pointwise->n_in; ++i) in[i] = Sym(scope.operand(i));
  op.pointwise->emit(in, out);
  return static_cast<int>(std::count_if(
      list.begin(), list.end(), [](const Statement& s) { return s.kind == Statement::Formula; }));
}

using Columns = std::vector<std::vector<double>>;

inline Tensors as_tensors(const OpDef& op, const Columns& values, DType dtype) {
  Tensors in;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool condition = op.pointwise->traits.condition >> i & 1;
    in.push_back(tensor(values[i]).to(condition ? kBool : dtype));
  }
  return in;
}

inline Columns sampled_columns(const OpDef& op, int64_t n) {
  Columns c;
  for (const Tensor& t : operands_of(op, {n}, kFloat64)) {
    c.push_back(t.to(kFloat64).to_vector<double>());
  }
  return c;
}

// Each special value in each operand with the others sampled, and in all operands at once.
inline Columns special_columns(const OpDef& op) {
  const double denormal = std::ldexp(1.0, -140);
  const int n_in = op.pointwise->n_in;
  Columns c(static_cast<size_t>(n_in));
  const Columns usual = sampled_columns(op, 4);
  for (double special : {std::nan(""), HUGE_VAL, -HUGE_VAL, 0.0, -0.0, denormal, -denormal}) {
    for (int place = 0; place <= n_in; ++place) {
      // Products of denormals underflow in float32, not in the float64 oracle.
      if (place == n_in && std::fabs(special) == denormal && operations(op) > 1) continue;
      for (size_t i = 0; i < c.size(); ++i) {
        const bool here = place == n_in || static_cast<size_t>(place) == i;
        c[i].push_back(here ? special : usual[i][static_cast<size_t>(place) % 4]);
      }
    }
  }
  return c;
}

// All pairs of magnitudes, for functions that are tested alone.
inline Columns wide_columns(const OpDef& op) {
  constexpr double magnitudes[] = {1e-30, 1e-5, 0.1, 0.75, 1.0, 2.5, 10, 90, 1e5, 1e30};
  Columns c(static_cast<size_t>(op.pointwise->n_in));
  int at = 0;
  for (double a : magnitudes) {
    for (double b : magnitudes) {
      for (size_t i = 0; i < c.size(); ++i) {
        const double v = i % 2 ? b : a;
        c[i].push_back((at >> i & 1) ? -v : v);
      }
      ++at;
    }
  }
  return c;
}

}  // namespace brrr::test
