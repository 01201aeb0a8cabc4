#pragma once
// One call of an op: from tensors and attributes to results. (Pointwise calls, whose operands may
// be scalars, have forms of their own: ops/kinds/pointwise.h.)
//
//   return call(slice_row, {t}, SliceAttrs{.dim = d, .start = 0, .length = n, .step = 1});

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>

#include "core/error.h"
#include "core/op.h"

namespace brrr {

/// Inputs of a call, {x, weight}, or an array of n. They are borrowed until it has run; an
/// undefined tensor is an absent input.
class Inputs {
 public:
  static constexpr int kMost = 128;
  struct Input {
    TensorImpl* impl;
    Input(const Tensor& t) : impl(t.impl()) {}  // NOLINT(google-explicit-constructor)
  };
  Inputs(std::initializer_list<Input> list) : n_(static_cast<int>(list.size())) {
    std::transform(list.begin(), list.end(), in_, [](const Input& i) { return i.impl; });
  }
  Inputs(const Tensor* tensors, int n) : n_(n) {
    if (n > kMost) throw Error("a call takes at most " + std::to_string(kMost) + " inputs");
    std::transform(tensors, tensors + n, in_, [](const Tensor& t) { return t.impl(); });
  }
  TensorImpl* const* data() const { return in_; }
  int size() const { return n_; }

 private:
  TensorImpl* in_[kMost];
  int n_;
};

/// The first result. Attributes are words, structs and lists of them (see Attrs), or the result's
/// dtype or device.
template <class... Attributes>
Tensor call(const OpDef& op, const Inputs& in, const Attributes&... attributes) {
  OpCall c(op, in.data(), in.size());
  (c.attrs.push(attributes), ...);
  dispatch(c);
  return std::move(c.out[0]);
}

/// All results: op.n_out of them, unless the row's number of outputs varies from call to call.
using Outputs = std::array<Tensor, kMaxOutputs>;
template <class... Attributes>
Outputs call_outputs(const OpDef& op, int n_out, const Inputs& in,
                     const Attributes&... attributes) {
  OpCall c(op, in.data(), in.size(), n_out);
  (c.attrs.push(attributes), ...);
  dispatch(c);
  Outputs outputs;
  std::move(c.out, c.out + n_out - op.n_scratch, outputs.begin());
  return outputs;
}

/// Writes the result into `out`, in place.
template <class... Attributes>
void call_into(const Tensor& out, const OpDef& op, const Inputs& in,
               const Attributes&... attributes) {
  OpCall c(op, in.data(), in.size());
  (c.attrs.push(attributes), ...);
  c.into = true;
  c.out[0] = out;
  dispatch(c);
}

}  // namespace brrr
