// Your own step: change the model, the loss and the batches here. `overhead --own` measures it in
// every mode and reports what bounds it; `lab` diagnoses it in three sizes, and `lab --model own`
// runs batch doubling on it.
#include "examples/common/task.h"

namespace examples {

namespace {

using brrr::Tensor;

constexpr int64_t kInputs = 32, kClasses = 10;

// A gated cell that is applied four times; with o.scales, also a vector that is scaled and shifted.
class Own : public brrr::models::Module {
 public:
  explicit Own(const OwnOptions& o)
      : in_(kInputs, o.width),
        cell_(o.width, o.width),
        gate_(o.width, o.width),
        out_(o.width, kClasses) {
    register_module("in", in_);
    register_module("cell", cell_);
    register_module("gate", gate_);
    register_module("out", out_);
    if (o.scales == 0) return;
    scale_ = register_parameter("scale", brrr::ones({o.scales}));
    shift_ = register_parameter("shift", brrr::zeros({o.scales}));
  }

  Tensor forward(const Tensor& x) override {
    Tensor h = tanh(in_(x));
    for (int i = 0; i < 4; ++i) h = h + tanh(cell_(h)) * sigmoid(gate_(h));
    return out_(h);
  }
  Tensor loss(const Tensor& x, const Tensor& y) {
    const Tensor loss = cross_entropy((*this)(x), y);
    if (!scale_.defined()) return loss;
    const Tensor penalty = scale_ * 0.5 + shift_;
    return loss + mean(penalty * penalty);
  }

 private:
  brrr::models::Linear in_, cell_, gate_, out_;
  Tensor scale_, shift_;
};

Batches own_batches(int64_t batch) {
  const auto y = [&] { return brrr::randint(0, kClasses, {batch}); };
  return make_batches([&] { return brrr::randn({batch, kInputs}); }, y);
}

}  // namespace

Task own_task(const OwnOptions& o) {
  return {fmt::format("own model of width {}{}", o.width,
                      o.scales ? fmt::format(" with {} scales", o.scales) : ""),
          "a parameter's update",
          {1, 8, 32, 128},
          own_batches,
          [o] {
            auto model = std::make_shared<Own>(o);
            return Learner{
                model, [&m = *model](const Tensor& x, const Tensor& y) { return m.loss(x, y); }};
          }};
}

}  // namespace examples
