// A step and other threads: tensors that they created before it, and release during it.
#include <brrr/brrr.h>
#include <doctest/doctest.h>

#include <functional>
#include <thread>

#include "tests/sink.h"

using namespace brrr;

namespace {

// Created on a thread whose tape is longer than this one's.
Tensor made_elsewhere(const std::function<Tensor()>& make) {
  Tensor y;
  std::thread([&] {
    const Tensor w = ones({3}).set_requires_grad();
    for (int k = 0; k < 100'000; ++k) w * 2.0;
    y = make();
  }).join();
  return y;
}

void call_and_throw(const std::function<void(const Tensor&)>& fn) {
  auto step = brrr::step(
      [&](const Tensor& x) {
        fn(x);
        if (x.numel() == 3) throw 42;
        return x * 1.0;
      },
      Mode::Graph);
  try {
    step(full({3}, 5.0));
  } catch (int) {}
}

}  // namespace

TEST_CASE("step: one that throws leaves another thread's tape as it was") {
  const Tensor w = tensor({1.f, 2.f, 3.f}).set_requires_grad();
  const auto check = [&](const Tensor& y) {
    w.set_grad({});
    y.sum().backward();
    CHECK(w.grad().to_vector<float>() == std::vector<float>{3, 3, 3});
  };
  const auto triple = [&] { return w * 3.0; };
  Tensor y = made_elsewhere(triple);
  call_and_throw([&](const Tensor& x) { y.mul_(x); });
  check(y);
  y = made_elsewhere(triple);
  call_and_throw([&](const Tensor& x) { y.copy_(x); });
  check(y);
  y = made_elsewhere([&] { return (w * 3.0).sum(); });
  call_and_throw([&](const Tensor&) { y.backward(); });
  check(y);
}

TEST_CASE("step: backward through another thread's tape cannot be frozen") {
  const Tensor w = tensor({1.f, 2.f, 3.f}).set_requires_grad();
  const Tensor y = made_elsewhere([&] { return (w * w).sum(); });
  auto step = brrr::step(
      [&](const Tensor& x) {
        w.set_grad({});
        y.backward();
        return x * 1.0;
      },
      Mode::Graph);
  step(ones({2}));
  CHECK_THROWS_WITH_AS(step.freeze(), doctest::Contains("a tape from before the step"), Error);
}

TEST_CASE("step: other threads release tensors that it made") {
  const size_t held = memory_stats(kCPU).live;
  {
    test::Sink sink;
    int ops = 0;
    auto step = brrr::step(
        [&](const Tensor& x) {
          Tensor h = x;
          for (int k = 0; k < ops; ++k) {
            h = h + 1.0;
            sink.give(h * 2.0);
          }
          if (ops % 7 == 0) throw 42;
          return h;
        },
        {.mode = Mode::Graph, .fuse = false});
    for (int call = 0; call < 200; ++call) {
      ops = 40 + call / 10;
      try {
        const float got = step(full({4}, call)).to_vector<float>()[0];
        CHECK(got == static_cast<float>(call + ops));
      } catch (int) {}
    }
  }
  CHECK(memory_stats(kCPU).live == held);  // Nothing is left of all that.
}
