// After warm-up a call allocates nothing from the heap, verified or frozen.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <cstdlib>
#include <new>

#include "tests/heap.h"
#include "tests/sanitizer.h"

// A sanitizer has its own operator new.
#if !BRRR_ASAN && !BRRR_TSAN

thread_local uint64_t brrr::test::heap_calls = 0, brrr::test::heap_fails_at = 0;

void* operator new(size_t bytes) {
  const bool fails = ++brrr::test::heap_calls == brrr::test::heap_fails_at;
  if (void* p = fails ? nullptr : std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

using namespace brrr;
using test::heap_calls;

TEST_CASE("step: a replay allocates nothing from the heap" * doctest::test_suite("host")) {
  models::MLP model({.sizes = {16, 32, 4}});
  optim::AdamW opt(model.parameters(), {.lr = 1e-3});
  auto train = step(
      [&](const Tensor& x, const Tensor& y) {
        const Tensor loss = cross_entropy(model(x), y);
        opt.zero_grad();
        loss.backward();
        opt.step();
        return loss;
      },
      StepOptions{.require_graph = true});
  const Tensor x = randn({8, 16}), y = randint(0, 4, {8});
  for (const bool frozen : {false, true}) {
    if (frozen) train.freeze();
    for (int k = 0; k < 50; ++k) train(x, y);
    const uint64_t before = heap_calls;
    for (int k = 0; k < 100; ++k) train(x, y);
    CHECK(heap_calls == before);
  }
}

TEST_CASE("step: a call that runs out of heap memory has its full effect, or none" *
          doctest::test_suite("host")) {
  bool failed = true;
  for (uint64_t k = 1; failed; ++k) {
    const Tensor w = ones({2}).set_requires_grad(), x = ones({2});
    optim::SGD opt({w}, {.lr = 1});
    auto train = step(
        [&](const Tensor& x) {
          const Tensor loss = (w * x).sum();
          opt.zero_grad();
          loss.backward();
          opt.step();
          return loss;
        },
        Mode::Graph);
    float is = 0;
    test::heap_fails_at = heap_calls + k;
    try {
      train(x);
    } catch (const std::exception&) {
      is = 1;
    }
    failed = heap_calls >= test::heap_fails_at;
    test::heap_fails_at = 0;
    CHECK(w.to_vector<float>() == std::vector<float>{is, is});
    train(x);
    CHECK(w.to_vector<float>() == std::vector<float>{is - 1, is - 1});
  }
}

#endif
