// Growing ranges of the emulated device.
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

}  // namespace

TEST_CASE("emulator ranges: one grows in place, begins as NaN and counts what is mapped") {
  Device d("BRRR_EMULATOR_MEMORY", "1048576");
  Function* const add = kernel(program, "add");  // Takes memory, too.
  const size_t free = free_bytes();
  void* p = nullptr;
  GOOD(driver().reserve(&p, size_t{1} << 36));
  float* x = static_cast<float*>(p);
  CHECK(free_bytes() == free);
  CHECK_FAILS(driver().fill(x, 0, 1, d.stream), "not within device memory");
  bool done = false;
  GOOD(driver().map(x, bytes, &done));
  CHECK(done);
  CHECK(free_bytes() < free);
  CHECK(all_nan(d.host(x, n)));
  GOOD(driver().fill(x, 0, bytes, d.stream));
  CHECK_FAILS(driver().fill(x, 0, bytes + 1, d.stream), "not within device memory");
  constexpr size_t more = 100000;
  GOOD(driver().map(x, more * sizeof(float), &done));
  CHECK(done);
  const std::vector<float> found = d.host(x, more);
  CHECK(std::vector<float>(found.begin(), found.begin() + n) == std::vector<float>(n, 0));
  CHECK(all_nan({found.begin() + n, found.end()}));
  const size_t left = free_bytes();
  GOOD(driver().map(x, 4, &done));  // never less
  CHECK(done);
  GOOD(driver().map(x, 2 << 20, &done));
  CHECK(!done);
  CHECK(free_bytes() == left);
  GOOD(d.launch(add, 1, n, Vectors{x, x, x + more - n, n}));
  CHECK(d.host(x + more - n, n) == std::vector<float>(n, 0));
  CHECK_FAILS(driver().map(x, size_t{1} << 37, &done), "of a range of");
  CHECK_FAILS(driver().release(x), "no device memory");
  GOOD(driver().release_range(x));
  CHECK(free_bytes() == free);
  CHECK_FAILS(driver().release_range(x), "no range");
  CHECK_FAILS(driver().map(x, 4, &done), "no range");
}

TEST_CASE("emulator ranges: bytes written on either side are seen") {
  Device d;
  void* p = nullptr;
  bool done = false;
  GOOD(driver().reserve(&p, 1000));
  float* x = static_cast<float*>(p);
  GOOD(driver().map(x, bytes, &done));
  for (float* to : {x - n, x + 1}) {
    GOOD(d.launch(kernel(program, "add"), 1, n, Vectors{x, x, to, n}));
    CHECK_FAILS(driver().synchronize(d.stream), "were written, which are outside it");
  }
  GOOD(driver().release_range(x));
}
