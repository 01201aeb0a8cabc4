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

// Weights [out, in] with a bias, as a list of (in, out).
using Linears = std::vector<std::pair<double, double>>;

Linears layer_linears(double w) { return {{w, 3 * w}, {w, w}, {w, 4 * w}, {4 * w, w}}; }

// Adds the ops of a step that a linear layer has, over `rows` rows. A model's data need no
// gradient.
void add_linear(std::vector<OpCost>& ops, double rows, double in, double out, bool bias,
                bool first = false) {
  const double product = 2 * rows * in * out,
               operands = kItem * (rows * in + in * out + rows * out);
  ops.push_back({"linear", product + (bias ? rows * out : 0), operands + (bias ? kItem * out : 0)});
  ops.push_back({"weight gradient", product, operands});
  if (!first) ops.push_back({"input gradient", product, operands});
  if (bias) ops.push_back({"bias gradient", rows * out, kItem * (rows * out + out)});
}

}  // namespace

std::vector<OpCost> mlp_cost(const std::vector<int64_t>& sizes, int64_t batch,
                             const std::string& optimizer) {
  std::vector<OpCost> ops;
  const auto b = static_cast<double>(batch);
  const Update update = update_of(optimizer);
  for (size_t l = 0; l + 1 < sizes.size(); ++l) {
    const auto in = static_cast<double>(sizes[l]), out = static_cast<double>(sizes[l + 1]);
    add_linear(ops, b, in, out, true, l == 0);
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

std::vector<OpCost> gpt_cost(const GptShape& shape, int64_t batch, const std::string& optimizer) {
  std::vector<OpCost> ops;
  const auto w = static_cast<double>(shape.width), vocab = static_cast<double>(shape.vocab),
             block = static_cast<double>(shape.block), rows = static_cast<double>(batch) * block;
  const Update update = update_of(optimizer);
  // An op over the elements of so many streams.
  auto pointwise = [&](const char* name, double n, double flops, double streams) {
    ops.push_back({name, flops * n, kItem * streams * n});
  };
  auto add_update = [&](double n) { pointwise("update", n, update.flops, update.streams); };
  auto add_norm = [&] {
    pointwise("layer_norm", rows * w, 8, 2);
    pointwise("layer_norm gradient", rows * w, 14, 3);
    add_update(w);
    add_update(w);
  };
  pointwise("embeddings", rows * w, 1, 3);
  pointwise("embeddings' gradients", rows * w, 2, 3);
  for (int64_t l = 0; l < shape.layers; ++l) {
    add_norm();
    add_norm();
    for (const auto& [in, out] : layer_linears(w)) {
      add_linear(ops, rows, in, out, true);
      add_update(in * out);
      add_update(out);
    }
    // Query and key pairs under the mask, over all heads: two products forward, four backward.
    const double pairs = rows * (block + 1) / 2, heads = static_cast<double>(shape.heads);
    ops.push_back({"attention", 2 * 2 * pairs * w + 13 * pairs * heads, kItem * 4 * rows * w});
    ops.push_back(
        {"attention gradient", 4 * 2 * pairs * w + 5 * pairs * heads, kItem * 8 * rows * w});
    pointwise("gelu", rows * 4 * w, 18, 2);
    pointwise("gelu gradient", rows * 4 * w, 26, 3);
    for (int i = 0; i < 2; ++i) {
      pointwise("residual", rows * w, 1, 3);
      pointwise("residual gradient", rows * w, 1, 3);
    }
  }
  add_norm();
  add_linear(ops, rows, w, vocab, false);
  pointwise("cross_entropy", rows * vocab, 13, 1);
  pointwise("cross_entropy gradient", rows * vocab, 13, 2);
  add_update(vocab * w);
  add_update(block * w);
  return ops;
}

double gpt_working_set(const GptShape& shape, int64_t batch, const std::string& optimizer) {
  const auto w = static_cast<double>(shape.width), vocab = static_cast<double>(shape.vocab),
             block = static_cast<double>(shape.block), rows = static_cast<double>(batch) * block,
             layers = static_cast<double>(shape.layers);
  double weights = (vocab + block + 2) * w + layers * 4 * w;
  for (const auto& [in, out] : layer_linears(w)) weights += layers * (in + 1) * out;
  // A layer's activations: two norms, 3 w of queries, keys and values, attention, two sums, twice
  // 4 w of the feed-forward part. Gradients of activations: one layer's.
  const double activations = 16 * rows * w;
  return kItem * ((2 + update_of(optimizer).state) * weights + (layers + 1) * activations +
                  2 * rows * vocab);
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
