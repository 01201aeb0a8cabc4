// Derivatives computed ahead, with their functions. A gradient g * f(x) needs x in backward, where
// what f shares with the function (of gelu the normal distribution) is computed once more. But f
// needs no g: the function's kernel can make it, which has x in registers, and keep it instead of
// x. As many bytes, fewer polynomials, and the same bits: f is the gradient's own formula of a g of
// 1. Whether it takes no more memory either is for who asks to see.
#include <algorithm>

#include "graph/cost.h"
#include "graph/rematerialise.h"
#include "ops/kinds/pointwise.h"

namespace brrr::graph {

namespace {

class Ahead {
 public:
  Ahead(const Recording& r, const Schedule& s) : r_(r), s_(s) {}

  std::unique_ptr<Recording> run() {
    std::vector<std::vector<uint32_t>> gradients(r_.instrs.size());  // By function.
    for (uint32_t at = 0; at < r_.instrs.size(); ++at) {
      const uint32_t function = function_of(at);
      if (function != kNone) gradients[function].push_back(at);
    }
    if (std::ranges::all_of(gradients, [](const auto& all) { return all.empty(); })) return nullptr;
    out_ = std::make_unique<Recording>(r_);
    out_->instrs.clear();
    derivative_.assign(r_.instrs.size(), kNone);
    for (uint32_t at = 0; at < r_.instrs.size(); ++at) {
      out_->instrs.push_back(derivative_[at] == kNone ? r_.instrs[at] : product(at));
      for (uint32_t gradient : gradients[at]) {
        out_->instrs.push_back(derivative(gradient, at));
      }
    }
    out_->complete();
    return std::move(out_);
  }

 private:
  // The operand of a gradient that it is computed from beside g, where that is one tensor; kNone.
  uint32_t only_operand(const Instr& i) const {
    uint32_t only = kNone;
    for (uint32_t value : r_.in(i).first(i.n_in - 1u)) {
      if (value == kNone) continue;
      if (only != kNone) return kNone;
      only = value;
    }
    return only;
  }

  // The function of a gradient whose derivative can be kept instead of the function's operand: that
  // gets its value in the function's kernel, and nobody else reads it. kNone: there is none.
  uint32_t function_of(uint32_t at) const {
    const Instr& i = r_.instrs[at];
    const uint32_t group = s_.group_of[at];
    if (group == kNone || !s_.groups[group].fused || !i.op->pointwise) return kNone;
    if (!i.op->pointwise->times || i.into || i.attrs.dynamic || polynomials(r_, i) == 0) {
      return kNone;
    }
    const uint32_t id = only_operand(i);
    if (id == kNone || r_.in(i).back() == kNone) return kNone;
    const Value &x = r_.value(id), &g = r_.value(r_.in(i).back()), &y = r_.value(r_.out(i)[0]);
    // Of one dtype, that of the arithmetic, which g alone does not decide.
    const PointwiseInfo& info = *i.op->pointwise;
    const bool exact = x.dtype == y.dtype && g.dtype == y.dtype &&
                       compute_type(y.dtype) == y.dtype && !info.traits.wide &&
                       (info.traits.condition | info.integers) == 0;
    if (!exact || x.size_list() != y.size_list() || r_.lasting[x.storage]) return kNone;
    uint32_t written = 0, function = kNone;
    for (const Access& a : r_.accesses[x.storage]) {
      if (a.write) written = a.instr;
    }
    const uint32_t home = s_.group_of[written];
    if (written > at || home == group || !s_.groups[home].fused) return kNone;
    for (const Access& a : r_.accesses[x.storage]) {
      if (a.instr <= written || a.instr == at) continue;
      if (s_.group_of[a.instr] != home) return kNone;
      if (is_function(a, i, x)) function = a.instr;
    }
    return function;
  }

  // Whether an instruction that reads x is what `gradient` is the gradient of.
  bool is_function(const Access& a, const Instr& gradient, const Value& x) const {
    const Instr& f = r_.instrs[a.instr];
    if (!f.op->pointwise || !r_.value(a.value).same_elements(x)) return false;
    for (int k = 0; k < f.n_in; ++k) {
      const bool its = f.op->pointwise->grads[k] == gradient.op;
      if (its && r_.in(f)[k] == a.value) return polynomials(r_, f) > 0;
    }
    return false;
  }

  // The gradient of a g of 1, into memory of its own; `function` is where it comes.
  Instr derivative(uint32_t gradient, uint32_t function) {
    Instr i = r_.instrs[gradient];
    Value v = r_.value(only_operand(i));
    const Device device = r_.storages[v.storage].device;
    std::ranges::copy(contiguous_strides(v.size_list()), v.strides);
    v.storage = static_cast<uint32_t>(out_->storages.size());
    const auto bytes = static_cast<size_t>(v.numel * v.item());
    out_->storages.push_back({Origin::Internal, device, bytes, kNone});
    v.offset = 0;
    v.strided = false;
    derivative_[gradient] = static_cast<uint32_t>(out_->values.size());
    out_->values.push_back(v);

    std::vector<uint32_t> all(r_.in(i).begin(), r_.in(i).end());
    all.back() = kNone;
    all.push_back(derivative_[gradient]);
    i.attrs.kinds |= 3u << (2 * (i.n_in - 1));
    i.attrs.push(1.0);
    i.path = r_.instrs[function].path;
    out_->put_operands(i, i.n_in, all);
    return i;
  }

  // What the gradient is of that derivative.
  Instr product(uint32_t gradient) {
    Instr i = r_.instrs[gradient];
    const uint32_t g = r_.in(i).back(), y = r_.out(i)[0];
    i.op = i.op->pointwise->times;
    i.attrs.n = 0;
    i.attrs.kinds = 0;
    out_->put_operands(i, 2, {g, derivative_[gradient], y});
    return i;
  }

  const Recording& r_;
  const Schedule& s_;
  std::unique_ptr<Recording> out_;
  std::vector<uint32_t> derivative_;  // By gradient: the value, once it is made.
};

}  // namespace

std::unique_ptr<Recording> derivatives_ahead(const Recording& r, const Schedule& s) {
  return Ahead(r, s).run();
}

}  // namespace brrr::graph
