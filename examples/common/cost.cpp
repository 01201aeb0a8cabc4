#include "examples/common/cost.h"

#include <algorithm>

namespace examples {

namespace {

constexpr double kItem = 4;  // bytes of a float32

// Tensors of a parameter's size that an update reads and writes, and its operations an element.
struct Update {
  double streams, flops, state;
};
Update update_of(const std::string& optimizer) {
  // sgd: p, g -> p.  adamw: p, g, m, v -> p, m, v.
  return optimizer == "adamw" ? Update{7, 14, 2} : Update{3, 2, 0};
}

}  // namespace

std::vector<OpCost> mlp_cost(const std::vector<int64_t>& sizes, int64_t batch,
                             const std::string& optimizer) {
  std::vector<OpCost> ops;
  const auto b = static_cast<double>(batch);
  const Update update = update_of(optimizer);
  for (size_t l = 0; l + 1 < sizes.size(); ++l) {
    const auto in = static_cast<double>(sizes[l]), out = static_cast<double>(sizes[l + 1]);
    const double product = 2 * b * in * out, operands = kItem * (b * in + in * out + b * out);
    ops.push_back({"linear", product + b * out, operands + kItem * out});
    ops.push_back({"weight gradient", product, operands});
    ops.push_back({"bias gradient", b * out, kItem * (b * out + out)});
    // The first layer's input needs no gradient.
    if (l > 0) ops.push_back({"input gradient", product, operands});
    if (l + 2 < sizes.size()) {
      ops.push_back({"relu", b * out, kItem * 2 * b * out});
      ops.push_back({"relu gradient", b * out, kItem * 3 * b * out});
    } else {
      ops.push_back({"cross_entropy", 5 * b * out, kItem * b * out});
      ops.push_back({"cross_entropy gradient", 5 * b * out, kItem * 2 * b * out});
    }
    for (double n : {in * out, out}) {
      ops.push_back({"update", update.flops * n, kItem * update.streams * n});
    }
  }
  return ops;
}

double mlp_working_set(const std::vector<int64_t>& sizes, int64_t batch,
                       const std::string& optimizer) {
  double elements = 0;
  const auto b = static_cast<double>(batch);
  for (size_t l = 0; l + 1 < sizes.size(); ++l) {
    const auto in = static_cast<double>(sizes[l]), out = static_cast<double>(sizes[l + 1]);
    // Parameters, gradients, state; the layer's input and the gradient of its output.
    elements += (2 + update_of(optimizer).state) * (in + 1) * out + b * (in + out);
  }
  return kItem * elements;
}

const char* Split::regime() const {
  if (overhead_us >= compute_us && overhead_us >= memory_us) return "overhead";
  return compute_us >= memory_us ? "compute" : "memory";
}

Split split(const std::vector<OpCost>& ops, double us, double gflops, double gbs) {
  Split s;
  for (const OpCost& op : ops) {
    const double compute = op.flops / gflops * 1e-3, memory = op.bytes / gbs * 1e-3;
    (compute >= memory ? s.compute_us : s.memory_us) += std::max(compute, memory);
  }
  s.overhead_us = std::max(0.0, us - s.compute_us - s.memory_us);
  return s;
}

}  // namespace examples
