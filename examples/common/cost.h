#pragma once
// What a training step has to compute and to move at least, counted from its sizes.

#include <cstdint>
#include <string>
#include <vector>

namespace examples {

/// One op of a step: its inputs are read once, its outputs are written once.
struct OpCost {
  std::string name;
  double flops = 0, bytes = 0;
};

/// Forward, backward and update of an MLP with ReLU and cross-entropy, float32.
std::vector<OpCost> mlp_cost(const std::vector<int64_t>& sizes, int64_t batch,
                             const std::string& optimizer);

/// Bytes of everything that a step touches, each counted once.
double mlp_working_set(const std::vector<int64_t>& sizes, int64_t batch,
                       const std::string& optimizer);

struct GptShape {
  int64_t vocab, block, layers, heads, width;
};

/// The same for a GPT with learned positions, GELU, biases and tied weights. Attention counts what
/// the causal mask leaves, and no scores go to memory. An exponential counts as ten operations.
std::vector<OpCost> gpt_cost(const GptShape& shape, int64_t batch, const std::string& optimizer);
double gpt_working_set(const GptShape& shape, int64_t batch, const std::string& optimizer);

/// A step's time in three parts. An op takes at least the longer of its arithmetic at the peak and
/// its traffic at the bandwidth; that time counts as compute or as memory, whichever it is.
/// Overhead is the rest (the roofline model: Williams, Waterman and Patterson, 2009).
struct Split {
  double compute_us = 0, memory_us = 0, overhead_us = 0;
  const char* regime() const;
  double overhead_share() const { return overhead_us / (compute_us + memory_us + overhead_us); }
};
Split split(const std::vector<OpCost>& ops, double us, double gflops, double gbs);

}  // namespace examples
