// Derivatives computed ahead, in their functions' kernels. A gradient g * f(x) reads x in backward
// and recomputes what f shares with the function (for gelu, the normal distribution). But f needs
// no g: the function's kernel, which has x in registers, can store f instead of x. That moves as
// many bytes, evaluates fewer polynomials and gives the same bits: f is the gradient's own formula
// with g = 1. The caller (rematerialise()) checks that memory does not grow.
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
  // The gradient's tensor operand besides g; kNone if there is none or more than one.
  uint32_t only_operand(const Instr& i) const {
    uint32_t only = kNone;
    for (uint32_t value : r_.in(i).first(i.n_in - 1u)) {
      if (value == kNone) continue;
      if (only != kNone) return kNone;
      only = value;
    }
    return only;
  }

  // The function that a gradient is of, if the function's kernel can store the derivative in place
  // of operand x: that kernel writes x last, and only it and the gradient read x later. Else kNone.
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
    // All have the dtype of the arithmetic, and x decides it: the derivative's g is a scalar.
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

  // Whether `gradient` is the gradient of the instruction with respect to its operand x.
  bool is_function(const Access& a, const Instr& gradient, const Value& x) const {
    const Instr& f = r_.instrs[a.instr];
    if (!f.op->pointwise || !r_.value(a.value).same_elements(x)) return false;
    for (int k = 0; k < f.n_in; ++k) {
      const bool its = f.op->pointwise->grads[k] == gradient.op;
      if (its && r_.in(f)[k] == a.value) return polynomials(r_, f) > 0;
    }
    return false;
  }

  // The gradient with g = 1, into a new storage, to be inserted after `function`.
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

  // Replaces the gradient: the product of g and the derivative.
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
  std::vector<uint32_t> derivative_;  // By gradient: the value; kNone: none so far.
};

}  // namespace

std::unique_ptr<Recording> derivatives_ahead(const Recording& r, const Schedule& s) {
  return Ahead(r, s).run();
}

}  // namespace brrr::graph
