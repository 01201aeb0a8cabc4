// Kernels of a captured step that run beside the others. The emulated device runs what is beside as
// late as it may: of all orders the one in which a missing wait is most likely to show.
#include <cstdlib>

#include "brrr.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// Layers of one width, whose temporaries take each other's memory, trained in both modes.
struct Deep {
  std::vector<Tensor> weights, biases;

  Deep(int layers, int64_t width, DType dtype) {
    manual_seed(3);
    for (int k = 0; k < layers; ++k) {
      weights.push_back((randn({width, width}).to(dtype) * 0.2).to(kCUDA).set_requires_grad(true));
      biases.push_back(zeros({width}, dtype, kCUDA).set_requires_grad(true));
    }
  }
  Tensor train(const Tensor& x) {
    Tensor h = x;
    for (size_t k = 0; k < weights.size(); ++k) {
      h = (h.matmul(weights[k].t()) + biases[k]).tanh();
    }
    const Tensor loss = (h * h).mean();
    loss.backward();
    for (auto* all : {&weights, &biases}) {
      for (Tensor& p : *all) {
        const NoGradGuard guard;
        p.sub_(p.grad() * 0.1);
        p.set_grad({});
      }
    }
    return loss;
  }
};

std::vector<Tensor> trained(Mode mode, int layers, int64_t rows, int64_t width, DType dtype,
                            std::string* explained = nullptr) {
  Deep model(layers, width, dtype);
  StepOptions options;
  options.mode = mode;
  auto step = brrr::step([&](const Tensor& x) { return model.train(x); }, options);
  std::vector<Tensor> all;
  for (int call = 0; call < 6; ++call) {
    all.push_back(on_cpu(step(randn({rows, width}).to(dtype).to(kCUDA))));
  }
  for (const auto* parameters : {&model.weights, &model.biases}) {
    for (const Tensor& p : *parameters) all.push_back(on_cpu(p));
  }
  if (explained) *explained = step.explain();
  return all;
}

int kernels_beside(const std::string& explained) {
  const size_t at = explained.find(" kernels beside others");
  REQUIRE(at != std::string::npos);
  return std::atoi(explained.c_str() + explained.rfind(' ', at - 1) + 1);
}

}  // namespace

TEST_CASE("branches: products' gradients run beside each other, with the bits of eager mode") {
  if (!have_device()) return;
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    for (const int layers : {1, 2, 7}) {
      CAPTURE(name(dtype));
      CAPTURE(layers);
      const auto eager = trained(Mode::Eager, layers, 24, 40, dtype);
      std::string explained;
      const auto graph = trained(Mode::Graph, layers, 24, 40, dtype, &explained);
      REQUIRE(eager.size() == graph.size());
      for (size_t k = 0; k < eager.size(); ++k) CHECK(same_bits(eager[k], graph[k]));
      if (layers > 1) CHECK(kernels_beside(explained) >= layers - 1);
    }
  }
}

TEST_CASE("branches: BRRR_ONE_BRANCH leaves none") {
  if (!have_device()) return;
  setenv("BRRR_ONE_BRANCH", "1", 1);
  std::string explained;
  trained(Mode::Graph, 3, 24, 40, kFloat32, &explained);
  unsetenv("BRRR_ONE_BRANCH");
  CHECK(kernels_beside(explained) == 0);
}
