// Kernels on the emulated device.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/emulator_device.h"
#include "tests/temp_cache.h"

using namespace brrr::test;

namespace {

// One program for all cases: compiling is the slow part.
const char* const program = R"(
using namespace brrr::vx;

struct Vectors { const float* a; const float* b; float* c; int n; };
KERNEL(add, Vectors, 256) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= p.n) return;
  p.c[i] = p.a[i] + p.b[i];
}
KERNEL(where, Vectors, 256) {  // unravels its three-dimensional index
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  p.c[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = block * 1000 + thread;
}
KERNEL(barrier_in_loop, Vectors, 256) {
  if (threadIdx.x == 3) __syncthreads();
}

// A template: its shared memory is a static variable of vague linkage.
template <class T>
__device__ T sum_of_block(T x) {
  __shared__ T partial[256];
  partial[threadIdx.x] = x;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
    __syncthreads();
  }
  return partial[0];
}
BLOCK_KERNEL(block_sum, Vectors, 256) {
  const float sum = sum_of_block(p.a[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x == 0) p.c[blockIdx.x] = sum;
}
BLOCK_KERNEL(race, Vectors, 256) {  // block_sum without its barriers
  __shared__ float partial[256];
  partial[threadIdx.x] = p.a[threadIdx.x];
  p.c[threadIdx.x] = partial[(threadIdx.x + 1) % blockDim.x];
}
BLOCK_KERNEL(early, Vectors, 256) {  // threads that have returned are not waited for
  __shared__ float x;
  if (threadIdx.x >= 40) return;
  if (threadIdx.x == 7) x = 5;
  __syncthreads();
  p.c[threadIdx.x] = x;
}
BLOCK_KERNEL(warp_sums, Vectors, 256) {
  const float x = p.a[threadIdx.x];
  float sum = x;
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  double down = x;
  for (int delta = 16; delta > 0; delta /= 2) down += shuffle_down(down, delta);
  __syncwarp();
  const unsigned odd = ballot(int(x) % 2);
  const long second = shuffle(long(x), 1);
  if (threadIdx.x % 32) return;
  float* c = p.c + threadIdx.x / 32 * 4;
  c[0] = sum;
  c[1] = down;
  c[2] = __builtin_popcount(odd);
  c[3] = second;
}
BLOCK_KERNEL(dynamic, Vectors, 256) {
  DYNAMIC_SHARED(float, x);
  p.c[threadIdx.x] = x[threadIdx.x];  // not written before
  x[threadIdx.x + p.n] = 1;
}

BLOCK_KERNEL(diverges, Vectors, 256) {
  if (threadIdx.x < 40) __syncthreads();
  else p.c[0] = 0;
  __syncthreads();
}
BLOCK_KERNEL(half_a_warp, Vectors, 256) {
  if (threadIdx.x % 32 < 16) p.c[0] = shuffle(1.0f, 0);
}

struct Fragments { const unsigned* a; const unsigned* b; float* c; bool bf16; };
BLOCK_KERNEL(multiply, Fragments, 32) {
  // Row-major a [16, 16], column-major b [16, 8], both as pairs along k; c [16, 8].
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const unsigned a[4] = {p.a[g * 8 + t], p.a[(g + 8) * 8 + t], p.a[g * 8 + t + 4],
                         p.a[(g + 8) * 8 + t + 4]};
  const unsigned b[2] = {p.b[g * 8 + t], p.b[g * 8 + t + 4]};
  float* upper = p.c + g * 8 + t * 2;
  float* lower = upper + 64;
  float c[4] = {upper[0], upper[1], lower[0], lower[1]};
  if (p.bf16) mma_bf16(c, a, b);
  else mma_f16(c, a, b);
  upper[0] = c[0];
  upper[1] = c[1];
  lower[0] = c[2];
  lower[1] = c[3];
})";

std::vector<float> counting(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 101);
  return values;
}

}  // namespace

TEST_CASE("emulator: its properties") {
  CHECK(driver().abi == kAbi);
  CHECK(std::string(driver().name) == "emulator");
  Device d;
  CHECK(std::string(d.properties.name) == "emulated device");
  CHECK(d.properties.major == 9);
  CHECK(d.properties.multiprocessors == 4);
  CHECK(d.properties.shared_bytes == 227 * 1024);
  const Device older("BRRR_EMULATOR_CAPABILITY", "75");
  CHECK(older.properties.major == 7);
  CHECK(older.properties.minor == 5);
}

TEST_CASE("emulator: kernels without barriers, in every order") {
  for (const char* order : {"0", "1", "2", "12345"}) {
    CAPTURE(order);
    Device d("BRRR_EMULATOR_ORDER", order);
    const int n = 1000;
    const std::vector<float> a = counting(n), b(n, 0.5f);
    float* c = d.device(std::vector<float>(n, 0));
    GOOD(d.launch(kernel(program, "add"), 4, 256, Vectors{d.device(a), d.device(b), c, n}));
    const std::vector<float> sums = d.host(c, n);
    for (int i = 0; i < n; ++i) REQUIRE(sums[i] == a[i] + 0.5f);

    float* places = d.device(std::vector<float>(30 * 24, -1));
    const unsigned grid[3] = {2, 3, 5}, block[3] = {4, 3, 2};
    const Vectors p{nullptr, nullptr, places, 0};
    GOOD(driver().launch(kernel(program, "where"), grid, block, 0, &p, sizeof p, d.stream));
    const std::vector<float> found = d.host(places, 30 * 24);
    for (int i = 0; i < 30 * 24; ++i) REQUIRE(found[i] == i / 24 * 1000 + i % 24);
  }
}

