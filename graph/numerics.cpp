#include "graph/numerics.h"

#include <cmath>

#include "core/check.h"
#include "ops/kinds/pointwise.h"

namespace brrr::graph {

// The first element that is not finite, or -1.
static int64_t first_bad(const TensorImpl& t) {
  if (!is_floating(t.dtype)) return -1;
  Tensor dense = raw_empty(t.size_list(), kFloat64, t.device);
  copy_now(*dense.impl(), t);
  dense = dense.to(kCPU);
  const auto* x = reinterpret_cast<const double*>(dense.impl()->data());
  for (int64_t i = 0; i < t.numel; ++i) {
    if (!std::isfinite(x[i])) return i;
  }
  return -1;
}

// The ops before this one have made nothing bad: such an operand came from outside.
static std::string bad_operands(const OpCall& c) {
  std::string text;
  for (int k = 0; k < c.n_in; ++k) {
    if (!c.in[k]) continue;
    bool overwritten = false;
    for (int o = 0; c.into && o < c.n_out; ++o) {
      overwritten |= c.out[o].impl()->storage == c.in[k]->storage;
    }
    if (overwritten || first_bad(*c.in[k]) < 0) continue;
    text += fmt::format("; its operand {}, {}, was not finite when the step began", k,
                        describe(c.in[k]));
  }
  return text;
}

void CheckNumericsGuard::check(const OpCall& c) const {
  // Views make no values, and creation ops may hand out memory that is yet to be written.
  if (c.op->kind == OpKind::View || c.n_in == 0) return;
  for (int k = 0; k < c.n_out; ++k) {
    const int64_t bad = first_bad(*c.out[k].impl());
    BRRR_CHECK(bad < 0,
               "step: the first value that is not finite is element {} of the result of {}{}", bad,
               describe(c), bad_operands(c));
  }
}

std::string CheckNumericsGuard::describe(const OpCall& c) const {
  const std::string path = module_path();
  std::string s =
      fmt::format("{}{}{}{}(", path, path.empty() ? "" : ": ", c.op->name, c.into ? "_" : "");
  for (int k = 0; k < c.n_in; ++k) {
    s += (k ? ", " : "") + (c.in[k] ? brrr::describe(c.in[k]) : "scalar");
  }
  s += ") -> ";
  for (int k = 0; k < c.n_out; ++k) s += (k ? ", " : "") + brrr::describe(c.out[k].impl());
  const std::string near = path.empty() ? trail_.near(CallStorages(c).in) : "";
  return near.empty() ? s : s + ", near " + near;
}

void CheckNumericsGuard::ran(const OpCall& c) {
  if (previous_) previous_->ran(c);
  check(c);
  const CallStorages touched(c);
  trail_.ran(touched.all, touched.made, module_path());
  if (previous_) previous_->resume();
}

}  // namespace brrr::graph
