// Instructions of a step, measured by the lab's own counter.
#include "examples/lab/instructions.cpp"
#include "pitfalls.h"
#include "sanitizer.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// Instructions of a call of a step with `ops` ops; 0 if they cannot be counted.
int64_t instructions_of(int ops, bool freeze) {
  const Tensor x = ones({8});
  auto step = brrr::step(
      [ops](const Tensor& t) {
        Tensor h = t;
        for (int i = 0; i < ops; ++i) h = h * 1.0009765625;
        return h;
      },
      kEarly);
  for (int i = 0; i < 3; ++i) step(x);
  if (freeze) step.freeze();
  const auto by_function = examples::lab::instructions([&] { step(x); });
  int64_t sum = 0;
  for (const auto& [function, n] : by_function.value_or(examples::lab::Instructions())) sum += n;
  return sum;
}

}  // namespace

// `bench_ratios --instr` gives exact counts (tests/bench/README.md).
TEST_CASE("pitfall D5: an op that is verified takes few instructions" *
          doctest::test_suite("host")) {
  if (kAddressSanitizer || kThreadSanitizer) return;
  const int64_t few = instructions_of(100, false), many = instructions_of(300, false);
  if (!few || !many) {
    MESSAGE("left out: this process may not be traced");
    return;
  }
  const int64_t each = (many - few) / 200, frozen = instructions_of(300, true);
  MESSAGE(each << " instructions an op; a call of 300 ops " << many << ", frozen " << frozen);
  CHECK(each > 10);
#ifdef NDEBUG
  CHECK(each < 600);  // Twice the usual count.
#else
  CHECK(each < 3000);
#endif
  CHECK(frozen < many / 4);
}
