#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace brrr::bench {

enum class FloorOptimizer { Sgd, AdamW };

struct FloorHyper {
  double lr = 1e-2;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  // AdamW only
};

// The hand-written floor of a framework's MLP training step: its cost without any framework
// overhead. Linear layers with ReLU between them, mean softmax cross-entropy, float32, one thread,
// OpenBLAS for the matrix products (in blocks where that is faster), fused loops for the rest, and
// no allocation after the constructor.
//
// For a fair floor every gradient is written to memory, as in a framework whose user may read it,
// so the SGD update is not folded into the gradient's gemm. The gradient of the input is not
// computed, as no framework computes it either.
class FloorMlp {
 public:
  // sizes: {inputs, hidden..., classes}, at least two entries, all positive; batch > 0.
  // Throws std::invalid_argument otherwise. Weights and biases start at zero.
  // Sets OpenBLAS's thread count, which is global to the process, to one.
  FloorMlp(std::vector<std::int64_t> sizes, std::int64_t batch, FloorOptimizer optimizer,
           FloorHyper hyper = {});

  // One training step on x [batch, sizes.front()] and labels y [batch]; returns the loss before the
  // update. Throws std::invalid_argument for a label outside [0, classes), nothing changed.
  float step(const float* x, const std::int64_t* y);

  // The two halves of step().
  float forward_backward(const float* x, const std::int64_t* y);
  void update();

  std::size_t num_layers() const { return layers_.size(); }
  std::int64_t batch() const { return batch_; }
  std::int64_t fan_in(std::size_t layer) const { return layers_.at(layer).in; }
  std::int64_t fan_out(std::size_t layer) const { return layers_.at(layer).out; }

  // Row-major [fan_out, fan_in] and [fan_out], PyTorch's layout; valid while the object lives.
  float* weight(std::size_t layer) { return layers_.at(layer).weight.value.get(); }
  float* bias(std::size_t layer) { return layers_.at(layer).bias.value.get(); }
  const float* weight_grad(std::size_t layer) const { return layers_.at(layer).weight.grad.get(); }
  const float* bias_grad(std::size_t layer) const { return layers_.at(layer).bias.grad.get(); }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  using Buffer = std::unique_ptr<float[], Free>;

  struct Parameter {
    std::int64_t size = 0;
    Buffer value, grad, mean, square;  // mean and square: AdamW's moments
  };
  struct Layer {
    std::int64_t in = 0, out = 0;
    Parameter weight, bias;
    Buffer output;       // [batch, out], after bias and ReLU; of the last layer: the logits
    Buffer output_grad;  // [batch, out], gradient before bias and ReLU
  };

  static Buffer make_buffer(std::int64_t count);
  static Parameter make_parameter(std::int64_t size, FloorOptimizer optimizer);
  void check_labels(const std::int64_t* y) const;
  void forward(const float* x);
  float loss_and_grad(const std::int64_t* y);
  void backward(const float* x);

  std::int64_t batch_;
  FloorOptimizer optimizer_;
  FloorHyper hyper_;
  std::int64_t steps_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace brrr::bench
