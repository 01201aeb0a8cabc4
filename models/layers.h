#pragma once
// Layers: modules around one op each, and Sequential. Weights have PyTorch's layout and initial
// distribution. To set one, write into it (weight.copy_(..) under NoGradGuard): a module registers
// the tensor, not the member, so one assigned to the member would be neither trained nor saved.

#include <functional>
#include <memory>

#include "models/module.h"

namespace brrr::models {

/// x W^T + b over the last dim: [.., in] -> [.., out]. Weight [out, in] and bias [out] start
/// uniform in +-1/sqrt(in).
class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, bool bias = true);
  Tensor forward(const Tensor& x) override;
  const Tensor weight, bias;  ///< bias is undefined without one.
};

/// Looks up rows of a table [n, width] by int64 ids: [..] -> [.., width]. Starts standard normal.
class Embedding : public Module {
 public:
  Embedding(int64_t n, int64_t width);
  Tensor forward(const Tensor& ids) override;
  const Tensor weight;
};

/// Normalises over the trailing dims of sizes `normalized` (one size, or IntList{2, 3}), then
/// multiplies by weight and, unless `bias` is false, adds bias (Ba et al., 2016).
class LayerNorm : public Module {
 public:
  explicit LayerNorm(const IntList& normalized, double eps = 1e-5, bool bias = true);
  /// LayerNorm({2, 3}), which could otherwise mean a copy of LayerNorm(2, 3), of size 2 and eps 3.
  template <size_t n>
  explicit LayerNorm(const int64_t (&normalized)[n]) : LayerNorm(IntList(normalized, n)) {}
  Tensor forward(const Tensor& x) override;
  const Tensor weight, bias;  ///< bias is undefined without one.

 private:
  IntList normalized_;
  double eps_;
};

/// Divides by the root mean square over the trailing dims, then scales (Zhang and Sennrich, 2019).
class RMSNorm : public Module {
 public:
  explicit RMSNorm(const IntList& normalized, double eps = 1e-5);
  template <size_t n>
  explicit RMSNorm(const int64_t (&normalized)[n]) : RMSNorm(IntList(normalized, n)) {}
  Tensor forward(const Tensor& x) override;
  const Tensor weight;

 private:
  IntList normalized_;
  double eps_;
};

/// While training, zeroes elements with probability p and scales the rest by 1 / (1 - p).
class Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) override;
  double p() const { return p_; }

 private:
  double p_;
};

/// Applies modules, which it owns, and functions, one after the other:
///
///     Sequential net;
///     net.add<Linear>(784, 256);
///     net.add(relu);
///     net.add<Linear>(256, 10);
///
/// Checkpoint names are indices, as in PyTorch: "0.weight", "0.bias", "2.weight", ...
class Sequential : public Module {
 public:
  /// Appends a module M(arguments...) and returns it.
  template <class M, class... A> M& add(A&&... arguments) {
    auto made = std::make_unique<M>(std::forward<A>(arguments)...);
    M& m = *made;
    modules_.push_back(std::move(made));
    register_module(std::to_string(parts_.size()), m);
    parts_.emplace_back([&m](const Tensor& x) { return m(x); });
    return m;
  }
  /// Appends a function without parameters.
  void add(std::function<Tensor(const Tensor&)> f);
  Tensor forward(const Tensor& x) override;

 private:
  std::vector<std::unique_ptr<Module>> modules_;
  std::vector<std::function<Tensor(const Tensor&)>> parts_;
};

}  // namespace brrr::models