TEST_CASE("emulator: blocks with barriers, in every order") {
  for (const char* order : {"0", "1", "77"}) {
    CAPTURE(order);
    Device d("BRRR_EMULATOR_ORDER", order);
    const std::vector<float> a = counting(512);
    const float* in = d.device(a);
    float* c = d.device(std::vector<float>(256, 0));
    GOOD(d.launch(kernel(program, "block_sum"), 2, 256, Vectors{in, nullptr, c, 0}));
    std::vector<float> want(2, 0);
    for (size_t i = 0; i < 512; ++i) want[i / 256] += a[i];
    CHECK(d.host(c, 2) == want);

    GOOD(d.launch(kernel(program, "early"), 2, 100, Vectors{in, nullptr, c, 0}));
    CHECK(d.host(c, 40) == std::vector<float>(40, 5));

    GOOD(d.launch(kernel(program, "warp_sums"), 1, 64, Vectors{in, nullptr, c, 0}));
    const std::vector<float> warps = d.host(c, 8);
    CHECK(warps == std::vector<float>{496, 496, 16, 1, 1520, 1520, 16, 33});
  }
}

TEST_CASE("emulator: shared memory begins as NaN and its end is guarded") {
  Device d;
  float* c = d.device(std::vector<float>(256, 0));
  Function* f = kernel(program, "dynamic", 64 << 10);
  GOOD(d.launch(f, 2, 64, Vectors{nullptr, nullptr, c, 0}, 64 * sizeof(float)));
  CHECK(all_nan(d.host(c, 64)));
  CHECK_FAILS(d.launch(f, 2, 64, Vectors{nullptr, nullptr, c, 1}, 64 * sizeof(float)),
              "kernel dynamic, block (0, 0, 0): writes behind its 256 bytes of shared memory");
}

TEST_CASE("emulator: a race changes the result") {
  Device d;
  float* c = d.device(std::vector<float>(64, 0));
  GOOD(d.launch(kernel(program, "race"), 1, 64, Vectors{d.device(counting(64)), nullptr, c, 0}));
  const std::vector<float> found = d.host(c, 64);
  CHECK(std::isnan(found[0]));
  CHECK(found[63] == 0);
}

TEST_CASE("emulator: threads that wait forever are a failure, and the device stays usable") {
  Device d;
  float* c = d.device(std::vector<float>(256, 0));
  const Vectors p{nullptr, nullptr, c, 0};
  CHECK_FAILS(
      d.launch(kernel(program, "diverges"), 3, 64, p),
      "kernel diverges, block (0, 0, 0): thread (0, 0, 0) waits at __syncthreads() in line");
  CHECK_FAILS(d.launch(kernel(program, "diverges"), 3, 64, p), "but thread (40, 0, 0) waits at");
  CHECK_FAILS(d.launch(kernel(program, "half_a_warp"), 1, 64, p),
              "thread (0, 0, 0) waits for its warp");
  CHECK_FAILS(d.launch(kernel(program, "half_a_warp"), 1, 64, p),
              "but thread (16, 0, 0) has returned");
  CHECK_FAILS(d.launch(kernel(program, "half_a_warp"), 1, 10, p), "which has only 10 lanes");
  CHECK_FAILS(d.launch(kernel(program, "barrier_in_loop"), 1, 64, p), "need BLOCK_KERNEL");
  GOOD(d.launch(kernel(program, "early"), 1, 100, p));
  CHECK(d.host(c, 40) == std::vector<float>(40, 5));
}

TEST_CASE("emulator: mma equals a plain product") {
  struct Fragments {
    const unsigned* a;
    const unsigned* b;
    float* c;
    bool bf16;
  };
  Device d;
  for (bool bf16 : {true, false}) {
    CAPTURE(bf16);
    std::vector<int> a(256), b(128);
    for (int i = 0; i < 256; ++i) a[i] = i * 7 % 31 - 15;
    for (int i = 0; i < 128; ++i) b[i] = i * 5 % 23 - 11;
    std::vector<unsigned> a_pairs(128), b_pairs(64);
    const auto pair = [&](int lo, int hi) { return encode(lo, bf16) | encode(hi, bf16) << 16; };
    for (int i = 0; i < 128; ++i) a_pairs[i] = pair(a[2 * i], a[2 * i + 1]);
    for (int i = 0; i < 64; ++i) b_pairs[i] = pair(b[2 * i], b[2 * i + 1]);
    float* c = d.device(std::vector<float>(128, 0.25f));
    GOOD(d.launch(kernel(program, "multiply"), 1, 32,
                  Fragments{d.device(a_pairs), d.device(b_pairs), c, bf16}));
    const std::vector<float> found = d.host(c, 128);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        int want = 0;
        for (int k = 0; k < 16; ++k) want += a[i * 16 + k] * b[j * 16 + k];
        CHECK(found[i * 8 + j] == static_cast<float>(want) + 0.25f);
      }
    }
  }
}

TEST_CASE("emulator: compile errors keep their line numbers") {
  for (const char* value : {"seven", "eight"}) {
    const std::string text = std::string(
                                 "const int seven = 7;\nusing namespace brrr::vx;\n"
                                 "struct P { int* x; };\nKERNEL(k, P, 32) { *p.x = ") +
                             value + "; }\n";
    const char* image = nullptr;
    size_t bytes = 0;
    const std::string said = words(driver().compile(text.c_str(), "text", 9, 0, &image, &bytes));
    const char* const want = *value == 's' ? "no failure" : "text:4:";
    CHECK_MESSAGE(said.find(want) != std::string::npos, said);
  }
}
