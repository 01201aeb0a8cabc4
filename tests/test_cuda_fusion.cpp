// Row ops, reductions and the ops around them are fused on the device as on the CPU, with the bits
// of the device's eager mode.

#include <set>
#include <sstream>

#include "tests/cuda_cases.h"
#include "tests/kernels.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// f(x, w) over rows computed by a thread, some lanes, a warp and a block, with and without tails.
template <class F> void over_shapes(uint64_t want, const F& f) {
  const std::vector<IntList> all = {{8, 4100}, {130, 65}, {3, 5, 33}, {200, 8}};
  for (const DType t : {kFloat32, kFloat64, kBFloat16}) {
    for (size_t k = 0; k < (t == kFloat32 ? all.size() : 1); ++k) {
      CAPTURE(to_string(all[k]));
      CAPTURE(t);
      const Tensor x = on_gpu(randn(all[k]).to(t)), w = on_gpu(randn({all[k].back()}).to(t));
      CHECK(kernels([&] { return f(x, w); }) == want);
    }
  }
}

}  // namespace

TEST_CASE("cuda fusion: what users write with exp, sum and division is one kernel") {
  if (!have_device()) return;
  const TempCache cache;
  over_shapes(1, [](const Tensor& x, const Tensor& w) {
    const Tensor e = exp(x - amax(x, {-1}, true));
    return Tensors{e / e.sum({-1}, true) * w};
  });
  over_shapes(1, [](const Tensor& x, const Tensor& w) {
    const Tensor s = (x * 0.5).sum({-1}, true), p = prod(x * 0.3, {-1}, true);
    return Tensors{s, x * w + s, norm(x, {-1}, true), p, tanh(s) * 2.0};
  });
}

