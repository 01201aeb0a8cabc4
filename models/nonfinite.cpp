#include "models/nonfinite.h"

#include <fmt/format.h>

#include "ops/pointwise_ops.h"

namespace brrr::models {

std::string first_nonfinite(const std::vector<NamedTensor>& tensors) {
  NoGradGuard guard;
  for (const auto& [name, t] : tensors) {
    if (!t.defined() || !is_floating(t.dtype())) continue;
    const Tensor finite = isfinite(t);
    if (finite.all().item<bool>()) continue;
    const auto bad = t.numel() - finite.to(kInt64).sum().item<int64_t>();
    return fmt::format("{}, {}: {} of {} elements {} not finite", name, describe(t.impl()), bad,
                       t.numel(), bad == 1 ? "is" : "are");
  }
  return "";
}

std::string first_nonfinite(const Module& module) {
  std::vector<NamedTensor> all;
  for (const auto& [name, p] : module.named_parameters()) {
    all.emplace_back(name, p);
    all.emplace_back(name + ".grad", p.grad());
  }
  for (const auto& buffer : module.named_buffers()) all.push_back(buffer);
  return first_nonfinite(all);
}

}  // namespace brrr::models
