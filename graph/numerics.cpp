#include "graph/numerics.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/check.h"
#include "core/text.h"
#include "ops/kinds/pointwise.h"

namespace brrr::graph {

namespace {

// Positions of the first NaN and the first infinity of a tensor; -1: none.
struct NotFinite {
  int64_t nan = -1, infinite = -1;
  bool positive = false;  // It has a +inf.
  int64_t first() const {
    return nan < 0 || infinite < 0 ? std::max(nan, infinite) : std::min(nan, infinite);
  }
};
NotFinite not_finite(const TensorImpl& t) {
  NotFinite found;
  if (!is_floating(t.dtype)) return found;
  Tensor dense = raw_empty(t.size_list(), kFloat64, t.device);
  copy_now(*dense.impl(), t);
  dense = dense.to(kCPU);
  const auto* x = reinterpret_cast<const double*>(dense.impl()->data());
  for (int64_t i = t.numel - 1; i >= 0; --i) {
    if (std::isnan(x[i])) found.nan = i;
    if (!std::isinf(x[i])) continue;
    found.infinite = i;
    found.positive |= x[i] > 0;
  }
  return found;
}

// Whether the op wrote over the operand, so that its earlier values are lost.
bool overwritten(const OpCall& c, const TensorImpl& operand) {
  const auto same = [&](const Tensor& out) { return out.impl()->storage == operand.storage; };
  return c.into && std::any_of(c.out, c.out + c.n_out, same);
}

}  // namespace

// Earlier ops were checked, so that a bad operand is a mask or came from outside the step.
std::string CheckNumericsGuard::bad_operands(const OpCall& c) const {
  std::string text;
  for (int k = 0; k < c.n_in; ++k) {
    if (!c.in[k] || overwritten(c, *c.in[k]) || not_finite(*c.in[k]).first() < 0) continue;
    text += fmt::format("; its operand {}, {}, {}", k, brrr::describe(c.in[k]),
                        masks_.contains(c.in[k]->storage) ? "holds infinities of a mask"
                                                          : "was not finite when the step began");
  }
  return text;
}

// Whether an infinity is a mask's, not a fault: it comes from a scalar of the op, an operand with
// mask infinities, or, if -inf, from outside. -inf does not excuse +inf: a masked target's loss.
bool CheckNumericsGuard::is_mask_infinity(const OpCall& c, bool positive) const {
  for (int k = 0, word = 0; k < c.n_in; ++k) {
    const TensorImpl* t = c.in[k];
    if (!t) {
      const bool scalar = c.op->pointwise && c.attrs.kind(k) == 3;
      const auto x = std::bit_cast<double>(c.attrs.v[word++]);
      if (scalar && std::isinf(x) && (x > 0 || !positive)) return true;
      continue;
    }
    const auto it = masks_.find(t->storage);
    const bool mask = it != masks_.end() && (it->second || !positive);
    if (overwritten(c, *t)) {
      if (mask) return true;
      continue;
    }
    // Checked even if `mask`: the entry may be stale, of a storage that had the same address.
    const NotFinite x = not_finite(*t);
    if (x.infinite >= 0 && (mask || (!positive && x.nan < 0 && !x.positive))) return true;
  }
  return false;
}

void CheckNumericsGuard::check(const OpCall& c) {
  // Views compute nothing, and creation ops may return memory that is not written yet.
  if (c.op->kind == OpKind::View || c.n_in == 0) return;
  for (int k = 0; k < c.n_out - c.op->n_scratch; ++k) {
    const Storage* const storage = c.out[k].impl()->storage;
    const NotFinite bad = not_finite(*c.out[k].impl());
    if (bad.infinite < 0) masks_.erase(storage);
    if (bad.first() < 0) continue;
    // A saved output may be -inf: attention's largest score of a query that sees no key.
    if (k > 0 && c.op->saves_outputs >> k & 1 && bad.nan < 0 && !bad.positive) continue;
    BRRR_CHECK(bad.nan < 0 && is_mask_infinity(c, bad.positive),
               "step: the first value that is not finite is element {} of the result of {}{}",
               bad.nan < 0 ? bad.infinite : bad.nan, describe(c), bad_operands(c));
    masks_[storage] = bad.positive;
  }
}

std::string CheckNumericsGuard::describe(const OpCall& c) const {
  const std::string path = shown(module_path(), SIZE_MAX);
  std::string s =
      fmt::format("{}{}{}{}(", path, path.empty() ? "" : ": ", c.op->name, c.into ? "_" : "");
  for (int k = 0; k < c.n_in; ++k) s += (k ? ", " : "") + brrr::describe(c.in[k]);
  s += ") -> ";
  for (int k = 0; k < c.n_out; ++k) s += (k ? ", " : "") + brrr::describe(c.out[k].impl());
  const std::string near = path.empty() ? trail_.near(storages_.in) : "";
  return near.empty() ? s : s + ", near " + near;
}

void CheckNumericsGuard::ran(const OpCall& c) {
  if (previous_) previous_->ran(c);
  storages_.set(c);
  check(c);
  trail_.ran(storages_.all, storages_.made, module_path());
  if (previous_) previous_->resume();
}

}  // namespace brrr::graph
