// Kernels of a captured step on its side branch. The emulated device runs that branch as late as
// it may: of all orders the one in which a missing wait is most likely to show.
#include <cstdlib>
#include <tuple>

#include "brrr.h"
#include "graph/branches.h"
#include "tests/cuda_cases.h"
#include "tests/recorded.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// Layers of one width, whose temporaries reuse each other's memory, trained in both modes.
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

int groups_beside(const std::string& explained) {
  const size_t at = explained.find(" groups on the side branch");
  REQUIRE(at != std::string::npos);
  return std::atoi(explained.c_str() + explained.rfind(' ', at - 1) + 1);
}

}  // namespace

TEST_CASE("branches: independent kernels move forward, not too far and not before their operands") {
  const Tensor x = ones({8, 8});
  const graph::Recording r = record([&] {
    Tensor chain = x;
    for (int k = 0; k < 10; ++k) chain = matmul(chain, x);
    return std::vector<Tensor>{chain, matmul(x, x)};
  });
  const graph::Schedule s = graph::make_schedule(r, false);
  REQUIRE(s.groups.size() == 11);
  std::vector<KernelNote> notes(11, {"", "", "contraction", {1e6, 1e5}});
  notes[10].work = {1e4, 1e3};
  const std::vector<uint32_t> wanted = {0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9};
  CHECK(graph::order_for_branches(r, s, notes) == wanted);
}

TEST_CASE("branches: a kernel waits for the last kernel it needs of the side branch, once") {
  const graph::Recording r = record([] { return std::vector<Tensor>{ones({4}).exp()}; });
  const uint32_t value = r.out(r.instrs.back())[0], storage = r.value(value).storage;
  const char m[3] = {};
  const std::vector<std::vector<graph::Use>> uses = {{{m, m + 1, true}},
                                                     {{m + 1, m + 2, true, storage, value}},
                                                     {{m + 2, m + 3, true}},  // Main branch only.
                                                     {{m + 1, m + 2, false, storage, value}},
                                                     {{m, m + 1, false}}};
  const graph::Branches b{{1, 1, 0, 0, 0}, {}, 2};
  using graph::kNone;
  CHECK(graph::find_awaits(r, b, uses) == std::vector<uint32_t>{kNone, kNone, kNone, 1, kNone});
}

TEST_CASE("branches: products' gradients run in parallel, with the bits of eager mode") {
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
      if (layers > 1) CHECK(groups_beside(explained) >= layers - 1);
    }
  }
}

TEST_CASE("branches: BRRR_ONE_BRANCH leaves no side branch") {
  if (!have_device()) return;
  setenv("BRRR_ONE_BRANCH", "1", 1);
  std::string explained;
  trained(Mode::Graph, 3, 24, 40, kFloat32, &explained);
  unsetenv("BRRR_ONE_BRANCH");
  CHECK(groups_beside(explained) == 0);
}

TEST_CASE("branches: kernels that take memory from the pool are captured, in parallel or not") {
  if (!have_device()) return;
  const auto launches = [](const auto& f) {
    auto step = brrr::step(f, Mode::Graph);
    for (int call = 0; call < 12; ++call) {
      step(on_gpu(randn({64, 512}).to(kFloat64)), on_gpu(randn({64, 512}).to(kFloat64)));
    }
    return step.stats().launches_per_replay;
  };
  CHECK(launches([](const Tensor& x, const Tensor& y) {
          return argsort(x, 1).sum({1}) + argsort(y, 1).sum({1}) * 2;
        }) == 1);
  // Operands in a layout that the library does not take are copied: two at once, if memory allows.
  CHECK(launches([](const Tensor& x, const Tensor& y) {
          const auto odd = [](const Tensor& t) { return t.slice(1, 1, 512).slice(0, 0, 63); };
          const Tensor a = odd(x).matmul(odd(x).t()), b = odd(y).matmul(odd(y).t());
          return a.tanh().matmul(a) + b;
        }) == 1);
}

TEST_CASE("branches: an order that saves time takes no more memory") {
  if (!have_device()) return;
  const auto arena = [](int64_t batch, int64_t length, int64_t width) {
    const int64_t heads = 4, rows = batch * length;
    std::vector<Tensor> all;
    for (int k = 0; k < 5; ++k) all.push_back(zeros({width, width}, kCUDA).set_requires_grad(true));
    auto step = brrr::step(
        [&](const Tensor& x) {
          const Tensor h = linear(x, all[0]).sigmoid() * x;
          const auto split = [&](const Tensor& w) {
            return linear(h, w).view({batch, length, heads, width / heads}).transpose(1, 2);
          };
          const Tensor a = scaled_dot_product_attention(split(all[1]), split(all[2]), split(all[3]),
                                                        {.causal = true});
          const Tensor y = linear(a.transpose(1, 2).reshape({rows, width}), all[4]) + x;
          const Tensor loss = (y * y).mean();
          for (Tensor& p : all) p.set_grad({});
          loss.backward();
          return loss;
        },
        Mode::Graph);
    for (int call = 0; call < 3; ++call) step(zeros({rows, width}, kCUDA));
    return step.stats().arena_bytes;
  };
  for (const auto& [batch, length, width] :
       {std::tuple{3, 10, 112}, std::tuple{4, 16, 64}, std::tuple{2, 8, 128}}) {
    const size_t two = arena(batch, length, width);
    setenv("BRRR_ONE_BRANCH", "1", 1);
    const size_t one = arena(batch, length, width);
    unsetenv("BRRR_ONE_BRANCH");
    CHECK(two <= one);
  }
}

TEST_CASE("branches: of two ids out of range the one that eager mode reports is reported") {
  if (!have_device()) return;
  const auto reported = [](const StepOptions& options) {
    manual_seed(1);
    const Tensor a = on_gpu(randn({50, 32})).set_requires_grad(true);
    const Tensor b = on_gpu(randn({70, 32})).set_requires_grad(true);
    const Tensor w = on_gpu(randn({32, 32})).set_requires_grad(true);
    auto step = brrr::step(
        [&](const Tensor& i, const Tensor& j) {
          const Tensor h = embedding(a, i).matmul(w).tanh().matmul(w).tanh().matmul(w);
          const Tensor sum = h.sum() + embedding(b, j).sum();
          for (const Tensor& t : {a, b, w}) t.set_grad({});
          sum.backward();
          return sum;
        },
        options);
    for (int call = 0; call < 3; ++call)
      step(randint(0, 50, {8}, kCUDA), randint(0, 70, {8}, kCUDA));
    try {
      step(full({8}, 57, kInt64).to(kCUDA), full({8}, 79, kInt64).to(kCUDA)).item<float>();
    } catch (const Error& e) {
      return std::string(e.what()).find("57") != std::string::npos;
    }
    return false;
  };
  CHECK(reported({.mode = Mode::Eager}));
  CHECK(reported({.mode = Mode::Graph}));
  CHECK(reported({.mode = Mode::Graph, .fuse = false}));
}

TEST_CASE("branches: a profile lists planning and building as done once, apart from the steps") {
  if (!have_device()) return;
  const TempCache cache;
  Deep model(2, 24, kFloat32);
  auto step = brrr::step([&](const Tensor& x) { return model.train(x); }, Mode::Graph);
  const Profile profile;
  for (int call = 0; call < 4; ++call) step(randn({8, 24}, kCUDA));
  CHECK(profile.report().find("done once") != std::string::npos);
}