TEST_CASE("cuda fusion: the same ids with different ignored ids, around ids of another op") {
  if (!have_device()) return;
  const TempCache cache;
  const Tensor x = on_gpu(randn({6, 33})), w = on_gpu(randn({33}));
  const Tensor a = on_gpu(tensor(std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
  const Tensor b = on_gpu(tensor(std::vector<int64_t>{2, 2, 1, 1, 0, 0}));
  CHECK(kernels([&] {
          const auto loss = [z = x * w](const Tensor& ids, int64_t ignored) {
            return cross_entropy(z, ids, {.ignore_index = ignored, .reduction = Reduction::None});
          };
          return Tensors{loss(a, 0), loss(b, -100), loss(a, 1)};
        }) == 1);
}

TEST_CASE("cuda fusion: row ops and their neighbours") {
  if (!have_device()) return;
  const TempCache cache;
  over_shapes(1, [](const Tensor& x, const Tensor& w) { return Tensors{softmax(x * w, -1) + x}; });
  over_shapes(1, [](const Tensor& x, const Tensor& w) {
    return Tensors{layer_norm(x + w + x * 0.1, {x.size(-1)}, w, Tensor(), 1e-5)};
  });
}

TEST_CASE("cuda fusion: row ops of rows that a reduction splits in pieces, written in place too") {
  if (!have_device()) return;
  const TempCache cache;
  for (const IntList& sizes : {IntList{8, 16385}, IntList{3, 40004}}) {
    CAPTURE(to_string(sizes));
    const int64_t n = sizes[1];
    const Tensor x = on_gpu(randn(sizes)), w = on_gpu(randn({n})), ids = on_gpu(tensor({5, 6, 7}));
    const auto half = [&] { return (x * w).to(kBFloat16).to(kFloat32); };
    CHECK(kernels([&] { return Tensors{softmax(half(), -1) + x}; }) == 1);
    CHECK(kernels([&] {
            const Tensor y = layer_norm(half(), {n}, w);
            y.copy_(log_softmax(y, -1) - y);
            return Tensors{y};
          }) == 1);
    CHECK(kernels([&] { return Tensors{softmax(half(), -1).sum({-1})}; }) == 2);
    if (sizes[0] != 3) continue;
    const Tensor leaf = on_gpu(randn(sizes).to(kBFloat16).set_requires_grad(true));
    kernels([&] {
      const Tensor loss = cross_entropy(leaf.to(kFloat32) * w, ids, {.ignore_index = 6});
      return Tensors{loss, grad({loss}, {leaf})[0]};
    });
  }
}

TEST_CASE("cuda fusion: gradients, with those of weights, are one group of kernels") {
  if (!have_device()) return;
  const TempCache cache;
  for (const IntList& sizes : {IntList{9, 11}, {64, 64}, {700, 65}, {200, 48}, {3, 50, 32}}) {
    CAPTURE(to_string(sizes));
    const int64_t n = sizes.back();
    Tensor x = on_gpu(randn(sizes)), w = on_gpu(randn({n})), b = on_gpu(randn({n}));
    for (Tensor* t : {&x, &w, &b}) t->set_requires_grad(true);
    const auto fn = [&] {
      const Tensor y = layer_norm(x * 1.5, {n}, w, b, 1e-5);
      Tensors g = grad({y}, {x, w, b}, {}, {cos(y)});
      g.push_back(y);
      return g;
    };
    CHECK(kernels(fn) == 2);  // Sums over rows finish in a second kernel.
  }
}

TEST_CASE("cuda fusion: a loss over rows; an id out of range is reported") {
  if (!have_device()) return;
  const TempCache cache;
  const Tensor x = on_gpu(randn({70, 33}).set_requires_grad(true)), w = on_gpu(randn({33}));
  Tensor ids = on_gpu(randint(0, 33, {70}));
  for (const double smoothing : {0.0, 0.1}) {
    CHECK(kernels([&] {
            const Tensor loss =
                cross_entropy(x * w, ids, {.ignore_index = 3, .label_smoothing = smoothing});
            return Tensors{loss, grad({loss}, {x})[0]};
          }) <= 4);  // The id count and the loss each finish in a second launch.
  }
  auto step = brrr::step([&] { return cross_entropy(x * w, ids); },
                         {.require_graph = true, .build_at_first_call = true});
  step();
  ids.slice(0, 5, 6).fill_(int64_t{33});
  const std::string error = error_of([&] { on_cpu(step()); });
  CHECK_MESSAGE(error.find("cross_entropy: index 33 is out of range") == 0, error);
}

TEST_CASE("cuda fusion: of two calls that check ids, the one that finds a bad id is named") {
  if (!have_device()) return;
  const TempCache cache;
  const Tensor x = on_gpu(randn({40, 20}));
  for (const auto& looks : {std::pair{false, false}, {true, false}, {false, true}}) {
    const bool first = looks.first, own = looks.second;
    Tensor a = on_gpu(randint(0, 20, {40})), b = on_gpu(randint(0, 20, {40}));
    auto step = brrr::step(
        [&] {
          const Tensor h = one_hot(a, 20).to(kFloat32) + x;
          if (!own) return Tensors{cross_entropy(h, b), h};
          // Two calls of one name, one of which checks the same ids as a third call.
          const Tensor l = cross_entropy(x, a, {.reduction = Reduction::None});
          return Tensors{(h + one_hot(b, 20).to(kFloat32) * x) * l.unsqueeze(1)};
        },
        {.require_graph = true, .build_at_first_call = true});
    step();
    (first ? a : b).slice(0, 7, 8).fill_(int64_t{99});
    const std::string error = error_of([&] { on_cpu(step()[0]); });
    const std::string wanted = first || own ? "one_hot: index 99" : "cross_entropy: index 99";
    CHECK_MESSAGE(error.find(wanted) == 0, error);
  }
}

TEST_CASE("cuda fusion: one_hot in a kernel with and without rows reports ids out of range") {
  if (!have_device()) return;
  const TempCache cache;
  const Tensor x = on_gpu(randn({70, 33}));
  for (const bool rows : {false, true}) {
    const Tensor ids = on_gpu(randint(0, 33, {70}));
    const auto fn = [&] {
      const Tensor hit = where(one_hot(ids, 33) != 0, x, 0.0);
      return rows ? hit.sum({-1}) : hit * 2.0;
    };
    CHECK(kernels([&] { return Tensors{fn()}; }) == 1);
    auto step = brrr::step(fn, {.require_graph = true, .build_at_first_call = true});
    step();
    ids.slice(0, 5, 6).fill_(int64_t{-1});
    const std::string error = error_of([&] { on_cpu(step()); });
    CHECK_MESSAGE(error.find("one_hot: index -1 is out of range") == 0, error);
  }
}

TEST_CASE(
    "cuda fusion: ids with a sum over wide rows, scalars written in place, values shared by rows") {
  if (!have_device()) return;
  const TempCache cache;
  Tensor logits = on_gpu(randn({20, 200}).set_requires_grad(true));
  Tensor bias = on_gpu(randn({200}).set_requires_grad(true));
  const Tensor ids = on_gpu(randint(0, 200, {20}));
  kernels([&] { return grad({cross_entropy(logits + bias, ids)}, {logits, bias}); });
  kernels([&] { return Tensors{full({16, 64}, 2.0, kFloat32, kCUDA).sum({-1})}; });
  kernels([&] { return Tensors{ones({100000}, kFloat32, kCUDA).sum()}; });
  const Tensor v = on_gpu(randn({16, 1}));
  kernels([&] {
    return Tensors{(v.expand({16, 64}) * 2.0).sum({-1}), softmax(v.expand({16, 64}), -1)};
  });
  const Tensor x = on_gpu(randn({16, 1, 64})), row = on_gpu(randn({1, 5000}));
  kernels([&] { return Tensors{softmax(triu(x), -1), tril(row).sum()}; });
  const Tensor long_row = on_gpu(randn({40000})), wide = on_gpu(randn({40, 256}));
  kernels([&] {
    const Tensor count = full({1}, 3.0, kFloat32, kCUDA) * long_row.slice(0, 0, 1);
    count.add_(1.0);
    const Tensor y = long_row.sum() / count;
    count.mul_(2.0);
    return Tensors{y, y + count, count};
  });
  kernels([&] {
    const Tensor u = matmul(wide, wide.slice(0, 0, 1).t());
    const Tensor s = (wide * u).sum({0});
    u.add_(1.0);
    return Tensors{u, s};
  });
}

TEST_CASE("cuda fusion: ids and sums over rows with more than sixteen operands") {
  if (!have_device()) return;
  const TempCache cache;
  Tensors x;
  for (int k = 0; k < 20; ++k) x.push_back(on_gpu(randn({40, 64})));
  const Tensor ids = on_gpu(randint(0, 64, {40}));
  kernels([&] {
    Tensor z = x[0] * 0.5;
    for (size_t k = 1; k < x.size(); ++k) z = z + x[k];
    return Tensors{cross_entropy(z, ids), z.sum({0})};
  });
}

// Blocks cover rows past the last, lanes elements past a row's end: they must not read what others
// are writing. Rows computed by a thread, some lanes and a warp, with and without folds over rows.
TEST_CASE("cuda fusion: rows written in place, with blocks that extend past the last row") {
  if (!have_device()) return;
  const TempCache cache;
  for (const IntList& sizes :
       {IntList{28, 8}, IntList{58, 31}, IntList{68, 32}, IntList{60, 127}}) {
    CAPTURE(to_string(sizes));
    const int64_t rows = sizes[0], n = sizes[1];
    const Tensor x = on_gpu(randn({rows, 3})), y = on_gpu(randn({3, n})), w = on_gpu(randn({n}));
    const Tensor v = on_gpu(randn({rows, 1}));
    kernels([&] {
      const Tensor a = matmul(x, y), b = matmul(x, y * 0.5), c = matmul(x, y * 2.0);
      a.copy_(log_softmax(a, -1) - a);
      b.copy_(exp(b) * v.expand(sizes).sum({-1}, true));  // Reads b once, after a sum.
      const Tensor d = layer_norm(c, {n}, w);
      c.copy_(d);
      return Tensors{a, b, c, (d * w).sum({0}), (d * d).sum({0})};
    });
  }
}

TEST_CASE("cuda fusion: a GPT's step has the CPU's plan") {
  if (!have_device()) return;
  const TempCache cache;
  const auto groups = [](Device device, size_t& launches) {
    manual_seed(1);
    models::GPT gpt({.vocab = 17, .block = 8, .layers = 1, .heads = 2, .width = 16});
    gpt.to(device);
    optim::AdamW optimizer(gpt.parameters(), {.lr = 1e-3});
    const Tensor ids = randint(0, 17, {3, 8}).to(device), next = randint(0, 17, {24}).to(device);
    auto step = brrr::step(
        [&] {
          optimizer.zero_grad();
          const Tensor loss = cross_entropy(reshape(gpt(ids), {24, 17}), next);
          loss.backward();
          optim::clip_grad_norm_(gpt.parameters(), 1.0);
          optimizer.step();
          return loss;
        },
        {.require_graph = true, .build_at_first_call = true});
    step();
    launches = step.stats().kernels_per_replay;
    // On a device some groups run in another order, or on the side branch.
    const std::string text = step.explain(), beside = ", on the side branch";
    const size_t begin = text.find("kernels of entry 0:"),
                 end = text.find("the fused kernels move");
    REQUIRE(begin < end);
    std::istringstream lines(text.substr(begin, end - begin));
    std::multiset<std::string> all;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  ") || line.starts_with("   ")) continue;  // Why two are not fused.
      if (line.ends_with(beside)) line.resize(line.size() - beside.size());
      all.insert(line);
    }
    return all;
  };
  size_t on_cpu = 0, on_device = 0;
  const auto device = groups(kCUDA, on_device), host = groups(kCPU, on_cpu);
  CHECK(device == host);
  CHECK(device.size() > 20);
  CHECK(on_device <= on_cpu + 9);  // Sums over rows and whole tensors finish in a second launch.
}

TEST_CASE("cuda fusion: a step without fusion gives no reasons for kernels that are not fused") {
  if (!have_device()) return;
  const TempCache cache;
  double c = 1.0;  // What varies is read by a generated kernel, also without fusion.
  for (const bool fuse : {true, false}) {
    auto step = brrr::step([&](const Tensor& x) { return sort(x * c * c).first; },
                           StepOptions{.require_graph = true, .fuse = fuse});
    const Tensor x = on_gpu(randn({4, 8}));
    for (int call = 0; call < 4; ++call, c += 0.5) step(x);
    CHECK(step.stats().kernels_per_replay == (fuse ? 3 : 4));  // A sort takes two.
    CHECK(step.explain().find("not fused with") == std::string::npos);
  }
}

TEST_CASE("cuda fusion: rows with the largest number of dims, and with no elements") {
  if (!have_device()) return;
  const TempCache cache;
  // Sums over long rows are split into pieces, which add a dim.
  const Tensor base = randn({2, 2, 2, 2, 2, 2, 2, 200}).to(kCUDA), w = on_gpu(randn({200}));
  const Tensor x = base.permute({6, 5, 4, 3, 2, 1, 0, 7});
  kernels([&] {
    const Tensor y = x * w + 1.0;
    return Tensors{(y * x).sum({0, 1, 2, 3, 4, 5, 6}), exp(y * 0.1)};
  });
  auto step = brrr::step(
      [](const Tensor& none, const Tensor& some) {
        return std::pair(dropout(none, 0.5, true) + rand({0, 5}, kCUDA), some * 2.0);
      },
      StepOptions{.require_graph = true});
  for (int call = 0; call < 3; ++call) {
    const auto [none, some] = step(on_gpu(zeros({0, 5})), on_gpu(ones({3})));
    CHECK(none.sizes() == IntList{0, 5});
    check_same(on_cpu(some), full({3}, 2.0));
  }
}

TEST_CASE("cuda fusion: a whole tensor's fold together with stores, in few registers") {
  if (!have_device()) return;
  const TempCache cache;
  const Tensor x = on_gpu(randn({1, 40000}).to(kBFloat16)),
               y = on_gpu(randn({1, 40000}).to(kBFloat16));
  kernels([&] {
    const Tensor e = x * 0.5;
    return Tensors{mse_loss(e, y), e + y, e * 3.0, y * 0.25};
  });
}
