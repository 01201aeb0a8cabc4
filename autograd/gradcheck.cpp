#include <algorithm>
#include <cmath>

#include "autograd/autograd.h"
#include "core/check.h"
#include "core/tensor_impl.h"
#include "ops/factory_ops.h"
#include "ops/pointwise_ops.h"

namespace brrr {

namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

// Fixed weights in [0.5, 1.5): a plain sum would hide gradients that cancel.
Tensor weights_like(const Tensor& t, uint64_t salt) {
  std::vector<double> w(static_cast<size_t>(t.numel()));
  uint64_t x = 0x9e3779b97f4a7c15ull * (salt + 1);
  for (double& v : w) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    v = 0.5 + static_cast<double>(x >> 11) * 0x1p-53;
  }
  return from_blob(static_cast<const void*>(w.data()), t.sizes(), kFloat64).to(t.device());
}

Tensor weighted(const Function& fn, const std::vector<Tensor>& in) {
  const Tensor y = fn(in);
  BRRR_CHECK(y.dtype() == kFloat64, "gradcheck: fn returned {}; it must compute in float64",
             describe(y.impl()));
  return (y * weights_like(y, 1)).sum();
}

// The inputs to differentiate by; the rest is held fixed.
std::vector<Tensor> inputs_of(std::vector<Tensor> all) {
  std::erase_if(all, [](const Tensor& t) { return !is_floating(t.dtype()); });
  return all;
}

void check_once(const Function& fn, const std::vector<Tensor>& in, const GradcheckOptions& o,
                bool second, GradcheckResult& result) {
  const std::vector<Tensor> wanted = inputs_of(in);
  BRRR_CHECK(!wanted.empty(),
             "gradcheck: no input is float64, so there is nothing to check; pass "
             "the tensors to differentiate by as inputs");
  const Tensor y = weighted(fn, in);
  // A linear function's gradient is constant, but so is one that lost its history.
  const bool constant = second && !y.requires_grad();
  BRRR_CHECK(
      second || y.requires_grad(),
      "gradcheck: what fn returned does not require grad: a detach(), a NoGradGuard or an op "
      "without a gradient is between it and the inputs");
  const auto grads =
      constant ? std::vector<Tensor>(wanted.size()) : grad({y}, wanted, {.allow_unused = true});
  NoGradGuard no_grad;
  for (size_t k = 0; k < wanted.size(); ++k) {
    const Tensor x = wanted[k].view({-1});
    const std::vector<double> values = x.to_vector<double>();
    auto at = [&](int64_t i, double value) {
      x.narrow(0, i, 1).fill_(value);
      return weighted(fn, in).item<double>();
    };
    const auto analytic =
        grads[k].defined() ? grads[k].to_vector<double>() : std::vector<double>(values.size());
    for (int64_t i = 0; i < wanted[k].numel(); ++i) {
      const double was = values[static_cast<size_t>(i)];
      const double step = o.step * std::max(1.0, std::fabs(was));
      const double above = was + step, below = was - step;
      const double high = at(i, above), low = at(i, below);
      x.narrow(0, i, 1).fill_(was);
      const double numeric = (high - low) / (above - below);
      const double a = analytic[static_cast<size_t>(i)];
      double error = std::fabs(a - numeric) / (1 + std::fabs(numeric));
      if (std::isnan(error)) error = INFINITY;
      if (!(error <= o.tolerance)) result.ok = false;
      if (error >= result.worst) {
        result.worst = error;
        result.report =
            fmt::format("{} order input {} element {}: analytic {}, numeric {}, error {:.3g}",
                        second ? "second" : "first", k, i, a, numeric, error);
      }
    }
  }
}

}  // namespace

GradcheckResult gradcheck(const Function& fn, const std::vector<Tensor>& inputs,
                          GradcheckOptions options) {
  BRRR_CHECK(fn, "gradcheck: the function is empty; give one that takes the inputs");
  std::vector<Tensor> in;
  for (const Tensor& t : inputs) {
    BRRR_CHECK(!is_floating(t.dtype()) || t.dtype() == kFloat64,
               "gradcheck: an input is {}; convert with to(kFloat64)", describe(t.impl()));
    in.push_back(is_floating(t.dtype()) ? t.detach().clone().set_requires_grad(true) : t);
  }
  GradcheckResult result;
  check_once(fn, in, options, false, result);
  if (!options.second_order) return result;
  // The gradient depends on the output's gradient, too.
  const Function gradient = [&](const std::vector<Tensor>& all) {
    EnableGradGuard enable;
    const std::vector<Tensor> at(all.begin(), all.end() - 1);
    const auto g =
        grad({fn(at)}, inputs_of(at), {.create_graph = true, .allow_unused = true}, {all.back()});
    Tensor total = full({}, 0.0, kFloat64, all.back().device());
    for (size_t k = 0; k < g.size(); ++k) {
      if (g[k].defined()) total = total + (g[k] * weights_like(g[k], 7 + k)).sum();
    }
    return total;
  };
  in.push_back(weights_like(fn(in).detach(), 1).set_requires_grad(true));
  check_once(gradient, in, options, true, result);
  return result;
}

}  // namespace brrr
