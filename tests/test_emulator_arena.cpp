// The growing arena of the emulated device.
#include <doctest/doctest.h>

#include <vector>

#include "tests/emulator_device.h"

using namespace brrr::test;

namespace {

const char* const program = R"(
struct Vectors { const float* a; const float* b; float* c; int n; };
KERNEL(add, Vectors, 256) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.n) p.c[i] = p.a[i] + p.b[i];
})";

constexpr int n = 64;
constexpr size_t bytes = n * sizeof(float);

// Asks for an arena of at least `size` bytes, which must succeed only if `there`.
float* arena_of(size_t size, bool there = true) {
  void* p = nullptr;
  bool done = !there;
  GOOD(driver().arena(size, &p, &done));
  CHECK(done == there);
  return static_cast<float*>(p);
}

// The arena's mapped bytes, some of them for steps of other tests; rounded up to whole floats.
size_t mapped(Stream* s) {
  size_t low = 0, high = size_t{1} << 31;
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    const bool there = words(driver().fill(arena_of(0), 0, middle, s)) == "no failure";
    there ? low = middle : high = middle - 1;
  }
  low = (low + 63) / 64 * 64;
  arena_of(low);
  return low;
}

}  // namespace

TEST_CASE("emulator arena: it grows in place, begins as NaN and counts what is mapped") {
  Device d;
  Function* const add = kernel(program, "add");  // Takes memory, too.
  const size_t before = mapped(d.stream), free = free_bytes();
  float* const x = arena_of(0) + before / sizeof(float);
  CHECK_FAILS(driver().fill(x, 0, 1, d.stream), "not within device memory");
  arena_of(before + bytes);
  CHECK(all_nan(d.host(x, n)));
  GOOD(driver().fill(x, 0, bytes, d.stream));
  CHECK_FAILS(driver().fill(x, 0, bytes + 1, d.stream), "not within device memory");
  constexpr size_t more = 20000;
  CHECK(arena_of(before + more * sizeof(float)) + before / sizeof(float) == x);
  const std::vector<float> found = d.host(x, more);
  CHECK(std::vector<float>(found.begin(), found.begin() + n) == std::vector<float>(n, 0));
  CHECK(all_nan({found.begin() + n, found.end()}));
  const size_t left = free_bytes();
  CHECK(left < free);
  arena_of(4);  // never shrinks
  arena_of(before + more * sizeof(float) + left + (1 << 20), false);
  CHECK(free_bytes() == left);
  GOOD(d.launch(add, 1, n, Vectors{x, x, x + more - n, n}));
  CHECK(d.host(x + more - n, n) == std::vector<float>(n, 0));
  CHECK_FAILS(driver().release(arena_of(0)), "no device memory");
}

TEST_CASE("emulator arena: bytes written on either side are detected") {
  Device d;
  arena_of(bytes);
  const size_t size = mapped(d.stream);
  float *const x = arena_of(0), *const end = x + size / sizeof(float);
  for (float* to : {x - n, end - n + 1}) {
    GOOD(d.launch(kernel(program, "add"), 1, n, Vectors{x, x, to, n}));
    CHECK_FAILS(driver().synchronize(d.stream), "were written, which are outside it");
  }
}
