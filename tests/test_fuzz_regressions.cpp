// Bugs that the fuzzer and code reviews found, a case each.
#include <doctest/doctest.h>

#include "tests/fuzz_steps.h"

using namespace brrr;
using fuzz::bits_of;

TEST_CASE("regression: recordings that differ in an input's strides share no prefix") {
  bool twice = false;
  auto fn = [&](const Tensor& x) {
    const Tensor y = relu(x);
    return twice ? y * 2.0 : y + 1.0;
  };
  auto step = brrr::step(fn);
  const Tensor x = arange(9).to(kFloat32).view({3, 3});
  step(x);
  twice = true;
  step(x.t());
  // Begins like the first recording and goes on like the second, which read a transposed input.
  CHECK(bits_of(step(x)) == bits_of(fn(x)));
}

TEST_CASE("regression: recordings that differ in an input's dtype share no prefix") {
  bool negate = false;
  auto fn = [&](const Tensor& x) {
    const Tensor y = x > 1.0;
    return negate ? !y : y & y;
  };
  auto step = brrr::step(fn);
  const Tensor x = arange(9).to(kFloat32);
  step(x);
  negate = true;
  step(x.to(kFloat64));
  CHECK(bits_of(step(x)) == bits_of(fn(x)));
}

TEST_CASE("regression: a scalar that varies where an input is first used costs one recording") {
  double k = 1;
  auto step = brrr::step([&](const Tensor& x, const Tensor& y) { return x * k + y; });
  const Tensor x = randn({3}), y = randn({3});
  for (; k < 10; ++k) CHECK(bits_of(step(x, y)) == bits_of(x * k + y));
  CHECK(step.stats().recordings == 2);
}

TEST_CASE("regression: a first call whose kernels fail is undone" * doctest::test_suite("host")) {
  const Tensor w = randn({4, 2});
  Tensor held;
  auto step = brrr::step([&](const Tensor& ids) {
    held = rand({2});
    return embedding(w, ids) + held;
  });
  manual_seed(1);
  CHECK_THROWS_AS(step(tensor({7, 1})), Error);
  CHECK(rng_state().draw == 0);
  CHECK_THROWS_AS(held.to_vector<float>(), Error);
  const Tensor drawn = rand({2});
  manual_seed(1);
  CHECK(bits_of(step(tensor({3, 1}))) == bits_of(embedding(w, tensor({3, 1})) + drawn));
}

TEST_CASE("regression: as_strided counts from the storage, wherever an input begins") {
  const Tensor data = arange(20).to(kFloat32).view({10, 2});
  auto fn = [](const Tensor& x) { return as_strided(x, {2}, {1}, 0) * 2.0; };
  auto step = brrr::step(fn);
  for (int64_t k = 0; k < 4; ++k) {
    const Tensor x = data.narrow(0, 2 * k, 2);
    CHECK(bits_of(step(x)) == bits_of(fn(x)));
    CHECK(fn(x).to_vector<float>() == std::vector<float>{0, 2});
  }
  const auto before = [&] { as_strided(data.narrow(0, 2, 2), {2}, {1}, INT64_MIN); };
  CHECK_THROWS_WITH(before(), doctest::Contains("lies before the storage"));
}

TEST_CASE("regression: an error that the function catches causes no new recording") {
  auto step = brrr::step([](const Tensor& x) {
    Tensor y = x * 2.0;
    try {
      y = matmul(y, zeros({1009, 2}));
    } catch (const Error&) {
      y = y + 1.0;
    }
    return y;
  });
  const Tensor x = randn({3, 4});
  for (int k = 0; k < 5; ++k) CHECK(bits_of(step(x)) == bits_of(x * 2.0 + 1.0));
  CHECK(step.stats().recordings == 1);
}

TEST_CASE("regression: a float64 tensor is filled with the double") {
  const Tensor t = zeros({3}, kFloat64);
  t.fill_(0.1);
  CHECK(t.select(0, 0).item<double>() == 0.1);
  auto step = brrr::step([&] { t.fill_(0.3); }, {.build_at_first_call = true});
  step();
  CHECK(t.select(0, 2).item<double>() == 0.3);
}

TEST_CASE("regression: a frozen step without zero_grad keeps accumulating") {
  const Tensor w = randn({3}).set_requires_grad();
  auto step = brrr::step([&](const Tensor& x) { (w * x).sum().backward(); });
  const Tensor x = ones({3});
  step(x);
  step.freeze();
  for (int k = 2; k < 6; ++k) {
    step(x);
    CHECK(w.grad().select(0, 0).item<float>() == static_cast<float>(k));
  }
  w.set_grad({});
  step(x);
  CHECK(w.grad().select(0, 0).item<float>() == 1.0f);
}

TEST_CASE("regression: a step that throws leaves no trace of its views") {
  const Tensor held = randn({4});
  const Tensor w = randn({4}).set_requires_grad();
  bool stop = true;
  auto step = brrr::step([&] {
    held.mul_(w);
    const Tensor part = held.slice(0, 1, 3);
    if (stop) throw std::runtime_error("stopped");
    return part.sum();
  });
  CHECK_THROWS_AS(step(), std::runtime_error);
  stop = false;
  CHECK_NOTHROW(step());  // The view of the failed call would forbid the in-place product.
}

TEST_CASE("regression: rows that are kept, of a window over several dims") {
  auto fn = [](const Tensor& x) { return log_softmax(exp(x.transpose(1, 2)), 2); };
  auto step = brrr::step(fn, {.build_at_first_call = true});
  const Tensor x = randn({64, 8, 8});
  CHECK(bits_of(step(x)) == bits_of(fn(x)));
  CHECK(step.stats().fallbacks == 0);  // Two names in the kernel's text collided.
}

TEST_CASE("regression: an index that the step computes is available before it is checked") {
  // With one class the index and the result have the same elements: one kernel could hold both.
  const Tensor ids = tensor({0, 2, 0, 0, 2});
  const auto fn = [&] { return one_hot(where(ids != 2, ids, 0), 1) * 2; };
  auto step = brrr::step(fn, Mode::Graph);
  for (int call = 0; call < 3; ++call) {
    CHECK(step().to_vector<int64_t>() == fn().to_vector<int64_t>());
  }
  CHECK(step.stats().fallbacks == 0);
}
