// diagnose(): what bounds a step, and which change would help.
#include <brrr/brrr.h>
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>

#include "sanitizer.h"

using namespace brrr;

TEST_SUITE_BEGIN("host");

TEST_CASE(
    "diagnose: small ops are overhead; products are bound by compute rather than memory, and "
    "elementwise ops by memory rather than compute") {
  NoGradGuard guard;
  const auto diagnosis_of = [](const auto& f, const Tensor& x, Mode mode) {
    auto s = step(f, mode);
    const Diagnosis d = diagnose(s, x);
    CHECK(d.mode == mode);
    CHECK(d.eager_us > 0);
    CHECK(d.graph_us > 0);
    CHECK(d.us == (mode == Mode::Eager ? d.eager_us : d.graph_us));
    CHECK(d.split.compute_us + d.split.memory_us <= d.us * 1.0001);
    CHECK(d.text.find("-bound: ") != std::string::npos);
    CHECK(d.text.find("OpenBLAS") != std::string::npos);  // What it was compared with.
    CHECK(d.text.find("graph mode") != std::string::npos);
    return d;
  };
  for (Mode mode : {Mode::Eager, Mode::Graph}) {
    const auto tiny = [](const Tensor& x) { return (x + 1.0) * x - x; };
    CHECK(diagnosis_of(tiny, ones({8}), mode).split.bound() == std::string("overhead"));
    const auto stream = [](const Tensor& x) { return (x + 1.0) * x; };
    const TimeSplit memory = diagnosis_of(stream, ones({4 << 20}), mode).split;
    // Under a sanitizer its checks dominate the arithmetic.
    if (!test::kAddressSanitizer && !test::kThreadSanitizer)
      CHECK(memory.memory_us > memory.compute_us);
    const auto product = [](const Tensor& x) { return x.matmul(x); };
    const TimeSplit compute = diagnosis_of(product, randn({512, 512}), mode).split;
    CHECK(compute.compute_us > compute.memory_us);
  }
  auto inside = step([&](const Tensor& t) {
    auto inner = step([](const Tensor& x) { return x + 1.0; });
    (void)diagnose(inner, t);
    return t + 1.0;
  });
  CHECK_THROWS_WITH_AS(inside(ones({2})), doctest::Contains("outside of the step"), Error);
}

TEST_CASE("diagnose: a step that graph mode cannot run is diagnosed without it") {
  auto s = step(
      [](const Tensor& x) {
        const Tensor y = (x + 1.0) * x;
        return y.sum().item<float>() > 1e9 ? x + 1.0 : y;
      },
      Mode::Eager);
  const Diagnosis d = diagnose(s, ones({8}));
  CHECK(d.us > 0);
  CHECK(d.graph_us == 0);
  CHECK(d.text.find("graph mode cannot run it: ") != std::string::npos);
  auto throws = step([](const Tensor& x) { return x.reshape({7}); }, Mode::Eager);
  CHECK_THROWS_AS((void)diagnose(throws, ones({8})), Error);
}

TEST_CASE("diagnose: kernels far from the limits are not taken for launches, and are named") {
  NoGradGuard guard;
  auto s = step([](const Tensor& x) { return argsort(x); }, Mode::Eager);
  const Diagnosis d = diagnose(s, randn({1 << 16}));
  CHECK(d.slowest.find("sort") != std::string::npos);
  CHECK(d.slow_us > 0.5 * d.us);
  CHECK(d.text.find("kernel-bound: ") == 0);
  CHECK(d.text.find("larger batches") == std::string::npos);
}

TEST_CASE("diagnose: time that the function spends outside of its ops is not saved by a graph") {
  NoGradGuard guard;
  auto s = step(
      [](const Tensor& x) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return x + 1.0;
      },
      Mode::Eager);
  const Diagnosis d = diagnose(s, ones({8}));
  CHECK(d.predicted_us > 900);
}

TEST_CASE("diagnose: Mode::Auto decides before it is timed; no advice to freeze a frozen step") {
  NoGradGuard guard;
  auto automatic = step([](const Tensor& x) { return (x + 1.0) * x - x; }, Mode::Auto);
  const Tensor x = ones({1 << 16});
  const Diagnosis d = diagnose(automatic, x);
  CHECK((d.graph_us > 0 || automatic.explain().find("eager") != std::string::npos));
  auto frozen = step([](const Tensor& v) { return (v + 1.0) * v - v; });
  for (int i = 0; i < 3; ++i) frozen(ones({8}));
  frozen.freeze();
  CHECK(diagnose(frozen, ones({8})).text.find("freeze") == std::string::npos);
}

TEST_SUITE_END();
